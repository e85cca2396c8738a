"""Log lines about clients, at most one per client address and minute: a client that repeats its mistake does not fill the log.

Owns the time of the last line about an address and the number of lines left out since. Must not know the content of lines, nor
clocks. Invariant: lines that are left out are counted in a later line.
"""

from __future__ import annotations

from collections.abc import Iterator

INTERVAL_MS = 60_000


class _Written:
    """The last line about an address."""

    __slots__ = ("at", "left_out")

    def __init__(self, at: int) -> None:
        self.at = at
        self.left_out = 0


class LogThrottle:
    """Decides which lines are written. Times are in milliseconds on the monotonic clock."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}

    def admit(self, address: str, mono: int) -> int | None:
        """If a line about an address is to be written now, the number of lines left out since the last one; otherwise ``None``."""
        last = self._written.get(address)
        if last is not None and mono - last.at < INTERVAL_MS:
            last.left_out += 1
            return None
        self._written[address] = _Written(mono)
        return last.left_out if last is not None else 0

    def forget(self, mono: int) -> Iterator[tuple[str, int]]:
        """Forget the addresses without lines for two minutes; yield those with lines that were left out, and their number."""
        for address, last in list(self._written.items()):
            if mono - last.at >= 2 * INTERVAL_MS or (mono - last.at >= INTERVAL_MS and not last.left_out):
                del self._written[address]
                if last.left_out:
                    yield address, last.left_out
