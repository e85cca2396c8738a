"""The types of settings, for type checkers and editors, as in ``def __init__(self, **settings: Unpack[ConsumerSettings])``.

Written by ``tools/write_settings_types.py`` from the one table of settings, ``ottla.config``; not edited by hand. Owns the types
of values. Must not know clients, nor what else a value must be. Invariant: each setting of the table is here, in each spelling
that can be a keyword.

The two deserializers of a consumer are separate parameters, since the types of keys and values follow from them. In a mapping,
settings may have Kafka's names with dots as well: see ``docs/config.md``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict

from ottla.assignors import ConsumerPartitionAssignor
from ottla.types import IsolationLevel, OAuthToken

Assignor: TypeAlias = str | ConsumerPartitionAssignor | type[ConsumerPartitionAssignor]
"""The name of an assignor, or your own assignor."""


class ClientSettings(TypedDict, total=False):
    """The settings of all clients."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    sasl_mechanisms: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_jaas_config: str | None
    sasl_oauthbearer_token_provider: Callable[[], str | OAuthToken] | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_extensions: str | Iterable[str] | Mapping[str, str] | None
    ssl_context: ssl.SSLContext | None
    ssl_truststore_location: str | PathLike[str] | None
    ssl_ca_location: str | PathLike[str] | None
    ssl_truststore_certificates: str | None
    ssl_ca_pem: str | None
    ssl_truststore_type: Literal["PEM"] | None
    ssl_keystore_location: str | PathLike[str] | None
    ssl_certificate_location: str | PathLike[str] | None
    ssl_key_location: str | PathLike[str] | None
    ssl_keystore_certificate_chain: str | None
    ssl_certificate_pem: str | None
    ssl_keystore_key: str | None
    ssl_key_pem: str | None
    ssl_keystore_type: Literal["PEM"] | None
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: Literal["https", "", "none"] | None
    ssl_enabled_protocols: str | Iterable[str] | None
    ssl_cipher_suites: str | Iterable[str] | None
    bootstrap_servers: str | Iterable[str] | None
    client_id: str | None
    client_dns_lookup: Literal["use_all_dns_ips"] | None
    request_timeout_ms: int | timedelta | None
    request_timeout: float | timedelta | None
    retry_backoff_ms: int | timedelta | None
    retry_backoff: float | timedelta | None
    retry_backoff_max_ms: int | timedelta | None
    retry_backoff_max: float | timedelta | None
    reconnect_backoff_ms: int | timedelta | None
    reconnect_backoff: float | timedelta | None
    reconnect_backoff_max_ms: int | timedelta | None
    reconnect_backoff_max: float | timedelta | None
    socket_connection_setup_timeout_ms: int | timedelta | None
    socket_connection_setup_timeout: float | timedelta | None
    socket_connection_setup_timeout_max_ms: int | timedelta | None
    socket_connection_setup_timeout_max: float | timedelta | None
    connections_max_idle_ms: int | timedelta | None
    connections_max_idle: float | timedelta | None
    metadata_max_age_ms: int | timedelta | None
    metadata_max_age: float | timedelta | None
    metadata_recovery_strategy: Literal["rebootstrap", "none"] | None
    metadata_recovery_rebootstrap_trigger_ms: int | timedelta | None
    metadata_recovery_rebootstrap_trigger: float | timedelta | None
    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None


class AdminSettings(ClientSettings, total=False):
    """The settings of ``Admin``."""

    default_api_timeout_ms: int | timedelta | None
    default_api_timeout: float | timedelta | None


class ConsumerSettings(ClientSettings, total=False):
    """The settings of ``Consumer`` and ``AsyncConsumer``, except the deserializers."""

    default_api_timeout_ms: int | timedelta | None
    default_api_timeout: float | timedelta | None
    group_id: str | None
    group_instance_id: str | None
    group_protocol: Literal["auto", "consumer", "classic", "zookeeper", "central"] | None
    session_timeout_ms: int | timedelta | None
    session_timeout: float | timedelta | None
    heartbeat_interval_ms: int | timedelta | None
    heartbeat_interval: float | timedelta | None
    partition_assignment_strategy: Assignor | Iterable[Assignor] | None
    group_remote_assignor: str | None
    group_client_assignors: Assignor | Iterable[Assignor] | None
    max_poll_records: int | None
    max_poll_interval_ms: int | timedelta | None
    max_poll_interval: float | timedelta | None
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int | timedelta | None
    auto_commit_interval: float | timedelta | None
    auto_offset_reset: str | timedelta | None
    allow_auto_create_topics: bool | None
    exclude_internal_topics: bool | None
    isolation_level: IsolationLevel | Literal["read_uncommitted", "read_committed"] | None
    fetch_min_bytes: int | None
    fetch_max_bytes: int | None
    fetch_buffer_bytes: int | None
    fetch_max_wait_ms: int | timedelta | None
    fetch_max_wait: float | timedelta | None
    max_partition_fetch_bytes: int | None
    client_rack: str | None
    check_crcs: bool | None
    deserialize_nulls: bool | None
    queued_max_message_chunks: int | None
    consumer_timeout_ms: int | timedelta | None
    consumer_timeout: float | timedelta | None
    zookeeper_connect: str | None
    zookeeper_session_timeout_ms: int | timedelta | None
    zookeeper_session_timeout: float | timedelta | None
    zookeeper_connection_timeout_ms: int | timedelta | None
    zookeeper_connection_timeout: float | timedelta | None
    zookeeper_sync_time_ms: int | timedelta | None
    zookeeper_sync_time: float | timedelta | None
    rebalance_max_retries: int | None
    rebalance_backoff_ms: int | timedelta | None
    rebalance_backoff: float | timedelta | None
    consumer_id: str | None
    offsets_storage: Literal["zookeeper", "kafka"] | None
    dual_commit_enabled: bool | None


class ProducerSettings(ClientSettings, total=False):
    """The settings of ``Producer`` and ``AsyncProducer``."""

    acks: Literal["all", "-1", "1", -1, 1] | None
    enable_idempotence: bool | None
    linger_ms: int | timedelta | None
    linger: float | timedelta | None
    batch_size: int | None
    buffer_memory: int | None
    max_block_ms: int | timedelta | None
    max_block: float | timedelta | None
    max_request_size: int | None
    delivery_timeout_ms: int | timedelta | None
    delivery_timeout: float | timedelta | None
    max_in_flight_requests_per_connection: int | None
    retries: int | None
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_gzip_level: int | None
    compression_lz4_level: int | None
    compression_zstd_level: int | None
    transactional_id: str | None
    transaction_timeout_ms: int | timedelta | None
    transaction_timeout: float | timedelta | None
    partitioner: Callable[[str, bytes | None, int], int] | None
    partitioner_ignore_keys: bool | None
    partitioner_adaptive_partitioning_enable: bool | None
    partitioner_availability_timeout_ms: int | timedelta | None
    partitioner_availability_timeout: float | timedelta | None
    metadata_max_idle_ms: int | timedelta | None
    metadata_max_idle: float | timedelta | None
    key_serializer: Callable[[Any], bytes | bytearray | memoryview | str | None] | None
    value_serializer: Callable[[Any], bytes | bytearray | memoryview | str | None] | None
