"""docs/config.md agrees with the table of settings, and has each setting of Kafka's consumer."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from ottla.config import ClientConfig, ConsumerConfig, SecurityConfig
from ottla.config.other_clients import LEFT_OUT, LEFT_OUT_BY_PREFIX, reason
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


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "write_config_page.py"))


def test_the_page_agrees_with_the_table(tool: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "config.md").read_text(encoding="utf-8") == tool["page"](), "run python tools/write_config_page.py"


def test_every_setting_has_a_description(tool: dict[str, Any]) -> None:
    silent = [
        name
        for cls in (ClientConfig, ConsumerConfig, SecurityConfig)
        for name, meaning in tool["descriptions"](cls).items()
        if not meaning.strip()
    ]
    assert silent == []


def test_every_row_of_the_page_has_a_description() -> None:
    rows = [line for line in (ROOT / "docs" / "config.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [line for line in rows if not line.rstrip(" |").strip() or line.rstrip().endswith("|  |")] == []


@pytest.mark.parametrize("name", OF_KAFKA)
def test_each_setting_of_kafka_is_supported_or_omitted_for_a_reason(name: str) -> None:
    assert (name in spellings(ConsumerConfig)) is not (reason(name) is not None and name not in spellings(ConsumerConfig))
    if name not in spellings(ConsumerConfig):
        with pytest.raises(ConfigError) as refused:
            ConsumerConfig.parse({"bootstrap.servers": "localhost:1", name: "x"})
        assert reason(name) in str(refused.value)


def test_no_supported_setting_is_listed_as_omitted() -> None:
    honoured = spellings(ConsumerConfig).keys() | spellings(SecurityConfig).keys()
    assert [name for name in LEFT_OUT if name in honoured] == []
    assert reason("no.setting.of.kafka") is None
    assert all(prefix.endswith(".") for prefix in LEFT_OUT_BY_PREFIX)
