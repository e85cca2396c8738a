"""Whether the application is alive: the polls it owes the group, and the long jobs it has announced instead.

Owns the one deadline that user code has (KIP-62), whatever protocol the group speaks. Must not know states or requests, nor what
follows from the deadline. Invariant: only a poll, the end of a listener inside one, and a job's beginning, progress and end move
the deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from ottla.config import ConsumerConfig
from ottla.types import Now, TopicPartition

_log = logging.getLogger(__name__)

_NAMED = 5
"""Partitions that a log line names; of more it gives the number."""


class InHand(NamedTuple):
    """What the application was handed and has not come back for."""

    records: int = 0
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        named = [str(tp) for tp in self.partitions[:_NAMED]]
        more = len(self.partitions) - len(named)
        where = ", ".join(named) + (f" and {more} more" if more else "")
        return f"{self.records} records of {where}" if self.records else "no records"


class PollTimer:
    """See the module. Monotonic milliseconds; ``in_hand`` is asked when the deadline has passed, and only then."""

    def __init__(self, config: ConsumerConfig, in_hand: Callable[[], InHand]) -> None:
        self._config = config
        self._in_hand = in_hand
        self._last_sign = 0
        self._interval = config.max_poll_interval_ms
        self._limit: int | None = None
        self.expired_once = False
        """Whether the latest membership ended because the application did not poll."""

    @property
    def deadline(self) -> int:
        """When the next sign of life is due."""
        return self._last_sign + (self._interval if self._limit is None else self._limit)

    @property
    def last_sign(self) -> int | None:
        """When the application last gave a sign of life; ``None``: not yet."""
        return self._last_sign or None

    @property
    def processing(self) -> bool:
        """Whether the application is at a job that it has announced."""
        return self._limit is not None

    def polled(self, now: Now, interval: int) -> None:
        """The application polls, and may take ``interval`` ms until the next poll."""
        self._last_sign, self._interval = now.mono, interval

    def answered(self, now: Now) -> None:
        """The application has run a listener, so it is inside a poll.

        The next ``polled`` follows a moment later. Without this call, a member whose listener took the whole interval, or that
        resumes after an expulsion, would be expelled in between, as soon as it asks to join.
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
        """The job is done: ``max.poll.interval.ms`` counts again, from now on."""
        self._last_sign, self._limit = now.mono, None

    def joined(self) -> None:
        """A membership begins."""
        self.expired_once = False

    def expired(self, now: Now) -> bool:
        """Whether the application should have given a sign of life by now."""
        expired = now.mono >= self.deadline
        self.expired_once = self.expired_once or expired
        return expired

    def explain(self, now: Now) -> None:
        """The one line that tells the application why it lost its place."""
        config, spent = self._config, (now.mono - self._last_sign) / 1000
        if self._limit is None:
            setting = "max_poll_interval" if self._interval == config.max_poll_interval_ms else "session_timeout"
            what = f"{spent:.1f} s since its last poll(), {setting} is {self._interval / 1000:.1f} s"
            advice = (
                f"Handle fewer records per poll (max_poll_records is {config.max_poll_records}), handle them faster, raise"
                " max_poll_interval, or announce long work with processing()."
            )
        else:
            what = f"{spent:.1f} s since processing() began or last reported progress, its limit is {self._limit / 1000:.1f} s"
            advice = "If the work does not hang, give it a higher limit or report progress."
        _log.warning(
            "consumer of group %r left the group: %s. It holds %s: its partitions go to others, and what was not committed will be"
            " delivered again. %s It joins again with the next poll().",
            config.group_id,
            what,
            self._in_hand(),
            advice,
        )
