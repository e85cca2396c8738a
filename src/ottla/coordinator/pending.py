"""The writes of open transactions, which take effect when the transactions are committed.

Owns the value that each producer's transaction would set for each key. Must not know groups, requests or logs. Invariant: of all
committed writes to a key, in transactions or outside of them, the last write wins, whichever transaction is committed last.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from ottla.protocol.group_records import OffsetCommitValue
from ottla.types import TopicPartition

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PendingWrite(NamedTuple, Generic[V]):
    """One write of an open transaction. ``superseded``: a later write to the key is committed, so this one has no effect."""

    number: int
    value: V
    superseded: bool = False


class PendingWrites(Generic[K, V]):
    """The pending writes by producer and key. Numbers tell the order of the writes:

    1. Producer 1 writes offset 10 of a partition in a transaction.
    2. Producer 2 writes offset 20 of the same partition in another, and commits first.
    3. Producer 1 commits. The offset stays 20, since that write is the later one.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[K, PendingWrite[V]]] = {}
        self._writes = 0

    def write(self, producer_id: int, key: K, value: V) -> None:
        """Add a write of a transaction; it replaces an earlier one of the same transaction."""
        self._writes += 1
        self._open.setdefault(producer_id, {})[key] = PendingWrite(self._writes, value)

    def supersede(self, key: K) -> None:
        """Note a write outside of transactions, which takes effect at once and supersedes all pending writes to the key."""
        if self._open:
            self._supersede(key, self._writes + 1)

    def forget(self, key: K) -> None:
        """Drop all pending writes to a key, whose value was deleted."""
        for writes in self._open.values():
            writes.pop(key, None)

    def end(self, producer_id: int, *, commit: bool) -> list[tuple[K, V]]:
        """End a transaction. Return the keys and values that take effect."""
        writes = self._open.pop(producer_id, {})
        effective = [(key, write) for key, write in writes.items() if commit and not write.superseded]
        for key, write in effective:
            self._supersede(key, write.number)
        return [(key, write.value) for key, write in effective]

    def by_producer(self) -> Iterator[tuple[int, Mapping[K, PendingWrite[V]]]]:
        """Yield the writes of each open transaction."""
        yield from self._open.items()

    def _supersede(self, key: K, number: int) -> None:
        for writes in self._open.values():
            write = writes.get(key)
            if write is not None and write.number < number:
                writes[key] = write._replace(superseded=True)


GroupTopicPartition = tuple[str, TopicPartition]
"""The key of an offset: a group and a partition."""


class PendingTransactionalOffsets(PendingWrites[GroupTopicPartition, OffsetCommitValue]):
    """The offsets that open transactions have committed (TxnOffsetCommit)."""

    def of_group(self, group_id: str) -> frozenset[TopicPartition]:
        """Return the partitions of a group with a pending offset."""
        if not self._open:
            return frozenset()
        return frozenset(partition for writes in self._open.values() for group, partition in writes if group == group_id)

    def durable(self) -> dict[int, dict[GroupTopicPartition, OffsetCommitValue | None]]:
        """Return the part of the state that the log holds: producer id -> pending offsets, ``None`` for superseded ones."""
        return {
            producer_id: {key: None if write.superseded else write.value for key, write in writes.items()}
            for producer_id, writes in self._open.items()
            if writes
        }
