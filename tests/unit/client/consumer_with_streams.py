"""A consumer with streams without threads: the subscription of its network thread, its collector, and threads that iterate.

Owns what is expected of streams: records in order, none in hand twice, no unfinished record committed. Must not know the order of
events, which a test chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ottla import Record
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.shared_state import SharedState
from ottla.client.calls.streams import Positions, StreamQueue, Streams
from ottla.client.events import FetchedPartition, FetchedResponse
from ottla.client.subscription import EARLIEST, Snapshot, SubscriptionState
from ottla.records import NewRecord, Walk, encode_batch
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import config

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
STREAMS = 2
MOST_CHUNKS = 2
LIMIT = 4
"""The records that a poll returns at most."""


class ConsumerWithStreams:
    """See the module. ``queues`` are the streams of topic ``t``; partitions 0 and 1 belong to the first, 2 and 3 to the second."""

    def __init__(self, streams: int = STREAMS) -> None:
        shared = SharedState()
        self.now = Now(1_000, 1_000)
        self.queues = [StreamQueue(f"t {number}", partial(self._go_on, number), lambda: None) for number in range(streams)]
        self.streams = shared.streams = Streams({"t": self.queues}, MOST_CHUNKS)
        self.collector = FetchCollector(config(), shared)
        self.subscription = SubscriptionState(EARLIEST)
        self.subscription.subscribe(frozenset({"t"}))
        self.log = dict.fromkeys(PARTITIONS, 0)
        """The number of records that exist of each partition."""
        self.expected: dict[TopicPartition, int] = {}
        """The offset that is to be handed out next, of each assigned partition."""
        self.finished: dict[TopicPartition, set[int]] = {tp: set() for tp in PARTITIONS}
        self.committed = dict.fromkeys(PARTITIONS, 0)
        self.in_hand: dict[int, Record] = {}
        """The record that each thread has in hand."""
        self.commands: list[Callable[[], None]] = []
        """What the pump has asked for."""
        self.number = 0
        self.assign(*PARTITIONS)

    # -- the network thread -----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        subscription = self.subscription
        snapshot = Snapshot(subscription.mode, subscription.topics, subscription.views())
        self.rewind(self.collector.on_snapshot(snapshot))

    def rewind(self, positions: Positions) -> None:
        if positions:
            self.commands.append(lambda: self.subscription.rewind(positions))

    def execute(self) -> None:
        """Execute the commands of the pump, which waits for them before it polls."""
        while self.commands:
            self.commands.pop(0)()
            self.publish()

    def assign(self, *tps: TopicPartition) -> None:
        new = [tp for tp in tps if tp not in self.subscription.partitions]
        self.subscription.set_partitions({*self.subscription.partitions, *new})
        for tp in new:
            at = OffsetAndMetadata(self.committed[tp])
            assert self.subscription.found(tp, self.subscription.partitions[tp].epoch, at, None)
            self.expected[tp] = self.committed[tp]
        self.publish()

    def arrive(self, tp: TopicPartition, count: int) -> None:
        state = self.subscription.partitions.get(tp)
        if state is None or not state.fetchable or self.collector.buffer.responses > 4:
            return
        data = bytes(encode_batch([NewRecord(None, b"v")] * count, base_offset=state.fetch))
        part = FetchedPartition(tp, state.epoch, state.fetch, data, end=1_000)
        self.number += 1
        self.subscription.advance(tp, state.epoch, state.fetch + count)
        self.log[tp] = max(self.log[tp], self.subscription.partitions[tp].fetch)
        self.collector.on_fetched(FetchedResponse(self.number, 1, (part,), len(data)), self.now)

    def fetch(self) -> None:
        """Fetch again what was dropped: of each partition up to the records that exist."""
        for tp, state in self.subscription.partitions.items():
            if state.fetch < self.log[tp]:
                self.arrive(tp, self.log[tp] - state.fetch)

    # -- the pump ---------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        self.execute()
        self.collector.acknowledge()
        delivery = self.collector.collect(LIMIT)
        if delivery is not None:
            self.collector.move_to_streams(delivery, self.streams)
        responses = self.collector.buffer.responses if delivery is None else 0
        changes = self.streams.changes(self.collector.snapshot, responses, self.now)
        if changes.pause:
            positions, views = self.collector.positions(with_current=True), self.collector.snapshot.partitions
            self.streams.note_paused(changes.pause)
            consumed = {tp: (views[tp].epoch, positions[tp]) for tp in changes.pause}
            self.commands.append(lambda: self.subscription.pause(changes.pause, consumed))
        if changes.resume:
            self.commands.append(lambda: self.subscription.resume(changes.resume))
            self.streams.note_resumed(changes.resume)

    def withdraw(self, tp: TopicPartition, *, lost: bool = False) -> None:
        self.rewind(self.collector.withdraw({tp}, lost=lost))

    def seek(self, tp: TopicPartition) -> None:
        """Go back to the committed offset."""
        if tp in self.subscription.partitions:
            self.subscription.seek({tp: OffsetAndMetadata(self.committed[tp])})
            self.expected[tp] = self.committed[tp]

    def revoke(self, tp: TopicPartition, *, lost: bool = False, kept: bool = False) -> None:
        if tp not in self.subscription.partitions:
            return
        self.execute()
        self.subscription.suspend([tp])
        self.publish()
        self.withdraw(tp, lost=lost)
        if not lost:
            self.execute()
            self.commit()
        if kept:
            self.subscription.set_partitions(self.subscription.partitions.keys())
        else:
            self.subscription.set_partitions(self.subscription.partitions.keys() - {tp})
            del self.expected[tp]
        self.publish()

    def commit(self) -> None:
        for tp, position in self.collector.positions_to_commit(with_current=False).items():
            unfinished = set(range(self.committed[tp], position.offset)) - self.finished[tp]
            assert not unfinished, f"{tp}: {position.offset} is committed, but {unfinished} are not finished"
            self.committed[tp] = max(self.committed[tp], position.offset)

    # -- the threads that iterate -----------------------------------------------------------------------------------------

    def _go_on(self, number: int, walk: Walk) -> bool:
        del walk
        return self.queues[number].advance()

    def finish(self, number: int) -> None:
        """The thread requests the next record; this finishes the one in hand."""
        record = self.in_hand.pop(number, None)
        if record is not None:
            self.finished[TopicPartition(record.topic, record.partition)].add(record.offset)

    def take(self, number: int, count: int = 1) -> int:
        taken = 0
        for _ in range(count):
            self.finish(number)
            record = next(self.queues[number].walk, None)
            if record is None:
                break
            taken += 1
            tp = TopicPartition(record.topic, record.partition)
            others = [other for other in self.in_hand.values() if other.partition == record.partition]
            assert tp in self.expected, f"{tp} was handed out after it was revoked"
            assert not others, f"{tp} is in hand in two streams"
            assert record.offset == self.expected[tp], f"{tp}: {record.offset} instead of {self.expected[tp]}"
            self.expected[tp] += 1
            self.in_hand[number] = record
        return taken

    # -- checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for queue in self.queues:
            assert queue.waiting() <= MOST_CHUNKS
        self.commit()
        for tp, offset in self.expected.items():
            position = self.collector.position(tp)
            assert position is not None
            assert position.offset == offset, f"{tp}: the position is {position.offset} instead of {offset}"
