"""What ``send_arrow`` waits for: partitions that do not exist, and memory; what it adds to the queues, and the outcome of all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from ottla.errors import ClosedError, OttlaError, TransactionAbortedError
from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_delivery import ArrowDelivery, MemoryShort, MissingPartitions, WrittenRows
from ottla.records.arrow_input import RowEncoder
from ottla.records.batch_states import BatchInput
from ottla.records.producer_batches import divide
from ottla.records.producer_queues import ProducerBatch
from tests.arrow_input import MONO, accumulator, encode, rows_of, written
from tests.example_counts import examples


def numbers(count: int, size: int = 100, **columns: Any) -> pa.Table:
    return pa.table({"value": [b"%0*d" % (size, number) for number in range(count)], **columns})


def acknowledge(target: RecordAccumulator, batch: ProducerBatch, offset: int | None = 0, error: OttlaError | None = None) -> None:
    batch.move(BatchInput.SEND)
    batch.settle(BatchInput.FAIL if error else BatchInput.ACKNOWLEDGE, offset, error=error)
    target.release(batch)


def take(target: RecordAccumulator) -> list[ProducerBatch]:
    """Take the closed batches out of all queues, as the network thread does."""
    taken = []
    for queue in target.active():
        while queue.closed:
            taken.append(queue.closed.popleft())
        target.set_idle(queue)
    return taken


# -- batches ------------------------------------------------------------------------------------------------------------------


def test_batches_are_as_large_as_a_request_may_be() -> None:
    target = accumulator({"t": 2})
    delivery = encode(target, numbers(50_000, key=[f"{number:08}" for number in range(50_000)]), "t")
    sizes: dict[int, list[int]] = {0: [], 1: []}
    for batch in delivery.batches:
        sizes[batch.queue.partition].append(batch.size)
    for its in sizes.values():
        assert all((1 << 20) - 200 < size <= 1 << 20 for size in its[:-1])
    used = sum(batch.memory_size for batch in delivery.batches)
    assert target.used == used < 1.02 * sum(batch.size for batch in delivery.batches)


def test_small_arrays_share_batches() -> None:
    pieces = [numbers(10).to_batches()[0]] * 500
    delivery = encode(accumulator(), pa.Table.from_batches(pieces), "t")
    assert [batch.count for batch in delivery.batches] == [5000]


def test_rows_come_after_the_records_that_are_in_the_partition() -> None:
    target = accumulator()
    before = target.append("t", b"before")
    encode(target, numbers(2), "t")
    after = target.append("t", b"after")
    queue = target.topics["t"].queues[0]
    assert [row[1] for batch in queue.closed for row in rows_of(batch)] == [b"before", b"%0100d" % 0, b"%0100d" % 1]
    assert before.batch is queue.closed[0]
    assert after.batch is queue.open


def test_each_closed_batch_wakes_the_network_thread_outside_the_lock() -> None:
    calls: list[int] = []

    def queue_lengths() -> int:
        return sum(len(queue.closed) for queue in woken.active())

    woken = accumulator(max_record=1024, wake=lambda: calls.append(queue_lengths()))
    delivery = encode(woken, numbers(20), "t")
    assert calls == list(range(1, len(delivery.batches) + 1))
    assert len(calls) > 1


def test_rows_without_a_key_fill_one_partition_after_the_other() -> None:
    target = accumulator({"t": 5}, max_record=20_000)
    delivery = encode(target, numbers(10_000), "t")
    partitions = [batch.queue.partition for batch in delivery.batches]
    assert set(partitions) == set(range(5))
    assert sorted(row[1] for rows in written(target).values() for row in rows) == [b"%0100d" % number for number in range(10_000)]
    changes = sum(one != other for one, other in itertools.pairwise(partitions))
    assert changes > len(partitions) / 2


def test_small_calls_share_a_partition_until_it_has_a_batch() -> None:
    target = accumulator({"t": 50})
    for _ in range(10):
        encode(target, numbers(10), "t")
    assert len(written(target)) == 1
    for _ in range(100):
        encode(target, numbers(10), "t")
    assert len(written(target)) > 3


def test_keys_are_ignored_if_the_setting_says_so() -> None:
    target = accumulator({"t": 50}, ignores_keys=True)
    encode(target, numbers(100, key=[str(number) for number in range(100)]), "t")
    assert len(written(target)) == 1


# -- partitions that do not exist ---------------------------------------------------------------------------------------------


def test_unknown_topics_are_reported_together_and_then_known() -> None:
    target = accumulator({"known": 1})
    encoder = RowEncoder(target, numbers(4, topic=["known", "a", "b", "a"], partition=[0, 1, 2, None]))
    steps = encoder.steps()
    assert next(steps) == MissingPartitions(MONO, {("a", 0): 1, ("b", 0): 2})
    target.set_partitions("a", 1)
    target.set_partitions("b", 3)
    assert next(steps) == MissingPartitions(MONO, {("a", 1): 1})
    target.set_partitions("a", 2)
    assert list(steps) == []
    assert {key: len(rows) for key, rows in written(target).items()} in (
        {("known", 0): 1, ("a", 1): 2, ("b", 2): 1},
        {("known", 0): 1, ("a", 0): 1, ("a", 1): 1, ("b", 2): 1},
    )


def test_rows_before_a_missing_partition_are_sent_while_it_waits() -> None:
    target = accumulator()
    encoder = RowEncoder(target, numbers(6000, topic=["t"] * 5000 + ["new"] * 1000))
    steps = encoder.steps()
    assert next(steps) == MissingPartitions(MONO, {("new", 0): 5000})
    assert len(written(target)["t", 0]) == encoder.delivery.count == 4096
    target.set_partitions("new", 1)
    assert list(steps) == []
    assert {key: len(rows) for key, rows in written(target).items()} == {("t", 0): 5000, ("new", 0): 1000}


def test_a_call_that_is_given_up_adds_nothing_more() -> None:
    target = accumulator()
    encoder = RowEncoder(target, numbers(6000, topic=["t"] * 5000 + ["new"] * 1000))
    steps = encoder.steps()
    next(steps)
    steps.close()
    assert encoder.delivery.count == 4096
    assert target.used == sum(batch.memory_size for batch in encoder.delivery.batches)


def in_two_arrays(first: pa.Table, between: Callable[[], object], second: pa.Table) -> pa.RecordBatchReader:
    """A source that does something after its first array."""

    def arrays() -> Iterator[pa.RecordBatch]:
        yield from first.to_batches()
        between()
        yield from second.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, arrays())


def test_a_topic_that_is_forgotten_between_two_arrays_is_asked_for_again() -> None:
    target = accumulator({"t": 3})
    encoder = RowEncoder(target, in_two_arrays(numbers(2), lambda: target.set_partitions("t", 0), numbers(20_000)), "t")
    steps = encoder.steps()
    assert next(steps) == MissingPartitions(MONO, {("t", 0): 2})
    assert encoder.delivery.count == 2
    target.set_partitions("t", 3)
    assert list(steps) == []
    assert encoder.delivery.count == 20_002


def test_a_topic_that_is_forgotten_and_has_no_more_rows_is_not_asked_for() -> None:
    target = accumulator({"t": 1, "u": 1})
    first, second = numbers(2, topic=["t", "u"]), numbers(2, topic=["u", "u"])
    encoder = RowEncoder(target, in_two_arrays(first, lambda: target.set_partitions("t", 0), second))
    assert list(encoder.steps()) == []
    assert {key: len(rows) for key, rows in written(target).items()} == {("t", 0): 1, ("u", 0): 3}


def test_a_topic_that_is_forgotten_when_a_batch_is_full() -> None:
    def forget() -> None:
        made.set_partitions("t", 0)

    made: RecordAccumulator = accumulator({"t": 2}, max_record=1024, wake=forget)
    encoder = RowEncoder(made, numbers(100), "t")
    assert list(encoder.steps()) == []
    assert encoder.delivery.count == 100


def test_a_topic_is_in_use_when_its_batch_is_begun() -> None:
    times = iter(range(100, 200))
    target = accumulator({"t": 1}, mono=lambda: next(times))
    used_at = []
    list(RowEncoder(target, in_two_arrays(numbers(1), lambda: used_at.append(target.topics["t"].used_at), numbers(1)), "t").steps())
    assert used_at == [100]


# -- memory -------------------------------------------------------------------------------------------------------------------


def test_a_table_larger_than_the_memory_goes_in_pieces() -> None:
    target = accumulator({"t": 3}, memory=100_000, max_record=30_000)
    encoder = RowEncoder(target, numbers(20_000, key=[str(number) for number in range(20_000)]), "t")
    taken: list[ProducerBatch] = []
    found: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    waits = 0
    for step in encoder.steps():
        assert isinstance(step, MemoryShort)
        waits += 1
        while not step.is_met():
            taken += take(target)
            batch = taken.pop(0)
            found[batch.queue.partition] += [row[1] for row in rows_of(batch)]
            acknowledge(target, batch)
        assert target.used <= 100_000
    for batch in taken + take(target):
        found[batch.queue.partition] += [row[1] for row in rows_of(batch)]
    assert waits > 10
    assert all(values == sorted(values) for values in found.values())
    assert sorted(value for values in found.values() for value in values) == [b"%0100d" % number for number in range(20_000)]
    assert sum(batch.size for batch in encoder.delivery.batches) / len(encoder.delivery.batches) > 15_000


def test_what_is_held_is_sent_if_nothing_else_can_free_memory() -> None:
    target = accumulator({"t": 40}, memory=10_000, max_record=5000)
    encoder = RowEncoder(target, numbers(40, partition=list(range(40)), key=["x" * 800] * 40), "t")
    step = next(encoder.steps())
    assert isinstance(step, MemoryShort)
    assert not step.is_met()
    assert len(target.incomplete) == len(encoder.delivery.batches) > 0


def run(target: RecordAccumulator, encoder: RowEncoder, stuck: Collection[tuple[str, int]] = (), patience: int = 0) -> None:
    """Encode all rows; acknowledge one batch after the other, as late as possible, and never those of the partitions ``stuck``.

    ``patience``: how often it may wait for what does not come.
    """
    queued: list[ProducerBatch] = []
    for step in encoder.steps():
        assert isinstance(step, MemoryShort)
        while not step.is_met():
            queued += [batch for batch in take(target) if batch.queue.tp not in stuck]
            if queued:
                acknowledge(target, queued.pop(0))
            else:
                assert patience > 0, "it waits for memory that nothing is going to free"
                assert step.held, "it holds nothing that it could send"
                patience -= 1
                encoder.finish_all()


@pytest.mark.parametrize(("size", "patience"), [(1000, 0), (60_000, 50)])
def test_a_batch_of_another_topic_that_is_stuck_does_not_keep_it_from_sending_what_it_holds(size: int, patience: int) -> None:
    target = accumulator({"t": 4, "other": 1}, memory=100_000, max_record=30_000)
    for _ in range(size // 1000):
        target.append("other", b"x" * 900)
    target.close_all()
    encoder = RowEncoder(target, numbers(4000, key=[str(number) for number in range(4000)]), "t")
    run(target, encoder, [("other", 0)], patience)
    assert encoder.delivery.count == 4000
    assert len(encoder.delivery.batches) < 4000 // 20


def test_a_batch_of_its_own_that_is_stuck_does_not_keep_it_from_sending_the_others() -> None:
    target = accumulator({"t": 4}, memory=100_000, max_record=30_000)
    encoder = RowEncoder(target, numbers(4000, partition=[0] * 250 + [1 + number % 3 for number in range(3750)]), "t")
    run(target, encoder, [("t", 0)], patience=10)
    assert encoder.delivery.count == 4000


def test_it_waits_for_the_batches_of_other_calls_rather_than_send_batches_with_little() -> None:
    target = accumulator({"t": 4}, memory=100_000, max_record=30_000)
    encoders = [RowEncoder(target, numbers(400, key=[str(number) for number in range(400)]), "t") for _ in range(10)]
    for encoder in encoders:
        run(target, encoder)
    assert sum(len(encoder.delivery.batches) for encoder in encoders) == 40


def test_it_sends_what_it_holds_when_its_last_batch_has_an_outcome_and_another_call_took_the_memory() -> None:
    target = accumulator({"t": 2}, memory=10_000, max_record=1500)
    assert target.reserve(6200)
    encoder = RowEncoder(target, pa.table({"value": [b"x" * 1300, b"x" * 300, b"x" * 1300], "partition": [0, 0, 1]}), "t")
    steps = encoder.steps()
    first = next(steps)
    assert isinstance(first, MemoryShort)
    assert (first.is_met(), encoder.delivery.count) == (False, 1)
    target.waiters.append(lambda: target.reserve(1500))
    acknowledge(target, take(target)[0])
    assert first.is_met()
    second = next(steps)
    assert isinstance(second, MemoryShort)
    assert (second.is_met(), encoder.delivery.count) == (False, 2)
    acknowledge(target, take(target)[0])
    assert second.is_met()
    assert list(steps) == []
    assert encoder.delivery.count == 3


def test_it_goes_on_with_the_little_memory_that_others_leave() -> None:
    target = accumulator({"t": 4}, memory=100_000, max_record=30_000)
    assert target.reserve(95_000)
    encoder = RowEncoder(target, numbers(1000, key=[str(number) for number in range(1000)]), "t")
    run(target, encoder)
    assert encoder.delivery.count == 1000


def test_partitions_share_the_memory() -> None:
    """Not the first few as much as their rows may need, so that the others have none, and all are sent with a row or two."""
    target = accumulator({"t": 100}, memory=1 << 20, max_record=1 << 17)
    encoder = RowEncoder(target, numbers(20_000, key=[str(number) for number in range(20_000)]), "t")
    run(target, encoder)
    assert encoder.delivery.count == 20_000
    assert 20_000 / len(encoder.delivery.batches) > 40, "rows in a batch; the memory has room for 100 of each partition"


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32))
def test_any_order_of_acknowledgements_and_of_other_records(seed: int) -> None:
    chance = random.Random(seed)
    target = accumulator({"t": chance.randint(1, 6)}, memory=chance.randint(5000, 50_000), max_record=chance.randint(1500, 5000))
    rows = chance.randint(0, 300)
    table = pa.table(
        {
            "key": [chance.choice([None, b"k%d" % number]) for number in range(rows)],
            "value": [b"%d " % number + bytes(chance.choice([0, 50, 1000])) for number in range(rows)],
        }
    )
    cut = chance.randint(0, rows)
    encoder = RowEncoder(target, pa.concat_tables([table.slice(0, cut), table.slice(cut)]), "t")
    queued: list[ProducerBatch] = []
    for step in encoder.steps():
        assert isinstance(step, MemoryShort)
        if chance.random() < 0.3:
            target.append("t", b"other")
        while not step.is_met():
            target.close_all()
            queued += take(target)
            acknowledge(target, queued.pop(chance.randrange(len(queued))))
    target.close_all()
    for batch in queued + take(target):
        acknowledge(target, batch)
    assert target.used == 0
    assert encoder.delivery.count == rows
    assert encoder.delivery.done()


def test_a_producer_that_is_closed_meanwhile() -> None:
    target = accumulator()
    encoder = RowEncoder(target, numbers(5), "t")
    target.accepts = False
    with pytest.raises(ClosedError, match="the producer is closed"):
        list(encoder.steps())
    assert (target.used, encoder.delivery.count) == (0, 0)


# -- the outcome --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def target() -> RecordAccumulator:
    return accumulator({"t": 2}, max_record=1024)


@pytest.fixture
def delivery(target: RecordAccumulator) -> ArrowDelivery:
    made = encode(target, numbers(30, partition=[0] * 20 + [1] * 10), "t")
    assert [batch.count for batch in made.batches] == [8, 8, 8, 4, 2]
    return made


def test_the_offsets_of_each_partition(target: RecordAccumulator, delivery: ArrowDelivery) -> None:
    assert (delivery.done(), delivery.written(), delivery.count) == (False, [], 30)
    offsets = {0: 100, 1: 7}
    for batch in delivery.batches:
        assert delivery.pending() is not None
        partition = batch.queue.partition
        acknowledge(target, batch, offsets[partition])
        offsets[partition] += batch.count
    assert (delivery.done(), delivery.pending(), delivery.error()) == (True, None, None)
    assert delivery.written() == [WrittenRows("t", 0, 100, 119, 20), WrittenRows("t", 1, 7, 16, 10)]


def test_batches_that_were_divided_count_as_their_parts(target: RecordAccumulator, delivery: ArrowDelivery) -> None:
    first, *others = delivery.batches
    first.move(BatchInput.SEND)
    parts = divide(first)
    target.replace(first, parts)
    first.divide(parts)
    for batch in others:
        acknowledge(target, batch, 50)
    assert delivery.pending() is parts[0]
    acknowledge(target, parts[0], 20)
    assert delivery.pending() is parts[1]
    acknowledge(target, parts[1], 30)
    assert delivery.done()
    assert sum(part.rows for part in delivery.written()) == 30
    assert delivery.written()[0].first_offset == 20


def test_the_first_error_and_what_was_written_all_the_same(target: RecordAccumulator, delivery: ArrowDelivery) -> None:
    errors = [OttlaError("the first"), OttlaError("the second")]
    for number, batch in enumerate(delivery.batches):
        acknowledge(target, batch, 0, errors[number - 1] if number in (1, 2) else None)
    assert delivery.error() is errors[0]
    assert all(batch.seen for batch in delivery.batches if batch.error is not None)
    assert sum(part.rows for part in delivery.written()) == 30 - delivery.batches[1].count - delivery.batches[2].count


def test_an_abort_that_follows_from_another_error_is_not_the_first(target: RecordAccumulator, delivery: ArrowDelivery) -> None:
    cause = OttlaError("the cause")
    for number, batch in enumerate(delivery.batches):
        acknowledge(target, batch, 0, {0: TransactionAbortedError("aborted"), 2: cause}.get(number))
    assert delivery.error() is cause


def test_unknown_offsets(target: RecordAccumulator, delivery: ArrowDelivery) -> None:
    for number, batch in enumerate(delivery.batches):
        acknowledge(target, batch, None if number == 1 else 3)
    assert next(rows[2:] for rows in delivery.written()) == (-1, -1, 20)


def test_no_rows_have_an_outcome_at_once() -> None:
    delivery = encode(accumulator(), numbers(0), "t")
    assert (delivery.done(), delivery.error(), delivery.written(), delivery.count) == (True, None, [], 0)
    assert repr(delivery) == "<ArrowDelivery of 0 rows in 0 batches>"
