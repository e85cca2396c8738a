"""Whether a member is alive to its coordinator: the heartbeats it owes.

Owns the deadlines of one session. Must not know states, requests, what follows from a deadline, nor the application. Invariant: a
heartbeat that was answered, and nothing else, moves the end of the session.
"""

from __future__ import annotations

from ottla.client.backoff import ExponentialBackoff
from ottla.config import ConsumerConfig
from ottla.types import Now


class Liveness:
    """The clocks of one session. Monotonic milliseconds."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._interval = config.heartbeat_interval_ms
        self._session = config.session_timeout_ms
        self._heartbeat_at = 0
        self._session_until = 0
        self._in_flight = False
        self._failures = 0
        self._found = 0

    def session_deadlines(self) -> list[int]:
        """When to look at the session again."""
        return [self._session_until] if self._in_flight else [self._heartbeat_at, self._session_until]

    def joined(self, now: Now) -> None:
        """A session begins."""
        self._failures, self._in_flight = 0, False
        self._heartbeat_at = now.mono + self._interval
        self._session_until = now.mono + self._session

    def coordinator_found(self, count: int, now: Now) -> None:
        """A coordinator that was just found has not had a chance to answer yet."""
        if count != self._found:
            self._found, self._in_flight = count, False
            self._session_until = now.mono + self._session

    def session_expired(self, now: Now) -> bool:
        """Whether no heartbeat was answered for too long."""
        return now.mono >= self._session_until

    def heartbeat_due(self, now: Now) -> bool:
        """Whether to send one now."""
        return not self._in_flight and now.mono >= self._heartbeat_at

    def heartbeat_sent(self, now: Now) -> None:
        """The next one is an interval away."""
        self._in_flight = True
        self._heartbeat_at = now.mono + self._interval

    def heartbeat_answered(self, now: Now) -> None:
        """The session goes on."""
        self._in_flight, self._failures = False, 0
        self._session_until = now.mono + self._session

    def heartbeat_failed(self, now: Now, backoff: ExponentialBackoff) -> None:
        """The next one comes after a back-off."""
        self._in_flight = False
        self._heartbeat_at = now.mono + backoff.delay(self._failures)
        self._failures += 1
