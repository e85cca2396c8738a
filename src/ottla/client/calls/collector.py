"""From fetched responses to the records of one poll, and the positions up to which the application has processed them.

Owns the consumed positions, for the application thread. Of the network thread it knows only the published snapshots.
Invariants: records come only from partitions that are held, not paused and not being revoked, in the epoch that is current; a
partition's records come in order and without a gap or a repetition, from its position on; a position that is committed by itself
never covers a record that was not handed out, nor, while records are walked one by one, one that is not done with, unless the
application has committed that far by a call of its own.

The handler of a signal may raise after any call that is made here. What the positions are derived from (positions and delivery in
the shared state, what is left over) therefore changes by plain assignments without a call between them; ``start_over`` recreates
everything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.calls.delivery import Delivery, HandedOut
from ottla.client.calls.shared_state import SharedState
from ottla.client.health.metrics import Consumption
from ottla.client.notifications import FetchedPartition, FetchedResponse
from ottla.client.subscription import PartitionView, Snapshot
from ottla.config import ConsumerConfig
from ottla.errors import CorruptRecordError
from ottla.records import PartitionReader, Walk
from ottla.types import Now, OffsetAndMetadata, TopicPartition


class _Open(NamedTuple):
    """The partition response that is being read."""

    number: int
    part: FetchedPartition
    reader: PartitionReader


class _Waiting(NamedTuple):
    """A partition response that has not been read to its end."""

    number: int
    part: FetchedPartition
    reader: PartitionReader | None = None


class FetchBuffer:
    """The partitions of all responses, in the order in which they came.

    Responses travel in the notification queue, behind the assignment that they were fetched for. So the buffer belongs to the
    application thread alone and nothing in it is locked. Each response is reported as drained once the last of its partitions was
    consumed or dropped (once, unless a signal's handler interrupts that), so the network thread always knows how much memory is
    held without looking here.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, FetchedPartition]] = deque()
        self._left: dict[int, int] = {}
        self._drained: list[int] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<FetchBuffer {len(self._waiting)} partitions of {len(self._left)} responses>"

    @property
    def has_drained(self) -> bool:
        """Whether there is memory to be reported as free."""
        return bool(self._drained)

    def add(self, response: FetchedResponse) -> None:
        """Take a response in."""
        if not response.partitions:
            self._drained.append(response.number)
            return
        self._left[response.number] = len(response.partitions)
        self._waiting.extend((response.number, part) for part in response.partitions)

    def pop(self) -> tuple[int, FetchedPartition] | None:
        """The next partition and the number of its response, to be given to ``release`` when it is done with."""
        return self._waiting.popleft() if self._waiting else None

    def release(self, number: int) -> None:
        """One partition of a response was consumed or dropped."""
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._drained.append(number)

    def holds(self, number: int) -> bool:
        """Whether there is something left of a response that came in."""
        return number in self._left

    def drop(self) -> None:
        """Nothing of all this is wanted any more."""
        self._drained.extend(self._left)
        self._left.clear()
        self._waiting.clear()

    def report_drained(self, tell: Callable[[tuple[int, ...]], object]) -> None:
        """Report the responses that were drained since the last report."""
        drained = tuple(self._drained)
        tell(drained)
        del self._drained[: len(drained)]


class FetchCollector:
    """See the module."""

    def __init__(self, config: ConsumerConfig, shared: SharedState) -> None:
        self.buffer = FetchBuffer()
        self._config = config
        self._shared = shared
        self._consumption = shared.consumption = Consumption()
        self._committed: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        """What the application has committed by its own calls since the last poll: it has processed the records before that."""
        self._open: _Open | None = None
        self._aside: deque[_Waiting] = deque()
        """Responses of partitions that are paused or about to be revoked, in the order in which they came.

        The fetch position is already behind them: if they were dropped and the partition stays, their records would be skipped.
        """
        self._ready: deque[_Waiting] = deque()
        """Responses that were set aside, to be looked at again since the subscription has changed."""
        self._corrupt: list[_Open] = []
        self._leftover: deque[HandedOut] = deque()
        self._read_out: list[int] = []
        """Numbers of the responses that were read to their end, and whose last records the application may still hold."""

    def __repr__(self) -> str:
        return f"<FetchCollector {len(self._shared.positions)} positions, {self.buffer}>"

    @property
    def snapshot(self) -> Snapshot:
        """The subscription as the network thread last published it."""
        return self._shared.snapshot

    @property
    def delivery(self) -> Delivery | None:
        """The records of the last poll, until the application comes back."""
        return self._shared.delivery

    # -- what arrives -----------------------------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """The subscription changed. Positions of older epochs are void from now on."""
        self._shared.snapshot = snapshot
        self._ready.extendleft(reversed(self._aside))
        self._aside.clear()
        self._interrupt_walk()
        known: dict[TopicPartition, tuple[int, Any]]
        for known in (self._shared.positions, self._shared.log_ranges):
            for tp in [tp for tp, (epoch, _) in known.items() if not self._is_current(tp, epoch)]:
                del known[tp]
        self._consumption.keep(snapshot.partitions)

    def on_fetched(self, response: FetchedResponse, now: Now) -> None:
        """Records arrived."""
        for part in response.partitions:
            self._shared.log_ranges[part.tp] = (part.epoch, (part.begin, part.end))
        self.buffer.add(response)
        self._consumption.arrived(response, self._shared.returned_offset, now)

    def report_drained(self, tell: Callable[[tuple[int, ...]], object], now: Now) -> None:
        """Report the responses that were consumed or dropped since the last report: their memory is free."""
        self._consumption.settle(self.buffer.holds, now)
        self.buffer.report_drained(tell)

    # -- positions --------------------------------------------------------------------------------------------------------

    def position(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        """The next offset that the application gets of a partition; ``None`` while it is not known."""
        view = self._shared.snapshot.partitions.get(tp)
        return None if view is None else self._position_in(view, tp, self._undone(with_current=True, with_last=True))

    def positions(self, *, with_current: bool, with_last: bool = True) -> dict[TopicPartition, OffsetAndMetadata]:
        """The position of each partition that has one.

        ``with_current``: the current record of an iteration is processed. ``with_last``: so are the records of the last poll.
        """
        undone = self._undone(with_current=with_current, with_last=with_last)
        found = {tp: self._position_in(view, tp, undone) for tp, view in self._shared.snapshot.partitions.items()}
        return {tp: position for tp, position in found.items() if position is not None}

    def _undone(self, *, with_current: bool, with_last: bool) -> dict[TopicPartition, tuple[int, OffsetAndMetadata]]:
        """Where what was handed out and is not processed begins, with the epoch of its partition."""
        undone: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        delivery = self._shared.delivery
        if delivery is not None and not (delivery.whole and with_last):
            undone = delivery.positions(with_current=with_current and not delivery.unprocessed)
        # What is left over of a partition comes before all that was handed out of it since: the earliest of it counts.
        return undone | {
            left.tp: (left.epoch, left.start) for left in reversed(self._leftover) if self._is_current(left.tp, left.epoch)
        }

    def _position_in(
        self, view: PartitionView, tp: TopicPartition, undone: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]
    ) -> OffsetAndMetadata | None:
        # A partition that is paused while its records are processed has another epoch, and they are undone even so.
        epoch, position = undone.get(tp) or self._shared.positions.get(tp) or (-1, None)
        return position if view.follows(epoch) else view.position

    def to_commit(self, *, with_current: bool, with_last: bool = True) -> dict[TopicPartition, OffsetAndMetadata]:
        """As ``positions``, for an automatic commit: none is before one that the application has committed since the last poll."""
        positions, views = self.positions(with_current=with_current, with_last=with_last), self._shared.snapshot.partitions
        for tp, (epoch, committed) in self._committed.items():
            if tp in positions and views[tp].follows(epoch) and positions[tp].offset < committed.offset:
                positions[tp] = committed
        return positions

    def everything(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What ``commit()`` without offsets commits: the positions after all returned records.

        While the consumer is being closed and the last records may be unprocessed, it is what ``close()`` commits.
        """
        delivery = self._shared.delivery
        if delivery is not None and delivery.unprocessed:
            return self.to_commit(with_current=True)
        return self.positions(with_current=True)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """The application commits these positions explicitly."""
        views = self._shared.snapshot.partitions
        self._committed |= {tp: (views[tp].epoch, position) for tp, position in offsets.items() if tp in views}

    def take_back(self) -> None:
        """The application's records count as not returned: the consumer is being closed, and they may be unprocessed."""
        delivery = self._shared.delivery
        if delivery is not None:
            delivery.unprocessed, delivery.whole = True, False

    def came_back(self) -> None:
        """The application requests the next record of its iteration, so it has processed the current one."""
        delivery = self._shared.delivery
        if delivery is not None:
            delivery.caller, delivery.finished = None, delivery.current

    def log_end(self, tp: TopicPartition) -> int | None:
        """The offset up to which a partition could be read at the latest response; ``None`` before the first one."""
        return self._shared.log_end(tp)

    @property
    def has_waiting(self) -> bool:
        """Whether there may be records to hand out without anything having to arrive."""
        return self._open is not None or bool(self._leftover or self._ready or len(self.buffer))

    def acknowledge(self) -> None:
        """The application came back: it is done with what it was given. What it was in the middle of walking is still to come."""
        delivery = self._shared.delivery
        if delivery is not None:
            leftover = self._leftover + deque(delivery.rest())
            self._interrupt_walk()
            self._leftover, self._shared.delivery, self._committed = leftover, None, {}
        self._release_read_out()

    def start_over(self) -> dict[TopicPartition, tuple[int, OffsetAndMetadata]]:
        """Drop all that has arrived; it is to be fetched again from these positions, each with its epoch. The application came
        back."""
        positions, views = self.positions(with_current=True), self._shared.snapshot.partitions
        known = {tp: (views[tp].epoch, position) for tp, position in positions.items()}
        nothing: deque[HandedOut] = deque()
        self._interrupt_walk()
        self._shared.positions, self._leftover, self._shared.delivery = known, nothing, None
        self._open = None
        for held in (self._aside, self._ready, self._corrupt, self._read_out):
            held.clear()
        self.buffer.drop()
        return known

    # -- records ----------------------------------------------------------------------------------------------------------

    def collect(self, limit: int) -> Delivery | None:
        """At most ``limit`` records, from what has arrived; ``None``: there is nothing.

        Raises ``CorruptRecordError`` at a damaged batch, again and again until a seek, but never while other records can be had.
        """
        parts, leftover, left = self._choose_leftover(limit)
        delivery = Delivery(parts)
        self._leftover, self._shared.delivery = leftover, delivery
        while left > 0 and (self._open is not None or self._open_next()):
            opened = self._open
            assert opened is not None
            left -= self._read(opened, left, delivery)
        if not delivery.parts:
            self._shared.delivery = None
            self._release_read_out()  # without a record: the memory is needed for the next response
            self._raise_corrupt()
            return None
        return delivery

    def walk(self, delivery: Delivery, walk: Walk | None = None) -> Walk:
        """The records of a delivery one by one, without those of partitions that are taken away or sought elsewhere meanwhile.

        ``walk`` continues with them, if it is given.
        """
        walk = Walk(self.go_on) if walk is None else walk
        walk.take(())
        delivery.walk, delivery.whole = walk, False
        return walk

    def go_on(self, walk: Walk) -> bool:
        """Continue a walk in its part, if that is still wanted, or with the next part; False: the delivery has no more records."""
        delivery = self._shared.delivery
        if delivery is None or delivery.walk is not walk:
            walk.take(())
            return False
        if walk.at >= 0 and walk.has_more:
            part = delivery.parts[delivery.at]
            if self._is_wanted(part.tp, part.epoch):
                return True
            self._keep(part if walk.current is None else part.after(walk.current.offset))
        for at in range(walk.at + 1, len(delivery.parts)):
            part = delivery.parts[at]
            if self._may_follow(part):
                walk.take(part.records.segments, at)
                return True
            self._keep(part)
        walk.take((), len(delivery.parts))
        return False

    def _interrupt_walk(self) -> None:
        delivery = self._shared.delivery
        if delivery is not None and delivery.walk is not None:
            delivery.walk.interrupt()

    def _keep(self, part: HandedOut | None) -> None:
        """Records that may not be handed out now: their partition is about to be revoked. They must not count as done with."""
        if part is not None and self._is_current(part.tp, part.epoch):
            self._leftover.append(part)

    def _choose_leftover(self, limit: int) -> tuple[list[HandedOut], deque[HandedOut], int]:
        """What was left over and is wanted, what waits on, and how many records may come besides: none before all of it came."""
        kept: deque[HandedOut] = deque()
        parts, left = [], limit
        for part in self._leftover:
            if not self._is_current(part.tp, part.epoch):
                continue
            if not self._may_follow(part, kept):
                kept.append(part)
            elif len(part.records) <= left:
                parts.append(part)
                left -= len(part.records)
            else:
                kept.append(part)
                left = 0
        return parts, kept, left

    def _may_follow(self, part: HandedOut, kept: Iterable[HandedOut] | None = None) -> bool:
        """Whether records are wanted and nothing of their partition is left over that comes before them."""
        before = self._leftover if kept is None else kept
        return self._is_wanted(part.tp, part.epoch) and all(left.tp != part.tp for left in before)

    def _open_next(self) -> bool:
        """Begin, or go on, with the next response that is still wanted; False: there is none."""
        while (waiting := self._next_waiting()) is not None:
            number, part, reader = waiting
            if not part.data or not self._is_current(part.tp, part.epoch):
                self.buffer.release(number)
            elif not self._is_wanted(part.tp, part.epoch):
                self._aside.append(waiting)
            elif reader is None and part.offset != self._offset(part.tp):
                self.buffer.release(number)
            else:
                self._open = _Open(number, part, self._reader(part) if reader is None else reader)
                return True
        return False

    def _next_waiting(self) -> _Waiting | None:
        if self._ready:
            return self._ready.popleft()
        popped = self.buffer.pop()
        return _Waiting(*popped) if popped is not None else None

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

    def _read(self, opened: _Open, limit: int, delivery: Delivery) -> int:
        """Some records of the open response, which is closed at its end, or where it is damaged or no longer wanted; how many."""
        number, part, reader = opened
        if not self._is_wanted(part.tp, part.epoch):
            # A listener or a seek between two polls has changed the subscription. ``_open_next`` decides: a response of an older
            # epoch is dropped, one of a paused partition is set aside.
            self._open = None
            self._ready.appendleft(_Waiting(number, part, reader))
            return 0
        start, before = self._position(part.tp), reader.bytes_read
        try:
            records = reader.read(limit)
        except CorruptRecordError:
            self._open = None
            self._corrupt.append(opened)
            return 0
        end = OffsetAndMetadata(reader.next_offset, leader_epoch=reader.next_leader_epoch)
        read: list[HandedOut] = [] if records is None else [HandedOut(part.tp, part.epoch, start, records, number)]
        delivery.parts += read
        self._shared.positions[part.tp] = (part.epoch, end)
        count = 0 if records is None else len(records)
        if count:
            self._consumption.read(number, part.tp.topic, count, reader.bytes_read - before)
        if reader.exhausted:
            # Not released yet. ``PositionValidator`` moves the position of a truncated log (KIP-320) only while no response of the
            # partition is held: moved now, it would skip the rest of these records, or be committed behind them.
            self._open = None
            self._read_out.append(number)
        return count

    def _release_read_out(self) -> None:
        """The application holds none of the records that were read, except those that are left over."""
        held = {left.number for left in self._leftover}
        read_out, self._read_out = self._read_out, [number for number in self._read_out if number in held]
        for number in read_out:
            if number not in held:
                self.buffer.release(number)

    def _raise_corrupt(self) -> None:
        """No other records are left: raise for a damaged batch, of the next partition each time."""
        for opened in list(self._corrupt):
            if not self._is_current(opened.part.tp, opened.part.epoch):
                self._corrupt.remove(opened)
                self.buffer.release(opened.number)
            elif self._is_wanted(opened.part.tp, opened.part.epoch):
                self._corrupt.remove(opened)
                self._corrupt.append(opened)
                opened.reader.read(1)

    def _position(self, tp: TopicPartition) -> OffsetAndMetadata:
        view = self._shared.snapshot.partitions[tp]
        epoch, position = self._shared.positions.get(tp, (-1, None))
        found = position if epoch == view.epoch else view.position
        assert found is not None
        return found

    def _offset(self, tp: TopicPartition) -> int:
        return self._position(tp).offset

    def _is_current(self, tp: TopicPartition, epoch: int) -> bool:
        view = self._shared.snapshot.partitions.get(tp)
        return view is not None and view.epoch == epoch

    def _is_wanted(self, tp: TopicPartition, epoch: int) -> bool:
        view = self._shared.snapshot.partitions.get(tp)
        return view is not None and view.epoch == epoch and view.fetchable
