"""Requests about many topics, served a slice at a time so that other clients do not wait until the last topic is done.

Owns the requests in progress. Must not know what they do. Invariants: a request is answered when its last slice is done, or its
connection is closed; the event loop has a turn between two slices; the next request of the same connection waits for the response.
Kafka handles the requests of a connection one after the other, so a client may send CreateTopics and then Produce without waiting.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Generator
from dataclasses import dataclass, field

from ottla.broker.effects import (
    BrokerEffect,
    CloseConnection,
    MuteConnection,
    ReceivedRequest,
    RequestContext,
    SetTimer,
    Ticket,
    UnmuteConnection,
)
from ottla.broker.topic_changes import TopicChange
from ottla.types import Now

SLICE = "slice"
"""The first element of the keys of these timers."""

SIZE = 50
"""Topics that are created or changed, or partitions that are deleted, in one slice: a few milliseconds of work."""

DESCRIBED = 500
"""Partitions that are described in one slice."""


class Wait(enum.Enum):
    """What a request yields until something happens that is not a matter of time."""

    FOR_CHANGE = "a change of topics is under way in ZooKeeper"
    FOR_ANSWER = "ZooKeeper was asked"


Slices = Generator[list[BrokerEffect] | Wait, None, list[BrokerEffect]]
"""The work on a request. It yields the effects of each slice but the last, whose effects, with the reply, it returns. After a
``Wait`` it goes on with the next ``wake``, and yields again if that was none of its concern."""

log = logging.getLogger("ottla.broker")


@dataclass(eq=False, slots=True)
class _SlicedRequest:
    connection: int
    slices: Slices
    queued: list[ReceivedRequest] = field(default_factory=list)


class SlicedRequests:
    """The requests that are served in slices."""

    def __init__(self) -> None:
        self._in_progress: dict[Ticket, _SlicedRequest] = {}
        self._waiting: set[Ticket] = set()

    def begin(self, context: RequestContext, slices: Slices, now: Now) -> list[BrokerEffect]:
        """Do the first slice of a request now, and each other in a later turn of the event loop."""
        ticket = context.ticket
        self._in_progress[ticket] = _SlicedRequest(context.connection, slices)
        effects, _ = self._next(ticket, now)
        return [MuteConnection(ticket), *effects] if ticket in self._in_progress else effects

    def queue_if_busy(self, request: ReceivedRequest) -> bool:
        """Queue a request if an earlier one of its connection is in progress; return whether it was queued."""
        context, _ = request
        before = [one for one in self._in_progress.values() if one.connection == context.connection]
        if before:
            before[-1].queued.append(request)
        return bool(before)

    def go_on(self, ticket: Ticket, now: Now) -> tuple[list[BrokerEffect], list[ReceivedRequest]]:
        """Do the next slice; after the last one, also return the requests that waited."""
        effects, behind = self._next(ticket, now)
        return (effects if ticket in self._in_progress else [UnmuteConnection(ticket), *effects]), behind

    def wake(self, now: Now) -> list[BrokerEffect]:
        """Let the requests go on that wait for a change."""
        waiting, self._waiting = sorted(self._waiting), set()
        return [SetTimer((SLICE, ticket), now.mono) for ticket in waiting]

    def _next(self, ticket: Ticket, now: Now) -> tuple[list[BrokerEffect], list[ReceivedRequest]]:
        """Do a slice. A failure closes the connection, as it does for requests that are served at once."""
        under_way = self._in_progress[ticket]
        try:
            effects = next(under_way.slices)
        except StopIteration as end:
            del self._in_progress[ticket]
            last: list[BrokerEffect] = end.value
            return last, under_way.queued
        except Exception:
            del self._in_progress[ticket]
            log.exception("a request could not be served to its end")
            return [CloseConnection(ticket, "the broker failed to serve it")], []
        if isinstance(effects, Wait):
            self._waiting.add(ticket)
            return [], []
        # In a millisecond: a timer that is already due would run in this turn of the loop.
        return [*effects, SetTimer((SLICE, ticket), now.mono + 1)], []


def until_done(change: TopicChange) -> Generator[Wait, None, None]:
    """Wait for the outcome of a change."""
    while not change.is_done:
        yield Wait.FOR_CHANGE
