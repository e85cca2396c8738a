"""The program that polls for ``Consumer.streams()``: records go into the queues of the streams, full queues pause partitions.

Owns the order of the steps, what happens after an error, and the end. Must not know threads: a driver runs ``run()``, a call that
ends only with the consumer, beside other calls. Invariants: it never waits for a stream, except for records in hand when partitions
are revoked or the consumer is closed, and then only for a limited time; while a record is in hand for ``max_poll_interval`` it does
not poll, so the member leaves the group.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from ottla.client import events
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import Listeners
from ottla.client.calls.mailbox import Call
from ottla.client.calls.streams import Changes, StreamQueue, Streams
from ottla.client.groups.membership import DEFAULT
from ottla.client.subscription import Mode
from ottla.config import ConsumerConfig
from ottla.errors import CorruptRecordError, IllegalStateError, OttlaError
from ottla.types import GroupMembershipOperation, Now, TopicPartition

_log = logging.getLogger(__name__)

TURN = 1_000
"""Milliseconds that a poll waits for records. Meanwhile notifications, and streams that go on, have their effects at once."""

ERROR_PAUSE = 1_000
"""Milliseconds until the next poll after an error, unless records arrive."""


class Pump:
    """See the module."""

    def __init__(self, config: ConsumerConfig, calls: ConsumerCalls, streams: Streams) -> None:
        self.streams = streams
        self._config = config
        self._calls = calls
        self._mailbox = calls.mailbox
        self._collector = calls.collector
        self._changes = Changes()
        """The partitions to be paused and resumed before the next poll."""
        self._logged = ""
        """The text of the error that was logged last, until a poll succeeds."""

    def begin(
        self, wanted: Mapping[str, int] | int, pattern: str | None, listeners: Listeners, now: Now, *, is_black_list: bool = False
    ) -> Call[None]:
        """Subscribe. Raises ``IllegalStateError`` if the consumer has streams, or a subscription, already.

        ``wanted``: the number of streams of each topic, or of the pattern.
        """
        calls = self._calls
        calls.check_no_streams("streams()")
        calls.take_news()
        if calls.snapshot.mode is not Mode.NONE:
            raise IllegalStateError("streams() after subscribe() or assign()", hint="create another consumer for the streams")
        calls.shared.streams = self.streams
        try:
            topics = wanted if isinstance(wanted, Mapping) else ()
            yield from calls.subscribe(topics, listeners, now, pattern, is_black_list=is_black_list, streams=wanted)
        except BaseException:
            calls.shared.streams = None
            raise

    def run(self, now: Now) -> Call[None]:
        """Poll for ever. Raises the error that ends the consumer; the streams raise all others."""
        self._mailbox.now = now
        while True:
            # A listener, or the callback of another call, may have taken long.
            yield from self._mailbox.update_time()
            try:
                yield from self._wait_for_progress()
                yield from self._turn()
                self._logged = ""
            except Exception as error:
                self._report(error)
                yield from self._wait_after_error()

    def close(
        self,
        own: Collection[StreamQueue],
        counted: Collection[StreamQueue],
        timeout: int,
        now: Now,
        operation: GroupMembershipOperation = DEFAULT,
    ) -> Call[None]:
        """End the streams, wait for the records in hand for at most half of the time, then close. ``run`` has ended before.

        ``own``: the streams of the thread that closes, which cannot finish records meanwhile; those of ``counted`` count as done.
        """
        self._mailbox.now = now
        until = now.mono + timeout // 2
        self.end()
        while self._mailbox.now.mono < until and self.streams.has_in_hand(but=own):
            yield from self._mailbox.wait("records in hand", until)
            self._calls.take_news()
        self.streams.counted = frozenset(counted)
        left = max(0, now.mono + timeout - self._mailbox.now.mono)
        yield from self._calls.close(left, self._mailbox.now, operation)

    def end(self) -> None:
        """End all streams after their current records, since no more follow. Raises ``ClosedError`` without a network thread."""
        try:
            self._take_back()
        finally:
            self.streams.end()

    def _take_back(self) -> None:
        """Take back all records that were not handed out: they are to be delivered again."""
        self._mailbox.rewind(self._collector.withdraw(self._collector.snapshot.partitions.keys()))

    # -- one poll ---------------------------------------------------------------------------------------------------------

    def _turn(self) -> Call[None]:
        """Pause and resume partitions, poll once, and put the records into the streams."""
        if self._has_lost_lease:
            self._take_back()
        changes, self._changes = self._changes, Changes()
        yield from self._apply(changes)
        delivery = yield from self._calls.deliver_to_streams(self._wait_time(), self._mailbox.now, self._has_to_act)
        if delivery is not None:
            self._collector.move_to_streams(delivery, self.streams)
            self._look_for_changes(waiting_responses=0)

    def _apply(self, changes: Changes) -> Call[None]:
        """Pause and resume partitions. Those that are not assigned any more are ignored."""
        if changes.pause:
            self.streams.note_paused(changes.pause)
            views, positions = self._collector.snapshot.partitions, self._collector.positions(with_current=True)
            consumed = {tp: (views[tp].epoch, positions[tp]) for tp in changes.pause if tp in positions}
            pause = events.Pause(changes.pause, consumed)
            yield from self._mailbox.ask(pause, "pausing full streams", self._mailbox.default_deadline)
        if changes.resume:
            resume = events.Resume(changes.resume)
            yield from self._mailbox.ask(resume, "resuming streams", self._mailbox.default_deadline)
            self.streams.note_resumed(changes.resume)

    def _has_to_act(self) -> bool:
        """Whether a poll that has no records for the streams ends early."""
        self._look_for_changes(waiting_responses=self._collector.buffer.responses)
        return any(self._changes) or self._has_lost_lease or self._patience() <= 0

    @property
    def _has_lost_lease(self) -> bool:
        """Whether records wait in streams, and another member may own their partitions: see ``SharedState.lease_until``."""
        return not self._calls.shared.may_return_records(self._mailbox.now) and self.streams.has_waiting

    def _look_for_changes(self, waiting_responses: int) -> None:
        self._changes = self.streams.changes(self._collector.snapshot, waiting_responses, self._mailbox.now)

    def _patience(self) -> int:
        """Milliseconds for which the pump may wait for records: not beyond ``max_poll_interval`` of a record in hand."""
        since = self.streams.busy_since(self._mailbox.now)
        return TURN if since is None else min(TURN, since + self._config.max_poll_interval_ms - self._mailbox.now.mono)

    def _wait_time(self) -> int:
        """Milliseconds for which a poll waits: as ``_patience``, and not beyond the end of the lease."""
        lease_until, now = self._calls.shared.lease_until, self._mailbox.now.mono
        is_held = lease_until is not None and lease_until > now
        return min(self._patience(), lease_until - now) if is_held and lease_until is not None else self._patience()

    def _wait_for_progress(self) -> Call[None]:
        """Do not poll while a record is in hand for ``max_poll_interval``: others get the partitions of a thread that hangs."""
        if self._patience() > 0:
            return
        self._take_back()
        while self._patience() <= 0:
            yield from self._mailbox.wait("the end of a record", self._mailbox.now.mono + TURN)
            self._calls.take_news()

    # -- errors -----------------------------------------------------------------------------------------------------------

    def _report(self, error: Exception) -> None:
        """Have the streams raise an error of a poll. Raises a fatal one."""
        if isinstance(error, OttlaError) and error.fatal:
            raise error
        passes = isinstance(error, OttlaError)
        text = f"a listener or a commit callback failed: {error!r}"
        reported = error if isinstance(error, OttlaError) else OttlaError(text, cause=error)
        if str(reported) != self._logged:
            self._logged = str(reported)
            _log.warning("a poll for the streams of group %r failed: %s", self._config.group_id, reported)
        self.streams.fail(reported, self._concerned(error), passes=passes)

    def _concerned(self, error: Exception) -> list[TopicPartition]:
        """The partitions that an error is about; none: it is not about certain partitions."""
        if isinstance(error, CorruptRecordError) and (tp := self._collector.raised_corrupt) is not None:
            return [tp]
        problems = self._collector.snapshot.problems
        return [tp for tp, problem in problems.items() if (type(problem), str(problem)) == (type(error), str(error))]

    def _wait_after_error(self) -> Call[None]:
        """Wait until records arrive, which a poll returns before it raises the same error again, at most ``ERROR_PAUSE``."""
        until, before = self._mailbox.now.mono + ERROR_PAUSE, len(self._collector.buffer)
        while self._mailbox.now.mono < until and len(self._collector.buffer) <= before:
            yield from self._mailbox.wait("the next poll", until)
            self._calls.take_news()
