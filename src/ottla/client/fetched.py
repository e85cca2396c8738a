"""Fetched and not yet consumed: what lies between the fetches of the network thread and the polls of the application.

Owns the responses as they arrived, cut into partitions, and the order in which they are consumed. Must not know how records are
decoded. Invariant: every response that came in is reported as drained when the last of its partitions was consumed or dropped
(once, unless a signal's handler interrupts that), so the network thread always knows how much memory is held without looking here.

Responses travel in the notification queue, behind the assignment that they were fetched for. So the buffer belongs to the
application thread alone and nothing in it is locked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ottla.types import TopicPartition


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What one response holds of one partition: whole batches, of which the first may begin before ``offset``.

    ``epoch`` is that of the position it was fetched for; ``aborted`` lists (producer id, first offset) of aborted transactions.
    ``end`` is up to where this consumer could read when the broker answered: the high watermark, or the last stable offset;
    ``begin`` is where the log begins (-1: the broker is too old to say).
    """

    tp: TopicPartition
    epoch: int
    offset: int
    data: bytes | memoryview
    end: int
    aborted: tuple[tuple[int, int], ...] = ()
    begin: int = -1


@dataclass(frozen=True, slots=True)
class FetchedResponse:
    """One answer of one broker. ``number`` names it, ``size`` is the bytes of records it holds."""

    number: int
    node_id: int
    partitions: tuple[FetchedPartition, ...]
    size: int


class FetchBuffer:
    """The partitions of all responses, in the order they came."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, FetchedPartition]] = deque()
        self._left: dict[int, int] = {}
        self._drained: list[int] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<FetchBuffer {len(self._waiting)} partitions of {len(self._left)} responses>"

    @property
    def has_drained(self) -> bool:
        """Whether there is memory to be reported as free."""
        return bool(self._drained)

    def add(self, response: FetchedResponse) -> None:
        """Take a response in."""
        if not response.partitions:
            self._drained.append(response.number)
            return
        self._left[response.number] = len(response.partitions)
        self._waiting.extend((response.number, part) for part in response.partitions)

    def pop(self) -> tuple[int, FetchedPartition] | None:
        """The next partition and the number of its response, to be given to ``release`` when it is done with."""
        return self._waiting.popleft() if self._waiting else None

    def release(self, number: int) -> None:
        """One partition of a response was consumed or dropped."""
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._drained.append(number)

    def holds(self, number: int) -> bool:
        """Whether there is something left of a response that came in."""
        return number in self._left

    def drop(self) -> None:
        """Nothing of all this is wanted any more."""
        self._drained.extend(self._left)
        self._left.clear()
        self._waiting.clear()

    def report_drained(self, tell: Callable[[tuple[int, ...]], object]) -> None:
        """Report the responses that were drained since the last report."""
        drained = tuple(self._drained)
        tell(drained)
        del self._drained[: len(drained)]
