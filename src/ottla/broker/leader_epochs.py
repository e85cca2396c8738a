"""The leader epochs of a partition: which epoch wrote which offsets.

Owns the list of (epoch, start offset) and its checkpoint's format. Must not know logs or clients. Invariant: epochs and offsets
ascend together. A single broker elects no leader: the epoch changes only when a log has lost records, so that clients that have
read them notice that their offsets now belong to other records (KIP-320).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise


class LeaderEpochCache:
    """The leader epochs of one partition (Kafka's ``LeaderEpochFileCache``)."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ((0, 0),)) -> None:
        self._entries = list(entries)

    @property
    def current(self) -> int:
        """The epoch of new records."""
        return self._entries[-1][0]

    def epoch_for_offset(self, offset: int) -> int:
        """Return the epoch that wrote ``offset``."""
        row = bisect_right(self._entries, offset, key=lambda entry: entry[1]) - 1
        return self._entries[max(row, 0)][0]

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest known epoch up to ``epoch`` and the offset after its last record; (-1, -1) for an unknown epoch.

        An epoch before the first known one ends where that one starts.
        """
        if epoch < 0 or epoch > self.current:
            return -1, -1
        later = next((first for known, first in self._entries if known > epoch), log_end)
        return max((known for known, _ in self._entries if known <= epoch), default=epoch), later

    def start_next_epoch(self, offset: int) -> None:
        """Start a new epoch at ``offset``; the records at or after it are lost."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        self._entries = [*kept, (self.current + 1, offset)]

    def to_bytes(self) -> bytes:
        """Return the content of ``leader-epoch-checkpoint``."""
        lines = [f"{epoch} {offset}" for epoch, offset in self._entries]
        return "\n".join(["0", str(len(lines)), *lines, ""]).encode()

    @classmethod
    def from_batches(cls, batches: Iterable[tuple[int, int]]) -> LeaderEpochCache:
        """Rebuild the epochs from the (epoch, base offset) of a log's batches, in their order."""
        entries: list[tuple[int, int]] = []
        for epoch, offset in batches:
            if epoch > (entries[-1][0] if entries else -1):
                entries.append((epoch, offset))
        return cls(entries) if entries else cls()

    @classmethod
    def from_bytes(cls, content: bytes) -> LeaderEpochCache | None:
        """Parse the checkpoint; return ``None`` if it is damaged."""
        try:
            version, count, *lines = content.decode("ascii").splitlines()
            entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
        except ValueError:
            return None
        ascending = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries))
        whole = version == "0" and count.isdecimal() and len(entries) == int(count) and bool(entries)
        return cls(entries) if whole and ascending and min(entries[0]) >= 0 else None
