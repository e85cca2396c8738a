"""How long a member waits before it tries again to claim its partitions.

Owns the end of the wait, and how many waits were in vain. Must not know states, nor what the member waits for. Invariants: after
``rebalance.max.retries`` vain waits the application learns the obstacle, however often the group changes meanwhile; no member tries
without a pause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ottla.client.backoff import ExponentialBackoff
from ottla.config import ConsumerConfig
from ottla.errors import ConsumerRebalanceFailedError, OttlaError
from ottla.types import Now, short_list

_log = logging.getLogger(__name__)

_NAMED = 10
"""The number of owners that an error names; it only counts the others."""


class Waits:
    """See the module. ``report`` gets the error for the application."""

    def __init__(
        self, config: ConsumerConfig, member_id: str, backoff: ExponentialBackoff, report: Callable[[OttlaError], None]
    ) -> None:
        self.until = 0
        """When the wait ends (monotonic ms); 0: there is none, or what the member has waited for has happened."""
        self._obstacle = ""
        """What the latest wait is or was for."""
        self._config = config
        self._member_id = member_id
        self._backoff = backoff
        self._report = report
        self._rest = 0
        """What is left of a wait that a change interrupted (ms), for the next one; 0: nothing."""
        self._vain = 0
        """The number of waits in this rebalance during which the obstacle did not disappear."""
        self._setbacks = 0
        """How often nodes have vanished in this rebalance."""

    def __repr__(self) -> str:
        return f"<Waits until {self.until}, {self._vain} in vain>"

    @property
    def obstacle(self) -> str:
        """What the member waits for now; empty: it does not wait."""
        return self._obstacle if self.until else ""

    def begin(self, obstacle: str, now: Now, *, cause: OttlaError | None = None, hint: str | None = None) -> None:
        """Wait for ``rebalance.backoff.ms`` at most. After ``rebalance.max.retries`` vain waits report the obstacle, and go on.

        A wait that a change interrupted is continued: otherwise members that come and go would put off the report for ever.
        """
        self.until, self._rest = now.mono + (self._rest or self._config.rebalance_backoff_ms), 0
        self._obstacle = obstacle
        group = self._config.group_id
        _log.debug("group %r: waiting since %s", group, obstacle)
        if self._vain >= self._config.rebalance_max_retries:
            self._vain = 0
            text = f"member {self._member_id} of group {group!r} could not claim its partitions, and goes on trying: {obstacle}"
            self._report(ConsumerRebalanceFailedError(text, hint=hint, cause=cause))

    def begin_for(self, owners: Collection[object], now: Now, *, hint: str | None = None) -> None:
        """Wait until these owners have given up the partitions. If they have disappeared meanwhile, the wait is short or none."""
        names = [str(owner) for owner in owners]
        self.begin(short_list(names, _NAMED) or "owners that disappear when they are looked for", now, hint=hint)
        if not names:
            self.until = now.mono + self._backoff.delay(self._setbacks - 1) if self._setbacks else 0
            self._setbacks += 1

    def begin_for_other(self, other: tuple[str, str], now: Now) -> int:
        """Wait until what has the member's place is gone, a session or another kind of members; return when the wait ends.

        ``other``: what it is, and the hint for the user.
        """
        self.end(now)
        obstacle, hint = other
        self.begin(obstacle, now, hint=hint)
        return self.until

    def end(self, now: Now) -> None:
        """Count the wait, if there was one, and it was in vain; if it is not over, keep the rest."""
        self._vain += 0 < self.until <= now.mono
        self._rest = max(0, self.until - now.mono)
        self.until = 0

    def back_off(self, now: Now) -> int:
        """The time of the next attempt after another client has deleted the member's node, perhaps again and again."""
        self._setbacks += 1
        return now.mono + self._backoff.delay(self._setbacks - 1)

    def succeeded(self) -> None:
        """Note that the member has its partitions."""
        self.until = self._rest = self._vain = self._setbacks = 0
