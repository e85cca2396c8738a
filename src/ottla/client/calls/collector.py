"""Turns fetched responses into the records of one poll, and keeps the positions up to which the application has processed them.

Owns the consumed positions, on the application thread. Must not know requests, nor how a partition was assigned: it sees the
published snapshots. Invariants: it delivers records only from assigned partitions that are neither paused nor being revoked, of the
current epoch; it delivers a partition's records from its position on, in order, none twice and none left out; an automatic commit
covers no record that was not returned, and in an iteration none that is not processed, unless the application has committed it.

A signal handler may raise after any call that this module makes. Therefore positions, delivery and undelivered records, from which
the committed positions are computed, change by plain assignments without a call between them; ``start_over`` recreates the rest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.client.calls.delivery import Delivery, DeliveryPart
from ottla.client.calls.shared_state import FetchedLog, SharedState
from ottla.client.events import FetchedPartition, FetchedResponse
from ottla.client.health.metrics import Consumption
from ottla.client.subscription import PartitionView, Snapshot
from ottla.config import ConsumerConfig
from ottla.errors import CorruptRecordError
from ottla.records import PartitionReader, Walk
from ottla.types import Now, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from ottla.client.calls.streams import Positions, Streams


class _OpenFetch(NamedTuple):
    """The fetched data of one partition that is being read, with the number of its response."""

    number: int
    part: FetchedPartition
    reader: PartitionReader


class _PendingFetch(NamedTuple):
    """The fetched data of one partition that was not read, or, with a ``reader``, not to its end."""

    number: int
    part: FetchedPartition
    reader: PartitionReader | None = None


class FetchBuffer:
    """The partitions of all responses that were not read yet, in the order of their arrival.

    A response arrives as a notification, after that of the assignment that it was fetched for, so the buffer belongs to the
    application thread. When the last partition of a response is consumed or dropped, the response is reported as drained (twice if
    a signal handler interrupts the report): from these reports the network thread knows how much memory is in use.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, FetchedPartition]] = deque()
        self._remaining: dict[int, int] = {}
        self._drained: list[int] = []
        self._in_streams: set[int] = set()
        """The responses of which only streams have records."""
        self._moved: list[int] = []
        """Those of them that were not reported yet."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<FetchBuffer {len(self._waiting)} partitions of {len(self._remaining)} responses>"

    @property
    def has_drained(self) -> bool:
        """Whether a drained response was not reported yet."""
        return bool(self._drained)

    @property
    def responses(self) -> int:
        """The number of responses that occupy the memory for fetched records."""
        return len(self._remaining) - len(self._in_streams)

    def add(self, response: FetchedResponse) -> None:
        """Add the partitions of a response."""
        if not response.partitions:
            self._drained.append(response.number)
            return
        self._remaining[response.number] = len(response.partitions)
        self._waiting.extend((response.number, part) for part in response.partitions)

    def pop(self) -> tuple[int, FetchedPartition] | None:
        """Remove and return the next partition, with the number of its response for ``release``."""
        return self._waiting.popleft() if self._waiting else None

    def release(self, number: int) -> None:
        """Count a partition of a response as consumed or dropped."""
        self._remaining[number] -= 1
        if not self._remaining[number]:
            del self._remaining[number]
            self._in_streams.discard(number)
            self._drained.append(number)

    def moved(self, read_out: Iterable[int]) -> None:
        """Note that streams have the last records of some partitions; ``read_out``: for each, the number of its response."""
        for number, count in Counter(read_out).items():
            if self._remaining.get(number) == count and number not in self._in_streams:
                self._in_streams.add(number)
                self._moved.append(number)

    def holds(self, number: int) -> bool:
        """Whether a partition of this response is neither consumed nor dropped."""
        return number in self._remaining

    def drop(self) -> None:
        """Drop all partitions."""
        self._drained.extend(self._remaining)
        self._remaining.clear()
        self._in_streams.clear()
        self._waiting.clear()

    def report_drained(self, report: Callable[[tuple[int, ...]], object]) -> None:
        """Call ``report`` with the numbers of the responses that were drained since the last report."""
        drained = tuple(self._drained)
        report(drained)
        del self._drained[: len(drained)]

    def take_moved(self) -> tuple[int, ...]:
        """The numbers of the responses that have moved into streams since the last call."""
        moved, self._moved = tuple(self._moved), []
        return moved


class FetchCollector:
    """See the module."""

    def __init__(self, config: ConsumerConfig, shared: SharedState) -> None:
        self.buffer = FetchBuffer()
        self._config = config
        self._shared = shared
        self._consumption = shared.consumption = Consumption()
        self._committed: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        """Epoch and position of the application's own commits since the last poll: the records before them are processed."""
        self._open: _OpenFetch | None = None
        self._set_aside: deque[_PendingFetch] = deque()
        """Data of partitions that are paused or being revoked, in the order of arrival.

        It is not dropped: 1. The network thread has advanced the fetch position past these records. 2. A rebalance suspends the
        partition. 3. The new assignment contains the partition again, with the same epoch, so nothing is fetched a second time.
        """
        self._rechecked: deque[_PendingFetch] = deque()
        """Data that was set aside before the latest change of the subscription: it is looked at first."""
        self._corrupt: list[_OpenFetch] = []
        self._undelivered: deque[DeliveryPart] = deque()
        """Parts of earlier deliveries that the application did not receive: it left an iteration, or they were not deliverable."""
        self._fully_read: list[int] = []
        """Numbers of the responses of fully read partitions. The application may still process the last records of them."""
        self._blocked: frozenset[TopicPartition] = frozenset()
        """The partitions whose streams had no room at the last ``collect``."""

    def __repr__(self) -> str:
        return f"<FetchCollector {len(self._shared.positions)} positions, {self.buffer}>"

    @property
    def snapshot(self) -> Snapshot:
        """The subscription as the network thread last published it."""
        return self._shared.snapshot

    @property
    def streams(self) -> Streams | None:
        """The streams that get the records, if the application uses ``streams()``."""
        return self._shared.streams

    @property
    def delivery(self) -> Delivery | None:
        """The records of the last poll, until the next one."""
        return self._shared.delivery

    # -- what arrives -----------------------------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: Snapshot) -> Positions:
        """Take a new snapshot of the subscription. Positions of other epochs are void.

        Returns what streams have to give back, as ``withdraw`` does, since the partitions are divided differently among them.
        """
        self._shared.snapshot = snapshot
        self._rechecked.extendleft(reversed(self._set_aside))
        self._set_aside.clear()
        self._interrupt_walk()
        by_partition: dict[TopicPartition, tuple[int, Any]]
        for by_partition in (self._shared.positions, self._shared.logs):
            for tp in [tp for tp, (epoch, _) in by_partition.items() if not self._is_current(tp, epoch)]:
                del by_partition[tp]
        self._consumption.keep(snapshot.partitions)
        return {} if self.streams is None else self._taken_back(self.streams.on_snapshot(snapshot))

    def on_fetched(self, response: FetchedResponse, now: Now) -> None:
        """Add a response to the buffer."""
        for part in response.partitions:
            self._shared.logs[part.tp] = (part.epoch, FetchedLog(part.begin, part.end, part.topic_id))
        self.buffer.add(response)
        self._consumption.arrived(response, self._shared.returned_offset, now)

    def report_drained(self, report: Callable[[tuple[int, ...]], object], now: Now) -> None:
        """Call ``report`` with the numbers of the responses that were consumed or dropped since the last report."""
        self._consumption.settle(self.buffer.holds, now)
        self.buffer.report_drained(report)

    # -- positions --------------------------------------------------------------------------------------------------------

    def position(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        """The position of the next record of a partition that the application receives; ``None``: not known."""
        view = self._shared.snapshot.partitions.get(tp)
        if view is None:
            return None
        unreturned = {} if self.streams is None else self.streams.handed_out()
        return self._position_in(view, tp, self._unprocessed(with_current=True, with_last=True) | unreturned)

    def positions(
        self, *, with_current: bool, with_last: bool = True, in_streams: Positions | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The position of each partition that has one.

        ``with_current``: the current record of an iteration is processed. ``with_last``: so are the records of the last poll.
        ``in_streams``: the positions of the first unprocessed records in streams; without it, all records in them are processed.
        """
        unprocessed = self._unprocessed(with_current=with_current, with_last=with_last) | (in_streams or {})
        positions = {tp: self._position_in(view, tp, unprocessed) for tp, view in self._shared.snapshot.partitions.items()}
        return {tp: position for tp, position in positions.items() if position is not None}

    def _unprocessed(self, *, with_current: bool, with_last: bool) -> dict[TopicPartition, tuple[int, OffsetAndMetadata]]:
        """For each partition with unprocessed records, its epoch and the position of the first of them."""
        unprocessed: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        delivery = self._shared.delivery
        if delivery is not None and not (delivery.whole and with_last):
            unprocessed = delivery.positions(with_current=with_current and not delivery.unprocessed)
        # The undelivered records of a partition are older than those in the delivery. ``reversed``, so that the oldest part counts.
        return unprocessed | {
            part.tp: (part.epoch, part.start) for part in reversed(self._undelivered) if self._is_current(part.tp, part.epoch)
        }

    def _position_in(
        self, view: PartitionView, tp: TopicPartition, unprocessed: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]
    ) -> OffsetAndMetadata | None:
        # A partition that is paused while its records are processed has another epoch, and the records are still unprocessed.
        epoch, position = unprocessed.get(tp) or self._shared.positions.get(tp) or (-1, None)
        return position if view.follows(epoch) else view.position

    def positions_to_commit(self, *, with_current: bool, with_last: bool = True) -> dict[TopicPartition, OffsetAndMetadata]:
        """As ``positions``, for an automatic commit, which never takes back a later position that the application has committed
        since the last poll."""
        unfinished = None if self.streams is None else self.streams.unfinished()
        positions = self.positions(with_current=with_current, with_last=with_last, in_streams=unfinished)
        views = self._shared.snapshot.partitions
        for tp, (epoch, committed) in self._committed.items():
            if tp in positions and views[tp].follows(epoch) and positions[tp].offset < committed.offset:
                positions[tp] = committed
        return positions

    def returned_positions(self, thread: object = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions after all returned records, which ``commit()`` without offsets commits.

        While the consumer is being closed and the last records may be unprocessed, it is what ``close()`` commits. With streams it
        is the positions after the finished records; the records that ``thread``, which commits, has in hand count as finished.
        """
        if self.streams is not None:
            return self.positions(with_current=True, in_streams=self.streams.unfinished(thread))
        delivery = self._shared.delivery
        if delivery is not None and delivery.unprocessed:
            return self.positions_to_commit(with_current=True)
        return self.positions(with_current=True)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The application itself commits these positions."""
        views = self._shared.snapshot.partitions
        self._committed |= {tp: (views[tp].epoch, position) for tp, position in offsets.items() if tp in views}

    def mark_unprocessed(self) -> None:
        """Count the records of the last poll as unprocessed: the consumer is being closed."""
        delivery = self._shared.delivery
        if delivery is not None:
            delivery.unprocessed, delivery.whole = True, False

    def on_next_record(self) -> None:
        """Count the current record of an iteration as processed: the application requests the next one."""
        delivery = self._shared.delivery
        if delivery is not None:
            delivery.caller, delivery.finished = None, delivery.current

    def log_end(self, tp: TopicPartition) -> int | None:
        """The offset up to which a partition could be read at the latest response; ``None`` before the first one."""
        return self._shared.log_end(tp)

    @property
    def has_buffered(self) -> bool:
        """Whether there may be records to deliver before another response arrives."""
        return self._open is not None or bool(self._undelivered or self._rechecked or len(self.buffer))

    @property
    def raised_corrupt(self) -> TopicPartition | None:
        """The partition of the damaged batch whose error was raised last."""
        return self._corrupt[-1].part.tp if self._corrupt else None

    def acknowledge(self) -> None:
        """Count the received records as processed, since the application polls again. The rest of an iteration is undelivered."""
        delivery = self._shared.delivery
        if delivery is not None:
            undelivered = self._undelivered + deque(delivery.rest())
            self._interrupt_walk()
            # With streams a poll does not mean that records are processed, so it does not void the application's own commits.
            committed = {} if self.streams is None else self._committed
            self._undelivered, self._shared.delivery, self._committed = undelivered, None, committed
        self._release_fully_read()

    def start_over(self) -> dict[TopicPartition, tuple[int, OffsetAndMetadata]]:
        """Drop all fetched data; return epoch and position of each partition, from which it has to be fetched again.

        The received records count as processed, since the application polls again.
        """
        views = self._shared.snapshot.partitions
        positions = {tp: (views[tp].epoch, position) for tp, position in self.positions(with_current=True).items()}
        empty: deque[DeliveryPart] = deque()
        self._interrupt_walk()
        self._shared.positions, self._undelivered, self._shared.delivery = positions, empty, None
        self._open = None
        for fetched in (self._set_aside, self._rechecked, self._corrupt, self._fully_read):
            fetched.clear()
        self.buffer.drop()
        return positions

    # -- records ----------------------------------------------------------------------------------------------------------

    def collect(self, limit: int) -> Delivery | None:
        """Return at most ``limit`` buffered records; ``None``: there are none.

        Raises ``CorruptRecordError`` for a damaged batch if there are no other records, with each call until a seek.
        """
        if self.streams is not None:
            self._look_for_room(self.streams)
        parts, undelivered, left = self._divide_undelivered(limit)
        delivery = Delivery(parts)
        self._undelivered, self._shared.delivery = undelivered, delivery
        while left > 0 and (self._open is not None or self._open_next()):
            opened = self._open
            assert opened is not None
            left -= self._read(opened, left, delivery)
        if not delivery.parts:
            self._shared.delivery = None
            self._release_fully_read()  # no record of them is in use, and the next response needs the memory
            self._raise_corrupt()
            return None
        return delivery

    def _look_for_room(self, streams: Streams) -> None:
        blocked = streams.blocked()
        if self._blocked - blocked:
            self._rechecked.extendleft(reversed(self._set_aside))
            self._set_aside.clear()
        self._blocked = blocked

    def move_to_streams(self, delivery: Delivery, streams: Streams) -> None:
        """Put the records of a poll into the queues of their streams. Those without room are delivered again, before newer ones."""
        left = streams.put(delivery.parts)
        self._undelivered.extendleft(reversed(left))
        delivery.whole = True

    def withdraw(self, partitions: Collection[TopicPartition], *, lost: bool = False) -> Positions:
        """Take back the records of these partitions that streams have not handed out.

        Returns epoch and position from which they have to be fetched again, if the partition stays.
        """
        return {} if self.streams is None else self._taken_back(self.streams.withdraw(partitions, void=lost))

    def _taken_back(self, first: Positions) -> Positions:
        """Return where to fetch again; ``first``: the first records that were not handed out, some of partitions that are gone."""
        views = self._shared.snapshot.partitions
        again = {tp: (views[tp].epoch, at) for tp, (epoch, at) in first.items() if tp in views and views[tp].follows(epoch)}
        # These records follow those that were taken back, so they are fetched again, too.
        self._undelivered = deque(part for part in self._undelivered if part.tp not in again)
        self._shared.positions |= again
        return again

    def walk(self, delivery: Delivery, walk: Walk | None = None) -> Walk:
        """Return an iterator over a delivery, or continue ``walk`` with it.

        It leaves out records of partitions that are revoked, paused or sought elsewhere meanwhile.
        """
        walk = Walk(self.continue_walk) if walk is None else walk
        walk.take(())
        delivery.walk, delivery.whole = walk, False
        return walk

    def continue_walk(self, walk: Walk) -> bool:
        """Continue a walk in its part, if that is still deliverable, or with the next one; False: the delivery is finished."""
        delivery = self._shared.delivery
        if delivery is None or delivery.walk is not walk:
            walk.take(())
            return False
        if walk.at >= 0 and walk.has_more:
            part = delivery.parts[delivery.at]
            if self._is_deliverable(part.tp, part.epoch):
                return True
            self._defer(part if walk.current is None else part.after(walk.current.offset))
        for at in range(walk.at + 1, len(delivery.parts)):
            part = delivery.parts[at]
            if self._may_deliver(part):
                walk.take(part.records.segments, at)
                return True
            self._defer(part)
        walk.take((), len(delivery.parts))
        return False

    def _interrupt_walk(self) -> None:
        delivery = self._shared.delivery
        if delivery is not None and delivery.walk is not None:
            delivery.walk.interrupt()

    def _defer(self, part: DeliveryPart | None) -> None:
        """Keep records of a partition that is paused or being revoked, so that they do not count as processed."""
        if part is not None and self._is_current(part.tp, part.epoch):
            self._undelivered.append(part)

    def _divide_undelivered(self, limit: int) -> tuple[list[DeliveryPart], deque[DeliveryPart], int]:
        """Divide the undelivered parts into those of this poll and the others; also return how many more records it may return.

        That is 0 while a deliverable part remains: newer records of its partition must not overtake it.
        """
        kept: deque[DeliveryPart] = deque()
        parts, left = [], limit
        for part in self._undelivered:
            if not self._is_current(part.tp, part.epoch):
                continue
            if not self._may_deliver(part, kept):
                kept.append(part)
            elif len(part.records) <= left:
                parts.append(part)
                left -= len(part.records)
            else:
                kept.append(part)
                left = 0
        return parts, kept, left

    def _may_deliver(self, part: DeliveryPart, kept: Iterable[DeliveryPart] | None = None) -> bool:
        """Whether a part is deliverable and no older part of its partition is undelivered."""
        before = self._undelivered if kept is None else kept
        return self._is_deliverable(part.tp, part.epoch) and all(older.tp != part.tp for older in before)

    def _open_next(self) -> bool:
        """Open the next data that is deliverable; False: there is none."""
        while (pending := self._next_pending()) is not None:
            number, part, reader = pending
            if not part.data:
                self.buffer.release(number)
            elif not self._is_current(part.tp, part.epoch):
                self._drop(number, reader)
            elif not self._is_deliverable(part.tp, part.epoch):
                self._set_aside.append(pending)
            elif reader is None and part.offset != self._offset(part.tp):
                self.buffer.release(number)
            else:
                self._open = _OpenFetch(number, part, self._reader(part) if reader is None else reader)
                return True
        return False

    def _drop(self, number: int, reader: PartitionReader | None) -> None:
        """Drop data of an older epoch. If it was read in part, streams may still have those records: see ``_read``."""
        if reader is not None and self.streams is not None:
            self._fully_read.append(number)
        else:
            self.buffer.release(number)

    def _next_pending(self) -> _PendingFetch | None:
        if self._rechecked:
            return self._rechecked.popleft()
        popped = self.buffer.pop()
        return _PendingFetch(*popped) if popped is not None else None

    def _reader(self, part: FetchedPartition) -> PartitionReader:
        config = self._config
        return PartitionReader(
            part.data,
            topic=part.tp.topic,
            partition=part.tp.partition,
            fetch_offset=part.offset,
            isolation_level=config.isolation_level,
            aborted=part.aborted,
            check_crcs=config.check_crcs,
            key_deserializer=config.key_deserializer,
            value_deserializer=config.value_deserializer,
            deserialize_nulls=config.deserialize_nulls,
        )

    def _read(self, opened: _OpenFetch, limit: int, delivery: Delivery) -> int:
        """Add at most ``limit`` records of the open data to the delivery; return how many.

        The data is closed at its end, at a damaged batch, and if it is not deliverable any more.
        """
        number, part, reader = opened
        if not self._is_deliverable(part.tp, part.epoch):
            # A listener or a seek has changed the subscription since the last poll. ``_open_next`` drops data of an older epoch and
            # sets data of a paused partition aside.
            self._open = None
            self._rechecked.appendleft(_PendingFetch(number, part, reader))
            return 0
        start, before = self._position(part.tp), reader.bytes_read
        try:
            records = reader.read(limit)
        except CorruptRecordError:
            self._open = None
            self._corrupt.append(opened)
            return 0
        end = OffsetAndMetadata(reader.next_offset, leader_epoch=reader.next_leader_epoch)
        read: list[DeliveryPart] = [] if records is None else [DeliveryPart(part.tp, part.epoch, start, records, number)]
        delivery.parts += read
        self._shared.positions[part.tp] = (part.epoch, end)
        count = 0 if records is None else len(records)
        if count:
            self._consumption.read(number, part.tp.topic, count, reader.bytes_read - before)
        if reader.exhausted:
            # Not released before the application has processed these records: 1. The log is truncated. 2. ``PositionValidator``
            # finds that the position does not fit any more (KIP-320); it moves the position only while no response of the partition
            # is held. 3. Otherwise the new position, the end of the log, would skip the rest of these records, and ``close()``
            # would commit it.
            self._open = None
            self._fully_read.append(number)
        return count

    def _release_fully_read(self) -> None:
        """Release the fully read responses: their records are processed, except the undelivered ones."""
        undelivered = {part.number for part in self._undelivered}
        in_streams = set() if self.streams is None else self.streams.numbers()
        held = undelivered | in_streams
        read_out, self._fully_read = self._fully_read, [number for number in self._fully_read if number in held]
        for number in read_out:
            if number not in held:
                self.buffer.release(number)
        if in_streams:
            self.buffer.moved(number for number in self._fully_read if number not in undelivered)

    def _raise_corrupt(self) -> None:
        """Raise the error of a damaged batch, of another partition each time."""
        for opened in list(self._corrupt):
            if not self._is_current(opened.part.tp, opened.part.epoch):
                self._corrupt.remove(opened)
                self._drop(opened.number, opened.reader)
            elif self._is_deliverable(opened.part.tp, opened.part.epoch):
                self._corrupt.remove(opened)
                self._corrupt.append(opened)
                opened.reader.read(1)

    def _position(self, tp: TopicPartition) -> OffsetAndMetadata:
        view = self._shared.snapshot.partitions[tp]
        epoch, position = self._shared.positions.get(tp, (-1, None))
        current = position if epoch == view.epoch else view.position
        assert current is not None
        return current

    def _offset(self, tp: TopicPartition) -> int:
        return self._position(tp).offset

    def _is_current(self, tp: TopicPartition, epoch: int) -> bool:
        view = self._shared.snapshot.partitions.get(tp)
        return view is not None and view.epoch == epoch

    def _is_deliverable(self, tp: TopicPartition, epoch: int) -> bool:
        view = self._shared.snapshot.partitions.get(tp)
        return view is not None and view.epoch == epoch and view.fetchable and tp not in self._blocked
