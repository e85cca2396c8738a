"""The settings of other Kafka clients that are not settings of Ottla: its equivalents, or why there are none.

Owns the settings of Kafka's own clients that Ottla leaves out, each with the reason; and the names of confluent-kafka (librdkafka),
kafka-python, aiokafka and Kafka 0.8's clients: one table for all clients, one for consumers, one for producers. Must not know how
settings are parsed. Invariants: a setting has an effect, or is refused with a reason, none is silently ignored; for each client a
name has one answer, and each ``setting`` of an answer is a setting of that client.

Sources: librdkafka's CONFIGURATION.md; ``DEFAULT_CONFIG`` of kafka-python's ``KafkaConsumer``, ``KafkaProducer`` and
``KafkaAdminClient``; the parameters of ``AIOKafkaConsumer`` and ``AIOKafkaProducer``; ``kafka.consumer.ConsumerConfig`` of Kafka
0.8.2.2 and 1.1.1; ``kafka.producer.ProducerConfig`` of Kafka 0.8.2.2 and Java's of 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """The answer to a user who gives a setting of another client."""

    setting: str | None
    """Ottla's equivalent setting, as a field; ``None``: there is none."""
    why: str
    """How that setting differs; or why there is none, or what to do instead."""
    needless: bool = False
    """Whether the user can leave it out without a replacement."""


def _called(setting: str, but: str = "") -> Answer:
    return Answer(setting, but)


def _needless(why: str) -> Answer:
    return Answer(None, why, needless=True)


def _instead(what: str) -> Answer:
    return Answer(None, what)


_LOGGING = _instead("Ottla logs with Python's logging, to loggers below 'ottla'")
_PROXY = _instead("proxies are not supported; connect to the brokers, or to a TCP proxy in front of them")
_VERSIONS = _needless("Ottla asks each broker which versions it supports")
_SOCKETS = _instead("Ottla sets the options of its sockets itself, with TCP_NODELAY")
_REFRESH = _needless("metadata is requested when it is needed, with pauses from retry_backoff to retry_backoff_max")
_C_CALLBACK = _instead("a callback of librdkafka's C interface")
_NO_EFFECT = _needless("librdkafka no longer uses it")
_OLD_OFFSETS = _needless("offsets are committed to the group: see enable_auto_commit")
_CONTEXT = _instead("pass your own ssl.SSLContext as ssl_context")
_ONE_AT_A_TIME = _needless("a consumer has at most two fetches in flight to each broker")
_NOT_YET = _instead("share groups are not supported")
_METRICS = _instead("see metrics() and health()")
_TOPICS = _instead("consumer.subscribe([topic])")
_SETTINGS = _instead("pass the mapping as the first argument, or unpack it: Consumer(settings), Consumer(**settings)")
_REGISTRY = _instead("value_deserializer is a callable that takes bytes: it can ask the registry for the schema")
_REGISTRY_OF_PRODUCER = _instead("value_serializer is a callable that returns bytes: it can ask the registry for the schema")
_SEND = _instead("producer.send(topic, value)")
_ON_DELIVERY = _instead("producer.send(topic, value, on_delivery=callback)")
_ORDER = _needless("the records of a partition are written in the order of send()")


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
    "socket.max.fails": _needless("a connection is closed after the first request that is not answered in time"),
    "reconnect.backoff.jitter.ms": _NO_EFFECT,
    "broker.address.ttl": _needless("names are resolved again for each connection"),
    "broker.address.family": _instead("all addresses of a name are tried, IPv4 and IPv6"),
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": _VERSIONS,
    "api.version.request": _VERSIONS,
    "api.version.request.timeout.ms": _called(
        "socket_connection_setup_timeout_ms", "the request for versions is part of connecting"
    ),
    "api.version.fallback.ms": _VERSIONS,
    "broker.version.fallback": _VERSIONS,
    "proxy_url": _PROXY,
    "socks5_proxy": _PROXY,
    "message.copy.max.bytes": _needless("it is about how librdkafka stores messages"),
    # the cluster
    "topic.metadata.refresh.interval.ms": _called("metadata_max_age_ms"),
    "topic.metadata.refresh.fast.interval.ms": _called("retry_backoff_ms"),
    "topic.metadata.refresh.fast.cnt": _NO_EFFECT,
    "topic.metadata.refresh.sparse": _needless("only the needed topics are requested, unless there is a pattern"),
    "topic.metadata.propagation.max.ms": _REFRESH,
    # security
    "ssl_cafile": _called("ssl_truststore_location"),
    "ssl_ca": _called("ssl_truststore_certificates"),
    "ssl_certfile": _called("ssl_keystore_location"),
    "ssl_certificate": _called("ssl_keystore_certificate_chain"),
    "ssl_keyfile": _called("ssl_key_location"),
    "ssl_key": _called("ssl_keystore_key"),
    "ssl_password": _called("ssl_key_password"),
    "ssl_ciphers": _called("ssl_cipher_suites"),
    "ssl_check_hostname": _called("ssl_endpoint_identification_algorithm", "an empty string disables the check"),
    "ssl_crlfile": _CONTEXT,
    "ssl.crl.location": _CONTEXT,
    "ssl.ca.certificate.stores": _needless("without ssl_truststore_location the CAs of the operating system are trusted"),
    "ssl.curves.list": _CONTEXT,
    "ssl.sigalgs.list": _CONTEXT,
    "ssl.providers": _CONTEXT,
    "ssl.engine.location": _CONTEXT,
    "ssl.engine.id": _CONTEXT,
    "ssl_engine_callback_data": _CONTEXT,
    "ssl.certificate.verify_cb": _CONTEXT,
    "enable.ssl.certificate.verification": _instead(
        "certificates are always verified, except by your own ssl.SSLContext, passed as ssl_context"
    ),
    "https.ca.location": _called("ssl_truststore_location", "it is also used for the token endpoint"),
    "https.ca.pem": _called("ssl_truststore_certificates", "it is also used for the token endpoint"),
    "sasl_plain_username": _called("sasl_username"),
    "sasl_plain_password": _called("sasl_password"),
    "sasl_oauth_token_provider": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "oauth_cb": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "oauthbearer_token_refresh_cb": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "sasl.oauthbearer.config": _called("sasl_oauthbearer_token_provider", "a callable without arguments"),
    "sasl.oauthbearer.method": _called("sasl_oauthbearer_token_endpoint_url", "with it the tokens come from an identity provider"),
    "enable.sasl.oauthbearer.unsecure.jwt": _called("sasl_oauthbearer_token_provider", "it may return an unsecured token"),
    # logs, metrics, callbacks
    "debug": _LOGGING,
    "log_cb": _LOGGING,
    "log_level": _LOGGING,
    "log.queue": _LOGGING,
    "log.thread.name": _LOGGING,
    "log.connection.close": _LOGGING,
    "logger": _LOGGING,
    "error_cb": _instead("errors are raised by the call that waits: see docs/errors.md"),
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
    "default_topic_conf": _instead("there is only one kind of settings; add them to the others"),
    "default.topic.config": _instead("there is only one kind of settings; add them to the others"),
    "builtin.features": _needless("it says how librdkafka was built"),
    "plugin.library.paths": _instead("plug-ins of librdkafka cannot be loaded"),
    "interceptors": _instead("wrap the calls of the client instead"),
    "internal.termination.signal": _needless("it is about how librdkafka stops its threads"),
    "enable.random.seed": _needless("it is about librdkafka's random numbers"),
    "loop": _needless("a client for asyncio belongs to the event loop in which it is first used"),
    "selector": _needless("the network thread has its own"),
    "kafka_client": _needless("the client is Ottla's own"),
    "config": _SETTINGS,
    "conf": _SETTINGS,
    "settings": _SETTINGS,
    # what may be meant
    "broker": _called("bootstrap_servers"),
    "brokers": _called("bootstrap_servers"),
    "broker_list": _called("bootstrap_servers"),
    "hosts": _called("bootstrap_servers"),
    "servers": _called("bootstrap_servers"),
}
"""Names that no client has."""

OTHER_CONSUMERS: Mapping[str, Answer] = {
    # connections
    "bootstrap_timeout_ms": _called("default_api_timeout_ms", "it bounds each call; there is no connection before the first call"),
    "max_in_flight_requests_per_connection": _ONE_AT_A_TIME,
    "max.in.flight": _ONE_AT_A_TIME,
    "message.max.bytes": _instead("it bounds what a producer sends; for fetching see max_partition_fetch_bytes"),
    "receive.message.max.bytes": _called("fetch_max_bytes"),
    "topic.blacklist": _instead("a pattern of subscribe(pattern=...) can exclude topics: '(?!tmp-).*'"),
    # the group
    "rebalance_timeout_ms": _called("max_poll_interval_ms"),
    "group.protocol.type": _needless("it is always 'consumer'; see group_protocol"),
    "coordinator.query.interval.ms": _REFRESH,
    "rebalance_cb": _instead("subscribe(topics, on_assign=..., on_revoke=..., on_lost=...)"),
    # commits
    "enable.auto.offset.store": _needless(
        "automatic commits cover only what previous polls returned; set enable_auto_commit=False to commit explicit offsets"
    ),
    "auto.commit.enable": _called("enable_auto_commit"),
    "default_offset_commit_callback": _instead("commit_async(callback=...); an automatic commit that fails is logged"),
    "offset_commit_cb": _instead("commit_async(callback=...); an automatic commit that fails is logged"),
    "on_commit": _instead("commit_async(callback=...); an automatic commit that fails is logged"),
    "offset.store.method": _OLD_OFFSETS,
    "offset.store.path": _OLD_OFFSETS,
    "offset.store.sync.interval.ms": _OLD_OFFSETS,
    # records
    "fetch.wait.max.ms": _called("fetch_max_wait_ms"),
    "fetch.message.max.bytes": _called("max_partition_fetch_bytes"),
    "fetch.error.backoff.ms": _called("retry_backoff_ms"),
    "fetch.queue.backoff.ms": _needless("fetching continues as soon as there is space in fetch_buffer_bytes"),
    "queued.min.messages": _called("fetch_buffer_bytes", "prefetching is bounded in bytes"),
    "queued.max.messages.kbytes": _called("fetch_buffer_bytes", "in bytes"),
    "enable.partition.eof": _instead("consumer.lag(partition) is 0 at the end"),
    "consume_cb": _C_CALLBACK,
    "consume.callback.max.messages": _called("max_poll_records"),
    "enable_incremental_fetch_sessions": _needless("they are used where the broker supports them"),
    "share.acknowledgement.mode": _NOT_YET,
    "topics": _TOPICS,
    # Kafka 0.8's consumer
    "autocommit.enable": _called("enable_auto_commit", "this is the name in Kafka 0.7"),
    "refresh.leader.backoff.ms": _called("retry_backoff_ms"),
    "num.consumer.fetchers": _needless("the network thread fetches from all brokers at once"),
    "offsets.channel.backoff.ms": _needless("commits are retried with pauses from retry_backoff to retry_backoff_max"),
    "offsets.channel.socket.timeout.ms": _needless("request_timeout bounds each request, those about offsets as well"),
    "offsets.commit.max.retries": _needless("close(timeout) retries the last commit until the timeout"),
    "mirror.topics.whitelist": _instead("it is a setting of MirrorMaker; topics go to subscribe()"),
    "mirror.topics.blacklist": _instead("it is a setting of MirrorMaker; topics go to subscribe()"),
    "mirror.consumer.numthreads": _instead("it is a setting of MirrorMaker; the number of threads goes to streams()"),
    # what may be meant
    "group": _called("group_id"),
    "group_name": _called("group_id"),
    "consumer_group": _called("group_id"),
    "topic": _TOPICS,
    "schema.registry.url": _REGISTRY,
    "schema.registry.basic.auth.credentials.source": _REGISTRY,
    "schema.registry.basic.auth.user.info": _REGISTRY,
}
"""Names that ``Consumer`` does not have."""

OTHER_PRODUCERS: Mapping[str, Answer] = {
    # connections
    "bootstrap_timeout_ms": _called("max_block_ms", "there is no connection before the first call"),
    "max.in.flight": _called("max_in_flight_requests_per_connection"),
    "receive.message.max.bytes": _needless("the responses to a producer are short"),
    "client.rack": _needless("records go to the leader of their partition, in any rack"),
    "topic.blacklist": _needless("only the topics that records are sent to are requested"),
    "allow.auto.create.topics": _needless("sending to a topic creates it, where brokers allow that"),
    # what is written, and when
    "request.required.acks": _called("acks"),
    "message.max.bytes": _called("max_request_size"),
    "queue.buffering.max.ms": _called("linger_ms"),
    "max.batch.size": _called("batch_size"),
    "batch.num.messages": _called("batch_size", "in bytes"),
    "queue.buffering.max.messages": _called("buffer_memory", "in bytes"),
    "queue.buffering.max.kbytes": _called("buffer_memory", "in bytes"),
    "queue.buffering.backpressure.threshold": _needless("max_in_flight_requests_per_connection bounds the requests"),
    "message.timeout.ms": _called("delivery_timeout_ms"),
    "message.send.max.retries": _called("retries"),
    "compression.codec": _called("compression_type"),
    "compression.level": _instead("each codec has its own: compression_gzip_level, compression_lz4_level, compression_zstd_level"),
    "enable.gapless.guarantee": _instead(
        "the records after one that failed are written nevertheless; the error of that one is raised"
    ),
    "queuing.strategy": _ORDER,
    "msg_order_cmp": _ORDER,
    "produce.offset.report": _NO_EFFECT,
    # partitions
    "partitioner_cb": _called("partitioner"),
    "sticky.partitioning.linger.ms": _needless("records without a key go to another partition after each batch_size bytes"),
    # outcomes
    "dr_cb": _ON_DELIVERY,
    "dr_msg_cb": _ON_DELIVERY,
    "on_delivery": _ON_DELIVERY,
    "delivery.report.only.error": _instead("without on_delivery, flush() and close() raise the first error"),
    # old producers of Kafka
    "producer.type": _needless("send() never waits for brokers, except for the metadata of a topic and for memory"),
    "queue.enqueue.timeout.ms": _called("max_block_ms"),
    "serializer.class": _called("value_serializer", "a callable"),
    "key.serializer.class": _called("key_serializer", "a callable"),
    "compressed.topics": _instead("a producer compresses all topics, or none: create one for each codec"),
    "metadata.fetch.timeout.ms": _called("max_block_ms"),
    "block.on.buffer.full": _called("max_block_ms", "0 raises an error at once"),
    "timeout.ms": _called("request_timeout_ms"),
    # what may be meant
    "compression": _called("compression_type"),
    "codec": _called("compression_type"),
    "topic": _SEND,
    "topics": _SEND,
    "schema.registry.url": _REGISTRY_OF_PRODUCER,
    "schema.registry.basic.auth.credentials.source": _REGISTRY_OF_PRODUCER,
    "schema.registry.basic.auth.user.info": _REGISTRY_OF_PRODUCER,
}
"""Names that ``Producer`` does not have."""

OTHERS_OF: Mapping[str, Mapping[str, Answer]] = {"Consumer": OTHER_CONSUMERS, "Producer": OTHER_PRODUCERS}
"""The tables of the clients that have their own."""

_FOR_ALL = {name.replace("_", "."): answer for name, answer in OTHER_CLIENTS.items()}
_FOR_ONE = {client: {name.replace("_", "."): answer for name, answer in answers.items()} for client, answers in OTHERS_OF.items()}


def answer_to(name: str, client: str) -> Answer | None:
    """The answer for a setting, by its name with dots, that is given to a client; ``None``: no other client of its kind has it."""
    return _FOR_ONE.get(client, {}).get(name) or _FOR_ALL.get(name)


LEFT_OUT: Mapping[str, str] = {
    "config.providers": "read secrets with Python and pass the values",
    "enable.metrics.push": "metrics are not pushed to brokers (KIP-714): see metrics() and health()",
    "interceptor.classes": "Java classes; wrap the calls of the client instead",
    "metric.reporters": "Java classes: see metrics() and health()",
    "metrics.num.samples": "metrics are kept for two samples",
    "metrics.recording.level": "there is one level",
    "metrics.sample.window.ms": "a sample is 30 s",
    "partitioner.class": "a Java class; partitioner is a callable",
    "security.providers": "Java classes; TLS is Python's ssl module",
    "ssl.engine.factory.class": "a Java class; give an ssl.SSLContext as ssl_context",
    "ssl.keymanager.algorithm": "Java's; TLS is Python's ssl module",
    "ssl.keystore.password": "PEM files have no password: ssl_key_password is the password of the key",
    "ssl.protocol": "the newest of ssl_enabled_protocols that both sides support is used",
    "ssl.provider": "Java's; TLS is Python's ssl module",
    "ssl.secure.random.implementation": "Java's; TLS is Python's ssl module",
    "ssl.trustmanager.algorithm": "Java's; TLS is Python's ssl module",
    "ssl.truststore.password": "PEM files have none",
    "sasl.client.callback.handler.class": "a Java class",
    "sasl.login.callback.handler.class": "a Java class; a token comes from sasl_oauthbearer_token_provider",
    "sasl.login.class": "a Java class",
    "transaction.two.phase.commit.enable": "brokers do not allow it yet (KIP-939); Transaction.prepare() needs no setting",
}
"""The settings of Kafka's own clients that Ottla does not have."""

LEFT_OUT_BY_PREFIX: Mapping[str, str] = {
    "sasl.kerberos.": "Kerberos (GSSAPI) is not supported",
    "sasl.login.": "a token is renewed before its lifetime ends",
    "sasl.oauthbearer.": "tokens come from sasl_oauthbearer_token_provider or client credentials; brokers validate them",
}
"""All other settings with a prefix; the first matching prefix counts."""


def reason(name: str) -> str | None:
    """Why Ottla does not have a setting of Kafka, by its name with dots; ``None``: Kafka does not have it either."""
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    return next((why for prefix, why in LEFT_OUT_BY_PREFIX.items() if name.startswith(prefix)), None)
