"""The records that one poll returned, and how many of them the application has processed.

Owns ``Delivery``. Must not know fetched responses or commits. Invariant: a part never changes, and once the poll has returned the
list of parts does not change either; only the progress through it does, by plain assignments of the application thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ottla.client.poll_timer import InHand
from ottla.records import PartitionRecords, Record, Records, Walk
from ottla.types import OffsetAndMetadata, TopicPartition


class DeliveryPart(NamedTuple):
    """The records of one partition that a poll returned, with the position before them."""

    tp: TopicPartition
    epoch: int
    start: OffsetAndMetadata
    records: PartitionRecords
    number: int
    """The number of the response that contained them."""

    @property
    def end(self) -> OffsetAndMetadata:
        """The position after them."""
        return OffsetAndMetadata(self.records.next_offset, leader_epoch=self.records.next_leader_epoch)

    def after(self, offset: int) -> DeliveryPart | None:
        """The records whose offsets are above ``offset``; ``None``: there are none."""
        segments = []
        for index, start, stop in self.records.segments:
            row = max(start, index.first_from(offset + 1))
            if row < stop:
                segments.append((index, row, stop))
        count = sum(stop - start for _, start, stop in segments)
        if not count:
            return None
        whole = self.records
        records = PartitionRecords(whole.topic, whole.partition, segments, count, whole.next_offset, whole.next_leader_epoch)
        return self._replace(start=OffsetAndMetadata(offset + 1, leader_epoch=self.start.leader_epoch), records=records)


class PolledBy(Protocol):
    """The code that called ``poll()``. The driver knows which code that is."""

    interrupted: str | None

    def unfinished(self) -> str | None:
        """Why the records may be unprocessed; ``None``: there is no indication."""
        ...

    def is_running(self) -> bool:
        """Whether the calling code is that code."""
        ...


class Delivery:
    """The records that one poll returned, and the application's progress through them.

    If ``whole`` is true, ``poll()`` has returned all of them, and the next poll means that they are processed. If there is a
    ``walk``, the application iterates over them, and ``at`` is the index of the current part. Otherwise none is returned yet.
    """

    whole = False
    walk: Walk | None = None
    caller: PolledBy | None = None
    """The code that has received the records and has not called the consumer again yet."""
    unprocessed = False
    """The consumer is being closed, and the application may not have processed its records."""
    finished: Record | None = None
    """The record that the application has processed, if it has requested the next one and not received it yet."""

    def __init__(self, parts: list[DeliveryPart]) -> None:
        self.parts = parts

    @property
    def at(self) -> int:
        """The index of the part that the iteration is in; -1: it has not begun."""
        return -1 if self.walk is None else self.walk.at

    def records(self) -> Records[Any, Any]:
        """All records."""
        return Records(part.records for part in self.parts)

    @property
    def current(self) -> Record | None:
        """The record that the iteration has returned last."""
        return None if self.walk is None else self.walk.current

    def positions(self, *, with_current: bool) -> dict[TopicPartition, tuple[int, OffsetAndMetadata]]:
        """Epoch and position of each partition that has unprocessed records; ``with_current``: the current record is processed."""
        at = max(0, self.at)
        unprocessed: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        for number, part in enumerate(self.parts[at:], at):
            position = part.start
            if number == self.at and self.current is not None:
                is_processed = with_current or self.current is self.finished
                position = OffsetAndMetadata(self.current.offset + is_processed, leader_epoch=self.current.leader_epoch)
                if is_processed and self.current.offset == part.records.last_offset:
                    position = part.end
            unprocessed.setdefault(part.tp, (part.epoch, position))
        return unprocessed

    def in_hand(self) -> InHand:
        """The records that the application has received and has not finished. Any thread may call this: see ``SharedState``."""
        parts = self.parts[max(0, self.at) :]
        return InHand(sum(len(part.records) for part in parts), tuple(dict.fromkeys(part.tp for part in parts)))

    def rest(self) -> list[DeliveryPart]:
        """The records that the application has not received yet, by part."""
        if self.whole:
            return []
        rest = self.parts[max(0, self.at) :]
        if rest and self.current is not None:
            first = rest[0].after(self.current.offset)
            rest = [first, *rest[1:]] if first is not None else rest[1:]
        return rest
