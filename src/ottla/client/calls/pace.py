"""How an application spends its time: between polls, waiting inside them, in listeners, waiting for commits.

Owns these times, for the application thread; other threads may read them. Must not know what a poll does. Invariant: a poll costs
the same whatever it finds.

Sources of the names: KIP-517 (polls), KIP-761 (commits).
"""

from __future__ import annotations

import enum

from ottla.client.health.metrics import CONSUMER, COORDINATOR, Meter, MetricName
from ottla.types import Now

_NANOSECONDS = 1_000_000
"""In a millisecond: Kafka counts these two times so finely."""


class Told(enum.Enum):
    """The partitions that a listener got."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class Pace:
    """See the module. Milliseconds."""

    def __init__(self) -> None:
        self.in_commit = self.in_committed = 0
        """In ``commit()`` and ``committed()``, all together."""
        self._polled_at: int | None = None
        self._waited = 0
        self._between, self._inside = Meter(), Meter()
        self._in_listeners = {told: Meter() for told in Told}

    def poll_began(self, now: Now) -> None:
        """The application polls, or asks for the next record of those it walks."""
        if self._polled_at is not None:
            self._between.record(now.mono - self._polled_at, now)
            self._inside.record(self._waited, now)
        self._polled_at, self._waited = now.mono, 0

    def poll_ended(self, now: Now) -> None:
        """It goes on by itself."""
        if self._polled_at is not None:
            self._waited = now.mono - self._polled_at

    def listened(self, told: Told, milliseconds: int, now: Now) -> None:
        """A listener has run."""
        self._in_listeners[told].record(milliseconds, now)

    def metrics(self, now: Now) -> dict[MetricName, float]:
        """What they say now. Any thread may ask."""
        polled_at, between = self._polled_at, self._between.average(now)
        found = {
            MetricName("last-poll-seconds-ago", CONSUMER): -1.0 if polled_at is None else max(0, now.mono - polled_at) / 1000,
            MetricName("time-between-poll-avg", CONSUMER): between,
            MetricName("time-between-poll-max", CONSUMER): self._between.maximum(now),
            MetricName("poll-idle-ratio-avg", CONSUMER): min(1.0, self._inside.average(now) / between) if between else 0.0,
            MetricName("commit-sync-time-ns-total", CONSUMER): float(self.in_commit * _NANOSECONDS),
            MetricName("committed-time-ns-total", CONSUMER): float(self.in_committed * _NANOSECONDS),
        }
        for told, meter in self._in_listeners.items():
            found[MetricName(f"partition-{told.value}-latency-avg", COORDINATOR)] = meter.average(now)
            found[MetricName(f"partition-{told.value}-latency-max", COORDINATOR)] = meter.maximum(now)
        return found
