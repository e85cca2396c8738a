"""Records without a key: the weights of partitions, and where a seeded random puts batches (KIP-794)."""

from __future__ import annotations

from collections import Counter

from ottla.types import TopicPartition
from tests.unit.client.managers import T0, T1, T2
from tests.unit.client.producing import Writes

SIZE = 200


def spread(writes: Writes, batches: int) -> Counter[int]:
    """Send records without a key that fill so many batches; return partition -> batches."""
    counts: Counter[int] = Counter()
    for _ in range(batches):
        delivery = writes.accumulator.append("t", "x" * (SIZE - 20))
        assert delivery is not None
        counts[delivery.batch.queue.partition] += 1
    return counts


def queued(writes: Writes, counts: dict[TopicPartition, int]) -> None:
    """Let partitions have batches that wait, since their brokers have enough to do."""
    for tp, count in counts.items():
        writes.write(*["y" * (SIZE - 20)] * count, to=tp)


def test_equal_queues_have_the_same_chance() -> None:
    writes = Writes(batch_size=SIZE)
    counts = spread(writes, 300)
    assert min(counts.values()) > 70, counts
    assert writes.accumulator.topics["t"].weights is None


def test_short_queues_get_more() -> None:
    writes = Writes(batch_size=SIZE, producer_id=None)  # nothing leaves
    spread(writes, 1)
    writes.accumulator.close_all()
    queued(writes, {T0: 9, T1: 4})
    writes.poll()
    weights = writes.accumulator.topics["t"].weights
    assert weights is not None
    lengths = [len(queue.closed) + (queue.open is not None) for queue in writes.accumulator.topics["t"].queues]
    longest = max(lengths)
    assert weights[1] == [sum(longest + 1 - length for length in lengths[: number + 1]) for number in range(3)]
    counts = spread(writes, 200)
    assert counts[2] > counts[1] > counts[0]


def test_without_adaptive_partitioning_queues_do_not_matter() -> None:
    writes = Writes(batch_size=SIZE, producer_id=None, partitioner_adaptive_partitioning_enable=False)
    spread(writes, 1)
    queued(writes, {T0: 30})
    writes.poll()
    assert writes.accumulator.topics["t"].weights is None


def test_a_broker_that_takes_nothing_gets_nothing() -> None:
    writes = Writes(batch_size=SIZE, partitioner_availability_timeout_ms=1_000, max_in_flight_requests_per_connection=1)
    spread(writes, 1)
    writes.accumulator.close_all()
    writes.poll()
    queued(writes, {T0: 1, T1: 1, T2: 1})
    writes.poll()
    queued(writes, {T0: 1, T1: 1, T2: 1})
    writes.poll(100)
    assert writes.poll(1_200) == []
    for send in writes.poll(1_200):
        raise AssertionError(send)
    weights = writes.accumulator.topics["t"].weights
    assert weights is None or len(weights[0]) < 3
