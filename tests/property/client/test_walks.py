"""Iteration over records while partitions are added and removed: in order, none twice, none skipped."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import example, given, settings, strategies as st

from ottla import Record
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.shared_state import SharedState
from ottla.client.events import FetchedPartition, FetchedResponse
from ottla.client.subscription import Mode, PartitionView, Snapshot
from ottla.records import NewRecord, encode_batch
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from tests.example_counts import examples
from tests.unit.client.managers import config

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
LIMIT = 6

which = st.integers(0, len(PARTITIONS) - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), which, st.integers(1, 3)),
        st.tuples(st.just("poll"), st.just(0), st.just(0)),
        st.tuples(st.just("walk"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("want"), which, st.just(0)),
        st.tuples(st.just("leave"), which, st.just(0)),
    ),
    max_size=60,
)


class Walker:
    """An application that iterates, and a network thread that changes the assignment."""

    def __init__(self) -> None:
        self.collector = FetchCollector(config(), SharedState())
        self.wanted = dict.fromkeys(PARTITIONS, True)
        self.fetched = dict.fromkeys(PARTITIONS, 0)
        self.seen: dict[TopicPartition, int] = dict.fromkeys(PARTITIONS, 0)
        self.number = 0
        self.walk: Iterator[Record] = iter(())
        self.publish()

    def publish(self) -> None:
        views = {
            tp: PartitionView(number, OffsetAndMetadata(0), paused=False, fetchable=self.wanted[tp], since=number)
            for number, tp in enumerate(PARTITIONS, 1)
        }
        self.collector.on_snapshot(Snapshot(Mode.TOPICS, frozenset({"t"}), views))

    def arrive(self, partition: int, count: int) -> None:
        tp, self.number = PARTITIONS[partition], self.number + 1
        start = self.fetched[tp]
        data = bytes(encode_batch([NewRecord(None, b"v")] * count, base_offset=start))
        self.fetched[tp] += count
        part = FetchedPartition(tp, partition + 1, start, data, end=1_000)
        self.collector.on_fetched(FetchedResponse(self.number, 1, (part,), len(data)), Now(0, 0))

    def poll(self) -> None:
        self.collector.acknowledge()
        delivery = self.collector.collect(LIMIT)
        if delivery is not None:
            assert sum(len(part.records) for part in delivery.parts) <= LIMIT
            coming = dict(self.seen)
            for part in delivery.parts:
                offsets = [record.offset for record in part.records]
                assert offsets == list(range(coming[part.tp], coming[part.tp] + len(offsets)))
                coming[part.tp] += len(offsets)
            self.walk = self.collector.walk(delivery)

    def take(self, count: int) -> None:
        for _, record in zip(range(count), self.walk, strict=False):
            tp = TopicPartition(record.topic, record.partition)
            assert record.offset == self.seen[tp], f"{tp}: {record.offset} after {self.seen[tp]}"
            self.seen[tp] += 1

    def check(self) -> None:
        for tp, position in self.collector.positions(with_current=True).items():
            assert position.offset == self.seen[tp]


TWICE = [("arrive", 0, 3), ("arrive", 0, 3), ("poll", 0, 0)]
IN_TURNS = [("arrive", 0, 2), ("arrive", 1, LIMIT), ("arrive", 0, 2)]
OPENED = [("arrive", 0, LIMIT + 2), ("arrive", 0, 2), ("leave", 0, 0), ("poll", 0, 0), ("want", 0, 0), ("poll", 0, 0)]
ARRIVED = [("arrive", 0, 2), ("arrive", 1, 2), ("arrive", 0, 2), ("poll", 0, 0)]


@example([*ARRIVED, ("leave", 0, 0), ("walk", 0, 1), ("want", 0, 0), ("walk", 0, 3)])
@example([*ARRIVED, ("leave", 0, 0), ("walk", 0, 1), ("want", 0, 0), ("poll", 0, 0)])
@example([*TWICE, ("leave", 0, 0), *[("arrive", 1, 3)] * 3, ("poll", 0, 0), ("want", 0, 0), ("poll", 0, 0)])
@example([*IN_TURNS, ("leave", 0, 0), ("leave", 1, 0), ("poll", 0, 0), ("want", 1, 0), ("poll", 0, 0), ("want", 0, 0)])
@example([*OPENED, ("walk", 0, LIMIT), ("leave", 0, 0), ("poll", 0, 0), ("want", 0, 0)])
@settings(deadline=None, max_examples=examples(300))
@given(steps)
def test_iterated_records_come_in_order_and_consumed_records_were_iterated(todo: list[tuple[str, int, int]]) -> None:
    walker = Walker()
    for what, partition, count in todo:
        if what == "arrive":
            walker.arrive(partition, count)
        elif what == "poll":
            walker.poll()
            walker.take(1)
        elif what == "walk":
            walker.take(count)
        else:
            walker.wanted[PARTITIONS[partition]] = what == "want"
            walker.publish()
        walker.check()
    walker.wanted = dict.fromkeys(PARTITIONS, True)
    walker.publish()
    for _ in range(sum(walker.fetched.values()) + 1):
        walker.take(LIMIT)
        walker.poll()
    assert walker.seen == walker.fetched
