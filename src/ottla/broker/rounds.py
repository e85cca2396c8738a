"""Periodic work on all logs, a slice at a time: thousands of logs neither block the event loop nor use all file descriptors.

Owns the logs that a round has not reached yet. Must not know what the work is. Invariants: a round visits each log once; its next
slice begins when the disk thread has done the earlier jobs, so the queue of the disk thread stays bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ottla.broker.effects import RunJob
from ottla.broker.log import PartitionLog
from ottla.broker.outbox import Outbox

SIZE = 100
"""Logs in one slice: about a millisecond of work if there is nothing to do."""


class Round:
    """One kind of work on all logs. A job with the tag ``(kind,)`` returns when it is time for the next slice."""

    def __init__(self, kind: str, outbox: Outbox) -> None:
        self._kind = kind
        self._outbox = outbox
        self._left: deque[PartitionLog] = deque()

    def begin(self, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
        """Begin a round, unless one is in progress; return the logs of the first slice."""
        if self._left:
            return []
        self._left.extend(logs)
        return self.next_slice()

    def next_slice(self) -> list[PartitionLog]:
        """The logs of the next slice. The following slice is scheduled before the work on these, which may raise."""
        slice_ = [self._left.popleft() for _ in range(min(SIZE, len(self._left)))]
        if self._left:
            self._outbox.put(RunJob((self._kind,), _nothing))
        return slice_


def _nothing() -> None:
    """No work: it only matters that the job has had its turn."""
