"""Streams: every record once, with limits, restarts and failures, and the commits to a group."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame

from tests.spark.conftest import Kafka, Load, Sink, numbered, send
from tests.spark.stream_progress import wait_until


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """3 partitions with 0 to 99, 100 to 199 and 200 to 299."""
    name = kafka.create(3)
    for partition in range(3):
        kafka.produce(name, numbered(100, 100 * partition, partition))
    return name


@pytest.mark.slow
def test_all_that_is_available_lands_once_in_limited_batches(load_stream: Load, sink: Sink, topic: str, kafka: Kafka) -> None:
    stream = load_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=70, includeHeaders=True)
    progress = sink.run(stream)
    assert sink.values() == list(range(300))
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [70, 70, 70, 70, 20]
    assert {(row.topic, row.partition, row.offset) for row in sink.rows()} == {(topic, p, o) for p in range(3) for o in range(100)}
    kafka.produce(topic, numbered(5, 300, 2))
    sink.run(stream)
    assert sink.values() == list(range(305))


def test_records_after_the_start_are_read_by_the_next_run(load_stream: Load, sink: Sink, topic: str) -> None:
    """A restart continues after the last batch in the checkpoint, whatever startingOffsets is."""
    sink.run(load_stream(subscribe=topic, startingOffsets="earliest"))
    sink.run(load_stream(subscribe=topic, startingOffsets="latest"))
    assert sink.values() == list(range(300))


def test_a_stream_begins_at_the_end_by_default(load_stream: Load, sink: Sink, topic: str, kafka: Kafka) -> None:
    sink.run(load_stream(subscribe=topic))
    kafka.produce(topic, numbered(3, 300))
    sink.run(load_stream(subscribe=topic))
    assert sink.values() == [300, 301, 302]


def test_a_groups_progress_equals_the_ends_when_the_query_has_finished(
    load_stream: Load, sink: Sink, topic: str, kafka: Kafka
) -> None:
    group = f"{topic}-group"
    stream = load_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=120, groupId=group)
    sink.run(stream)
    assert kafka.committed(group) == kafka.ends(topic) == {(topic, partition): 100 for partition in range(3)}
    kafka.produce(topic, numbered(7, 300, 1))
    sink.run(stream)
    assert kafka.committed(group) == kafka.ends(topic)
    assert sink.values() == list(range(307))


def test_a_running_query_keeps_its_group_up_to_date(load_stream: Load, topic: str, kafka: Kafka, tmp_path: Path) -> None:
    group = f"{topic}-group"
    stream = load_stream(subscribe=topic, startingOffsets="earliest", kafka_group_id=group)
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until(lambda: kafka.committed(group) == kafka.ends(topic))
        kafka.produce(topic, numbered(1000, 300))
        wait_until(lambda: kafka.committed(group) == kafka.ends(topic))
        assert query.lastProgress is not None
        assert query.isActive
    finally:
        query.stop()


def test_idle_sources_do_not_hold_up_the_busy_one(load_stream: Load, topic: str, kafka: Kafka, tmp_path: Path) -> None:
    """Spark asks one source after the other, and each idle one would wait a second for records."""
    busy = load_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=15)
    all_of_them = busy.union(load_stream(subscribe=kafka.create())).union(load_stream(subscribe=kafka.create()))
    query = all_of_them.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_until(lambda: sum(each["numInputRows"] for each in query.recentProgress) == 300)
        took = [each["durationMs"]["latestOffset"] for each in query.recentProgress if each["numInputRows"]]
        assert len(took) == 20
        assert sorted(took)[-3] < 900
    finally:
        query.stop()


def test_a_group_that_others_are_in_cannot_be_committed_to_and_the_stream_goes_on(
    load_stream: Load, sink: Sink, topic: str, kafka: Kafka
) -> None:
    group = f"{topic}-taken"
    member = confluent_kafka.Consumer({"bootstrap.servers": kafka.servers, "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    try:
        wait_until(lambda: member.poll(0.1) is None and member.assignment())
        sink.run(load_stream(subscribe=topic, startingOffsets="earliest", groupId=group))
    finally:
        member.close()
    assert sink.values() == list(range(300))
    assert kafka.committed(group) == {}


def test_a_first_batch_that_fails_loses_nothing(load_stream: Load, kafka: Kafka, tmp_path: Path) -> None:
    """A batch contains the records between two lookups of ``latest``. It fails, and more records are produced.

    The next run must start where the first one did.
    """
    for attempt in range(5):
        topic = kafka.create()
        failed, seen = _fail_the_first_batch(load_stream, kafka, topic, tmp_path / str(attempt))
        if failed:
            assert set(failed) <= set(seen)
            assert seen == list(range(failed[0], kafka.ends(topic)[topic, 0]))
            return
    pytest.fail("nothing arrived between the two looks, five times")


def _fail_the_first_batch(load_stream: Load, kafka: Kafka, topic: str, checkpoint: Path) -> tuple[list[int], list[int]]:
    failed: list[int] = []
    seen: list[int] = []

    def fail(batch: DataFrame, _: int) -> None:
        failed.extend(sorted(row.offset for row in batch.collect()))
        raise RuntimeError("on purpose")

    def take(batch: DataFrame, _: int) -> None:
        seen.extend(sorted(row.offset for row in batch.collect()))

    with producing(kafka, topic):
        query = load_stream(subscribe=topic).writeStream.foreachBatch(fail).option("checkpointLocation", str(checkpoint)).start()
        with pytest.raises(StreamingQueryException, match="on purpose"):
            query.awaitTermination(60)
    kafka.produce(topic, numbered(10, 100_000))
    writer = load_stream(subscribe=topic).writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(60)
    return failed, seen


@contextmanager
def producing(kafka: Kafka, topic: str) -> Iterator[None]:
    """Produce about one record per millisecond from another thread."""
    stopped = threading.Event()

    def work() -> None:
        producer, number = kafka.producer(linger_ms=0), 0
        while not stopped.wait(0.001):
            send(producer, topic, numbered(1, number))
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_a_topic_with_added_partitions_is_read_completely(load_stream: Load, sink: Sink, topic: str, kafka: Kafka) -> None:
    stream = load_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    sink.run(stream)
    kafka.grow(topic, 5)
    kafka.produce(topic, numbered(50, 300, 4))
    sink.run(stream)
    assert sink.values() == list(range(350))


@pytest.mark.slow
def test_records_that_retention_took_between_two_runs(load_stream: Load, sink: Sink, topic: str, kafka: Kafka) -> None:
    sink.run(load_stream(subscribe=topic, startingOffsets="earliest"))
    kafka.produce(topic, numbered(50, 300, 1))
    kafka.delete_records(topic, 1, 120)
    with pytest.raises(
        StreamingQueryException, match=f"{topic}-1: offsets 100 to 119 cannot be read: the log now begins at offset 120"
    ):
        sink.run(load_stream(subscribe=topic))
    sink.run(load_stream(subscribe=topic, failOnDataLoss=False))
    assert sink.values() == [*range(300), *range(320, 350)]


def test_a_topic_that_was_made_anew(load_stream: Load, sink: Sink, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(100))
    sink.run(load_stream(subscribe=topic, startingOffsets="earliest"))
    kafka.delete(topic)
    kafka.create(name=topic)
    kafka.produce(topic, numbered(10, 100))
    lost = f"{topic}-0: offsets from 100 on cannot be read: the topic was deleted, and created again under its name"
    with pytest.raises(StreamingQueryException, match=lost):
        sink.run(load_stream(subscribe=topic))
    sink.run(load_stream(subscribe=topic, failOnDataLoss=False))
    kafka.produce(topic, numbered(5, 110))
    sink.run(load_stream(subscribe=topic))
    assert sink.values() == list(range(115))


@pytest.mark.parametrize("count", [pytest.param(100, marks=pytest.mark.slow), 150])
def test_a_topic_that_was_made_anew_and_is_as_long_as_before(load_stream: Load, sink: Sink, kafka: Kafka, count: int) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(100))
    sink.run(load_stream(subscribe=topic, startingOffsets="earliest"))
    kafka.delete(topic)
    kafka.create(name=topic)
    kafka.produce(topic, numbered(count, 100))
    with pytest.raises(StreamingQueryException, match="the topic was deleted, and created again under its name"):
        sink.run(load_stream(subscribe=topic))
    sink.run(load_stream(subscribe=topic, failOnDataLoss=False, maxOffsetsPerTrigger=70))
    sink.run(load_stream(subscribe=topic))
    assert sink.values() == list(range(100 + count))


@pytest.mark.slow
def test_a_batch_that_is_repeated_after_its_topic_was_made_anew(load_stream: Load, sink: Sink, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(100))

    def fail(batch: DataFrame, _: int) -> None:
        raise RuntimeError("on purpose")

    writer = load_stream(subscribe=topic, startingOffsets="earliest").writeStream.foreachBatch(fail)
    query = writer.option("checkpointLocation", str(sink.home / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="on purpose"):
        query.awaitTermination(60)
    kafka.delete(topic)
    kafka.create(name=topic)
    kafka.produce(topic, numbered(150, 100))
    lost = f"{topic}-0: offsets 0 to 99 cannot be read: the topic was deleted, and created again under its name"
    with pytest.raises(StreamingQueryException, match=lost):
        sink.run(load_stream(subscribe=topic))
    sink.run(load_stream(subscribe=topic, failOnDataLoss=False))
    assert sink.values() == list(range(100, 250))


@pytest.mark.slow
def test_a_topic_that_is_gone(load_stream: Load, sink: Sink, topic: str, kafka: Kafka) -> None:
    other = kafka.create()
    kafka.produce(other, numbered(10, 300))
    both = f"{topic},{other}"
    sink.run(load_stream(subscribe=both, startingOffsets="earliest"))
    kafka.delete(other)
    kafka.produce(topic, numbered(5, 310))
    with pytest.raises(
        StreamingQueryException, match=f"{other}-0: offsets from 10 on cannot be read: the partition no longer exists"
    ) as raised:
        sink.run(load_stream(subscribe=both))
    assert "retention" not in str(raised.value)
    sink.run(load_stream(subscribe=both, failOnDataLoss=False))
    assert sink.values() == list(range(315))


def test_a_topic_that_is_no_longer_subscribed_to(load_stream: Load, sink: Sink, topic: str, kafka: Kafka) -> None:
    other = kafka.create()
    kafka.produce(other, numbered(10, 300))
    sink.run(load_stream(subscribe=f"{topic},{other}", startingOffsets="earliest"))
    kafka.produce(topic, numbered(5, 310))
    with pytest.raises(StreamingQueryException, match=f"{other}-0: offsets from 10 on are not read") as raised:
        sink.run(load_stream(subscribe=topic))
    assert "no longer among those that the query subscribes to" in str(raised.value)
    assert "no longer exists" not in str(raised.value)
    sink.run(load_stream(subscribe=topic, failOnDataLoss=False))
    assert sink.values() == list(range(315))


def test_progress_shows_where_the_logs_end(load_stream: Load, sink: Sink, topic: str) -> None:
    progress = sink.run(load_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=200))
    latest = f'{{"{topic}": {{"0": 100, "1": 100, "2": 100}}}}'
    assert {str(each["sources"][0]["latestOffset"]).replace("'", '"') for each in progress} == {latest}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets has no effect for a stream"),
        ({"startingOffsets": '{"x": {"0": 1}}'}, "startingOffsets names"),
        ({"startingOffsets": '{"%s": {"0": 0, "1": 101, "2": -1}}'}, "startingOffsets names offset 101 for %s-1, whose log ends"),
    ],
)  # fmt: skip
def test_a_wrong_option_ends_the_query_before_it_begins(
    load_stream: Load, sink: Sink, topic: str, options: dict[str, str], words: str
) -> None:
    """The last line of the error is the reason."""
    with pytest.raises(PySparkException) as raised:
        sink.run(load_stream(subscribe=topic, **{name: value.replace("%s", topic) for name, value in options.items()}))
    assert "UnboundLocalError" not in str(raised.value)
    last = [line for line in str(raised.value).splitlines() if "Error: " in line][-1]
    assert words.replace("%s", topic) in last


def test_an_offset_beyond_the_log_is_the_logs_end_where_losses_are_accepted(
    load_stream: Load, sink: Sink, topic: str, kafka: Kafka
) -> None:
    starting = f'{{"{topic}": {{"0": 100, "1": 500, "2": 98}}}}'
    stream = load_stream(subscribe=topic, startingOffsets=starting, failOnDataLoss=False)
    sink.run(stream)
    kafka.produce(topic, numbered(2, 300, 1))
    sink.run(stream)
    assert sink.values() == [298, 299, 300, 301]
