"""The settings of other Kafka clients for Python, and what each is called here or why it is not needed.

Owns one table of the names of confluent-kafka (librdkafka), kafka-python and aiokafka that are no settings of Ottla. Must not know
how settings are read. Invariant: a name stands here once, and each ``setting`` of an answer is a setting of Ottla.

Sources: librdkafka's CONFIGURATION.md, kafka-python's ``KafkaConsumer.DEFAULT_CONFIG`` and ``KafkaAdminClient.DEFAULT_CONFIG``,
the parameters of ``AIOKafkaConsumer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """What a user of another client is told about one of its settings."""

    setting: str | None
    """The setting of Ottla that does the same, as a field; ``None``: there is none."""
    why: str
    """What is different about that setting; or why there is none, and what to do instead."""


def _called(setting: str, but: str = "") -> Answer:
    return Answer(setting, but)


def _none(why: str) -> Answer:
    return Answer(None, why)


_LOGGING = _none("Ottla logs with Python's logging, to loggers below 'ottla'")
_PROXY = _none("proxies are not spoken to; connect to the brokers, or to a TCP proxy in front of them")
_VERSIONS = _none("each broker is asked which versions it speaks")
_SOCKETS = _none("sockets are Ottla's own, with TCP_NODELAY")
_REFRESH = _none("metadata is asked for when it is needed, with the pauses of retry_backoff and retry_backoff_max")
_C_CALLBACK = _none("a callback of librdkafka's C interface")
_NO_EFFECT = _none("librdkafka itself has given it up")
_OLD_OFFSETS = _none("offsets are committed to the group: see enable_auto_commit")
_CONTEXT = _none("give an ssl.SSLContext of your own as ssl_context")
_ONE_AT_A_TIME = _none("a consumer has at most two fetches under way with each broker")
_NOT_YET = _none("share groups are not spoken")
_PRODUCER = _none("a setting of producers, and Ottla has none")
_METRICS = _none("see consumer.metrics() and ottla.health")

OTHER_CLIENTS: Mapping[str, Answer] = {
    # connections
    "metadata.broker.list": _called("bootstrap_servers"),
    "socket.timeout.ms": _called("request_timeout_ms"),
    "socket.send.buffer.bytes": _called("send_buffer_bytes"),
    "socket.receive.buffer.bytes": _called("receive_buffer_bytes"),
    "socket_options": _SOCKETS,
    "socket.keepalive.enable": _SOCKETS,
    "socket.nagle.disable": _SOCKETS,
    "socket.blocking.max.ms": _NO_EFFECT,
    "socket.max.fails": _none("a connection is closed after the first request that is not answered in time"),
    "reconnect.backoff.jitter.ms": _NO_EFFECT,
    "broker.address.ttl": _none("names are resolved for each connection"),
    "broker.address.family": _none("all addresses of a name are tried, of IPv4 and of IPv6"),
    "bootstrap_timeout_ms": _called("default_api_timeout_ms", "it bounds each call, and nothing is connected to before the first"),
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": _VERSIONS,
    "api.version.request": _VERSIONS,
    "api.version.request.timeout.ms": _called("request_timeout_ms", "the request for versions is one like others"),
    "api.version.fallback.ms": _VERSIONS,
    "broker.version.fallback": _VERSIONS,
    "proxy_url": _PROXY,
    "socks5_proxy": _PROXY,
    "max_in_flight_requests_per_connection": _ONE_AT_A_TIME,
    "max.in.flight": _ONE_AT_A_TIME,
    "message.max.bytes": _none("it bounds what a producer sends; for what is fetched see max_partition_fetch_bytes"),
    "message.copy.max.bytes": _none("it is about how librdkafka keeps messages"),
    "receive.message.max.bytes": _called("fetch_max_bytes"),
    # the cluster
    "topic.metadata.refresh.interval.ms": _called("metadata_max_age_ms"),
    "topic.metadata.refresh.fast.interval.ms": _called("retry_backoff_ms"),
    "topic.metadata.refresh.fast.cnt": _NO_EFFECT,
    "topic.metadata.refresh.sparse": _none("only the topics that matter are asked for, unless there is a pattern"),
    "topic.metadata.propagation.max.ms": _REFRESH,
    "topic.blacklist": _none("subscribe(pattern=...) may leave topics out: '(?!tmp-).*'"),
    # the group
    "rebalance_timeout_ms": _called("max_poll_interval_ms"),
    "group.protocol.type": _none("it is always 'consumer'; see group_protocol"),
    "coordinator.query.interval.ms": _REFRESH,
    "rebalance_cb": _none("subscribe(topics, on_assign=..., on_revoke=..., on_lost=...)"),
    # commits
    "enable.auto.offset.store": _none(
        "only what a previous poll() handed out is committed; with enable_auto_commit=False only what commit() is given"
    ),
    "auto.commit.enable": _called("enable_auto_commit"),
    "default_offset_commit_callback": _none("commit_async(callback=...); an automatic commit that fails is logged"),
    "offset_commit_cb": _none("commit_async(callback=...); an automatic commit that fails is logged"),
    "on_commit": _none("commit_async(callback=...); an automatic commit that fails is logged"),
    "offset.store.method": _OLD_OFFSETS,
    "offset.store.path": _OLD_OFFSETS,
    "offset.store.sync.interval.ms": _OLD_OFFSETS,
    # records
    "consumer_timeout_ms": _none("poll(timeout) waits for so many seconds; iterating does not end by itself"),
    "fetch.wait.max.ms": _called("fetch_max_wait_ms"),
    "fetch.message.max.bytes": _called("max_partition_fetch_bytes"),
    "fetch.error.backoff.ms": _called("retry_backoff_ms"),
    "fetch.queue.backoff.ms": _none("fetching goes on as soon as there is room in fetch_buffer_bytes"),
    "queued.min.messages": _called("fetch_buffer_bytes", "what is fetched ahead is bounded in bytes"),
    "queued.max.messages.kbytes": _called("fetch_buffer_bytes", "in bytes"),
    "enable.partition.eof": _none("consumer.lag(partition) is 0 at the end"),
    "consume_cb": _C_CALLBACK,
    "consume.callback.max.messages": _called("max_poll_records"),
    "enable_incremental_fetch_sessions": _none("they are used where the broker offers them"),
    "share.acknowledgement.mode": _NOT_YET,
    "topics": _none("consumer.subscribe(topics)"),
    # security
    "ssl_cafile": _called("ssl_truststore_location"),
    "ssl_ca": _called("ssl_truststore_certificates"),
    "ssl_certfile": _called("ssl_keystore_location"),
    "ssl_certificate": _called("ssl_keystore_certificate_chain"),
    "ssl_keyfile": _called("ssl_key_location"),
    "ssl_key": _called("ssl_keystore_key"),
    "ssl_password": _called("ssl_key_password"),
    "ssl_ciphers": _called("ssl_cipher_suites"),
    "ssl_check_hostname": _called("ssl_endpoint_identification_algorithm", "an empty string checks no host name"),
    "ssl_crlfile": _CONTEXT,
    "ssl.crl.location": _CONTEXT,
    "ssl.ca.certificate.stores": _none("without ssl_truststore_location what the operating system trusts is trusted"),
    "ssl.curves.list": _CONTEXT,
    "ssl.sigalgs.list": _CONTEXT,
    "ssl.providers": _CONTEXT,
    "ssl.engine.location": _CONTEXT,
    "ssl.engine.id": _CONTEXT,
    "ssl_engine_callback_data": _CONTEXT,
    "ssl.certificate.verify_cb": _CONTEXT,
    "enable.ssl.certificate.verification": _none(
        "certificates are verified, unless your own ssl.SSLContext, given as ssl_context, does not"
    ),
    "https.ca.location": _called("ssl_truststore_location", "it is for the token endpoint as well"),
    "https.ca.pem": _called("ssl_truststore_certificates", "it is for the token endpoint as well"),
    "sasl_plain_username": _called("sasl_username"),
    "sasl_plain_password": _called("sasl_password"),
    "sasl_oauth_token_provider": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "oauth_cb": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "oauthbearer_token_refresh_cb": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "sasl.oauthbearer.config": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "sasl.oauthbearer.method": _called("sasl_oauthbearer_token_endpoint_url", "with it an identity provider gives the tokens"),
    "enable.sasl.oauthbearer.unsecure.jwt": _called("sasl_oauthbearer_token_provider", "it may give an unsecured token"),
    # logs, metrics, callbacks
    "debug": _LOGGING,
    "log_cb": _LOGGING,
    "log_level": _LOGGING,
    "log.queue": _LOGGING,
    "log.thread.name": _LOGGING,
    "log.connection.close": _LOGGING,
    "logger": _LOGGING,
    "error_cb": _none("errors are raised by the call that waits: see docs/errors.md"),
    "throttle_cb": _METRICS,
    "stats_cb": _METRICS,
    "statistics.interval.ms": _METRICS,
    "metrics_enabled": _METRICS,
    "metric_group_prefix": _METRICS,
    "background_event_cb": _C_CALLBACK,
    "socket_cb": _C_CALLBACK,
    "connect_cb": _C_CALLBACK,
    "closesocket_cb": _C_CALLBACK,
    "open_cb": _C_CALLBACK,
    "resolve_cb": _C_CALLBACK,
    "opaque": _C_CALLBACK,
    "enabled_events": _C_CALLBACK,
    # how a client is built
    "default_topic_conf": _none("there is one kind of settings; give them beside the others"),
    "default.topic.config": _none("there is one kind of settings; give them beside the others"),
    "builtin.features": _none("it tells how librdkafka was built"),
    "plugin.library.paths": _none("plug-ins of librdkafka are not loaded"),
    "interceptors": _none("wrap the calls of the consumer instead"),
    "internal.termination.signal": _none("it is about how librdkafka ends its threads"),
    "enable.random.seed": _none("it is about how librdkafka draws random numbers"),
    "loop": _none("an AsyncConsumer belongs to the event loop that runs when it is first used"),
    "selector": _none("the network thread has its own"),
    "kafka_client": _none("the client is Ottla's own"),
    # producers
    **dict.fromkeys(
        (
            "acks",
            "batch.num.messages",
            "batch.size",
            "buffer.memory",
            "compression.codec",
            "compression.level",
            "compression.type",
            "delivery.report.only.error",
            "delivery.timeout.ms",
            "dr_cb",
            "dr_msg_cb",
            "enable.gapless.guarantee",
            "enable.idempotence",
            "key.serializer",
            "linger.ms",
            "max.block.ms",
            "max.request.size",
            "message.send.max.retries",
            "message.timeout.ms",
            "msg_order_cmp",
            "on_delivery",
            "partitioner",
            "partitioner_cb",
            "produce.offset.report",
            "queue.buffering.backpressure.threshold",
            "queue.buffering.max.kbytes",
            "queue.buffering.max.messages",
            "queue.buffering.max.ms",
            "queuing.strategy",
            "request.required.acks",
            "retries",
            "sticky.partitioning.linger.ms",
            "transaction.timeout.ms",
            "transactional.id",
            "value.serializer",
        ),
        _PRODUCER,
    ),
}

_BY_DOTTED = {name.replace("_", "."): answer for name, answer in OTHER_CLIENTS.items()}


def answer_to(name: str) -> Answer | None:
    """What to tell of a setting, by its name with dots; ``None``: no other client has it."""
    return _BY_DOTTED.get(name)
