"""A stage that obeys at once: the group has its next owners half a second after each change.

Owns a clock that only waits move. Must not know what is tested. Invariant: the same calls give the same life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ottla.comparison.history import History
from ottla.comparison.life import PARTITIONS, Traffic

DELAY = 0.5
"""Seconds until the stage's group has new owners."""


class Obedient:
    """A stage on which the group has its next owners half a second after each change, which costs twice ``factor`` messages."""

    def __init__(self, factor: int = 1) -> None:
        self._factor = factor
        self.history = History(PARTITIONS)
        self.acts: list[str] = []
        self.loses = 0
        """Records that are never handled."""
        self.stays_unstable = False
        self._now = 100.0
        self._due: float | None = None
        self._messages = 0

    def now(self) -> float:
        return self._now

    def pass_until(self, condition: Callable[[], bool], limit: float) -> bool:
        until = self._now + limit
        while not condition():
            if self._due is not None and self._due <= until:
                self._now, self._due = self._due, None
                self._share()
            else:
                self._now = until
                return condition()
        return True

    def _share(self) -> None:
        history, at = self.history, self._now
        for partition, owner in list(history.owners.items()):
            history.given_up(owner, (partition,), at)
        live_members = sorted(history.live, key=lambda name: int(name.rpartition("-")[2]))
        for partition in range(history.partitions - self.stays_unstable):
            history.assigned(live_members[partition % len(live_members)], (partition,), at)
        for name in live_members:
            history.committed(name, at)

    def _changed(self, act: str) -> None:
        self.acts.append(act)
        self._due = self._now + DELAY
        self._messages += 2 * self._factor

    def start(self, name: str) -> None:
        self.history.started(name, self._now)
        self._changed(f"start {name}")

    def stop(self, name: str) -> None:
        self.history.ended(name, self._now)
        self._changed(f"stop {name}")

    def kill(self, name: str) -> None:
        self.history.ended(name, self._now)
        self._changed(f"kill {name}")

    def add_partitions(self, count: int) -> None:
        self._changed(f"add {count}")

    def find_coordinator(self) -> None:
        self.acts.append("find coordinator")
        self._now += 7

    def kill_coordinator(self) -> None:
        self.acts.append("kill coordinator")

    def start_coordinator(self) -> None:
        self._changed("start coordinator")

    def traffic(self) -> Traffic:
        return Traffic(Counter({"JoinGroup": self._messages}), 3 * self._messages, 4 * self._messages, self._messages, 5)

    def produced(self) -> int:
        self.history.handled(0, (0, 1, 1))
        return 2 + self.loses
