"""The values that handlers of requests use: a request's context, the effects of the broker's core, and the error that rejects it.

Owns the effects that the coordinators and the rest of the broker share. Must not know how the shell performs an effect, nor which
response an ``ApiError`` ends up in. Invariants: every request with a ticket gets exactly one ``Reply``, ``NoReply`` or
``CloseConnection`` with that ticket, now or later; an ``ApiError`` never leaves the broker: each handler turns it into the error
fields of its own response.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule
from ottla.values import light_dataclass

Ticket = int
"""The id of one request; assigned by the shell and never reused while it runs."""

TimerKey = tuple[Hashable, ...]
"""The id of a timer. Setting the timer of a key again moves it, so there is at most one timer for each key."""


@light_dataclass(frozen=True, slots=True)
class RequestContext:
    """The sender of a request, and the rules of its version."""

    ticket: Ticket
    api: Api
    connection: int
    client_id: str
    client_host: str
    """The client's address as in Kafka's group metadata: ``/127.0.0.1``."""
    version_rules: frozenset[VersionRule] = frozenset()
    correlation_id: int = 0
    """Of a member's answer: the correlation id of the ``Push`` that it answers."""


class ApiError(Exception):
    """A request or a part of one was rejected without any effect; ``code`` is the protocol's error code, ``message`` the reason."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code.name}]"


@light_dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request with a neutral response message."""

    ticket: Ticket
    response: Any


@dataclass(frozen=True, slots=True)
class NoReply:
    """Finish a request that has no response (Produce with acks=0)."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection of a request; ``reason`` is logged."""

    ticket: Ticket
    reason: str


@dataclass(frozen=True, slots=True)
class Push:
    """Send a request to a member, on the connection that is its channel; a no-op if it is closed.

    The answer arrives as a request of the same API, with the same correlation id.
    """

    connection: int
    api: Api
    correlation_id: int
    message: Any


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a client's connection after what was sent before; a no-op if it is closed. ``reason`` is logged."""

    connection: int
    reason: str


@light_dataclass(frozen=True, slots=True)
class SetTimer:
    """Call ``on_timer(key)`` once the monotonic clock reaches ``at`` (milliseconds); replaces a timer with the same key.

    ``unless_set``: keep the deadline of a timer that is already set; the effect does not leave the coordinator then.
    """

    key: TimerKey
    at: int
    unless_set: bool = False


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer; a no-op if it is not set."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """The producer id and epoch of a batch; without a producer by default."""

    producer_id: int = -1
    epoch: int = -1


@light_dataclass(frozen=True, slots=True)
class Append:
    """Write records to one partition of the coordinator's topic as one batch, then call ``on_appended`` or ``on_append_failed``.

    ``records`` are encoded (key, value) pairs; the value of a tombstone is ``None``.
    """

    partition: int
    batch: int
    records: tuple[tuple[bytes, bytes | None], ...]
    producer: ProducerStamp | None = None
    """The producer of the transaction that the records belong to, if any."""


@dataclass(frozen=True, slots=True)
class ResolveRegexes:
    """Match the regular expressions of a group with ``names`` away from the event loop, then call ``on_regexes_resolved``.

    ``version`` is the version of the topic image with these names.
    """

    group_id: str
    regexes: tuple[str, ...]
    names: tuple[str, ...]
    version: int


@dataclass(frozen=True, slots=True)
class ResolvedRegexes:
    """The result of ``ResolveRegexes``: regular expression -> the names that it matches, sorted."""

    version: int
    topics: Mapping[str, tuple[str, ...]]
