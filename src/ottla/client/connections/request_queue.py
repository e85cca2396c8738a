"""The requests that wait for a connection, and what became of those that have come to an end.

Owns both lists. Must not know links or time. Invariant: a request that was added becomes exactly one completion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ottla.client.connections.effects import Completion
from ottla.client.connections.link import Request
from ottla.errors import OttlaError


class RequestQueue:
    """See the module. What is in flight is kept by its link, and comes back here to be completed."""

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._completions: list[Completion] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        """One more, behind those that wait already."""
        self._waiting.append(request)

    def settle(self, handled: Callable[[Request], bool]) -> None:
        """Ask of each that waits whether it is dealt with; the others go on waiting, in order."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, deque()
        self._waiting.extend(request for request in waiting if not handled(request))

    def complete(self, request: Request, message: Any = None, error: OttlaError | None = None) -> bool:
        """A request has come to an end; always true."""
        request.done = True
        self._completions.append(Completion(request, message, error))
        return True

    def fail_all(self, error: OttlaError) -> None:
        """None of those that wait will be sent."""
        self.settle(lambda request: self.complete(request, error=error))

    @property
    def has_completions(self) -> bool:
        """Whether ``take_completions`` would give any."""
        return bool(self._completions)

    def take_completions(self) -> list[Completion]:
        """What has come to an end since the last call, in order."""
        done, self._completions = self._completions, []
        return done
