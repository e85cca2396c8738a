"""``read_committed`` during an open transaction: the query loses and repeats no record, and reports no data loss."""

from __future__ import annotations

import threading

import confluent_kafka
import pytest

from tests.spark.conftest import Kafka, Load, Sink, numbered
from tests.spark.stream_progress import wait_until

pytestmark = pytest.mark.slow

OPEN_FOR = 5.0
"""Seconds; after three a task compares its range with the log."""


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = kafka.create()
    kafka.produce(name, numbered(10))
    return name


@pytest.fixture
def transaction(kafka: Kafka, topic: str) -> confluent_kafka.Producer:
    """An open transaction with the values 10 to 14 at offsets 10 to 14."""
    producer = kafka.producer(transactional_id=f"{topic}-writer")
    producer.init_transactions(60)
    producer.begin_transaction()
    for message in numbered(5, 10):
        producer.produce(topic, value=message.value, partition=0)
    assert producer.flush(60) == 0
    return producer


@pytest.mark.slow
@pytest.mark.parametrize("fail", [True, False])
def test_a_checkpoint_behind_the_stable_offset_waits(
    load_stream: Load, sink: Sink, kafka: Kafka, topic: str, transaction: confluent_kafka.Producer, fail: bool
) -> None:
    sink.run(load_stream(subscribe=topic, startingOffsets="earliest"))
    assert sink.values() == list(range(15))
    stream = load_stream(subscribe=topic, kafka_isolation_level="read_committed", failOnDataLoss=fail, groupId=f"{topic}-group")
    sink.run(stream)
    assert sink.values() == list(range(15))
    query = sink.start(stream)
    try:
        wait_until(lambda: query.lastProgress is not None)
        kafka.produce(topic, numbered(5, 15))
        transaction.commit_transaction(60)
        wait_until(lambda: query.exception() is not None or len(sink.values()) >= 20)
        assert query.exception() is None
    finally:
        query.stop()
    assert sink.values() == list(range(20))
    sink.run(stream)
    assert sink.values() == list(range(20))


def test_a_range_behind_the_stable_offset_is_waited_for(load: Load, topic: str, transaction: confluent_kafka.Producer) -> None:
    """``endingOffsets`` plans such a range, as does a stream whose last batch was planned with ``read_uncommitted``."""
    timer = threading.Timer(OPEN_FOR, transaction.commit_transaction, (60,))
    timer.start()
    frame = load(subscribe=topic, endingOffsets=f'{{"{topic}": {{"0": 15}}}}', kafka_isolation_level="read_committed")
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(15))
    timer.join()


def test_a_batch_from_behind_the_stable_offset_is_empty(load: Load, topic: str, transaction: confluent_kafka.Producer) -> None:
    starting = f'{{"{topic}": {{"0": 12}}}}'
    assert load(subscribe=topic, startingOffsets=starting, kafka_isolation_level="read_committed").count() == 0
    transaction.abort_transaction(60)
