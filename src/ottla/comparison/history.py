"""What the members of a group have reported: who had which partition when, and which records were handled.

Owns the owners of the partitions, and the counts of records. Must not know where the reports come from, or what they are for.
Invariant: a partition that no live member has is unread, from the moment at which its member gives it up or is killed. (That the
leader of a partition is down does not matter here: it is not the group's fault.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple


class Reading(NamedTuple):
    """From ``at`` on, ``read`` of the ``partitions`` have a live member. Seconds."""

    at: float
    read: int
    partitions: int


class History:
    """See the module. Times are seconds, of one clock."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.live: set[str] = set()
        """The members that have been started, and have neither left nor been killed."""
        self.changes = 0
        """How often the owner of a partition has changed."""
        self.readings: list[Reading] = []
        """Changes of the number of partitions that are read, in the order of time."""
        self._owners: dict[int, str] = {}
        self._committed: dict[str, float] = {}
        """Member -> when it asked for its last commit that was accepted."""
        self._handled: Counter[tuple[int, int]] = Counter()

    @property
    def owners(self) -> Mapping[int, str]:
        """Partition -> the live member that has it."""
        return self._owners

    # -- reports ----------------------------------------------------------------------------------------------------------

    def started(self, member: str, at: float) -> None:
        """A member was started."""
        self.live.add(member)
        self._note(at)

    def ended(self, member: str, at: float) -> None:
        """A member has left, or was killed: it reads nothing any more."""
        self.live.discard(member)
        self.given_up(member, [number for number, owner in self._owners.items() if owner == member], at)

    def added(self, partitions: int, at: float) -> None:
        """The topic has this many partitions from now on."""
        self.partitions = partitions
        self.changes += 1
        self._note(at)

    def assigned(self, member: str, partitions: Iterable[int], at: float) -> None:
        """A member reads partitions from now on."""
        if member in self.live:
            self._set({**self._owners, **dict.fromkeys(partitions, member)}, at)

    def given_up(self, member: str, partitions: Iterable[int], at: float) -> None:
        """A member reads partitions no longer: they were revoked, or it has lost them, or ended."""
        given_up = {number for number in partitions if self._owners.get(number) == member}
        self._set({number: owner for number, owner in self._owners.items() if number not in given_up}, at)

    def handled(self, partition: int, offsets: Iterable[int]) -> None:
        """Records were handled."""
        self._handled.update((partition, offset) for offset in offsets)

    def committed(self, member: str, asked_at: float) -> None:
        """A commit was accepted for which a member had asked at ``asked_at``."""
        self._committed[member] = max(asked_at, self._committed.get(member, 0.0))

    # -- questions --------------------------------------------------------------------------------------------------------

    def is_shared(self) -> bool:
        """Whether each partition has a live member, and each live member a partition."""
        return len(self._owners) == self.partitions and {*self._owners.values()} == self.live

    def have_committed(self, since: float) -> bool:
        """Whether a commit that was asked for after ``since`` was accepted, of each live member."""
        return all(self._committed.get(member, 0.0) > since for member in self.live)

    def unread(self, begin: float, end: float) -> float:
        """How long partitions had no live member between two times, summed over the partitions (seconds)."""
        total = 0.0
        for reading, following in pairwise([*self.readings, Reading(end, 0, 0)]):
            duration = min(following.at, end) - max(reading.at, begin)
            total += max(0.0, duration) * (reading.partitions - reading.read)
        return total

    def unread_at(self, at: float) -> int:
        """How many partitions have no live member at a time."""
        last = [reading for reading in self.readings if reading.at <= at][-1]
        return last.partitions - last.read

    @property
    def distinct(self) -> int:
        """How many records were handled at least once."""
        return len(self._handled)

    @property
    def repeated(self) -> int:
        """How often a record was handled that had been handled before."""
        return self._handled.total() - len(self._handled)

    def _set(self, owners: dict[int, str], at: float) -> None:
        if owners != self._owners:
            self._owners = owners
            self.changes += 1
            self._note(at)

    def _note(self, at: float) -> None:
        """Reports of processes may come in another order than that of their times, by milliseconds."""
        last = self.readings[-1] if self.readings else Reading(at, 0, 0)
        reading = Reading(max(at, last.at), len(self._owners), self.partitions)
        if reading[1:] != last[1:]:
            self.readings.append(reading)
