"""How much a consumer may hold of what it fetched: one limit over all brokers and partitions, and who may ask for how much of it.

Owns the account of bytes that were asked for and of bytes that arrived and are not consumed. Must not know partitions, records or
requests. Invariants: what is held and what is asked for never exceed the limit together, but for what brokers send beyond what
they were asked for (a first batch that is larger than that, KIP-74); of each broker at most ``ANSWERS`` are held or asked for, so
that each has a share of its own and one that is slow takes nothing from the others; while nothing is held there is always memory
for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ANSWERS = 2
"""Answers of one broker, held or under way, at the same time: the next is fetched while the last is consumed (measured: twice the
throughput of one at a time)."""

FULL_ANSWER = 8 << 20
"""Bytes of an answer beyond which larger ones are no quicker (measured: half as quick again as answers of 2 MB, and the caches of
a processor hold them still)."""

LEAST_LIMIT = 1 << 20
"""However many partitions there are, of each so many bytes may come at once."""


def partition_limit(configured: int | None, partitions: int) -> int:
    """How many bytes an answer may hold of each of so many partitions: as configured, or else what makes the answer a full one."""
    return configured if configured is not None else max(LEAST_LIMIT, FULL_ANSWER // max(1, partitions))


class _Held(NamedTuple):
    node_id: int
    size: int


class FetchMemory:
    """See the module. ``limit`` in bytes; ``largest`` is what one request may ask for at most."""

    def __init__(self, limit: int, largest: int) -> None:
        self._limit = limit
        self._largest = largest
        self._asked: dict[int, int] = {}
        self._held: dict[int, _Held] = {}
        self.held = 0
        """Bytes that arrived and are not consumed yet."""
        self.asked = 0
        """Bytes that brokers may send any moment."""

    def __repr__(self) -> str:
        return f"<FetchMemory {self.held} bytes held, {self.asked} asked for, of {self._limit}>"

    def room(self, node_id: int, nodes: int) -> int:
        """For how many bytes one of ``nodes`` brokers may be asked now; 0: not at all."""
        answers = sum(held.node_id == node_id for held in self._held.values()) + (node_id in self._asked)
        if answers >= ANSWERS:
            return 0
        share = max(1, min(self._largest, self._limit // (ANSWERS * nodes)))
        free = self._limit - self.held - self.asked
        if free >= share:
            return share
        # A share that is not free as a whole is waited for, unless much of it is there; small requests are slow.
        return free if free >= max(1, share // 2) else 0

    def ask(self, node_id: int, size: int) -> None:
        """A broker was asked for so much."""
        self.forget(node_id)
        self._asked[node_id] = size
        self.asked += size

    def forget(self, node_id: int) -> None:
        """What a broker was asked for has come, or will not."""
        self.asked -= self._asked.pop(node_id, 0)

    def hold(self, number: int, node_id: int, size: int) -> None:
        """An answer arrived, of which something is to be consumed."""
        self._held[number] = _Held(node_id, size)
        self.held += size

    def release(self, numbers: Iterable[int]) -> None:
        """The application has consumed or dropped these answers."""
        for number in numbers:
            held = self._held.pop(number, None)
            if held is not None:
                self.held -= held.size
