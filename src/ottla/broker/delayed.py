"""Requests that wait: for data, until a log grows or goes away; or for the disk.

Owns the parked requests and which of them wait on which log. Must not know the content of requests or answers. Invariant: a
request is parked under each of its logs or under none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.broker.effects import RequestContext, Ticket
from ottla.broker.log import PartitionLog
from ottla.protocol.messages import produce_response


class Parked(NamedTuple):
    """A request that could not be answered yet, as it came."""

    context: RequestContext
    request: Any
    logs: tuple[PartitionLog, ...]
    found: Any
    """What there was when it was last looked at."""


Spot = tuple[int, int]
"""The place of a partition in an answer: the index of the topic, and the index of the partition in it."""


class Flushing(NamedTuple):
    """An answer that waits until what it acknowledges is on disk: each log, and up to where."""

    context: RequestContext
    response: produce_response.ProduceResponse
    logs: Mapping[Spot, tuple[PartitionLog, int]]


class Delayed:
    """The parked requests of a broker."""

    def __init__(self) -> None:
        self._parked: dict[Ticket, Parked] = {}
        self._waiting: dict[PartitionLog, dict[Ticket, None]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, parked: Parked) -> None:
        """Keep a request until one of its logs changes."""
        self._parked[parked.context.ticket] = parked
        for log in parked.logs:
            self._waiting.setdefault(log, {})[parked.context.ticket] = None

    def note(self, ticket: Ticket, found: Any) -> None:
        """Remember what there was when a parked request was looked at once more."""
        self._parked[ticket] = self._parked[ticket]._replace(found=found)

    def waiting_on(self, logs: Iterable[PartitionLog]) -> list[Parked]:
        """The requests that wait on any of ``logs``, oldest first."""
        tickets = sorted({ticket for log in logs for ticket in self._waiting.get(log, ())})
        return [self._parked[ticket] for ticket in tickets]

    def take(self, ticket: Ticket) -> Parked | None:
        """Stop keeping a request; ``None`` where it is not kept any more."""
        parked = self._parked.pop(ticket, None)
        for log in parked.logs if parked is not None else ():
            waiting = self._waiting[log]
            waiting.pop(ticket, None)
            if not waiting:
                del self._waiting[log]
        return parked

    def of_connection(self, connection: int) -> list[Parked]:
        """The requests that came over one connection."""
        return [parked for parked in self._parked.values() if parked.context.connection == connection]
