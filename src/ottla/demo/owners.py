"""The history of the partitions' owners.

Owns this history, built from the members' reports. Must not know processes or Kafka. Invariant: a partition's periods follow one
another in time. After its owner was killed, the partition has an orphaned period until the group assigns it to another member.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PartitionOwnership(NamedTuple):
    """``member`` owned ``partition`` from ``start`` to ``end`` (seconds). ``orphan``: it was dead during this period."""

    partition: int
    member: str
    start: float
    end: float
    orphan: bool = False


class Owners:
    """The current owners, and the periods that have ended."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.ownerships: list[PartitionOwnership] = []
        self._current: dict[int, tuple[str, float]] = {}
        self._orphans: dict[int, tuple[str, float]] = {}

    def assigned(self, member: str, partitions: Iterable[int], at: float) -> None:
        """Record that the group assigned ``partitions`` to ``member``."""
        for partition in partitions:
            self._end_orphan(partition, at)
            self._current[partition] = (member, at)

    def revoked(self, member: str, partitions: Iterable[int], at: float) -> None:
        """Record that ``member`` revoked ``partitions``, or lost them."""
        for partition in partitions:
            if self._current.get(partition, ("",))[0] == member:
                owner, since = self._current.pop(partition)
                self.ownerships.append(PartitionOwnership(partition, owner, since, at))

    def died(self, member: str, at: float) -> None:
        """Record that ``member`` was killed: its partitions become orphans."""
        for partition, (owner, since) in list(self._current.items()):
            if owner == member:
                del self._current[partition]
                self.ownerships.append(PartitionOwnership(partition, owner, since, at))
                self._orphans[partition] = (owner, at)

    def close(self, at: float) -> None:
        """End all periods."""
        for partition, (owner, since) in sorted(self._current.items()):
            self.ownerships.append(PartitionOwnership(partition, owner, since, at))
        for partition in list(self._orphans):
            self._end_orphan(partition, at)
        self._current.clear()

    def current(self) -> dict[int, str]:
        """Return partition -> live owner."""
        return {partition: owner for partition, (owner, _) in sorted(self._current.items())}

    def all_owned_by(self, members: Iterable[str]) -> bool:
        """Whether each partition has a live owner, and each of ``members`` owns a partition."""
        current = self.current()
        return len(current) == self.partitions and set(members) <= set(current.values())

    def _end_orphan(self, partition: int, at: float) -> None:
        if partition in self._orphans:
            owner, since = self._orphans.pop(partition)
            self.ownerships.append(PartitionOwnership(partition, owner, since, at, orphan=True))
