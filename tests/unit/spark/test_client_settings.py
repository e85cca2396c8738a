"""The options ``kafka.*``: forbidden and ignored settings, and the names in errors."""

from __future__ import annotations

import logging

import pytest

from ottla.errors import ConfigError, ConnectionFailedError, OttlaTimeoutError
from ottla.spark.client_settings import IGNORED, with_option_names
from ottla.spark.options import parse_options

TOPIC = {"kafka.bootstrap.servers": "one:9092", "subscribe": "orders"}


def client(**settings: str) -> dict[str, str]:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    return dict(parse_options({**TOPIC, **given}).client)


def test_settings_without_effect_are_ignored_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    found = client(acks="all", enable_metrics_push="false", metric_reporters=" ", linger_ms="5", client_id="me")
    assert found == {"bootstrap.servers": "one:9092", "client.id": "me"}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "kafka.acks, kafka.enable.metrics.push, kafka.linger.ms, kafka.metric.reporters" in caplog.text


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_each_ignored_setting_is_ignored_with_any_value(name: str) -> None:
    assert client(**{name: "any"}) == {"bootstrap.servers": "one:9092"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kafka.fetch.min.byte": "1"}, ["'kafka.fetch.min.byte'", "did you mean kafka.fetch.min.bytes?"]),
        ({"kafka.fetch.min.bytes": "many"}, ["kafka.fetch.min.bytes='many'", "whole number"]),
        ({"kafka.isolation.level": "commited"}, ["kafka.isolation.level", "read_committed"]),
        ({"kafka.bootstrap.servers": "one"}, ["kafka.bootstrap.servers", "HOST:PORT"]),
        ({"kafka.schema.registry.url": "http://registry"}, ["schema.registry.url", "decode the columns in the query"]),
        ({"kafka.metric.reporters": "com.example.Reporter"}, ["metric.reporters", "Java classes"]),
        ({"kafka.request.timeout.ms": "5000", "kafka.default.api.timeout.ms": "2000"}, ["kafka.default.api.timeout.ms is 2000"]),
        ({"kafka.sasl.mechanism": "MAGIC"}, ["kafka.sasl.mechanism"]),
    ],
)  # fmt: skip
def test_names_and_values_are_checked_with_the_options(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options({**TOPIC, **given})
    for word in words:
        assert word in str(raised.value)
    assert "kafka.kafka." not in str(raised.value)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        client(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config="secret of mine")
    assert "secret of mine" not in str(raised.value)


def test_the_time_of_a_call_bounds_that_of_a_request() -> None:
    assert client(default_api_timeout_ms="2000")["request.timeout.ms"] == "2000"
    assert "request.timeout.ms" not in client(default_api_timeout_ms="40000")
    assert client(default_api_timeout_ms="9000", request_timeout_ms="3000")["request.timeout.ms"] == "3000"


def test_a_setting_that_has_no_effect_beside_another_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    client(security_protocol="PLAINTEXT", ssl_truststore_location="/ca.pem")
    assert "ssl.truststore.location" in caplog.text


def test_a_hint_of_the_client_names_the_option() -> None:
    error = ConnectionFailedError("no broker could be reached", {}, hint="check bootstrap_servers and that the brokers are up")
    assert with_option_names(error).hint == "check kafka.bootstrap.servers and that the brokers are up"
    assert with_option_names(error).hint == "check kafka.bootstrap.servers and that the brokers are up"


def test_a_hint_of_a_producer_names_the_option() -> None:
    error = OttlaTimeoutError("no memory", hint="send more slowly, or increase buffer_memory, max_block or delivery.timeout.ms")
    named = "send more slowly, or increase kafka.buffer.memory, kafka.max.block.ms or kafka.delivery.timeout.ms"
    assert with_option_names(error, of_sink=True).hint == named
    assert with_option_names(error, of_sink=True).hint == named
    error = OttlaTimeoutError("no answer", hint="check bootstrap_servers, or increase request_timeout")
    named = "check kafka.bootstrap.servers, or increase kafka.request.timeout.ms"
    assert with_option_names(error, of_sink=True).hint == named
