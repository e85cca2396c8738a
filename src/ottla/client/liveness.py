"""Whether a member is alive: the heartbeats it owes its coordinator, and the polls its application owes it.

Owns the deadlines of one membership (KIP-62). Must not know states, requests or what follows from a deadline. Invariant: a
heartbeat that was answered, and nothing else, moves the end of the session; a poll, and nothing else, moves the poll deadline.
"""

from __future__ import annotations

import logging

from ottla.client.backoff import ExponentialBackoff
from ottla.config import ConsumerConfig
from ottla.types import Now

_log = logging.getLogger(__name__)


class Liveness:
    """The clocks of one member: heartbeat, session, and the application's polls. Monotonic milliseconds."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._interval = config.heartbeat_interval_ms
        self._session = config.session_timeout_ms
        self._max_poll_interval = config.max_poll_interval_ms
        self._heartbeat_at = 0
        self._session_until = 0
        self._in_flight = False
        self._failures = 0
        self._found = 0
        self._last_poll = 0
        self.expired_once = False
        """Whether the latest membership ended because the application did not poll."""

    @property
    def poll_deadline(self) -> int:
        """When the application must have polled."""
        return self._last_poll + self._max_poll_interval

    def session_deadlines(self) -> list[int]:
        """When to look at the session again."""
        return [self._session_until] if self._in_flight else [self._heartbeat_at, self._session_until]

    def polled(self, now: Now) -> None:
        """The application polls."""
        self._last_poll = now.mono

    def poll_expired(self, now: Now) -> bool:
        """Whether the application should have polled by now."""
        expired = now.mono >= self.poll_deadline
        self.expired_once = self.expired_once or expired
        return expired

    def explain_expiry(self, config: ConsumerConfig, now: Now) -> None:
        """The one line that tells the application why it lost its place."""
        _log.warning(
            "consumer of group %r left the group: %.1f s since its last poll(), max_poll_interval is %.1f s. Its partitions go to"
            " others, and what was not committed will be delivered again. Handle fewer records a poll (max_poll_records is %d),"
            " handle them faster, or raise max_poll_interval. It joins again with the next poll().",
            config.group_id,
            (now.mono - self._last_poll) / 1000,
            self._max_poll_interval / 1000,
            config.max_poll_records,
        )

    def joined(self, now: Now) -> None:
        """A session begins."""
        self.expired_once = False
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
