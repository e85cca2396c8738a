"""What a manager has to read or write in ZooKeeper, how much of it at once, and when again after a failure.

Owns the keys that are due, those in progress, and those that wait after a failure. Must not know what a key stands for. Invariants:
a key is in progress once at a time; one that is added while it is in progress is due again afterwards, since what was read may be
older than the reason; after a failure it is not due before a back-off has passed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from ottla.types import Now

KeyT = TypeVar("KeyT", bound=Hashable)

_SHORTEST_MS, _LONGEST_MS = 100, 30_000
"""The back-off after the first failure in a row, and the longest one. Each is twice the last."""


class Backlog(Generic[KeyT]):
    """See the module. ``most``: how many keys are in progress at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._due: OrderedDict[KeyT, None] = OrderedDict()
        """In order. To find the first key, a ``dict`` passes all that were deleted before it: 100,000 took four seconds."""
        self._in_progress: dict[KeyT, bool] = {}
        """Key -> whether it is due again afterwards."""
        self._failed: dict[KeyT, None] = {}
        self._not_before = 0
        """When those that have failed are due again."""
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Backlog {len(self._due)} due, {len(self._in_progress)} in progress, {len(self._failed)} failed>"

    def __contains__(self, key: KeyT) -> bool:
        return key in self._due or key in self._in_progress or key in self._failed

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._due or self._in_progress or self._failed)

    @property
    def wake_at(self) -> int | None:
        """When what has failed is due again; ``None``: nothing has."""
        return self._not_before if self._failed else None

    def add(self, key: KeyT) -> None:
        """Note that a key is due. One that has failed still waits: what makes it due again may have made it fail."""
        if key in self._in_progress:
            self._in_progress[key] = True
        elif key not in self._failed:
            self._due[key] = None

    def take(self, now: Now) -> list[KeyT]:
        """Return the keys to work on now. Each must be passed to ``done`` or ``fail`` later."""
        if self._failed and now.mono >= self._not_before:
            self._due |= self._failed
            self._failed.clear()
        taken = []
        while self._due and len(self._in_progress) < self._most:
            key, _ = self._due.popitem(last=False)
            self._in_progress[key] = False
            taken.append(key)
        return taken

    def done(self, key: KeyT) -> None:
        """Note that the work on a key has ended."""
        if self._in_progress.pop(key, False):
            self._due[key] = None
        if self.is_empty:
            self._failures = 0

    def fail(self, key: KeyT, now: Now) -> bool:
        """Note that the work on a key has failed; return whether it is the first of those that wait."""
        self._in_progress.pop(key, None)
        is_first = not self._failed
        if is_first:
            self._not_before = now.mono + min(_LONGEST_MS, _SHORTEST_MS << min(self._failures, 20))
            self._failures += 1
        self._failed[key] = None
        return is_first

    def drop(self, key: KeyT) -> None:
        """Forget a key, unless it is in progress: then it ends as it began, but is not due again."""
        self._due.pop(key, None)
        self._failed.pop(key, None)
        if key in self._in_progress:
            self._in_progress[key] = False

    def restart(self) -> None:
        """Begin again with what is left: no outcome of what is in progress will come."""
        self._due = OrderedDict({**dict.fromkeys(self._in_progress), **self._failed, **self._due})
        self._in_progress.clear()
        self._failed.clear()
        self._failures = 0

    def clear(self) -> None:
        """Forget everything: no outcome of what is in progress will come."""
        for keys in (self._due, self._in_progress, self._failed):
            keys.clear()
        self._failures = 0
