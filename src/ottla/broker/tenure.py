"""Which partitions of its topic one of the broker's coordinators has: all but those given up because of a scripted fault, and those
whose logs cannot be read.

Owns the owners of the others in answers, and which are still being read. Must not know what is in them. Invariant: a partition that
was given up is not being read for the coordinator any more.
"""

from __future__ import annotations

from ottla.broker.effects import Place

LOADING = "load"
"""The first element of the keys of timers after which an unreadable partition is read again."""

LOAD_RETRY_BACKOFF_MS = 1_000

OFFLINE = -1
"""In place of the number of a fault: the log of the partition cannot be read, so no broker has it."""


class Tenure:
    """The partitions of one coordinator."""

    def __init__(self) -> None:
        self._away: dict[int, tuple[int, Place | None]] = {}
        self._loading: set[int] = set()

    def place_of(self, partition: int, here: Place) -> Place | None:
        """The owner of a partition: ``here``, unless a fault names another, or none (``None``)."""
        return self._away.get(partition, (0, here))[1]

    def is_away(self, partition: int) -> bool:
        """Whether it was given up."""
        return partition in self._away

    def is_loading(self, partition: int) -> bool:
        """Whether it is being read."""
        return partition in self._loading

    def give_up(self, partition: int, fault: int, to: Place | None) -> None:
        """Make ``to``, or no broker, the owner until the fault ends."""
        self._away[partition] = (fault, to)
        self._loading.discard(partition)

    def take_back(self, fault: int) -> list[int]:
        """The partitions that were given up because of a fault; it has them again."""
        partitions = [partition for partition, (cause, _) in self._away.items() if cause == fault]
        for partition in partitions:
            del self._away[partition]
        return partitions

    def start_loading(self, partition: int) -> None:
        """Its log is being read from now on."""
        self._loading.add(partition)

    def has_loaded(self, partition: int, outcome: object) -> bool:
        """Whether the partition is to be served: not if it was given up meanwhile. A partition that could not be read stays
        "loading", and is read again after a disk failure: no answer is better than an outdated one."""
        if isinstance(outcome, Exception) or partition not in self._loading:
            return False
        self._loading.remove(partition)
        return True
