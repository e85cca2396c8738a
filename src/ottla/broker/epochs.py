"""Which leader epoch wrote which offsets of a partition.

Owns the list of (epoch, first offset) and its checkpoint's format. Must not know logs or clients. Invariant: epochs and offsets
ascend together. A broker alone never elects a leader; the epoch only moves when a log lost bytes, so that a client that has
read those can tell that their offsets mean other records now.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise


class LeaderEpochs:
    """The epochs of one partition."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ((0, 0),)) -> None:
        self._entries = list(entries)

    @property
    def current(self) -> int:
        """The epoch of what is written now."""
        return self._entries[-1][0]

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote ``offset``."""
        row = bisect_right(self._entries, offset, key=lambda entry: entry[1]) - 1
        return self._entries[max(row, 0)][0]

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch up to ``epoch``, and the offset after its last record; (-1, -1) where that cannot be said.

        An epoch before the first that is known ends where that one begins.
        """
        if epoch < 0 or epoch > self.current:
            return -1, -1
        later = next((first for known, first in self._entries if known > epoch), log_end)
        return max((known for known, _ in self._entries if known <= epoch), default=epoch), later

    def advance(self, offset: int) -> None:
        """A new epoch begins at ``offset``; what was written at or after it is gone."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        self._entries = [*kept, (self.current + 1, offset)]

    def to_bytes(self) -> bytes:
        """As ``leader-epoch-checkpoint`` holds it."""
        lines = [f"{epoch} {offset}" for epoch, offset in self._entries]
        return "\n".join(["0", str(len(lines)), *lines, ""]).encode()

    @classmethod
    def from_batches(cls, batches: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """What the headers of a log's batches say: (epoch, base offset) of each, in their order."""
        entries: list[tuple[int, int]] = []
        for epoch, offset in batches:
            if epoch > (entries[-1][0] if entries else -1):
                entries.append((epoch, offset))
        return cls(entries) if entries else cls()

    @classmethod
    def from_bytes(cls, content: bytes) -> LeaderEpochs | None:
        """What the checkpoint says; ``None`` where it is damaged."""
        try:
            version, count, *lines = content.decode("ascii").splitlines()
            entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
        except ValueError:
            return None
        ascending = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries))
        whole = version == "0" and count.isdecimal() and len(entries) == int(count) and bool(entries)
        return cls(entries) if whole and ascending and min(entries[0]) >= 0 else None
