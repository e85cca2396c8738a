"""The time by which the application has to poll, or to report progress of a ``processing()`` block.

Owns the one deadline of user code (KIP-62), in every protocol. Must not know the member's states or requests, nor the consequences
of a missed deadline. Invariant: only a poll, the end of a listener inside one, and the beginning, progress and end of a job move
the deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from ottla.config import ConsumerConfig
from ottla.types import Now, TopicPartition, short_list

_log = logging.getLogger(__name__)

_NAMED = 5
"""The number of partitions that a log line names; it only counts the others."""


class InHand(NamedTuple):
    """The records that the application has received and has not finished: their number, and their partitions."""

    records: int = 0
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        return f"{self.records} records of {short_list(self.partitions, _NAMED)}" if self.records else "no records"


class PollTimer:
    """See the module. Times are monotonic milliseconds. ``in_hand`` is called only when the deadline has passed."""

    def __init__(self, config: ConsumerConfig, in_hand: Callable[[], InHand]) -> None:
        self._config = config
        self._in_hand = in_hand
        self._last_sign = 0
        self._interval = config.max_poll_interval_ms
        self._limit: int | None = None
        self.busy_since: int | None = None
        """Since when a stream processes its current record: later polls do not move the deadline. See ``events.Polled``."""
        self.expired_once = False
        """Whether the latest membership ended because the application did not poll."""

    @property
    def deadline(self) -> int:
        """When the next poll, or report of progress, is due."""
        return self._last_sign + (self._interval if self._limit is None else self._limit)

    @property
    def last_sign(self) -> int | None:
        """When the application last polled or reported progress; ``None``: not yet."""
        return self._last_sign or None

    @property
    def processing(self) -> bool:
        """Whether a job is running."""
        return self._limit is not None

    def polled(self, now: Now, interval: int) -> None:
        """The application polls, and may take ``interval`` ms until the next poll."""
        busy_since = self.busy_since
        self._last_sign, self._interval = now.mono if busy_since is None else min(now.mono, busy_since), interval

    def answered(self, now: Now) -> None:
        """The application has run a listener, so it is inside a poll.

        1. A listener takes the whole interval, or the member was expelled before. 2. The application answers, and the member sends
        its join. 3. The next ``polled`` follows a moment later; without this call, the member would be expelled before it.
        """
        self._last_sign = now.mono

    def begin(self, limit: int, now: Now) -> None:
        """A job begins: no poll for up to ``limit`` ms."""
        self._last_sign, self._limit = now.mono, limit

    def progress(self, now: Now) -> None:
        """A job reports progress: its limit counts from now. Without a job this does nothing."""
        if self._limit is not None:
            self._last_sign = now.mono

    def end(self, now: Now) -> None:
        """The job has ended: the interval between polls applies again, from now on."""
        self._last_sign, self._limit = now.mono, None

    def joined(self) -> None:
        """Forget that an earlier membership ended because the application did not poll."""
        self.expired_once = False

    def expired(self, now: Now) -> bool:
        """Whether the deadline has passed."""
        expired = now.mono >= self.deadline
        self.expired_once = self.expired_once or expired
        return expired

    def explain(self, now: Now) -> None:
        """Log, in one line, why the member left the group."""
        config, spent = self._config, (now.mono - self._last_sign) / 1000
        setting = "max_poll_interval" if self._interval == config.max_poll_interval_ms else "session_timeout"
        what, again = f"{spent:.1f} s since its last poll(), {setting} is {self._interval / 1000:.1f} s", "with the next poll()"
        advice = (
            f"Process fewer records per poll (max_poll_records is {config.max_poll_records}), process them faster, raise"
            " max_poll_interval, or use processing() for long work."
        )
        if self._limit is not None:
            what = f"{spent:.1f} s since processing() began or last reported progress, its limit is {self._limit / 1000:.1f} s"
            advice = "If the job does not hang, raise its limit or call progress() more often."
        elif self.busy_since is not None:
            what = f"{spent:.1f} s since a stream handed out a record, {setting} is {self._interval / 1000:.1f} s"
            advice, again = "Process each record faster, or raise max_poll_interval.", "when the record is finished"
        _log.warning(
            "consumer of group %r left the group: %s. It is processing %s: other members get its partitions, and uncommitted"
            " records are delivered again. %s It joins again %s.",
            config.group_id,
            what,
            self._in_hand(),
            advice,
            again,
        )
