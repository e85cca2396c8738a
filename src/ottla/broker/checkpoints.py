"""Offset checkpoints, files that map partitions to offsets for the next start; and the known holes of a repaired log.

Owns the set of partitions that each file may contain. Must not know what the offsets mean, nor how a file is written. Invariant: a
checkpoint with an offset of a deleted topic is replaced before another topic with that name is created: Kafka's format has no topic
ids, so the next start would apply the old offset to the new log. A hole is known only if both its ends match an entry of the file
``known-holes``, which Apache Kafka ignores. So a loss next to it is still reported, and a damaged file hides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.broker.effects import RunJob
from ottla.broker.ports import DiskJob, Store
from ottla.types import TopicPartition

CHECKPOINT = "checkpoint"
"""The first element of the tags of these jobs."""


class OffsetCheckpoint:
    """One checkpoint file (Kafka's ``OffsetCheckpointFile``)."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self._store = store
        self._named: set[TopicPartition] = set()
        """The partitions that the file may contain, whichever of the pending writes succeed."""
        self._outdated: set[TopicPartition] = set()
        """Those of them whose topic was deleted."""
        self._writes = 0
        self._latest: frozenset[TopicPartition] = frozenset()

    def read(self) -> dict[TopicPartition, int] | None:
        """Return the stored offsets; ``None`` if they are missing or damaged. Raises ``OSError``."""
        offsets = self._store.read_checkpoint(self.name)
        self._named = set(offsets or ())
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> DiskJob:
        """Return the job that replaces the stored offsets."""
        self._writes += 1
        self._latest = frozenset(offsets)
        self._named |= self._latest
        return self._store.write_checkpoint(self.name, offsets)

    def begin_write(self, offsets: Mapping[TopicPartition, int]) -> RunJob:
        """Return the effect that replaces the stored offsets; its outcome goes to ``on_written``."""
        job = self.write(offsets)
        return RunJob((CHECKPOINT, self.name, self._writes), job)

    def on_written(self, number: int, outcome: object) -> None:
        """Handle the end of a write. The content of the file is certain only after the last pending write."""
        if number == self._writes and not isinstance(outcome, Exception):
            self._named = set(self._latest)
            self._outdated &= self._latest

    def mark_outdated(self, partitions: Iterable[TopicPartition]) -> None:
        """Mark the offsets of these partitions as outdated: their topics were deleted."""
        self._outdated.update(self._named.intersection(partitions))

    def mark_others_outdated(self, partitions: Iterable[TopicPartition]) -> None:
        """Mark the offsets of all other partitions as outdated: only these have logs."""
        self._outdated.update(self._named.difference(partitions))

    def is_outdated(self, topic: str, partitions: int) -> bool:
        """Whether the file may contain an offset of a deleted topic with this name, for a partition below ``partitions``."""
        return bool(self._outdated) and any(TopicPartition(topic, number) in self._outdated for number in range(partitions))

    def replace_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the stored offsets synchronously. Raises ``OSError``."""
        self.write(offsets)()
        self._named, self._outdated = set(self._latest), set()


KNOWN_HOLES = "known-holes"
_VERSION = b"0"

Hole = tuple[int, int]
"""A range of offsets (the end exclusive) that no segment contains."""


def holes_to_bytes(holes: Collection[Hole]) -> bytes:
    """Return the content of ``known-holes``."""
    return b"".join([_VERSION, b"\n", *(b"%d %d\n" % hole for hole in holes)])


def holes_from_bytes(content: bytes | None) -> frozenset[Hole]:
    """Parse ``known-holes``; return nothing if it is missing, damaged or of a newer release."""
    version, *lines = (content or b"").splitlines() or [b""]
    rows = [line.split() for line in lines]
    if version != _VERSION or not all(len(row) == 2 and row[0].isdigit() and row[1].isdigit() for row in rows):
        return frozenset()
    return frozenset((int(start), int(end)) for start, end in rows)
