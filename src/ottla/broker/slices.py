"""Requests about many topics, served a slice at a time so that other clients do not wait until the last topic is done.

Owns the requests in progress. Must not know what they do. Invariants: a request is answered when its last slice is done, or its
connection is closed; the event loop has a turn between two slices; the next request of the same connection waits for the answer,
since a client may send CreateTopics and Produce without waiting in between, as Kafka handles the requests of one connection one
after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from ottla.broker.effects import CloseConnection, Effect, GoOn, HoldBack, RequestContext, SetTimer, Ticket
from ottla.types import Now

SLICE = "slice"
"""The first word of the keys of these timers."""

SIZE = 50
"""Topics that are created or changed, or partitions that are deleted, in one slice: a few milliseconds of work."""

DESCRIBED = 500
"""Partitions that are described in one slice."""

Slices = Generator[list[Effect], None, list[Effect]]
"""The work on a request. It yields the effects of each slice but the last, whose effects, with the reply, it returns."""

Request = tuple[RequestContext, Any]

log = logging.getLogger("ottla.broker")


@dataclass(eq=False, slots=True)
class _UnderWay:
    connection: int
    slices: Slices
    behind: list[Request] = field(default_factory=list)


class SlicedRequests:
    """The requests that are served in slices."""

    def __init__(self) -> None:
        self._under_way: dict[Ticket, _UnderWay] = {}

    def begin(self, context: RequestContext, slices: Slices, now: Now) -> list[Effect]:
        """Do the first slice of a request now, and each other in a later turn of the event loop."""
        ticket = context.ticket
        self._under_way[ticket] = _UnderWay(context.connection, slices)
        effects, _ = self._next(ticket, now)
        return [HoldBack(ticket), *effects] if ticket in self._under_way else effects

    def put_behind(self, request: Request) -> bool:
        """Let a request that has already arrived wait, if one of its connection is under way; whether that is so."""
        context, _ = request
        before = [one for one in self._under_way.values() if one.connection == context.connection]
        if before:
            before[-1].behind.append(request)
        return bool(before)

    def go_on(self, ticket: Ticket, now: Now) -> tuple[list[Effect], list[Request]]:
        """Do the next slice; after the last, also return the requests that waited behind this one."""
        effects, behind = self._next(ticket, now)
        return (effects if ticket in self._under_way else [GoOn(ticket), *effects]), behind

    def _next(self, ticket: Ticket, now: Now) -> tuple[list[Effect], list[Request]]:
        """Do a slice. A failure closes the connection, as it does for requests that are served at once."""
        under_way = self._under_way[ticket]
        try:
            effects = next(under_way.slices)
        except StopIteration as end:
            del self._under_way[ticket]
            last: list[Effect] = end.value
            return last, under_way.behind
        except Exception:
            del self._under_way[ticket]
            log.exception("a request could not be served to its end")
            return [CloseConnection(ticket, "the broker failed to serve it")], []
        # A timer that is already due would run in this turn of the loop.
        return [*effects, SetTimer((SLICE, ticket), now.mono + 1)], []
