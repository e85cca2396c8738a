"""``PartitionRecords``: consecutive records of one partition, read by a ``PartitionReader`` and contained in ``Records``.

Owns this container. Must not know the layout of batches (``batch``) nor their source. Invariants: the length is exact, the
container is immutable, and iterating never raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ottla.records.batch import Batch
from ottla.records.record import Record, RecordIterator
from ottla.types import TopicPartition

Segment = tuple[Batch, int, int]
"""An indexed batch, its first row, and the row after the last."""


class PartitionRecords:
    """Consecutive records of one partition, from one response. ``len()`` and iteration work as for a list.

    ``next_offset`` and ``next_leader_epoch`` are the position after them and after records that are never delivered.
    """

    __slots__ = ("_count", "next_leader_epoch", "next_offset", "partition", "segments", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        segments: Sequence[Segment],
        count: int,
        next_offset: int,
        next_leader_epoch: int | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.segments = segments
        self.next_offset = next_offset
        self.next_leader_epoch = next_leader_epoch
        self._count = count

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the records."""
        return TopicPartition(self.topic, self.partition)

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        batch, start, _ = self.segments[0]
        return batch.offset(start)

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        batch, _, stop = self.segments[-1]
        return batch.offset(stop - 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record[Any, Any]]:
        return RecordIterator(self.segments)

    def __repr__(self) -> str:
        return (
            f"<PartitionRecords {self.topic}-{self.partition}"
            f" offsets {self.first_offset}..{self.last_offset}, {self._count} records>"
        )
