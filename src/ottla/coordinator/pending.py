"""What open transactions have written: it may count once they are committed.

Owns what each producer's transaction would set at each place. Must not know groups, requests or logs. Invariant: of all that is
committed at a place, in transactions or outside of them, what was written last counts, whichever transaction is committed last.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from ottla.protocol.group_records import OffsetCommitValue
from ottla.types import TopicPartition

P = TypeVar("P", bound=Hashable)
V = TypeVar("V")


class PendingWrite(NamedTuple, Generic[V]):
    """One write of an open transaction. ``superseded``: something that was written later counts, whatever becomes of this."""

    number: int
    value: V
    superseded: bool = False


class PendingWrites(Generic[P, V]):
    """What is written at places by open transactions, in the order of the writes."""

    def __init__(self) -> None:
        self._open: dict[int, dict[P, PendingWrite[V]]] = {}
        self._writes = 0

    def write(self, producer_id: int, place: P, value: V) -> None:
        """A transaction has written something; what it wrote there before is of no use any more."""
        self._writes += 1
        self._open.setdefault(producer_id, {})[place] = PendingWrite(self._writes, value)

    def supersede(self, place: P) -> None:
        """Something was written outside of transactions: it counts, and nothing that was written before it will."""
        if self._open:
            self._supersede(place, self._writes + 1)

    def forget(self, place: P) -> None:
        """What is at a place was deleted, and what was to be there with it."""
        for places in self._open.values():
            places.pop(place, None)

    def end(self, producer_id: int, *, commit: bool) -> list[tuple[P, V]]:
        """A transaction has ended; returns what counts from now on."""
        places = self._open.pop(producer_id, {})
        counting = [(place, written) for place, written in places.items() if commit and not written.superseded]
        for place, written in counting:
            self._supersede(place, written.number)
        return [(place, written.value) for place, written in counting]

    def by_producer(self) -> Iterator[tuple[int, Mapping[P, PendingWrite[V]]]]:
        """The writes of each open transaction."""
        yield from self._open.items()

    def _supersede(self, place: P, number: int) -> None:
        for places in self._open.values():
            written = places.get(place)
            if written is not None and written.number < number:
                places[place] = written._replace(superseded=True)


GroupTopicPartition = tuple[str, TopicPartition]
"""A group, and a partition that it reads."""


class PendingTransactionalOffsets(PendingWrites[GroupTopicPartition, OffsetCommitValue]):
    """The offsets of open transactions."""

    def of_group(self, group_id: str) -> frozenset[TopicPartition]:
        """The partitions of a group that an open transaction has committed an offset of."""
        if not self._open:
            return frozenset()
        return frozenset(partition for places in self._open.values() for one, partition in places if one == group_id)

    def durable(self) -> dict[int, dict[GroupTopicPartition, OffsetCommitValue | None]]:
        """What the log holds of each open transaction; ``None`` for what cannot count any more."""
        return {
            producer_id: {place: None if written.superseded else written.value for place, written in places.items()}
            for producer_id, places in self._open.items()
            if places
        }
