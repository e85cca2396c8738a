"""Log lines about clients, one per client address and minute at most: a client that repeats its mistake does not fill the log.

Owns when an address was written about last and what was left out since. Must not know what the lines say, nor clocks. Invariant:
what is left out is counted in a later line.
"""

from __future__ import annotations

from collections.abc import Iterator

INTERVAL_MS = 60_000


class _Written:
    """The line about an address that was written last."""

    __slots__ = ("at", "left_out")

    def __init__(self, at: int) -> None:
        self.at = at
        self.left_out = 0


class LogRate:
    """Which lines are written. Times are in milliseconds on the monotonic clock."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}

    def admit(self, address: str, mono: int) -> int | None:
        """Whether a line about an address is to be written now: how many were left out since the last one, else ``None``."""
        last = self._written.get(address)
        if last is not None and mono - last.at < INTERVAL_MS:
            last.left_out += 1
            return None
        self._written[address] = _Written(mono)
        return last.left_out if last is not None else 0

    def forget(self, mono: int) -> Iterator[tuple[str, int]]:
        """Forget the addresses about which nothing was to be written for a minute and another; yields those of which lines were
        left out, and how many."""
        for address, last in list(self._written.items()):
            if mono - last.at >= 2 * INTERVAL_MS or (mono - last.at >= INTERVAL_MS and not last.left_out):
                del self._written[address]
                if last.left_out:
                    yield address, last.left_out
