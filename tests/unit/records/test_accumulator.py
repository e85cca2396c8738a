"""The record accumulator: what is in a batch, when a batch is closed, and which partition records without a key go to."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from ottla import Delivery
from ottla.errors import MessageTooLargeError
from ottla.records import Compression, iter_records
from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_input import RowEncoder
from ottla.records.batch_states import TRANSITIONS, BatchInput, BatchState
from ottla.records.producer_batches import encode_producer_batch
from ottla.records.producer_queues import ProducerBatch


def accumulator(**settings: Any) -> RecordAccumulator:
    """One of topic ``t`` with three partitions, and batches of up to 500 bytes."""
    made = RecordAccumulator(
        **{
            "batch_size": 500,
            "memory": 1 << 20,
            "max_record": 1 << 20,
            "lock": threading.Lock(),
            "nanoseconds": lambda: 1_700_000_000_000_000_000,
            "mono": lambda: 5,
            "random": random.Random(0),
            "wake": lambda: None,
            "settled": lambda _batch: None,
            "unseen": lambda _batch: None,
            **settings,
        }
    )
    made.set_partitions("t", 3)
    return made


def add(to: RecordAccumulator, value: Any, partition: int | None = None, **more: Any) -> Delivery:
    delivery = to.append("t", value, None, partition, **more)
    assert delivery is not None
    return delivery


def values(batch: ProducerBatch) -> list[bytes]:
    return [bytes(record.value or b"") for record in iter_records(bytes(encode_producer_batch(batch, Compression.NONE)))]


@pytest.mark.parametrize("size", [501, 5_000])
def test_a_record_larger_than_a_batch_has_one_of_its_own(size: int) -> None:
    made = accumulator()
    for value in (b"before", b"x" * size, b"after"):
        add(made, value, 0)
    assert [values(batch) for batch in made.close_all()] == [[b"before"], [b"x" * size], [b"after"]]


def test_without_a_batch_size_each_record_has_a_batch_of_its_own() -> None:
    made = accumulator(batch_size=0)
    for value in (b"a", b"b"):
        add(made, value, 0)
    add(made, b"c")
    assert sorted(map(values, made.close_all())) == [[b"a"], [b"b"], [b"c"]]


def test_a_closed_batch_gets_no_more_records() -> None:
    made = accumulator()
    first = add(made, b"a", 0)
    made.close(made.topics["t"].queues[0])
    second = add(made, b"b", 0)
    assert first.batch is not second.batch
    assert [values(one.batch) for one in (first, second)] == [[b"a"], [b"b"]]


def test_what_was_sent_can_be_changed_afterwards() -> None:
    made = accumulator()
    value, header = bytearray(b"value"), bytearray(b"header")
    headers = [("name", header)]
    delivery = add(made, value, 0, headers=headers)
    value[:], header[:] = b"VALUE", b"HEADER"
    headers.clear()
    made.close_all()
    (record,) = iter_records(bytes(encode_producer_batch(delivery.batch, Compression.NONE)))
    assert (record.value, tuple(record.headers)) == (b"value", (("name", b"header"),))


def test_a_record_that_is_refused_takes_no_memory() -> None:
    made = accumulator(max_record=1_000)
    with pytest.raises(MessageTooLargeError, match=r"max\.request\.size"):
        add(made, b"x" * 1_000, 0)
    assert made.used == 0
    assert made.active() == []


def test_no_python_code_runs_with_the_lock() -> None:
    """A signal handler runs inside Python code of the main thread. If that has the lock, a record that the handler sends waits for
    the lock for ever."""
    lock, called = threading.Lock(), set()

    def free(name: str, result: Any = None) -> Any:
        def call(*_args: object) -> Any:
            assert not lock.locked(), name
            called.add(name)
            return result

        return call

    calls = {"mono": free("mono", 5), "nanoseconds": free("nanoseconds", 10**15), "wake": free("wake")}
    made = accumulator(lock=lock, partitioner=free("partitioner", 1), **calls)
    for number in range(30):
        add(made, b"x" * 100, number % 2 or None, on_delivery=free("on_delivery") if number % 3 else None)
    list(RowEncoder(made, pa.table({"value": [b"x"] * 10}), "t").steps())
    made.waiters.append(free("waiter"))
    for batch in made.close_all():
        made.release(batch)
    assert called == {"mono", "nanoseconds", "wake", "partitioner", "waiter"}


@pytest.mark.parametrize("record", [{}, {"key": b"key"}, {"partition": 1}], ids=["sticky", "key", "partition"])
def test_a_topic_that_is_forgotten_while_a_record_is_appended(record: dict[str, Any]) -> None:
    def forget() -> int:
        made.set_partitions("t", 0)
        return 10**15

    made: RecordAccumulator = accumulator(nanoseconds=forget)
    assert made.append("t", b"x", **record) is None
    made.set_partitions("t", 3)
    assert made.append("t", b"x", timestamp=5, **record) is not None


# -- records without a key ------------------------------------------------------------------------------------------------


def test_a_partition_is_left_with_a_full_batch_and_not_within_one() -> None:
    """Each batch leaves when its linger time is over, with two thirds of what it could hold: none is cut shorter than that."""
    made = accumulator()
    sizes = []
    for _ in range(30):
        while sum(batch.count for batch in made.incomplete) < 8:
            add(made, b"x" * 32)
        (batch,) = made.close_all()  # all records of one linger time are in one batch
        sizes.append(batch.size)
        for queue in made.active():
            queue.closed.clear()
            made.set_idle(queue)
        made.release(batch)
    assert min(sizes) > 300, sizes


def test_a_partition_without_a_leader_gets_no_records_without_a_key() -> None:
    made = accumulator(batch_size=100)
    made.set_partitions("t", 3, [0, 2])
    chosen = Counter(add(made, b"x" * 60).batch.queue.partition for _ in range(200))
    assert set(chosen) == {0, 2}
    assert min(chosen.values()) > 50, chosen
    assert add(made, b"x", 1).batch.queue.partition == 1, "a record for this partition waits for a leader"
    made.set_partitions("t", 3)
    assert set(Counter(add(made, b"x" * 60).batch.queue.partition for _ in range(200))) == {0, 1, 2}


def test_a_topic_that_is_recreated_with_fewer_partitions_forgets_the_weights_of_the_others() -> None:
    made = accumulator(batch_size=100)
    made.topics["t"].weights = ([0, 1, 2], [1, 2, 100])
    made.set_partitions("t", 3)
    assert add(made, b"x" * 60).batch.queue.partition == 2
    made.set_partitions("t", 2)
    assert {add(made, b"x" * 60).batch.queue.partition for _ in range(20)} == {0, 1}


# -- outcomes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [BatchInput.ACKNOWLEDGE, BatchInput.FAIL, BatchInput.EXPIRE, BatchInput.ABORT])
@pytest.mark.parametrize("second", BatchInput)
def test_a_batch_has_one_outcome(first: BatchInput, second: BatchInput) -> None:
    settled: list[ProducerBatch] = []
    made = accumulator(settled=settled.append)
    add(made, b"a", 0)
    (batch,) = made.close_all()
    batch.move(BatchInput.SEND)
    batch.settle(first, base_offset=7)
    batch.seen = True
    with pytest.raises(KeyError):
        batch.move(second)
    assert (settled, batch.base_offset) == ([batch], 7)
    assert TRANSITIONS[batch.state] == {}
    assert batch.state is (BatchState.ACKNOWLEDGED if first is BatchInput.ACKNOWLEDGE else BatchState.FAILED)
