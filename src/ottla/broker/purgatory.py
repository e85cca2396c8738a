"""Delayed operations: fetches that wait for data, and produces that wait for the disk.

Owns the delayed fetches and the logs that each waits for. Must not know the content of requests or responses. Invariant: a fetch is
registered under each of its logs or under none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.broker.effects import RequestContext, Ticket
from ottla.broker.log import PartitionLog
from ottla.protocol.messages import produce_response


class DelayedFetch(NamedTuple):
    """A fetch that waits until a log changes or ``max_wait`` has passed (Kafka's ``DelayedFetch``)."""

    context: RequestContext
    request: Any
    logs: tuple[PartitionLog, ...]
    last_result: Any
    """The result of the last read, without records."""


ResponsePosition = tuple[int, int]
"""The position of a partition in a response: the index of the topic, and the index of the partition in it."""


class DelayedProduce(NamedTuple):
    """A Produce response that waits until its records are on disk. ``logs``: each log, and the offset up to which it must be
    flushed."""

    context: RequestContext
    response: produce_response.ProduceResponse
    logs: Mapping[ResponsePosition, tuple[PartitionLog, int]]


class FetchPurgatory:
    """The delayed fetches of a broker."""

    def __init__(self) -> None:
        self._parked: dict[Ticket, DelayedFetch] = {}
        self._waiting: dict[PartitionLog, dict[Ticket, None]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, parked: DelayedFetch) -> None:
        """Add a fetch, until one of its logs changes."""
        self._parked[parked.context.ticket] = parked
        for log in parked.logs:
            self._waiting.setdefault(log, {})[parked.context.ticket] = None

    def update_result(self, ticket: Ticket, result: Any) -> None:
        """Replace the last result of a delayed fetch."""
        self._parked[ticket] = self._parked[ticket]._replace(last_result=result)

    def waiting_on(self, logs: Iterable[PartitionLog]) -> list[DelayedFetch]:
        """Return the fetches that wait for any of ``logs``, oldest first."""
        tickets = sorted({ticket for log in logs for ticket in self._waiting.get(log, ())})
        return [self._parked[ticket] for ticket in tickets]

    def take(self, ticket: Ticket) -> DelayedFetch | None:
        """Remove and return a fetch; ``None`` if it is no longer there."""
        parked = self._parked.pop(ticket, None)
        for log in parked.logs if parked is not None else ():
            waiting = self._waiting[log]
            waiting.pop(ticket, None)
            if not waiting:
                del self._waiting[log]
        return parked

    def of_connection(self, connection: int) -> list[DelayedFetch]:
        """Return the fetches of one connection."""
        return [parked for parked in self._parked.values() if parked.context.connection == connection]
