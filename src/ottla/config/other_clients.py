"""The settings of other Kafka clients that are not settings of Ottla: its equivalents, or why there are none.

Owns two tables: the settings of Kafka's own consumer that Ottla leaves out, each with the reason; and the names of confluent-kafka
(librdkafka), kafka-python, aiokafka and Kafka 0.8's consumer. Must not know how settings are parsed. Invariants: a setting has an
effect, or is refused with a reason, none is silently ignored; a name occurs here once, and each ``setting`` of an answer is a
setting of Ottla.

Sources: librdkafka's CONFIGURATION.md, kafka-python's ``KafkaConsumer.DEFAULT_CONFIG`` and ``KafkaAdminClient.DEFAULT_CONFIG``,
the parameters of ``AIOKafkaConsumer``, ``kafka.consumer.ConsumerConfig`` of Kafka 0.8.2.2 and 1.1.1.
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
_PRODUCER = _instead("it is for producers, which Ottla does not have: use another client, such as confluent-kafka")
_METRICS = _instead("see consumer.metrics() and ottla.health")
_TOPICS = _instead("consumer.subscribe([topic])")
_SETTINGS = _instead("pass the mapping as the first argument, or unpack it: Consumer(settings), Consumer(**settings)")
_REGISTRY = _instead("value_deserializer is a callable that takes bytes: it can ask the registry for the schema")

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
    "bootstrap_timeout_ms": _called("default_api_timeout_ms", "it bounds each call; there is no connection before the first call"),
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
    "max_in_flight_requests_per_connection": _ONE_AT_A_TIME,
    "max.in.flight": _ONE_AT_A_TIME,
    "message.max.bytes": _instead("it bounds what a producer sends; for fetching see max_partition_fetch_bytes"),
    "message.copy.max.bytes": _needless("it is about how librdkafka stores messages"),
    "receive.message.max.bytes": _called("fetch_max_bytes"),
    # the cluster
    "topic.metadata.refresh.interval.ms": _called("metadata_max_age_ms"),
    "topic.metadata.refresh.fast.interval.ms": _called("retry_backoff_ms"),
    "topic.metadata.refresh.fast.cnt": _NO_EFFECT,
    "topic.metadata.refresh.sparse": _needless("only the needed topics are requested, unless there is a pattern"),
    "topic.metadata.propagation.max.ms": _REFRESH,
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
    "interceptors": _instead("wrap the calls of the consumer instead"),
    "internal.termination.signal": _needless("it is about how librdkafka stops its threads"),
    "enable.random.seed": _needless("it is about librdkafka's random numbers"),
    "loop": _needless("an AsyncConsumer belongs to the event loop in which it is first used"),
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
    "group": _called("group_id"),
    "group_name": _called("group_id"),
    "consumer_group": _called("group_id"),
    "topic": _TOPICS,
    "schema.registry.url": _REGISTRY,
    "schema.registry.basic.auth.credentials.source": _REGISTRY,
    "schema.registry.basic.auth.user.info": _REGISTRY,
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
            "max.batch.size",
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
    """The answer for a setting, by its name with dots; ``None``: no other client has it."""
    return _BY_DOTTED.get(name)


LEFT_OUT: Mapping[str, str] = {
    "config.providers": "read secrets with Python and pass the values",
    "enable.metrics.push": "metrics are not pushed to brokers (KIP-714): see consumer.metrics() and ottla.health",
    "interceptor.classes": "Java classes; wrap the calls of the consumer instead",
    "metric.reporters": "Java classes: see consumer.metrics() and ottla.health",
    "metrics.num.samples": "metrics are kept for two samples",
    "metrics.recording.level": "there is one level",
    "metrics.sample.window.ms": "a sample is 30 s",
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
}
"""The settings of Kafka's own consumer that Ottla does not have."""

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
