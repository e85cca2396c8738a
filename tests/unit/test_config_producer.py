"""The settings of a producer: Kafka's defaults, bounds and rules between settings, and what is refused."""

from __future__ import annotations

import contextlib
import enum
import random
import warnings
import zlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ottla import OttlaConfigWarning, Producer
from ottla.config import ClientConfig, Setting
from ottla.config.producer import Acks, ProducerConfig
from ottla.config.spelling import dotted, table
from ottla.errors import ConfigError
from ottla.types import short_repr

SETTINGS: Mapping[str, Setting] = table(ProducerConfig)
OWN = [name for name in SETTINGS if name not in table(ClientConfig)]
LONGEST = 2**31 - 1
"""Milliseconds."""


def producer(settings: dict[str, Any] | None = None, /, **keywords: Any) -> ProducerConfig:
    """A config; settings that cause a warning are an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ProducerConfig.parse({"bootstrap.servers": "kafka:9092", **(settings or {})}, **keywords)


def test_the_defaults_are_kafkas() -> None:
    config = producer()
    assert {name: getattr(config, name) for name in OWN} == {
        "acks": -1,
        "enable_idempotence": True,
        "linger_ms": 5,
        "batch_size": 16_384,
        "buffer_memory": 33_554_432,
        "max_block_ms": 60_000,
        "max_request_size": 1_048_576,
        "delivery_timeout_ms": 120_000,
        "max_in_flight_requests_per_connection": 5,
        "retries": 2**31 - 1,
        "compression_type": "none",
        "compression_gzip_level": -1,
        "compression_lz4_level": 9,
        "compression_zstd_level": 3,
        "transactional_id": None,
        "transaction_timeout_ms": 60_000,
        "partitioner": None,
        "partitioner_ignore_keys": False,
        "partitioner_adaptive_partitioning_enable": True,
        "partitioner_availability_timeout_ms": 0,
        "metadata_max_idle_ms": 300_000,
        "key_serializer": None,
        "value_serializer": None,
    }


OTHER_VALUES: dict[str, Any] = {
    "partitioner": max,
    "key_serializer": str,
    "value_serializer": str,
    "transactional_id": "payments-1",
}
"""Values of the settings whose default is none."""


@pytest.mark.parametrize("name", OWN)
def test_every_setting_has_a_dotted_and_a_snake_case_name(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OttlaConfigWarning)
        value = {"partitioner": max, "key_serializer": str, "value_serializer": str, "transactional_id": "payments-1"}.get(
            name, getattr(producer(), name)
        )
        config = ProducerConfig.parse({dotted(name): value}, bootstrap_servers="kafka:9092")
        assert config == ProducerConfig.parse({name: value}, bootstrap_servers="kafka:9092")
    assert (config.given, getattr(config, name)) == ({name, "bootstrap_servers"}, value)


@pytest.mark.parametrize("name", [name for name in OWN if SETTINGS[name].duration])
def test_durations_in_seconds_in_milliseconds_and_as_timedelta(name: str) -> None:
    short, more = name.removesuffix("_ms"), {"request_timeout_ms": 1} if name == "delivery_timeout_ms" else {}
    given: list[dict[str, Any]] = [{short: 7.5}, {short: timedelta(seconds=7.5)}, {name: 7_500}, {dotted(name): "7500"}]
    assert {getattr(producer(settings, **more), name) for settings in given} == {7_500}


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("linger_ms", (0, LONGEST)),
        ("batch_size", (0, 2**31 - 1)),
        ("buffer_memory", (1, 2**63 - 1)),
        ("max_block_ms", (0, LONGEST)),
        ("max_request_size", (1, 2**31 - 1)),
        ("delivery_timeout_ms", (1, LONGEST)),
        ("max_in_flight_requests_per_connection", (1, 2**31 - 1)),
        ("retries", (0, 2**31 - 1)),
        ("compression_gzip_level", (-1, 9)),
        ("compression_lz4_level", (1, 17)),
        ("compression_zstd_level", (-131_072, 22)),
        ("partitioner_availability_timeout_ms", (0, LONGEST)),
        ("metadata_max_idle_ms", (5_000, LONGEST)),
        ("send_buffer_bytes", (-1, 2**31 - 1)),
        ("receive_buffer_bytes", (-1, 2**31 - 1)),
    ],
)
def test_the_bounds_of_a_number(name: str, bounds: tuple[int, int]) -> None:
    more: dict[str, Any] = {"linger": 0, "request_timeout_ms": 1} if name != "linger_ms" else {}
    more |= {"enable_idempotence": False} if name.startswith(("max_in_flight", "retries")) else {}
    more |= {"compression_type": name.split("_")[1]} if name.endswith("_level") else {}
    for value in bounds:
        assert getattr(producer({name: value}, **more), name) == value
    too_high = bounds[1] + 1 if bounds[1] != LONGEST or name == "delivery_timeout_ms" or not SETTINGS[name].duration else 2**63
    for wrong in (bounds[0] - 1, too_high, "many", True, 1.5):
        with pytest.raises(ConfigError, match=f"^{name}={short_repr(wrong)}: expected a whole number"):
            producer({name: wrong}, **more)


@pytest.mark.parametrize("name", ["linger", "max_block", "partitioner_availability_timeout", "metadata_max_idle"])
def test_kafkas_longest_time_is_the_longest_time_here(name: str) -> None:
    config = producer({f"{name.replace('_', '.')}.ms": 2**63 - 1})
    assert getattr(config, f"{name}_ms") == LONGEST


@pytest.mark.parametrize(
    ("value", "acks"),
    [("all", Acks.ALL), (" ALL ", Acks.ALL), (-1, Acks.ALL), ("-1", Acks.ALL), (1, Acks.LEADER), ("1", Acks.LEADER)],
)
def test_acks(value: Any, acks: Acks) -> None:
    config = producer(acks=value, enable_idempotence=acks is Acks.ALL)
    assert (config.acks, int(config.acks)) == (acks, -1 if acks is Acks.ALL else 1)


class Number(enum.IntEnum):
    LEADER = 1


def test_acks_as_another_kind_of_number() -> None:
    import numpy as np

    for value in (Number.LEADER, np.int16(1)):
        assert producer(acks=value, enable_idempotence=False).acks is Acks.LEADER


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("acks", 0, "all or 1: without acknowledgements nothing is known of a record"),
        ("acks", "0", "all or 1: without acknowledgements nothing is known of a record"),
        ("acks", 2, "all or 1$"),
        ("acks", "leader", "all or 1$"),
        ("acks", True, "all or 1$"),
        ("acks", 1.0, "all or 1$"),
        ("compression_type", "lzma", "none, gzip, snappy, lz4 or zstd"),
        ("compression_type", "producer", "none, gzip, snappy, lz4 or zstd"),
        ("compression_gzip_level", 0, "a whole number from 1 to 9, or -1"),
        ("enable_idempotence", "yes", "true or false"),
        ("partitioner_ignore_keys", 1, "true or false"),
        ("partitioner", "murmur2_random", "no value: Kafka's own partitioner, .* is the default$"),
        ("partitioner", "random", "partitioner_ignore_keys=True in its place$"),
        ("partitioner", "Consistent_Random", "a callable, such as lambda topic, key, partitions: zlib.crc32"),
        ("partitioner", "fnv1a", "a callable, such as lambda"),
        ("partitioner", "org.apache.kafka.clients.producer.RoundRobinPartitioner", "a callable .*Java classes cannot be used here"),
        (
            "key_serializer",
            "org.apache.kafka.common.serialization.StringSerializer",
            "a callable .*Java classes cannot be used here",
        ),
        ("value_serializer", b"json", "a callable that returns bytes, text or None"),
    ],
)
def test_an_invalid_value_raises_with_the_expected_form(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"expected {expected}") as raised:
        producer({name: value})
    assert str(raised.value).startswith(f"{name}={short_repr(value)}: expected ")


def test_the_partitioner_in_the_error_is_one() -> None:
    with pytest.raises(ConfigError) as raised:
        producer(partitioner="consistent")
    text = str(raised.value)
    partitioner = eval(text[text.index("lambda") : text.index(", which")], {"zlib": zlib})
    chosen = producer(partitioner=partitioner).partitioner
    assert chosen is partitioner
    assert (partitioner("orders", b"123456789", 1 << 32), partitioner("orders", None, 6)) == (0xCBF43926, 0)


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, None),
        ({"compression_type": "snappy"}, None),
        ({"compression_type": "gzip"}, None),
        ({"compression_type": "gzip", "compression_gzip_level": -1}, None),
        ({"compression_type": "gzip", "compression_gzip_level": 1}, 1),
        ({"compression_type": "LZ4"}, 9),
        ({"compression_type": "lz4", "compression_lz4_level": 12}, 12),
        ({"compression_type": "zstd"}, 3),
        ({"compression_type": "zstd", "compression_zstd_level": -131_072}, -131_072),
        ({"compression_type": "zstd", "compression_zstd_level": 0}, 0),
    ],
)
def test_the_level_of_the_codec(settings: dict[str, Any], level: int | None) -> None:
    assert producer(settings).compression_level == level


@pytest.mark.parametrize(
    ("settings", "idempotent"),
    [
        ({"retries": 1, "acks": "all", "max_in_flight_requests_per_connection": 5}, True),
        ({"retries": 1, "acks": "all", "max_in_flight_requests_per_connection": 5, "enable_idempotence": True}, True),
        ({"enable_idempotence": False}, False),
        ({"enable_idempotence": False, "acks": 1, "retries": 0, "max_in_flight_requests_per_connection": 6}, False),
    ],
)
def test_whether_a_producer_is_idempotent(settings: dict[str, Any], idempotent: bool) -> None:
    assert producer(settings).enable_idempotence is idempotent


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_idempotence": True, "acks": "1"}, "acks is 1: an idempotent producer needs acks=all"),
        ({"enable_idempotence": True, "retries": 0}, "retries is 0: an idempotent producer needs retries"),
        (
            {"max_in_flight_requests_per_connection": 6},
            "max.in.flight.requests.per.connection is 6: an idempotent producer may have 5",
        ),
        (
            {"enable_idempotence": True, "max_in_flight_requests_per_connection": 6},
            "max.in.flight.requests.per.connection is 6: an idempotent producer may have 5",
        ),
        # As Kafka: only enable.idempotence=false permits more.
        (
            {"acks": 1, "retries": 0, "max_in_flight_requests_per_connection": 6},
            "max.in.flight.requests.per.connection is 6: an idempotent producer may have 5",
        ),
    ],
)
def test_settings_that_idempotence_excludes_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        producer(settings)
    hint = "with enable.idempotence=false, retries may write records twice or in another order"
    assert str(raised.value) == f"{message} ({hint})"


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"acks": 1}, "acks=1 excludes idempotence: a retry may write records twice or in another order"),
        ({"retries": 0}, "retries=0 excludes idempotence: the first lost connection or moved leader fails a record"),
        (
            {"acks": "all", "retries": 0, "enable_idempotence": None},
            "retries=0 excludes idempotence: the first lost connection or moved leader fails a record",
        ),
        ({"acks": 1, "retries": 0}, "retries=0 excludes idempotence: the first lost connection or moved leader fails a record"),
    ],
)
def test_settings_that_turn_idempotence_off_warn(settings: dict[str, Any], warning: str) -> None:
    with pytest.warns(OttlaConfigWarning) as caught:
        config = ProducerConfig.parse(bootstrap_servers="kafka:9092", **settings)
    assert [str(one.message) for one in caught] == [f"{warning}; enable.idempotence=false says that this is intended"]
    assert not config.enable_idempotence


@pytest.mark.parametrize(
    ("settings", "timeout"),
    [
        ({}, 120_000),
        ({"linger": 90}, 120_000),
        ({"linger": 90.001}, 120_001),
        ({"request_timeout": 200}, 200_005),
        ({"request_timeout": 200, "linger": 0}, 200_000),
        ({"linger_ms": 2**63 - 1}, LONGEST),
        ({"linger": 1, "request_timeout": 2, "delivery_timeout": 3}, 3_000),
        ({"linger_ms": LONGEST, "delivery_timeout_ms": LONGEST}, LONGEST),
        ({"request_timeout": 200, "delivery_timeout": None}, 200_005),
    ],
)
def test_the_delivery_timeout_is_at_least_one_request(settings: dict[str, Any], timeout: int) -> None:
    assert producer(settings).delivery_timeout_ms == timeout


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"delivery_timeout": 30.004}, 30_005),
        ({"delivery_timeout": 30, "linger": 0, "request_timeout": 31}, 31_000),
        ({"delivery_timeout_ms": LONGEST - 1, "linger_ms": LONGEST}, LONGEST),
    ],
)
def test_a_delivery_timeout_below_one_request_raises(settings: dict[str, Any], least: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"^delivery\.timeout\.ms is \d+, below linger\.ms \+ request\.timeout\.ms, which is {least}$"
    ):
        producer(settings)


def test_sizes_that_kafka_accepts() -> None:
    assert producer(batch_size=0).batch_size == 0
    assert producer(batch_size=20_000_000).max_request_size == 1_048_576
    assert producer(buffer_memory=1_000).batch_size == 16_384


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({"compression_lz4_level": 3}, "compression.type=none ignores compression.lz4.level"),
        (
            {"compression_type": "zstd", "compression_zstd_level": 3, "compression_gzip_level": 1, "compression_lz4_level": 1},
            "compression.type=zstd ignores compression.gzip.level, compression.lz4.level",
        ),
        (
            {"partitioner": max, "partitioner_ignore_keys": True, "partitioner_availability_timeout": 1},
            "a partitioner of your own ignores partitioner.availability.timeout.ms, partitioner.ignore.keys",
        ),
        (
            {"partitioner_adaptive_partitioning_enable": False, "partitioner_availability_timeout": 1},
            "partitioner.adaptive.partitioning.enable=false ignores partitioner.availability.timeout.ms",
        ),
        ({"ssl_truststore_location": "ca.pem"}, "security.protocol=PLAINTEXT ignores ssl.truststore.location"),
    ],
)
def test_a_setting_without_an_effect_warns_once(settings: dict[str, Any], ignored: str) -> None:
    with pytest.warns(OttlaConfigWarning) as caught:
        ProducerConfig.parse({"bootstrap.servers": "kafka:9092", **settings})
    assert [str(warning.message) for warning in caught] == [ignored]


def test_a_warning_names_the_line_that_creates_the_producer() -> None:
    with pytest.warns(OttlaConfigWarning) as caught:
        Producer(bootstrap_servers="a:1", acks=1).close()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_producer_checks_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'lingre' .did you mean linger"):
        Producer(bootstrap_servers="a:1", lingre=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown setting 1 "):
        Producer({1: "no text"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        Producer()
    with pytest.raises(TypeError, match=r"Producer\(\) takes one mapping of settings"):
        Producer({}, {})  # type: ignore[arg-type]


def test_a_file_of_a_java_producer() -> None:
    config = producer(
        {
            "acks": "all",
            "retries": "2147483647",
            "batch.size": "65536",
            "linger.ms": "20",
            "buffer.memory": "67108864",
            "compression.type": "zstd",
            "compression.zstd.level": "5",
            "max.in.flight.requests.per.connection": "1",
            "enable.idempotence": "true",
            "max.block.ms": "9223372036854775807",
            "delivery.timeout.ms": "2147483647",
            "partitioner.adaptive.partitioning.enable": "FALSE",
        }
    )
    assert (config.batch_size, config.linger_ms, config.buffer_memory) == (65_536, 20, 67_108_864)
    assert (config.compression_level, config.max_in_flight_requests_per_connection) == (5, 1)
    assert (config.delivery_timeout_ms, config.partitioner_adaptive_partitioning_enable) == (LONGEST, False)


VALUES = st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.text(max_size=5)))


@given(st.dictionaries(st.sampled_from(OWN), VALUES, max_size=4), st.integers())
def test_any_values_are_accepted_or_raise_a_config_error(settings: dict[str, Any], seed: int) -> None:
    spelled = {random.Random(seed).choice([name, dotted(name)]): value for name, value in settings.items()}
    with warnings.catch_warnings(), contextlib.suppress(ConfigError):
        warnings.simplefilter("ignore", OttlaConfigWarning)
        config = ProducerConfig.parse(spelled, bootstrap_servers="a:1")
        assert not config.enable_idempotence or (config.acks, config.retries > 0) == (Acks.ALL, True)
        assert config.delivery_timeout_ms >= min(config.linger_ms + config.request_timeout_ms, LONGEST)


def test_transactions_need_idempotence() -> None:
    with pytest.raises(ConfigError, match=r"transactional.id is 'payments': transactions need an idempotent producer"):
        producer(transactional_id="payments", enable_idempotence=False)
    with pytest.raises(ConfigError, match="transactions need an idempotent producer"):
        producer(transactional_id="payments", acks=1)


@pytest.mark.parametrize("wrong", ["", 7, "x" * 40_000])
def test_a_transactional_id_is_a_text(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"transactional[._]id"):
        producer(transactional_id=wrong)
