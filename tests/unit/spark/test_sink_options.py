"""The options of the sink that are not tried with Spark."""

from __future__ import annotations

import logging

import pytest

from ottla.errors import ConfigError
from ottla.spark.sink_options import ExactlyOnce, parse_sink_options

SINK = {"kafka.bootstrap.servers": "one:9092", "topic": "invoices"}


def test_a_transaction_may_take_ten_minutes() -> None:
    options = parse_sink_options({**SINK, "exactlyOnce": "true"})
    assert options.exactly_once == ExactlyOnce()
    assert dict(options.client)["transaction.timeout.ms"] == "600000"
    assert options.transaction_timeout == 600
    shorter = parse_sink_options({**SINK, "exactlyOnce": "true", "kafka.transaction.timeout.ms": "60000"})
    assert shorter.transaction_timeout == 60


def test_without_transactions_nothing_is_set(caplog: pytest.LogCaptureFixture) -> None:
    options = parse_sink_options({**SINK, "exactlyOnce": "FALSE", "sinkId": "a", "onReplayMismatch": "repeat"})
    assert (options.exactly_once, dict(options.client)) == (None, {"bootstrap.servers": "one:9092"})
    assert "options without an effect unless exactlyOnce is true: sinkId, onReplayMismatch" in caplog.text


def test_the_names_and_numbers_of_a_write(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    given = {**SINK, "exactlyOnce": "true", "sinkId": "a", "txnAppId": "daily", "txnVersion": "20783", "onReplayMismatch": "Repeat"}
    assert parse_sink_options(given).exactly_once == ExactlyOnce("a", ("sinkId", "onReplayMismatch"), "daily", 20783, "repeat")
    assert not caplog.text
    with pytest.raises(ConfigError, match="option onReplayMismatch cannot be skip with txnAppId"):
        parse_sink_options({**given, "onReplayMismatch": "skip"})
    with pytest.raises(ConfigError, match="txnAppId and txnVersion need exactlyOnce=true"):
        parse_sink_options({**given, "exactlyOnce": "false"})
    with pytest.raises(ConfigError, match="option txnAppId must be 1 to 100 letters"):
        parse_sink_options({**given, "txnAppId": "daily.1"})
