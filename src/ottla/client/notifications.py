"""What the network thread tells the application thread of its own accord, as values.

Owns the notifications that any client may get; the managers of the consumer have their own besides. Must not know who reads them.
Invariant: a notification carries all that its reader needs; it never refers back into the core.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.errors import OttlaError


@dataclass(frozen=True, slots=True)
class ErrorNotification:
    """Something failed that no call is waiting for: the application's next call raises it."""

    error: OttlaError


@dataclass(frozen=True, slots=True)
class TopicErrorNotification:
    """The brokers refuse to describe a topic: its name is invalid or the principal may not see it. Said again with each refusal."""

    topic: str
    error: OttlaError
