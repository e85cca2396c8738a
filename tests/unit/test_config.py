"""The table of settings: spellings, values, errors and warnings."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import ssl
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ottla import Admin, AsyncConsumer, Consumer, OttlaConfigWarning
from ottla.assignors import ConsumerPartitionAssignor
from ottla.config import AdminConfig, ClientConfig, ConsumerConfig, HostPort, Setting
from ottla.config.spelling import table
from ottla.errors import ConfigError
from ottla.types import IsolationLevel, short_repr


def consumer(settings: dict[str, Any] | None = None, /, **keywords: Any) -> ConsumerConfig:
    return ConsumerConfig.parse({"bootstrap.servers": "kafka:9092", **(settings or {})}, **keywords)


SETTINGS: Mapping[str, Setting] = table(ConsumerConfig)
DURATIONS = sorted(name for name, setting in SETTINGS.items() if setting.duration)


def test_the_defaults_are_kafkas() -> None:
    config = consumer(group_id="g")
    expected = {
        "session_timeout_ms": 45_000,
        "heartbeat_interval_ms": 3_000,
        "max_poll_interval_ms": 300_000,
        "max_poll_records": 500,
        "auto_commit_interval_ms": 5_000,
        "auto_offset_reset": "latest",
        "fetch_min_bytes": 1,
        "fetch_max_bytes": 52_428_800,
        "fetch_max_wait_ms": 500,
        "request_timeout_ms": 30_000,
        "default_api_timeout_ms": 60_000,
        "retry_backoff_ms": 100,
        "retry_backoff_max_ms": 1_000,
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1_000,
        "socket_connection_setup_timeout_ms": 10_000,
        "socket_connection_setup_timeout_max_ms": 30_000,
        "connections_max_idle_ms": 540_000,
        "metadata_max_age_ms": 300_000,
        "metadata_recovery_strategy": "rebootstrap",
        "metadata_recovery_rebootstrap_trigger_ms": 300_000,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.enable_auto_commit
    assert config.check_crcs
    assert config.isolation_level is IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_has_a_dotted_and_a_snake_case_name(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OttlaConfigWarning)
        value = getattr(consumer(group_id="g"), name)
        others = {"bootstrap_servers": "kafka:9092", "group_id": "g"}
        others.pop(name, None)
        value = "kafka:9092" if name == "bootstrap_servers" else value
        dotted = ConsumerConfig.parse({name.replace("_", "."): value}, **others)
        assert dotted == ConsumerConfig.parse({name: value}, **others)
        assert dotted == ConsumerConfig.parse(others, **{name: value})


@pytest.mark.filterwarnings("ignore:zookeeper.session.timeout.ms is 2500")
@pytest.mark.parametrize("name", DURATIONS)
def test_durations_in_seconds_in_milliseconds_and_as_timedelta(name: str) -> None:
    assert name.endswith("_ms")
    short = name.removesuffix("_ms")
    given: list[dict[str, Any]] = [{short: 2.5}, {short: timedelta(seconds=2.5)}, {short: "2.5"}]
    given += [{name: 2_500}, {name: "2500"}, {name: timedelta(milliseconds=2_500)}, {name.replace("_", "."): 2_500}]
    values = set()
    for settings in given:
        more: dict[str, Any] = {"session_timeout_ms": 2_501} if name == "heartbeat_interval_ms" else {}
        more |= {"heartbeat_interval_ms": 1} if name == "session_timeout_ms" else {}
        more |= {"request_timeout_ms": 1} if name == "default_api_timeout_ms" else {}
        more |= (
            {"group_protocol": "zookeeper", "zookeeper_connect": "z:1"} if "zookeeper" in (SETTINGS[name].protocols or ()) else {}
        )
        values.add(getattr(consumer(settings, **more), name))
    assert values == {2_500}


@pytest.mark.parametrize(
    ("settings", "keywords"),
    [
        ({"request.timeout.ms": 1, "request_timeout_ms": 1}, {}),
        ({"request.timeout.ms": 1_000}, {"request_timeout": 1}),
        ({"client.id": "a"}, {"client_id": "a"}),
    ],
)
def test_a_setting_given_twice_is_an_error_that_names_both(settings: dict[str, Any], keywords: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"is given twice, as .* and as ") as raised:
        consumer(settings, **keywords)
    assert all(spelling in str(raised.value) for spelling in (*settings, *keywords))


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("max_pol_interval", "max_poll_interval"),
        ("session.timeout", "session.timeout.ms"),
        ("bootstrap_server", "bootstrap_servers"),
        ("auto.offset.rest", "auto.offset.reset"),
        ("groupid", "group_id"),
    ],
)
def test_an_unknown_setting_raises_with_the_closest_name(wrong: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{wrong}'.*did you mean {near}"):
        consumer({wrong: 1})


def test_an_unknown_setting_without_a_similar_name_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError) as raised:
        consumer(zzzzzzzzzzz=1)
    assert str(raised.value) == "unknown setting 'zzzzzzzzzzz' (docs/config.md lists all settings)"


@pytest.mark.parametrize(
    ("spelling", "meant"),
    [
        ("ssl.truststore.locatoin", "ssl.truststore.location"),
        ("sasl_pasword", "sasl_password"),
        ("sasl.oauthbearer.token.endpiont.url", "sasl.oauthbearer.token.endpoint.url"),
        ("session_timeout_s", "session_timeout"),
        ("BOOTSTRAP_SERVERS", "bootstrap_servers"),
        ("max.poll.record", "max.poll.records"),
    ],
)
def test_a_misspelled_setting_raises_with_the_correct_name(spelling: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{spelling}' .did you mean {meant}\\?"):
        ConsumerConfig.parse({"bootstrap.servers": "h:1", spelling: "x"})


@pytest.mark.parametrize("name", ["ssl.provider", "sasl_kerberos_service_name", "interceptor.classes", "metric_reporters"])
def test_an_unsupported_setting_raises(name: str) -> None:
    with pytest.raises(ConfigError, match="does not support"):
        consumer({name: "x"})


def test_a_setting_of_another_client_raises() -> None:
    with pytest.raises(ConfigError, match="group_id is a setting of Consumer, not of Admin"):
        AdminConfig.parse(bootstrap_servers="kafka:9092", group_id="g")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_poll_records", 0, "of at least 1"),
        ("max_poll_records", "many", "a whole number"),
        ("max_poll_records", True, "a whole number"),
        ("max_poll_records", 1 << 31, "a whole number"),
        ("request_timeout_ms", 1.5, "a whole number .*, in milliseconds, or a timedelta"),
        ("request_timeout", "soon", "a number of seconds, or a timedelta"),
        ("request_timeout", float("nan"), "a number of seconds"),
        ("request_timeout", -1, "a number of seconds"),
        ("enable_auto_commit", "yes", "true or false"),
        ("enable_auto_commit", 1, "true or false"),
        ("auto_offset_reset", "newest", "earliest, latest, none, or by_duration:"),
        ("isolation_level", "serializable", "read_uncommitted or read_committed"),
        ("group_id", " ", "non-empty"),
        ("group_instance_id", "a b", "letters, digits"),
        ("client_id", 7, "a string"),
        ("client_id", "\ud800", "UTF-8"),
        ("client_id", "a" * 0x8000, r"client_id='a{199}\.\.\.: expected a string of at most 32767 bytes"),
        ("group_id", "a" * 0x8000, "at most 32767 bytes"),
        ("client_rack", "\ud800", "UTF-8"),
        ("group_id", "\ud800", "UTF-8"),
        ("partition_assignment_strategy", ["stickiest"], "range, roundrobin, sticky, cooperative-sticky, and"),
        ("partition_assignment_strategy", "range,range", "different"),
        ("partition_assignment_strategy", [], "assignors"),
        ("group_client_assignors", ["stickiest"], "range, roundrobin, sticky, cooperative-sticky, and"),
        ("group_client_assignors", ["range", "range"], "different"),
        ("value_deserializer", "org.apache.kafka.common.serialization.StringDeserializer", "a callable"),
        ("security_protocol", "TLS", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        ("bootstrap_servers", b"kafka:9092", r"=b'kafka:9092': expected HOST:PORT as a string, or a list of such strings"),
        ("bootstrap_servers", [b"kafka:9092"], "HOST:PORT as a string, or a list of such strings"),
        ("bootstrap_servers", ("kafka", 9092), "HOST:PORT as a string, or a list of such strings"),
        ("bootstrap_servers", {"kafka:9092": 1}, "HOST:PORT as a string, or a list of such strings"),
        ("bootstrap_servers", "ka\0fka:9092", "HOST:PORT"),
        ("max_poll_records", 2**31, "a whole number from 1 to 2147483647"),
        ("max_poll_interval", 10**9, "a number of seconds, .*a whole number from 1 to 2147483647"),
        ("max_poll_interval", b"5", "a number of seconds"),
        ("auto_offset_reset", "smallest", "expected earliest$"),
        ("auto_offset_reset", "end", "expected latest$"),
        ("partition_assignment_strategy", b"range", "a list of different assignors out of range"),
        ("partition_assignment_strategy", {"range": 1}, "a list of different assignors out of range"),
        ("ssl_cipher_suites", [5], "a list of strings"),
        ("ssl_context", ssl.SSLContext, "an ssl.SSLContext"),
        ("sasl_mechanism", "AWS_MSK_IAM", "OAUTHBEARER, with a token provider"),
        ("sasl_oauthbearer_extensions", {"a": b"b"}, "name=value"),
        ("bootstrap_servers", "kafka", "HOST:PORT"),
        ("bootstrap_servers", "kafka:port", "HOST:PORT"),
        ("bootstrap_servers", "kafka:0", "from 1 to 65535"),
        ("bootstrap_servers", "kafka:65536", "from 1 to 65535"),
        ("bootstrap_servers", "http://kafka:80", "HOST:PORT"),
        ("bootstrap_servers", " , ", "at least one"),
        ("bootstrap_servers", 9092, "a list"),
    ],
)
def test_an_invalid_value_raises_with_the_expected_form(name: str, value: Any, expected: str) -> None:
    settings = {"bootstrap_servers": "kafka:9092", "group_id": "g", name: value}
    with pytest.raises(ConfigError, match=expected) as raised:
        ConsumerConfig.parse(settings)
    assert str(raised.value).startswith(f"{name}={short_repr(value)}: expected ")


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("Earliest", "earliest"),
        ("by_duration:PT1H", timedelta(hours=1)),
        ("by_duration:P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("BY_DURATION:p2d", timedelta(days=2)),
        ("by_duration:PT0S", timedelta(0)),
        (timedelta(minutes=5), timedelta(minutes=5)),
    ],
)
def test_auto_offset_reset(value: Any, meaning: Any) -> None:
    assert consumer(auto_offset_reset=value).auto_offset_reset == meaning


@pytest.mark.parametrize(
    "value",
    ["by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:P1DT", "by_duration:PT-1H", "by_duration:1h"],
)
def test_an_invalid_duration_raises(value: str) -> None:
    with pytest.raises(ConfigError, match="by_duration:PT1H30M"):
        consumer(auto_offset_reset=value)


@pytest.mark.parametrize("duration", ["P1000000000D", "PT1" + "0" * 400 + "H", "PT" + "9" * 400 + "S", "P999999999DT24H"])
def test_a_duration_that_is_too_long_raises(duration: str) -> None:
    with pytest.raises(ConfigError, match=r"auto_offset_reset='by_duration:.*expected a duration of at most 999999999 days"):
        consumer(auto_offset_reset=f"by_duration:{duration}")
    assert consumer(auto_offset_reset="by_duration:P999999999D").auto_offset_reset == timedelta(days=999_999_999)


def test_accepted_forms_of_bootstrap_servers() -> None:
    expected = (HostPort("one", 9092), HostPort("::1", 9093))
    assert consumer({"bootstrap.servers": "one:9092, [::1]:9093,one:9092"}).bootstrap_servers == expected
    assert consumer({"bootstrap.servers": ["one:9092", "PLAINTEXT://[::1]:9093"]}).bootstrap_servers == expected
    assert [str(server) for server in expected] == ["one:9092", "[::1]:9093"]


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ConsumerConfig.parse(group_id="g")


def test_none_means_the_default() -> None:
    assert consumer(group_id=None, request_timeout=None) == consumer()


def test_string_values_from_property_files() -> None:
    config = consumer(
        {
            "group.id": "g",
            "enable.auto.commit": "False",
            "max.poll.records": " 10 ",
            "isolation.level": "READ_COMMITTED",
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RoundRobinAssignor,range",
            "auto.offset.reset": "Earliest",
        }
    )
    assert (config.enable_auto_commit, config.max_poll_records) == (False, 10)
    assert config.isolation_level is IsolationLevel.READ_COMMITTED
    assert config.partition_assignment_strategy == ("roundrobin", "range")
    assert config.auto_offset_reset == "earliest"


def test_without_a_group_automatic_commits_are_disabled() -> None:
    assert not consumer().enable_auto_commit
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit needs a group"):
        consumer(enable_auto_commit=True)


def test_the_heartbeat_interval_must_be_below_the_session_timeout() -> None:
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms is 10000: it must be below"):
        consumer(heartbeat_interval=10, session_timeout=10)


def test_a_default_api_timeout_below_the_request_timeout_raises() -> None:
    with pytest.raises(ConfigError, match=r"default\.api\.timeout\.ms is 1000, below request\.timeout\.ms"):
        consumer(default_api_timeout=1)


def test_settings_that_the_group_protocol_ignores_warn_once() -> None:
    with pytest.warns(OttlaConfigWarning, match=r"group\.protocol=classic ignores group\.remote\.assignor") as caught:
        consumer(group_id="g", group_protocol="classic", group_remote_assignor="uniform")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        consumer(group_id="g", group_protocol="classic", session_timeout=10)


@pytest.mark.parametrize(
    "settings",
    [
        {"group_protocol": "classic", "max_poll_interval": 10},
        {"group_protocol": "classic", "max_poll_interval": 10, "session_timeout": 20},
        {"max_poll_interval": 10, "partition_assignment_strategy": "range"},
        {"max_poll_interval": 10, "session_timeout": 20, "partition_assignment_strategy": "range"},
    ],
)
def test_a_poll_interval_below_the_session_timeout_of_a_classic_group_warns(settings: dict[str, Any]) -> None:
    with pytest.warns(OttlaConfigWarning, match=r"max\.poll\.interval\.ms is 10000, below session\.timeout\.ms") as caught:
        read = consumer(group_id="g", **settings)
    assert len(caught) == 1
    assert (read.poll_interval("classic"), read.poll_interval("consumer")) == (read.session_timeout_ms, 10_000)


@pytest.mark.parametrize(
    "settings",
    [
        {"group_protocol": "classic", "max_poll_interval": 10, "session_timeout": 10},
        {"group_protocol": "consumer", "max_poll_interval": 10},
        {"max_poll_interval": 10},
        {"max_poll_interval": 10, "session_timeout": 20},
        {"max_poll_interval": 10, "partition_assignment_strategy": "range", "group_client_assignors": "range"},
        {"group_id": None, "max_poll_interval": 10, "partition_assignment_strategy": "range"},
    ],
)
def test_a_poll_interval_that_may_have_an_effect_does_not_warn(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        consumer(**{"group_id": "g", **settings})


@pytest.mark.parametrize("make", [Consumer, AsyncConsumer, ConsumerConfig.parse])
def test_a_warning_names_the_line_that_creates_the_consumer(make: Any) -> None:
    with pytest.warns(OttlaConfigWarning) as caught:
        make(bootstrap_servers="a:1", group_id="g", group_protocol="classic", max_poll_interval=10)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_about_an_admin_names_its_line() -> None:
    with pytest.warns(OttlaConfigWarning) as caught, Admin(bootstrap_servers="a:1", ssl_truststore_location="x"):
        pass
    assert [warning.filename for warning in caught] == [__file__]


def test_settings_of_consumer_assignors_have_no_effect_in_a_classic_group() -> None:
    with pytest.warns(OttlaConfigWarning, match=r"group\.protocol=classic ignores group\.client\.assignors"):
        consumer(group_id="g", group_protocol="classic", group_client_assignors="range")
    javas = "org.apache.kafka.clients.consumer.StickyAssignor"
    assert consumer(group_id="g", group_client_assignors=javas).group_client_assignors == ("sticky",)
    assert consumer(group_id="g").group_client_assignors == ()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        consumer().client_id = "other"  # type: ignore[misc]


@given(
    st.text(max_size=30), st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.text(max_size=5)))
)
def test_any_value_is_accepted_or_raises_a_config_error(name: str, value: Any) -> None:
    for spelling in (name, *sorted(SETTINGS)):
        with warnings.catch_warnings(), contextlib.suppress(ConfigError):
            warnings.simplefilter("ignore", OttlaConfigWarning)
            assert isinstance(ConsumerConfig.parse({spelling: value}, bootstrap_servers="a:1"), ClientConfig)


class Text(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is its text
    """A string whose ``str()`` is not its text."""

    GROUP = "billing"


class Number(enum.IntEnum):
    FIVE = 5


def test_values_of_subclasses_and_other_number_types() -> None:
    import numpy as np

    config = ConsumerConfig.parse(
        bootstrap_servers=["a:1,b:2"],
        group_id=Text.GROUP,
        client_id=Text.GROUP,
        max_poll_records=np.int64(7),
        fetch_min_bytes=Number.FIVE,
    )
    assert [str(server) for server in config.bootstrap_servers] == ["a:1", "b:2"]
    assert (config.group_id, config.client_id) == ("billing", "billing")
    assert {type(value) for value in (config.group_id, config.client_id)} == {str}
    assert (config.max_poll_records, config.fetch_min_bytes) == (7, 5)
    assert {type(value) for value in (config.max_poll_records, config.fetch_min_bytes)} == {int}


def test_a_token_instead_of_its_provider_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="sasl_oauthbearer_token_provider: expected a callable") as raised:
        consumer(sasl_oauthbearer_token_provider="eyJhbGciOi")
    assert "eyJ" not in str(raised.value)


class WantsWeight(ConsumerPartitionAssignor):
    name = "weighted"

    def __init__(self, weight: int) -> None:
        self.weight = weight

    def assign(self, cluster: Any, members: Any) -> Any:
        return {}


def test_an_assignor_class_whose_constructor_needs_arguments_raises() -> None:
    with pytest.raises(ConfigError, match=r"expected an instance of WantsWeight, since WantsWeight\(\) raises: .*'weight'"):
        consumer(partition_assignment_strategy=[WantsWeight])


class Unwilling(WantsWeight):
    name = "unwilling"

    def __init__(self) -> None:
        raise RuntimeError("no weights today")


@pytest.mark.parametrize("setting", ["partition_assignment_strategy", "group_client_assignors"])
def test_an_exception_of_an_assignor_class_names_the_setting(setting: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{setting}=.* since Unwilling\(\) raises: RuntimeError\('no weights today'\)"
    ) as raised:
        consumer(**{setting: [Unwilling]})
    assert isinstance(raised.value.cause, RuntimeError)
