"""Who owned which partition, and when.

Owns the history of the partitions' owners, built from what the members report. Must not know processes or Kafka.
Invariant: a partition's tenures follow one another in time; one whose owner was killed is
marked as such and lasts until the group gave the partition to another member.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Tenure(NamedTuple):
    """``member`` owned ``partition`` from ``start`` to ``end`` (seconds); ``orphan``: its owner was dead all that time."""

    partition: int
    member: str
    start: float
    end: float
    orphan: bool = False


class Owners:
    """The present owners and the tenures that have ended."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.tenures: list[Tenure] = []
        self._present: dict[int, tuple[str, float]] = {}
        self._orphans: dict[int, tuple[str, float]] = {}

    def assigned(self, member: str, partitions: Iterable[int], at: float) -> None:
        """``member`` got ``partitions``."""
        for partition in partitions:
            self._end_orphan(partition, at)
            self._present[partition] = (member, at)

    def revoked(self, member: str, partitions: Iterable[int], at: float) -> None:
        """``member`` gave up ``partitions``, or lost them."""
        for partition in partitions:
            if self._present.get(partition, ("",))[0] == member:
                owner, since = self._present.pop(partition)
                self.tenures.append(Tenure(partition, owner, since, at))

    def died(self, member: str, at: float) -> None:
        """``member`` was killed: its partitions stay with a dead owner for now."""
        for partition, (owner, since) in list(self._present.items()):
            if owner == member:
                del self._present[partition]
                self.tenures.append(Tenure(partition, owner, since, at))
                self._orphans[partition] = (owner, at)

    def close(self, at: float) -> None:
        """The history ends here."""
        for partition, (owner, since) in sorted(self._present.items()):
            self.tenures.append(Tenure(partition, owner, since, at))
        for partition in list(self._orphans):
            self._end_orphan(partition, at)
        self._present.clear()

    def present(self) -> dict[int, str]:
        """Partition -> its live owner."""
        return {partition: owner for partition, (owner, _) in sorted(self._present.items())}

    def all_owned_by(self, members: Iterable[str]) -> bool:
        """Whether each partition has a live owner and each of ``members`` owns something."""
        present = self.present()
        return len(present) == self.partitions and set(members) <= set(present.values())

    def _end_orphan(self, partition: int, at: float) -> None:
        if partition in self._orphans:
            owner, since = self._orphans.pop(partition)
            self.tenures.append(Tenure(partition, owner, since, at, orphan=True))
