"""When a member registers again after a failure, and what the application learns of it.

Owns the back-off, and which errors were reported. Must not know states or the channel. Invariants: the first attempt after the loss
of a channel follows at once, and so does one at another broker than that which has failed; later ones at the same broker follow
after a growing pause; an error that a retry does not fix is reported when it is new.

Why another broker is asked at once:

1. The coordinator is killed. Until its session with ZooKeeper ends, a look-up names it, and the pauses grow.
2. Another broker is elected, and a look-up names it.
3. The member waits for the rest of its pause, up to a second, and meanwhile its lease ends: it loses its partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.backoff import ExponentialBackoff
from ottla.client.events import ErrorNotification
from ottla.client.groups.membership import Refusals
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError
from ottla.types import Now

_log = logging.getLogger(__name__)


class Retries:
    """See the module. ``notify`` puts a notification into the application's queue."""

    def __init__(self, config: ConsumerConfig, backoff: ExponentialBackoff, notify: Callable[[object], None]) -> None:
        self.not_before = 0
        """The time of the next attempt at the broker that has failed (monotonic ms)."""
        self.obstacle = ""
        """What keeps the member from its channel, if anything does."""
        self._group_id = config.group_id
        self._backoff = backoff
        self._notify = notify
        self._refusals = Refusals(config.default_api_timeout_ms, notify)
        self._failures = 0
        self._failed_at: int | None = None
        """The broker of the latest failure."""
        self._reported = ""
        """The latest error that was reported at once."""

    def __repr__(self) -> str:
        return f"<Retries {self._failures} failures, {self.obstacle or 'no obstacle'}>"

    def may_register(self, node_id: int, now: Now) -> bool:
        """Whether a Register may be sent to a broker now."""
        return node_id != self._failed_at or now.mono >= self.not_before

    def reset(self) -> None:
        """Forget the failures."""
        self._failures = self.not_before = 0

    def accepted(self) -> None:
        """Note that the member has registered. The channel may still be useless, so its failures count until ``reset``."""
        self._refusals.accepted()
        self.obstacle = self._reported = ""

    def lost(self, reason: str, node_id: int | None, now: Now) -> None:
        """Note that the channel to a broker is lost."""
        level = logging.DEBUG if self._failures else logging.WARNING
        _log.log(level, "group %r: the channel to the coordinator is lost: %s", self._group_id, reason)
        self.obstacle = reason
        self.not_before = now.mono + (self._backoff.delay(self._failures - 1) if self._failures else 0)
        self._failures, self._failed_at = self._failures + 1, node_id

    def failed(self, error: OttlaError, node_id: int | None, now: Now) -> None:
        """Note that a Register at a broker has failed."""
        if not self._failures:
            _log.warning("group %r: %s; the member registers again", self._group_id, error)
        self.obstacle = str(error.args[0])
        self.not_before = now.mono + self._backoff.delay(self._failures)
        self._failures, self._failed_at = self._failures + 1, node_id

    def refused(self, error: OttlaError, now: Now) -> None:
        """Report an error that may pass, if it lasts."""
        self._refusals.refused(error, now)

    def report(self, error: OttlaError, now: Now) -> None:
        """Report an error that a retry does not fix: at once if it is a new one."""
        if str(error) == self._reported:
            self._refusals.refused(error, now)
        else:
            self._reported = str(error)
            self._notify(ErrorNotification(error))
