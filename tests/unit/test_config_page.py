"""docs/config.md agrees with the table of settings, and has each setting of Kafka's consumer and producer."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from ottla.config import ApiConfig, ClientConfig, ConsumerConfig, SecurityConfig
from ottla.config.other_clients import LEFT_OUT, LEFT_OUT_BY_PREFIX, reason
from ottla.config.producer import ProducerConfig
from ottla.config.spelling import spellings
from ottla.errors import ConfigError

ROOT = Path(__file__).parents[2]

OF_KAFKA = [
    "bootstrap.servers",
    "client.id",
    "group.id",
    "group.instance.id",
    "client.rack",
    "group.protocol",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "partition.assignment.strategy",
    "group.remote.assignor",
    "max.poll.records",
    "max.poll.interval.ms",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "exclude.internal.topics",
    "allow.auto.create.topics",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "max.partition.fetch.bytes",
    "check.crcs",
    "isolation.level",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "metadata.recovery.strategy",
    "metadata.recovery.rebootstrap.trigger.ms",
    "client.dns.lookup",
    "send.buffer.bytes",
    "receive.buffer.bytes",
    "key.deserializer",
    "value.deserializer",
    "interceptor.classes",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.sample.window.ms",
    "metrics.recording.level",
    "enable.metrics.push",
    "config.providers",
    "security.protocol",
    "security.providers",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.key.password",
    "ssl.keymanager.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.kerberos.service.name",
    "sasl.login.refresh.window.factor",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.jwks.endpoint.url",
]
"""The settings of the consumer of Apache Kafka 4.3, with only some of the many for Kerberos and OAuth."""

OF_KAFKAS_PRODUCER = [
    "acks",
    "batch.size",
    "bootstrap.servers",
    "buffer.memory",
    "client.dns.lookup",
    "client.id",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "config.providers",
    "connections.max.idle.ms",
    "delivery.timeout.ms",
    "enable.idempotence",
    "enable.metrics.push",
    "interceptor.classes",
    "key.serializer",
    "linger.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "metadata.max.age.ms",
    "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "partitioner.class",
    "partitioner.ignore.keys",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retries",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.mechanism",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
    "security.protocol",
    "security.providers",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.key.password",
    "ssl.keymanager.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "transaction.timeout.ms",
    "transaction.two.phase.commit.enable",
    "transactional.id",
    "value.serializer",
]
"""The settings of the producer of Apache Kafka 4.3.1, as its ``ProducerConfig.configNames()`` returns them."""


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "write_config_page.py"))


def test_the_page_agrees_with_the_table(tool: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == tool["page"](), "run python tools/write_config_page.py"


def test_every_setting_has_a_description(tool: dict[str, Any]) -> None:
    silent = [
        name
        for cls in (ClientConfig, ApiConfig, ConsumerConfig, ProducerConfig, SecurityConfig)
        for name, meaning in tool["descriptions"](cls).items()
        if not meaning.strip()
    ]
    assert silent == []


def test_every_row_of_the_page_has_a_description() -> None:
    rows = [line for line in (ROOT / "docs" / "config.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [line for line in rows if not line.rstrip(" |").strip() or line.rstrip().endswith("|  |")] == []


@pytest.mark.parametrize(
    ("config", "name"),
    [*((ConsumerConfig, name) for name in OF_KAFKA), *((ProducerConfig, name) for name in OF_KAFKAS_PRODUCER)],
)
def test_each_setting_of_kafka_is_supported_or_omitted_for_a_reason(config: type[ClientConfig], name: str) -> None:
    if name not in spellings(config):
        with pytest.raises(ConfigError) as refused:
            config.parse({"bootstrap.servers": "localhost:1", name: "x"})
        assert str(refused.value) == (
            f"{name} is a setting of Kafka's clients that Ottla does not support: {reason(name)} (leave it out)"
        )


def test_no_supported_setting_is_listed_as_omitted() -> None:
    honoured = spellings(ConsumerConfig).keys() | spellings(ProducerConfig).keys()
    assert [name for name in LEFT_OUT if name in honoured] == []
    assert reason("no.setting.of.kafka") is None
    assert all(prefix.endswith(".") for prefix in LEFT_OUT_BY_PREFIX)
