"""Options: accepted values, their meaning, and errors."""

import logging

import pytest

from ottla.errors import ConfigError
from ottla.spark.client_settings import FORBIDDEN
from ottla.spark.offsets import EARLIEST, LATEST, OffsetSpec, TimestampSpec
from ottla.spark.options import IGNORED_OPTIONS, TopicSelection, parse_options, plain_options
from ottla.types import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "one:9092"}
TOPIC = {**SERVERS, "subscribe": "orders"}


def test_the_least_that_must_be_given() -> None:
    options = parse_options(TOPIC)
    assert options.subscription == TopicSelection(topics=("orders",))
    assert options.client == (("bootstrap.servers", "one:9092"),)
    assert (options.fail_on_data_loss, options.include_headers, options.group_id) == (True, False, None)
    assert (options.poll_timeout, options.max_offsets_per_trigger, options.min_partitions, options.max_partitions) == (
        120.0,
        None,
        None,
        None,
    )


def test_every_option_is_read_whatever_its_case() -> None:
    given = {
        "KAFKA.Bootstrap.Servers": "one:9092,two:9092",
        "kafka.isolation.level": "read_committed",
        "ASSIGN": '{"orders": [2, 0], "bills": [1]}',
        "startingoffsets": '{"orders": {"0": 23, "1": -2}}',
        "endingOffsets": "latest",
        "maxOffsetsPerTrigger": " 1000 ",
        "minPartitions": "3",
        "maxPartitions": "8",
        "failOnDataLoss": "FALSE",
        "includeHeaders": "true",
        "groupId": "billing",
        "kafkaConsumer.pollTimeoutMs": "1500",
    }
    options = parse_options(given)
    assert options.subscription.partitions == (TopicPartition("bills", 1), TopicPartition("orders", 0), TopicPartition("orders", 2))
    assert options.client == (("bootstrap.servers", "one:9092,two:9092"), ("isolation.level", "read_committed"))
    assert options.starting_offsets == OffsetSpec(None, {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): EARLIEST})
    assert options.ending_offsets == OffsetSpec(LATEST)
    assert (options.max_offsets_per_trigger, options.min_partitions, options.max_partitions) == (1000, 3, 8)
    assert (options.fail_on_data_loss, options.include_headers, options.group_id, options.poll_timeout) == (
        False,
        True,
        "billing",
        1.5,
    )


def test_topics_are_separated_by_commas_and_counted_once() -> None:
    assert parse_options({**SERVERS, "subscribe": " a, b,a ,"}).subscription.topics == ("a", "b")


def test_a_pattern_matches_part_of_a_name_that_is_not_one_of_kafkas_own() -> None:
    subscription = parse_options({**SERVERS, "subscribePattern": "orders-.*|bills|offsets"}).subscription
    names = ["orders-eu", "old-orders-eu", "bills2", "offsets", "__consumer_offsets", "bill"]
    assert [name for name in names if subscription.matches(name)] == names[:4]


def test_the_partitions_of_a_selection() -> None:
    a, b = TopicPartition("a", 0), TopicPartition("a", 1)
    for given, both in (({"subscribe": "a"}, True), ({"subscribePattern": "^[ab]$"}, True), ({"assign": '{"a": [0]}'}, False)):
        subscription = parse_options({**SERVERS, **given}).subscription
        assert subscription.includes(a)
        assert subscription.includes(b) is both
        assert not subscription.includes(TopicPartition("ab", 0))


def test_the_clients_group_is_another_name_for_ours() -> None:
    options = parse_options({**TOPIC, "kafka.group.id": "g"})
    assert options.group_id == "g"
    assert "group.id" not in dict(options.client)
    assert parse_options({**TOPIC, "kafka.group.id": "g", "groupId": "g"}).group_id == "g"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "t"}, ["kafka.bootstrap.servers", "missing"]),
        ({**TOPIC, "kafka.bootstrap.servers": " "}, ["kafka.bootstrap.servers", "missing"]),
        (SERVERS, ["exactly one", "assign, subscribe and subscribePattern", "none"]),
        ({**TOPIC, "subscribePattern": "o.*"}, ["exactly one", "subscribe and subscribePattern are"]),
        ({**SERVERS, "subscribe": " , "}, ["subscribe", "no topic"]),
        ({**SERVERS, "subscribePattern": "a(b"}, ["subscribePattern", "'(' at position 1", "parentheses"]),
        ({**SERVERS, "assign": '{"a": [0], "a": [1]}'}, ["assign", "'a' twice"]),
        ({**SERVERS, "assign": "orders"}, ["assign is not JSON", '{"topic": [0, 1]}']),
        ({**SERVERS, "assign": '{"orders": 0}'}, ["assign", '{"topic": [0, 1]}']),
        ({**SERVERS, "assign": '{"orders": [-1]}'}, ["assign"]),
        ({**SERVERS, "assign": "{}"}, ["assign", "no partition"]),
        ({**SERVERS, "assign": "[]"}, ["assign", '{"topic": [0, 1]}']),
        ({**TOPIC, "startingOffsets": "earlyest"}, ["startingOffsets", "earliest, latest or {"]),
        ({**TOPIC, "startingOffsets": '{"orders": {"0": -3}}'}, ["startingOffsets", "-3", "orders-0"]),
        ({**TOPIC, "startingOffsets": '{"orders": {"x": 3}}'}, ["startingOffsets", "'x'"]),
        ({**TOPIC, "startingOffsets": '{"orders": 3}'}, ["startingOffsets", "orders"]),
        ({**TOPIC, "maxOffsetsPerTrigger": "0"}, ["maxOffsetsPerTrigger", "positive integer"]),
        ({**TOPIC, "minPartitions": "many"}, ["minPartitions", "'many'"]),
        ({**TOPIC, "minPartitions": "5", "maxPartitions": "4"}, ["minPartitions", "maxPartitions"]),
        ({**TOPIC, "minPartitions": "9" * 5000}, ["minPartitions", "at most 18 digits"]),
        ({**TOPIC, "kafkaConsumer.pollTimeoutMs": "9" * 400}, ["kafkaConsumer.pollTimeoutMs", "at most 18 digits"]),
        ({**TOPIC, "startingOffsets": f'{{"orders": {{"0": {"9" * 5000}}}}}'}, ["startingOffsets", "nor JSON", "for example"]),
        ({**SERVERS, "assign": "[" * 100_000}, ["assign is not JSON", "for example"]),
        ({**TOPIC, "failOnDataLoss": "maybe"}, ["failOnDataLoss", "true or false"]),
        ({**TOPIC, "groupId": "a", "kafka.group.id": "b"}, ["groupId", "'a'", "'b'"]),
        ({**TOPIC, "groupId": ""}, ["groupId", "leave it out"]),
        ({**TOPIC, "startingOffset": "latest"}, ["startingOffset", "did you mean startingOffsets?"]),
        ({**TOPIC, "maxOffsetPerTrigger": "1"}, ["did you mean maxOffsetsPerTrigger?"]),
        ({**TOPIC, "group_id": "1"}, ["did you mean groupId?"]),
        ({"bootstrap.servers": "x:1", **TOPIC}, ["did you mean kafka.bootstrap.servers?"]),
        ({**TOPIC, "startingTimestamp": "-1"}, ["startingTimestamp", "milliseconds since 1970", "'-1'"]),
        ({**TOPIC, "endingTimestamp": "now"}, ["endingTimestamp", "'now'"]),
        ({**TOPIC, "startingOffsetsByTimestamp": "latest"}, ["startingOffsetsByTimestamp", "not JSON", "for example"]),
        ({**TOPIC, "endingOffsetsByTimestamp": '{"a": {"0": -2}}'}, ["endingOffsetsByTimestamp", "a-0 is -2"]),
        ({**TOPIC, "startingOffsetsByTimestampStrategy": "earliest"}, ["error or latest", "'earliest'"]),
        ({**TOPIC, "maxTriggerDelay": "5 parsecs"}, ["maxTriggerDelay", "15m", "'5 parsecs'"]),
        ({**TOPIC, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, ["minOffsetsPerTrigger (5)", "greater"]),
        ({**TOPIC, "maxRecordsPerPartition": "5", "maxPartitions": "4"}, ["exclude each other"]),
        ({**TOPIC, "startingOffsets": "group:latest"}, ["committed offsets of a group", "set groupId"]),
        ({**TOPIC, "startingOffsets": "group:5", "groupId": "g"}, ["group:earliest or group:latest", "'group:5'"]),
        ({**TOPIC, "kafka.isolation_level": "read_committed"}, ["kafka.isolation_level", "did you mean kafka.isolation.level?"]),
        ({**TOPIC, "KAFKA.group_id": "g"}, ["KAFKA.group_id", "did you mean kafka.group.id?"]),
        ({**TOPIC, "endingOffsets": "group:latest", "groupId": "g"}, ["endingOffsets", "nor JSON"]),
    ],
)
def test_an_invalid_option_raises_an_error_with_the_reason(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options(given)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("name", sorted(IGNORED_OPTIONS))
def test_an_option_of_sparks_connector_without_an_effect_is_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    parse_options({**TOPIC, name.lower(): "1"})
    assert f"option {name} of Spark's Kafka connector has no effect: {IGNORED_OPTIONS[name]}" in caplog.text


def test_options_of_streams_are_logged_for_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    given = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "1m", "kafka.group.id": "g"}
    parse_options({**TOPIC, **given}).for_batch()
    expected = (
        "without an effect on a batch: maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay, groupId (or kafka.group.id)"
    )
    assert expected in caplog.text


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_timestamps_take_precedence_over_offsets_and_one_over_many(caplog: pytest.LogCaptureFixture) -> None:
    by_partition = '{"orders": {"0": 5, "1": 6}}'
    given = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": by_partition}
    options = parse_options({**TOPIC, **given}).for_stream()
    assert options.starting_times == TimestampSpec("startingOffsetsByTimestamp", None, {P0: 5, P1: 6})
    assert "option startingOffsetsByTimestamp takes precedence over the other options for the start of the query" in caplog.text
    options = parse_options({**TOPIC, **given, "startingTimestamp": "7"}).for_stream()
    assert options.starting_times == TimestampSpec("startingTimestamp", 7)
    ends = {"endingOffsets": "latest", "endingTimestamp": "8", "endingOffsetsByTimestamp": by_partition}
    assert parse_options({**TOPIC, **ends}).for_batch().ending_times == TimestampSpec("endingTimestamp", 8)


@pytest.mark.parametrize(("text", "seconds"), [("15m", 900), ("30s", 30), ("250", 0.25), ("1h", 3600), ("2min", 120)])
def test_delays(text: str, seconds: float) -> None:
    assert parse_options({**TOPIC, "maxTriggerDelay": text}).max_trigger_delay == seconds
    assert parse_options(TOPIC).max_trigger_delay == 900


def test_starting_at_the_committed_offsets() -> None:
    options = parse_options({**TOPIC, "startingOffsets": "Group:latest", "groupId": "g"})
    assert options.starting_offsets == OffsetSpec(LATEST, of_group=True)
    assert options.for_batch().group_id == options.for_stream().group_id == "g"


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_a_setting_that_would_undo_the_source_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name} is not supported"):
        parse_options({**TOPIC, f"kafka.{name}": "x"})


def test_unknown_options_are_logged_unless_spark_adds_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_options(
            {**TOPIC, "path": "x", "owner": "me", "provider": "ottla", "comment": "c", "location": "l", "checkpointLocation": "c"}
        )
        assert not caplog.records
        parse_options({**TOPIC, "colour": "blue"})
    assert "'colour'" in caplog.text


def test_a_table_of_the_catalog_gives_its_options_with_a_prefix() -> None:
    prefixed = {f"option.{name}": value for name, value in TOPIC.items()}
    assert parse_options(plain_options(prefixed)) == parse_options(plain_options({**prefixed, **TOPIC})) == parse_options(TOPIC)
    properties = {"Subscribe": "anything", "startingOffset": "not an option", "owner.team": "orders", "provider": "ottla"}
    assert plain_options({"option.subscribe": "orders", **properties}) == {"subscribe": "orders", "provider": "ottla"}
    with pytest.raises(ConfigError, match="did you mean startingOffsets"):
        parse_options(plain_options({**prefixed, "option.startingOffset": "earliest"}))


def test_defaults_of_a_batch_and_of_a_stream() -> None:
    batch, stream = parse_options(TOPIC).for_batch(), parse_options(TOPIC).for_stream()
    assert (batch.starting_offsets, batch.ending_offsets) == (OffsetSpec(EARLIEST), OffsetSpec(LATEST))
    assert stream.starting_offsets == OffsetSpec(LATEST)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"orders": {"0": -1}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"orders": {"0": -2}}'),
    ],
)
def test_options_that_a_batch_does_not_support_raise(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        parse_options({**TOPIC, name: value}).for_batch()


@pytest.mark.parametrize(
    ("name", "value"),
    [("endingOffsets", "latest"), ("endingTimestamp", "5"), ("endingOffsetsByTimestamp", "{}"), ("planOnce", "true")],
)
def test_options_that_a_stream_does_not_support_raise(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} has no effect for a stream"):
        parse_options({**TOPIC, name: value}).for_stream()
