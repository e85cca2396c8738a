"""The configuration files of Kafka 0.8's consumer, and the settings of zookeeper groups."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ottla import Admin, OttlaConfigWarning
from ottla.config import AdminConfig, ConsumerConfig
from ottla.config.old_consumer import NAMES
from ottla.config.other_clients import OTHER_CLIENTS, OTHER_CONSUMERS
from ottla.errors import ConfigError

OF_KAFKA_0_8 = (
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "client.id",
    "consumer.id",
    "consumer.timeout.ms",
    "dual.commit.enabled",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.min.bytes",
    "fetch.wait.max.ms",
    "group.id",
    "num.consumer.fetchers",
    "offsets.channel.backoff.ms",
    "offsets.channel.socket.timeout.ms",
    "offsets.commit.max.retries",
    "offsets.storage",
    "partition.assignment.strategy",
    "queued.max.message.chunks",
    "rebalance.backoff.ms",
    "rebalance.max.retries",
    "refresh.leader.backoff.ms",
    "socket.receive.buffer.bytes",
    "socket.timeout.ms",
    "zookeeper.connect",
    "zookeeper.connection.timeout.ms",
    "zookeeper.session.timeout.ms",
    "zookeeper.sync.time.ms",
)
"""Each setting that ``kafka.consumer.ConsumerConfig`` of Kafka 1.1.1 reads; 0.8.2.2 has all of them but ``fetch.max.bytes``."""

REFUSED = {
    "num.consumer.fetchers",
    "offsets.channel.backoff.ms",
    "offsets.channel.socket.timeout.ms",
    "offsets.commit.max.retries",
}

FILE = {
    "zookeeper.connect": "zk1:2181,zk2:2181/kafka",
    "group.id": "billing",
    "zookeeper.session.timeout.ms": "10000",
    "zookeeper.sync.time.ms": "200",
    "auto.commit.enable": "false",
    "auto.offset.reset": "smallest",
    "fetch.message.max.bytes": "2097152",
    "fetch.wait.max.ms": "300",
    "socket.timeout.ms": "20000",
    "socket.receive.buffer.bytes": "65536",
    "refresh.leader.backoff.ms": "150",
    "partition.assignment.strategy": "roundrobin",
    "offsets.storage": "kafka",
    "queued.max.message.chunks": "10",
    "consumer.timeout.ms": "5000",
}
"""A configuration file of 0.8."""


def zookeeper(settings: dict[str, Any] | None = None, /, **keywords: Any) -> ConsumerConfig:
    return ConsumerConfig.parse({"zookeeper.connect": "zk:2181", "group.id": "g", **(settings or {})}, **keywords)


def test_a_configuration_file_of_kafka_0_8_is_read_as_it_is() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = ConsumerConfig.parse(FILE)
    expected = {
        "group_protocol": "zookeeper",
        "bootstrap_servers": (),
        "zookeeper_connect": "zk1:2181,zk2:2181/kafka",
        "zookeeper_session_timeout_ms": 10_000,
        "zookeeper_connection_timeout_ms": 10_000,
        "zookeeper_sync_time_ms": 200,
        "rebalance_backoff_ms": 200,
        "rebalance_max_retries": 4,
        "client_id": "billing",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": 2_097_152,
        "fetch_max_wait_ms": 300,
        "request_timeout_ms": 20_000,
        "receive_buffer_bytes": 65_536,
        "retry_backoff_ms": 150,
        "partition_assignment_strategy": ("roundrobin",),
        "offsets_storage": "kafka",
        "dual_commit_enabled": True,
        "queued_max_message_chunks": 10,
        "consumer_timeout_ms": 5_000,
    }
    assert {name: getattr(config, name) for name in expected} == expected


def test_the_defaults_are_those_of_0_8() -> None:
    config = zookeeper()
    expected = {
        "auto_commit_interval_ms": 60_000,
        "auto_offset_reset": "latest",
        "client_id": "g",
        "consumer_id": None,
        "consumer_timeout_ms": -1,
        "dual_commit_enabled": False,
        "enable_auto_commit": True,
        "exclude_internal_topics": True,
        "fetch_max_bytes": 52_428_800,
        "fetch_max_wait_ms": 100,
        "fetch_min_bytes": 1,
        "offsets_storage": "zookeeper",
        "partition_assignment_strategy": ("range",),
        "queued_max_message_chunks": 2,
        "rebalance_backoff_ms": 2_000,
        "rebalance_max_retries": 4,
        "request_timeout_ms": 30_000,
        "zookeeper_connection_timeout_ms": 6_000,
        "zookeeper_session_timeout_ms": 6_000,
        "zookeeper_sync_time_ms": 2_000,
    }
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("name", OF_KAFKA_0_8)
def test_every_setting_of_0_8_is_accepted_or_refused_with_a_reason(name: str) -> None:
    value = {
        "auto.commit.enable": "true",
        "auto.offset.reset": "largest",
        "dual.commit.enabled": "false",
        "exclude.internal.topics": "true",
        "offsets.storage": "zookeeper",
        "partition.assignment.strategy": "range",
        "zookeeper.connect": "zk:2181",
        "consumer.id": "one",
        "group.id": "g",
        "client.id": "c",
    }.get(name, "5000")
    if name in REFUSED:
        with pytest.raises(
            ConfigError, match=rf"^{name} is a setting of another client that Ottla does not need: .+ .leave it out.$"
        ):
            zookeeper({name: value})
    else:
        assert NAMES.get(name, name.replace(".", "_")) in zookeeper({name: value}).given


@pytest.mark.parametrize("name", sorted(NAMES))
def test_other_groups_refuse_names_of_0_8_with_those_of_today(name: str) -> None:
    assert {**OTHER_CLIENTS, **OTHER_CONSUMERS}[name].setting == NAMES[name]
    for settings in ({"bootstrap.servers": "b:1"}, {"zookeeper.connect": "zk:1", "bootstrap.servers": "b:1"}):
        with pytest.raises(ConfigError, match=f"^{name} is called {NAMES[name].replace('_', '.')} here"):
            ConsumerConfig.parse({**settings, name: "true"})


def test_a_keyword_has_the_name_of_today() -> None:
    with pytest.raises(ConfigError, match=r"^auto_commit_enable is called enable_auto_commit here"):
        zookeeper(auto_commit_enable=False)


def test_the_names_of_0_8_and_of_today_are_one_setting() -> None:
    with pytest.raises(ConfigError, match=r"enable.auto.commit is given twice, as auto.commit.enable and as enable_auto_commit"):
        zookeeper({"auto.commit.enable": "true"}, enable_auto_commit=True)


@pytest.mark.parametrize(
    ("settings", "protocol"),
    [
        ({"zookeeper_connect": "zk:2181"}, "zookeeper"),
        ({"zookeeper.connect": "zk:2181", "bootstrap.servers": None}, "zookeeper"),
        ({"zookeeper_connect": "zk:2181", "bootstrap_servers": "b:1", "group_protocol": "Zookeeper"}, "zookeeper"),
        ({"zookeeper_connect": "zk:2181", "bootstrap_servers": "b:1", "group_protocol": "classic"}, "classic"),
        ({"zookeeper_connect": "zk:2181", "bootstrap_servers": "b:1"}, "auto"),
        ({"zookeeper_connect": None, "bootstrap_servers": "b:1"}, "auto"),
    ],
)
def test_which_settings_mean_a_zookeeper_group(settings: dict[str, Any], protocol: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OttlaConfigWarning)
        config = ConsumerConfig.parse(settings, group_id="g")
    assert config.group_protocol == protocol
    assert config.fetch_max_wait_ms == (100 if protocol == "zookeeper" else 500)
    assert [str(server) for server in config.bootstrap_servers] == ["b:1"] * bool(settings.get("bootstrap_servers"))


def test_other_protocols_need_bootstrap_servers() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ConsumerConfig.parse(zookeeper_connect="zk:2181", group_protocol="classic")
    with pytest.raises(ConfigError, match="zookeeper_connect is a setting of Consumer, not of Admin"):
        AdminConfig.parse(zookeeper_connect="zk:2181")
    with pytest.raises(ConfigError, match="zookeeper_connect is a setting of Consumer, not of Admin"):
        Admin(zookeeper_connect="zk:2181")  # type: ignore[call-arg]


def test_a_zookeeper_group_needs_zookeeper() -> None:
    with pytest.raises(ConfigError, match=r"group\.protocol=zookeeper needs zookeeper\.connect"):
        ConsumerConfig.parse(group_protocol="zookeeper", bootstrap_servers="b:1")


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        ("zk:2181", "zk:2181"),
        (" one:1 , two:2 ", "one:1,two:2"),
        ("one,two:2", "one:2181,two:2"),
        ("[::1]:3,[fe80::1]", "[::1]:3,[fe80::1]:2181"),
        ("zk:2181/", "zk:2181"),
        ("zk:1/a/.b/c..d", "zk:1/a/.b/c..d"),
        ("one:1,two:2/kafka", "one:1,two:2/kafka"),
    ],
)
def test_the_servers_of_zookeeper(value: str, parsed: str) -> None:
    config = zookeeper({"zookeeper.connect": value})
    assert config.zookeeper_connect == parsed
    assert zookeeper({"zookeeper.connect": parsed}) == config


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("", ""),
        (" ", ""),
        (["zk:2181"], ""),
        ("/kafka", "'' is not a server"),
        ("one:1,,two:2", "'' is not a server"),
        ("one:1,", "'' is not a server"),
        ("one:x", "'one:x' is not a server"),
        ("one:0", "'one:0' is not a server"),
        ("one:65536", "'one:65536' is not a server"),
        ("::1:2181", "'::1:2181' is not a server"),
        ("one two:1", "'one two:1' is not a server"),
        ("PLAINTEXT://one:1", "not a path of ZooKeeper"),
        ("one:1//", "'//' is not a path of ZooKeeper"),
        ("one:1/a/", "'/a/' is not a path of ZooKeeper"),
        ("one:1/a//b", "not a path of ZooKeeper"),
        ("one:1/a/../b", "not a path of ZooKeeper"),
        ("one:1/.", "not a path of ZooKeeper"),
        ("one:1/a\0", "not a path of ZooKeeper"),
        ("one:1/\ud800", "not a path of ZooKeeper"),
        ("one:1/kafka,two:1/kafka", "'/kafka,two:1/kafka' is not a path of ZooKeeper; it is written once, after the last server"),
    ],
)
def test_an_invalid_connect_string_raises_with_what_is_wrong(value: Any, wrong: str) -> None:
    with pytest.raises(ConfigError) as raised:
        zookeeper({"zookeeper.connect": value})
    assert str(raised.value).startswith("zookeeper.connect=")
    assert "expected HOST:PORT, more servers after commas, and at the end a chroot" in str(raised.value)
    assert str(raised.value).endswith(wrong)


@given(
    st.lists(st.sampled_from(["zk", ":", ",", "/", "[", "]", "1", "2181", " ", ".", "kafka", "\0", "é"]), max_size=8).map("".join)
)
def test_any_connect_string_is_accepted_or_raises_a_config_error(value: str) -> None:
    try:
        parsed = zookeeper({"zookeeper.connect": value}).zookeeper_connect
    except ConfigError:
        return
    assert parsed is not None
    assert zookeeper({"zookeeper.connect": parsed}).zookeeper_connect == parsed


@pytest.mark.parametrize("strategy", ["sticky", "range,roundrobin", ["cooperative-sticky"]])
def test_an_assignor_that_no_zookeeper_group_has_raises(strategy: Any) -> None:
    with pytest.raises(ConfigError, match="in a zookeeper group expected one of range and roundrobin, the same for all members"):
        zookeeper(partition_assignment_strategy=strategy)


@pytest.mark.parametrize("group_id", ["a/b", "two words", "ü", "..", "a" * 250])
def test_a_group_id_that_0_8_refuses_raises(group_id: str) -> None:
    with pytest.raises(ConfigError, match=r"^group\.id=.*: in a zookeeper group it consists of up to 249 letters, digits"):
        zookeeper({"group.id": group_id})
    assert ConsumerConfig.parse(bootstrap_servers="b:1", group_id=group_id).group_id == group_id


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rebalance.max.retries", 0, "a whole number of at least 1"),
        ("zookeeper.session.timeout.ms", 0, "a whole number of at least 1"),
        ("queued.max.message.chunks", 0, "a whole number of at least 1"),
        ("consumer.timeout.ms", -2, "a whole number of at least -1"),
        ("offsets.storage", "disk", "zookeeper or kafka"),
        ("consumer.id", "a/b", "up to 249 letters, digits"),
        ("auto.offset.reset", "newest", "earliest, latest, none, or by_duration:"),
    ],
)
def test_an_invalid_value_raises_with_the_expected_form(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=.*expected {expected}"):
        zookeeper({name: value})


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({"group_protocol": "zookeeper", "session_timeout": 20}, "group.protocol=zookeeper ignores session.timeout.ms"),
        (
            {"group_protocol": "zookeeper", "group_instance_id": "i", "heartbeat_interval": 1, "group_remote_assignor": "uniform"},
            "group.protocol=zookeeper ignores group.instance.id, group.remote.assignor, heartbeat.interval.ms",
        ),
        ({"group_protocol": "classic", "bootstrap_servers": "b:1"}, "group.protocol=classic ignores zookeeper.connect"),
        (
            {"bootstrap_servers": "b:1", "offsets_storage": "kafka", "session_timeout": 20, "group_remote_assignor": "uniform"},
            "group.protocol=auto ignores offsets.storage, zookeeper.connect",
        ),
        ({"dual_commit_enabled": True}, "offsets.storage=zookeeper ignores dual.commit.enabled: it is for offsets.storage=kafka"),
        (
            {"zookeeper_session_timeout": 3.999},
            "zookeeper.session.timeout.ms is 3999, but a server with tickTime=2000 grants 4000 to 40000 and would use 4000:"
            " choose a value in this range, unless your servers have other limits",
        ),
        (
            {"zookeeper_session_timeout": 41},
            "zookeeper.session.timeout.ms is 41000, but a server with tickTime=2000 grants 4000 to 40000 and would use 40000:"
            " choose a value in this range, unless your servers have other limits",
        ),
    ],
)
def test_a_setting_without_its_usual_effect_warns_once(settings: dict[str, Any], ignored: str) -> None:
    with pytest.warns(OttlaConfigWarning) as caught:
        zookeeper(**settings)
    assert [str(warning.message) for warning in caught] == [ignored]


@pytest.mark.parametrize(
    "settings",
    [
        {"zookeeper_session_timeout_ms": 4_000},
        {"zookeeper_session_timeout_ms": 40_000, "max_poll_interval": 1},
        {"offsets_storage": "kafka", "dual_commit_enabled": False},
        {"bootstrap_servers": "b:1", "group_protocol": "zookeeper"},
        {"group.id": None},
    ],
)
def test_a_setting_with_its_usual_effect_does_not_warn(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = zookeeper(settings)
    assert config.poll_interval("zookeeper") == config.max_poll_interval_ms


def test_implied_values_do_not_count_as_given() -> None:
    assert zookeeper().given == {"zookeeper_connect", "group_id"}
    kafka = zookeeper(offsets_storage="kafka", dual_commit_enabled=False, rebalance_backoff=1, client_id="c")
    assert (kafka.dual_commit_enabled, kafka.rebalance_backoff_ms, kafka.client_id) == (False, 1_000, "c")
    assert dataclasses.replace(kafka, group_id="other").group_protocol == "zookeeper"
