"""Commits and committed offsets: their order, their deadlines, and auto-commit.

Owns the queue of commits, the look-ups of committed offsets and the timer of auto-commit. Must not know where offsets are stored,
how a membership works, nor who uses a committed offset. Invariants:

- Commits are sent in the order of the calls, each with the identity of the member that called. A retry has the current identity; it
  never overwrites a later commit, not even one of which it is not known whether it was executed: then it commits the position of
  that one. It fails if partitions of it were given up meanwhile.
- A call fails at its deadline, but its request stays in flight: the coordinator may still execute it, even after a request that
  was sent later over another connection.
- Nothing is requested while the store is not ready, and nothing is committed while it does not allow that. At most one auto-commit
  is in flight. It commits only positions that came with a ``Polled``, so only records that an earlier poll has returned.
"""

from __future__ import annotations

import logging
import uuid
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ottla.client.backoff import ExponentialBackoff
from ottla.client.effects import Poll
from ottla.client.events import Offsets, Reply
from ottla.client.groups.membership import MemberIdentity, Membership
from ottla.client.positions.stores.interface import CommitOutcome, CommitRequest, FetchOutcome, OffsetStore, stored
from ottla.config import ConsumerConfig
from ottla.errors import (
    CommitFailedError,
    DisconnectedError,
    OttlaError,
    OttlaTimeoutError,
    RequestTimedOutError,
    timeout_error,
)
from ottla.types import FrozenMapping, Now, OffsetAndMetadata, TopicPartition

_log = logging.getLogger(__name__)

_UNCLEAR = (DisconnectedError, OttlaTimeoutError, RequestTimedOutError)
"""The errors of a commit that may have been executed."""

_NO_OFFSETS: Offsets = FrozenMapping()


@dataclass(slots=True, eq=False)
class _OffsetRequest:
    """A request to the coordinator, with its retries, and the commands that wait for it."""

    waiting: list[tuple[Reply, int | None]]
    """The waiting commands, with their deadlines."""
    retry: bool
    attempts: int = 0
    not_before: int = 0
    last_error: OttlaError | None = None

    @property
    def deadline(self) -> int | None:
        """The first deadline of the waiting commands."""
        return min((deadline for _, deadline in self.waiting if deadline is not None), default=None)

    def overdue(self, now: Now) -> bool:
        """Whether a deadline has passed."""
        return (deadline := self.deadline) is not None and now.mono >= deadline

    def give_up(self, error: OttlaError, now: Now) -> None:
        """Fail the commands whose deadline has passed."""
        waiting, self.waiting = self.waiting, []
        for reply, deadline in waiting:
            if deadline is not None and now.mono >= deadline:
                reply(None, error)
            else:
                self.waiting.append((reply, deadline))

    def done(self, value: object, error: OttlaError | None) -> None:
        """Complete the commands that are still waiting."""
        waiting, self.waiting = self.waiting, []
        for reply, _ in waiting:
            reply(value, error)


@dataclass(slots=True, eq=False, kw_only=True)
class _OffsetCommit(_OffsetRequest):
    number: int
    offsets: Offsets
    identity: MemberIdentity
    topic_ids: Mapping[TopicPartition, uuid.UUID]
    """The ids of the topics in which the positions were read, as far as they are known."""
    revoking: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class _OffsetFetch(_OffsetRequest):
    partitions: frozenset[TopicPartition]


class CommitManager:
    """See the module. ``topic_id`` returns the id of the topic in which a partition is read."""

    def __init__(
        self,
        config: ConsumerConfig,
        store: OffsetStore,
        membership: Membership,
        backoff: ExponentialBackoff,
        topic_id: Callable[[TopicPartition], uuid.UUID | None],
    ) -> None:
        self._config = config
        self._store = store
        self._topic_id = topic_id
        self._membership = membership
        self._backoff = backoff
        self._queue: list[_OffsetCommit] = []
        self._order = CommitOrder()
        self._in_flight: dict[int, _OffsetCommit] = {}
        self._lookups: dict[frozenset[TopicPartition], _OffsetFetch] = {}
        self._asked: set[frozenset[TopicPartition]] = set()
        self._auto_due: int | None = None
        self._auto_failure: str | None = None
        """The error of the latest automatic commit: it is logged when it changes."""
        self._auto_in_flight = False
        store.on_fatal(self._give_up)

    def __repr__(self) -> str:
        return f"<CommitManager {len(self._queue)} commits waiting, {len(self._lookups)} look-ups>"

    # -- commands ---------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets, deadline: int | None, retry: bool, reply: Reply, *, revoking: bool = False) -> None:
        """Commit once, or with ``retry`` until it succeeds or ``deadline`` passes. ``reply`` gets the offsets.

        ``revoking``: other members wait for the partitions, so a deleted topic is not retried.
        """
        if not offsets:
            reply(offsets, None)
            return
        try:
            # The identity at the time of the call: by the time the request is sent, the member may be leaving.
            identity = self._membership.identity()
        except OttlaError as error:
            reply(None, error)
            return
        ids = {tp: topic_id for tp in offsets if (topic_id := self._topic_id(tp)) is not None}
        request = _OffsetCommit(
            [(reply, deadline)],
            retry,
            number=self._order.next(),
            offsets=offsets,
            identity=identity,
            topic_ids=ids,
            revoking=revoking,
        )
        self._queue.append(request)

    def gave_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Other members may read these partitions now: retries of earlier commits of them are void.

        So are first attempts that were not sent yet, if the store would not refuse them.
        """
        self._order.gave_up(partitions)
        if not self._store.knows_members:
            for waiting in self._queue:
                waiting.attempts = max(1, waiting.attempts)

    def fetch(self, partitions: frozenset[TopicPartition], deadline: int | None, reply: Reply) -> None:
        """Look up committed offsets. Calls for the same partitions share a request."""
        request = self._lookups.get(partitions)
        if not partitions:
            reply({}, None)
        elif request is None:
            self._lookups[partitions] = _OffsetFetch([(reply, deadline)], True, partitions=partitions)
        else:
            request.waiting.append((reply, deadline))

    def polled(self, positions: Offsets, now: Now) -> None:
        """The application polls: commit the processed positions, if an auto-commit is due."""
        if not self._config.enable_auto_commit:
            return
        if self._auto_due is None:
            self.restart_auto_commit(now)
        assert self._auto_due is not None
        if now.mono < self._auto_due or self._auto_in_flight or not positions:
            return
        try:
            self._membership.identity()
        except OttlaError:
            return
        self.restart_auto_commit(now)
        self._auto_in_flight = True
        self.commit(dict(positions), now.mono + self._config.default_api_timeout_ms, False, self._auto_committed)

    def restart_auto_commit(self, now: Now) -> None:
        """Let the interval of auto-commit begin now."""
        self._auto_due = now.mono + self._config.auto_commit_interval_ms

    def _auto_committed(self, value: object, error: OttlaError | None) -> None:
        del value
        self._auto_in_flight = False
        before, self._auto_failure = self._auto_failure, None if error is None else str(error)
        if error is None:
            return
        if self._auto_failure != before:
            _log.warning("auto-commit of group %r failed: %s", self._config.group_id, error)
        # A retriable failure is retried after the back-off, not the interval; but with a deleted topic the commit fails for as long
        # as the topic is assigned.
        if error.retriable and not self._store.is_about_topic(error) and self._auto_due is not None:
            self._auto_due -= self._config.auto_commit_interval_ms - self._config.retry_backoff_ms

    # -- the two shapes ---------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Return the commits and look-ups that are due."""
        if not (self._queue or self._in_flight or self._lookups):
            return Poll()  # in nearly every pass
        self._expire(now)
        if (self._queue or self._lookups) and self._store.is_ready(now):
            self._send_commits(now)
            self._send_lookups(now)
        stored = self._store.poll(now)
        return Poll(stored.sends, min((at for at in (stored.wake_at, self._wake_at(now)) if at is not None), default=None))

    def _send_commits(self, now: Now) -> None:
        if self._queue and not self._store.may_commit(now):
            for waiting in self._queue:
                # Others may get the partitions before it is sent: as with a retry.
                waiting.attempts = max(1, waiting.attempts)
            return
        while self._queue and self._queue[0].not_before <= now.mono and self._order.may_send(self._queue[0].number):
            request = self._queue[0]
            left = self._order.left(request.number, request.offsets)
            error = self._renew_identity(request, left) if left and request.attempts else None
            if not left or error is not None:
                del self._queue[0]
                request.done(None if left else request.offsets, error)
                continue
            outcome = self._store.commit(
                CommitRequest(left, request.identity, request.topic_ids, request.revoking, len(request.offsets) - len(left)),
                self._committed_of(request),
            )
            del self._queue[0]
            if outcome is not None:
                request.done(request.offsets if outcome.error is None else None, outcome.error)
                continue
            self._order.sent(request.number)
            self._in_flight[request.number] = request

    def _renew_identity(self, request: _OffsetCommit, left: Offsets) -> OttlaError | None:
        """Commit what is left as the member that this is now; return the error if that is not allowed any more."""
        gone = ", ".join(str(tp) for tp in sorted(self._order.given_up(request.number, left)))
        if gone:
            so_far = stored(len(request.offsets) - len(left), len(request.offsets))
            text = f"{so_far}: {gone} was revoked before the commit could be retried"
            return CommitFailedError(text, cause=request.last_error)
        try:
            request.identity = self._membership.identity()
        except OttlaError as error:
            return error
        return None

    def _send_lookups(self, now: Now) -> None:
        for partitions, lookup in self._lookups.items():
            if partitions not in self._asked and lookup.not_before <= now.mono:
                self._store.fetch(partitions, self._membership.reader(), self._fetched_of(lookup))
                self._asked.add(partitions)

    # -- outcomes ---------------------------------------------------------------------------------------------------------

    def _committed_of(self, request: _OffsetCommit) -> Callable[[CommitOutcome, Now], None]:
        return lambda outcome, now: self._on_committed(request, outcome, now)

    def _fetched_of(self, request: _OffsetFetch) -> Callable[[FetchOutcome, Now], None]:
        return lambda outcome, now: self._on_fetched(request, outcome, now)

    def _on_committed(self, request: _OffsetCommit, outcome: CommitOutcome, now: Now) -> None:
        """End the commit, or retry it."""
        del self._in_flight[request.number]
        in_doubt = request.offsets if isinstance(outcome.error, _UNCLEAR) else {}
        self._order.ended(request.number, outcome.committed, in_doubt)
        if outcome.error is None:
            return request.done(request.offsets, None)
        return self._failed(request, outcome.error, now) if outcome.retry else self._finish(request, outcome.error)

    def _on_fetched(self, request: _OffsetFetch, outcome: FetchOutcome, now: Now) -> None:
        """End the look-up, or retry it."""
        self._asked.discard(request.partitions)
        if outcome.error is not None and outcome.retry and not outcome.found:
            return self._failed(request, outcome.error, now)
        self._lookups.pop(request.partitions, None)
        return request.done(outcome.found or None if outcome.error is not None else outcome.found, outcome.error)

    def _failed(self, request: _OffsetRequest, error: OttlaError, now: Now) -> None:
        """Retry after the back-off, if the call retries and the error is retriable."""
        request.last_error = error
        if not request.retry or not error.retriable:
            return self._finish(request, error)
        request.give_up(self._too_late(request), now)
        if not request.waiting:
            return self._finish(request, error)
        request.not_before = now.mono + self._backoff.delay(request.attempts)
        request.attempts += 1
        if isinstance(request, _OffsetCommit):
            insort(self._queue, request, key=lambda request: request.number)
        return None

    # -- endings ----------------------------------------------------------------------------------------------------------

    def _expire(self, now: Now) -> None:
        """Fail commands whose deadline has passed. Requests in flight stay in flight."""
        for request in [
            request for request in (*self._queue, *self._in_flight.values(), *self._lookups.values()) if request.overdue(now)
        ]:
            request.give_up(self._too_late(request), now)
            if isinstance(request, _OffsetFetch) and not request.waiting and request.partitions not in self._asked:
                del self._lookups[request.partitions]
        self._queue = [request for request in self._queue if request.waiting]

    def _give_up(self, error: OttlaError, now: Now) -> None:
        """Fail all waiting calls: the coordinator cannot be found, and a retry would not help."""
        del now
        requests: list[_OffsetRequest] = [
            *self._queue,
            *(request for key, request in self._lookups.items() if key not in self._asked),
        ]
        self._queue.clear()
        for request in requests:
            self._finish(request, error)

    def _finish(self, request: _OffsetRequest, error: OttlaError) -> None:
        if isinstance(request, _OffsetFetch):
            self._lookups.pop(request.partitions, None)
        request.done(None, error)

    def _too_late(self, request: _OffsetRequest) -> OttlaTimeoutError:
        what = "a commit" if isinstance(request, _OffsetCommit) else "a look-up of committed offsets"
        delay = self._store.delay()
        reason = delay.cut_off or request.last_error or delay.failure
        return timeout_error(f"{what} of group {self._config.group_id!r} was not answered in time", reason, delay.silent)

    def _wake_at(self, now: Now) -> int | None:
        waiting: list[_OffsetRequest] = [*self._queue, *self._in_flight.values(), *self._lookups.values()]
        times = [at for request in waiting for at in (request.deadline, request.not_before) if at is not None and at > now.mono]
        return min(times, default=None)


class CommitOrder:
    """The order in which commits were requested: a retry must not overwrite a later commit, nor one of another member.

    Each commit gets a number when it is requested. After a commit has succeeded for a partition, only later ones are sent for it.
    """

    def __init__(self) -> None:
        self._last = 0
        self._in_flight: set[int] = set()
        self._committed: dict[TopicPartition, int] = {}
        self._in_doubt: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        """The latest commit that failed and may have been executed: its number and position."""
        self._given_up: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return f"<CommitOrder {self._last} requested, {sorted(self._in_flight)} in flight>"

    def next(self) -> int:
        """Return the number of a new commit."""
        self._last += 1
        return self._last

    def may_send(self, number: int) -> bool:
        """Whether no later commit is in flight. Its outcome has to be known before an earlier one is retried."""
        return all(other < number for other in self._in_flight)

    def left(self, number: int, offsets: Offsets) -> Offsets:
        """The offsets that a commit still has to send: without partitions for which a later commit has succeeded.

        1. Two commits are sent, and the connection breaks. The coordinator has executed both. 2. The first one is retried, the
        second one, an automatic commit, is not. 3. If the retry sent its own position, the committed offset would go back. So it
        sends that of the second one.
        """
        left = {}
        for tp, position in offsets.items():
            if self._committed.get(tp, 0) < number:
                later, its_position = self._in_doubt.get(tp, (0, position))
                left[tp] = its_position if later > number else position
        return left

    def sent(self, number: int) -> None:
        """Note that a commit is in flight."""
        self._in_flight.add(number)

    def ended(self, number: int, committed: Iterable[TopicPartition] = (), in_doubt: Offsets = _NO_OFFSETS) -> None:
        """Note that a commit was answered, or will not be.

        ``committed``: its partitions that succeeded; ``in_doubt``: its offsets, if it may have been executed although it failed.
        """
        self._in_flight.discard(number)
        for tp, position in in_doubt.items():
            if number > self._in_doubt.get(tp, (0, position))[0]:
                self._in_doubt[tp] = number, position
        for tp in committed:
            self._committed[tp] = max(number, self._committed.get(tp, 0))

    def gave_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the member has given up these partitions after all commits so far."""
        self._given_up.update(dict.fromkeys(partitions, self._last))

    def given_up(self, number: int, offsets: Offsets) -> frozenset[TopicPartition]:
        """The partitions of a commit that were given up since it was requested."""
        return frozenset(tp for tp in offsets if self._given_up.get(tp, 0) >= number)
