"""What a broker's core asks its shell to do, as values, and what it knows about a request.

Owns the vocabulary that the coordinator and the rest of the broker share. Must not know who performs an effect. Invariant: every
request that came in with a ticket gets exactly one ``Reply`` or one ``CloseConnection`` with that ticket, sooner or later.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.protocol.apis import Api, VersionRule
from ottla.values import light_dataclass

Ticket = int
"""Names one request that waits for its reply; given out by the shell, never reused while it runs."""

TimerKey = tuple[Hashable, ...]
"""Names a timer: setting a key again moves the timer, so that there is one at most for each key."""


@light_dataclass(frozen=True, slots=True)
class RequestContext:
    """Where a request came from and what its version implies."""

    ticket: Ticket
    api: Api
    connection: int
    client_id: str
    client_host: str
    """As Kafka writes it into group metadata: ``/127.0.0.1``."""
    version_rules: frozenset[VersionRule] = frozenset()


@light_dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request with a neutral response message."""

    ticket: Ticket
    response: Any


@dataclass(frozen=True, slots=True)
class NoReply:
    """The request is done and wants no answer (Produce with acks=0)."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection that a request came from; ``reason`` goes into one log line."""

    ticket: Ticket
    reason: str


@light_dataclass(frozen=True, slots=True)
class SetTimer:
    """Call ``on_timer(key)`` once the monotonic clock reaches ``at`` (milliseconds); replaces a timer with the same key.

    ``unless_set``: leave a timer as it is that the coordinator has set already. Such an effect does not leave the coordinator then.
    """

    key: TimerKey
    at: int
    unless_set: bool = False


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget a timer; nothing happens if there is none."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """The producer of a batch; none by default."""

    producer_id: int = -1
    epoch: int = -1


@light_dataclass(frozen=True, slots=True)
class Append:
    """Write records to one partition of the coordinator's own topic as one batch, then tell ``Appended`` or ``AppendFailed``.

    ``records`` are encoded (key, value) pairs, ``None`` for a tombstone.
    """

    partition: int
    batch: int
    records: tuple[tuple[bytes, bytes | None], ...]
    producer: ProducerStamp | None = None
    """In whose transaction, if in one."""


@dataclass(frozen=True, slots=True)
class ResolveRegexes:
    """Find out, away from the loop, which of ``names`` the regular expressions of a group match; then tell ``on_regexes_resolved``.

    ``version`` is that of the topics whose names they are.
    """

    group_id: str
    regexes: tuple[str, ...]
    names: tuple[str, ...]
    version: int


@dataclass(frozen=True, slots=True)
class ResolvedRegexes:
    """What came of it: by regular expression the names that it matches, sorted."""

    version: int
    topics: Mapping[str, tuple[str, ...]]
