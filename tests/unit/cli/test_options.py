"""What the shared options mean."""

from __future__ import annotations

import pytest
import typer

from ottla.cli.app import run
from ottla.cli.clients import with_default_timeouts, with_producer_defaults
from ottla.cli.options import client_settings, is_offset, parse_pairs
from ottla.config import ConsumerConfig
from ottla.config.producer import ProducerConfig


def test_pairs_split_at_the_first_equals_sign_and_the_last_of_a_name_wins() -> None:
    assert parse_pairs(["a=1", "b=x=y", "a=2", "c="], "-X") == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("given", ["a", "=1", " =1"])
def test_an_argument_without_a_name_is_bad_usage(given: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not NAME=VALUE"):
        parse_pairs([given], "-X")


@pytest.mark.parametrize("given", ["sasl.password:hunter2", "sasl.password hunter2", "=hunter2", "sasl.password=hunter2\udce9"])
def test_bad_usage_shows_no_value(given: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse_pairs([given], "-X")
    assert "hunter2" not in str(refused.value)
    assert given.startswith("=") or "sasl.password" in str(refused.value)


def test_a_name_that_is_not_utf_8_is_bad_usage() -> None:
    with pytest.raises(typer.BadParameter, match="not UTF-8"):
        parse_pairs(["caf\udce9=1"], "-X")


@pytest.mark.parametrize("text", ["0", "42", str(2**63 - 1)])
def test_offsets(text: str) -> None:
    assert is_offset(text)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "²", str(2**63), "9" * 5000])
def test_invalid_offsets(text: str) -> None:
    assert not is_offset(text)


def test_a_setting_wins_over_the_bootstrap_option() -> None:
    assert client_settings("a:1", ["bootstrap.servers=b:2"]) == {"bootstrap.servers": "b:2"}
    assert client_settings("a:1", None) == {"bootstrap.servers": "a:1"}


def test_underscores_are_dots() -> None:
    given = ["bootstrap_servers=b:2", "enable_auto_commit=false", "ssl_ca_location=ca.pem", "request_timeout=2"]
    assert client_settings("a:1", given) == {
        "bootstrap.servers": "b:2",
        "enable.auto.commit": "false",
        "ssl.ca.location": "ca.pem",
        "request_timeout": "2",
    }


@pytest.mark.parametrize(
    ("given", "request_ms", "call_ms"),
    [
        ({}, 10_000, 10_000),
        ({"request.timeout.ms": "2000"}, 2_000, 2_000),
        ({"request_timeout": "2"}, 2_000, 2_000),
        ({"default_api_timeout_ms": "3000"}, 3_000, 3_000),
        ({"zookeeper.connect": "z:1", "socket.timeout.ms": "4000"}, 4_000, 4_000),
        ({"request.timeout.ms": "1000", "default.api.timeout.ms": "5000"}, 1_000, 5_000),
    ],
)
def test_a_timeout_that_is_given_alone_counts_for_both(given: dict[str, str], request_ms: int, call_ms: int) -> None:
    settings = {**({} if "zookeeper.connect" in given else {"bootstrap.servers": "a:1"}), **given}
    config = ConsumerConfig.parse(with_default_timeouts(settings))
    assert (config.request_timeout_ms, config.default_api_timeout_ms) == (request_ms, call_ms)


@pytest.mark.parametrize(
    ("given", "request_ms", "delivery_ms", "block_ms"),
    [
        ({}, 10_000, 30_000, 30_000),
        ({"delivery.timeout.ms": "20000"}, 10_000, 20_000, 20_000),
        ({"delivery_timeout": "20"}, 10_000, 20_000, 20_000),
        ({"request.timeout.ms": "60000"}, 60_000, 60_005, 60_005),
        ({"linger": "40", "max.block.ms": "7"}, 10_000, 50_000, 7),
    ],
)
def test_timeouts_of_a_producer_fit_together(given: dict[str, str], request_ms: int, delivery_ms: int, block_ms: int) -> None:
    config = ProducerConfig.parse(with_producer_defaults({"bootstrap.servers": "a:1", **given}))
    assert (config.request_timeout_ms, config.delivery_timeout_ms, config.max_block_ms) == (request_ms, delivery_ms, block_ms)


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "-t", "a", "-t", "b"],
        ["consume", "-t", "a", "--topic=b"],
        ["consume", "-t", "a", "-g", "g", "-g", "h"],
        ["produce", "-t", "a", "-t", "b"],
        ["topic", "create", "a", "-p", "1", "-p", "2"],
        ["topic", "list", "-b", "a:1", "-b", "b:1"],
        ["group", "list", "--format", "json", "--format", "table"],
        ["broker", "start", "--port", "1", "--port", "2"],
    ],
)
def test_an_option_of_one_value_is_given_once(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "the option takes one value and is given 2 times" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_consume_rejects_auto_commit(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["consume", "-t", "a", "-g", "g", "-c", "1", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=500", "-X"]
    assert run([*arguments, "enable.auto.commit=true"]) == 2
    assert "-g commits the records that were written" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert run([*arguments, "auto.commit.enable=true"]) == 2
    assert "auto.commit.enable cannot be set" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert run([*arguments, "enable.auto.commit=False"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_an_option_of_many_values_may_be_given_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "group",
                "reset-offsets",
                "g",
                "-t",
                "a",
                "-t",
                "b",
                "-X",
                "retries=1",
                "-X",
                "acks=1",
                "-o",
                "end",
                "-b",
                "127.0.0.1:1",
            ]
        )
        == 1
    )
    assert "retries is a setting of Producer, not of Admin" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:group.protocol=auto ignores")
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["-X", "zookeeper.connect=127.0.0.1:1"], "ZooKeeper could not be reached"),
        (["-X", "zookeeper_connect=127.0.0.1:1", "-X", "auto.commit.enable=false"], "ZooKeeper could not be reached"),
        (["-X", "zookeeper.connect=127.0.0.1:1", "-b", "127.0.0.1:1"], "127.0.0.1:1: Connection refused"),
        (["-X", "zookeeper.connect=127.0.0.1:1", "-X", "group.protocol=classic"], "bootstrap.servers is missing"),
    ],
)
def test_zookeeper_connect_takes_the_place_of_the_default_brokers(
    given: list[str], shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", "127.0.0.1:2")
    limits = [part for name in ("default.api.timeout.ms", "zookeeper.connection.timeout.ms") for part in ("-X", f"{name}=300")]
    assert run(["consume", "-t", "a", "-g", "g", *limits, *given]) == 1
    error = capsys.readouterr().err
    assert shown in error
    assert "127.0.0.1:2" not in error
