"""The checkpoints: files that map partitions to offsets, for the next start; and the holes in a log that a repair has reported.

Owns which partitions each file may name. Must not know what the offsets mean, nor how a file is written. Invariant: a checkpoint
with an offset of a deleted topic is replaced before another topic of that name is created. The format, Kafka's, has no topic ids,
so the next start would apply the offset to the new log. A hole counts as known only if both of its ends are those in the file
``known-holes``, which Apache Kafka ignores: a loss beside it is reported, and a damaged file hides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.broker.effects import RunJob
from ottla.broker.ports import Job, Store
from ottla.types import TopicPartition

CHECKPOINT = "checkpoint"
"""The first element of the tags of these jobs."""


class Checkpoint:
    """One checkpoint."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self._store = store
        self._named: set[TopicPartition] = set()
        """The partitions that the file may name, whichever of the pending writes succeed."""
        self._outdated: set[TopicPartition] = set()
        """Those of them whose topic was deleted."""
        self._writes = 0
        self._latest: frozenset[TopicPartition] = frozenset()

    def read(self) -> dict[TopicPartition, int] | None:
        """The stored offsets; ``None`` where they are missing or damaged. Raises ``OSError``."""
        offsets = self._store.read_checkpoint(self.name)
        self._named = set(offsets or ())
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> Job:
        """Replace the stored offsets."""
        self._writes += 1
        self._latest = frozenset(offsets)
        self._named |= self._latest
        return self._store.write_checkpoint(self.name, offsets)

    def begin_write(self, offsets: Mapping[TopicPartition, int]) -> RunJob:
        """Replace the stored offsets; ``on_written`` gets the outcome."""
        job = self.write(offsets)
        return RunJob((CHECKPOINT, self.name, self._writes), job)

    def on_written(self, number: int, outcome: object) -> None:
        """A write has ended. Only after the last of them is it known what the file names."""
        if number == self._writes and not isinstance(outcome, Exception):
            self._named = set(self._latest)
            self._outdated &= self._latest

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The topics of these partitions were deleted."""
        self._outdated.update(self._named.intersection(partitions))

    def forget_others(self, partitions: Iterable[TopicPartition]) -> None:
        """Only these partitions have logs."""
        self._outdated.update(self._named.difference(partitions))

    def is_outdated(self, topic: str, partitions: int) -> bool:
        """Whether the file may have an offset of a deleted topic of this name, for one of so many partitions."""
        return bool(self._outdated) and any(TopicPartition(topic, number) in self._outdated for number in range(partitions))

    def replace_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the stored offsets before anything else happens. Raises ``OSError``."""
        self.write(offsets)()
        self._named, self._outdated = set(self._latest), set()


KNOWN_HOLES = "known-holes"
_VERSION = b"0"

Hole = tuple[int, int]
"""Offsets from the first one on and before the second that no segment has."""


def holes_to_bytes(holes: Collection[Hole]) -> bytes:
    """As the file holds them."""
    return b"".join([_VERSION, b"\n", *(b"%d %d\n" % hole for hole in holes)])


def holes_from_bytes(content: bytes | None) -> frozenset[Hole]:
    """Those in a file; none where it is missing, damaged or of a newer release."""
    version, *lines = (content or b"").splitlines() or [b""]
    rows = [line.split() for line in lines]
    if version != _VERSION or not all(len(row) == 2 and row[0].isdigit() and row[1].isdigit() for row in rows):
        return frozenset()
    return frozenset((int(start), int(end)) for start, end in rows)
