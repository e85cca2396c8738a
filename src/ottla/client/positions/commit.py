"""Commits and committed positions: OffsetCommit, OffsetFetch, and the commits that happen by themselves.

Owns the queue of commits, the look-ups of committed offsets and the timer of auto-commit. Must not know how a membership works,
nor what becomes of a position. Invariants:

- Commits are sent in the order of the calls, each signed with the identity of the member that called. A commit that is sent again
  is signed again; it never takes a later commit back, and leaves out partitions that were given up meanwhile.
- A call fails when its time is over, but its request stays in flight: the coordinator might still carry it out, after a request
  that was sent later over another connection.
- Nothing is sent while the coordinator is unknown. At most one auto-commit is under way. Auto-commit commits only positions that
  came with a ``Polled``, so never a record that no poll has handed out before.
"""

from __future__ import annotations

import enum
import logging
import uuid
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import Metadata, MetadataManager
from ottla.client.commands import Offsets, Reply
from ottla.client.effects import AnySend, Poll, Send, ToCoordinator, Unreachable
from ottla.client.groups.coordinator import COORDINATOR, CoordinatorManager
from ottla.client.groups.membership import MemberIdentity, Membership
from ottla.config import ConsumerConfig
from ottla.errors import (
    BrokerError,
    CommitFailedError,
    OttlaError,
    OttlaTimeoutError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    broker_error,
    timeout_error,
)
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import (
    offset_commit_request,
    offset_commit_response,
    offset_fetch_request,
    offset_fetch_response,
)
from ottla.types import Now, OffsetAndMetadata, TopicPartition

_log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Where a group's positions are kept."""

    def commit(self, offsets: Offsets, deadline: int | None, retry: bool, reply: Reply) -> None:
        """Keep these positions."""

    def fetch(self, partitions: frozenset[TopicPartition], deadline: int | None, reply: Reply) -> None:
        """``reply`` with what is kept: a position or ``None`` for each partition."""


class CommitReaction(enum.Enum):
    """What an error code calls for."""

    RETRY = "send again after a while"
    FIND_COORDINATOR = "the coordinator is another one: look it up, and send again"
    MEMBERSHIP = "it is about who signed: the membership knows"
    RENEW_IDENTITY = "the member's identity has changed: sign again and send again"
    RETRY_UNLESS_REVOKING = "send again after a while; but a topic that is gone must not hold a revocation up"


_COMMIT_REACTIONS: Mapping[int, CommitReaction] = {
    ErrorCode.unknown_topic_or_partition: CommitReaction.RETRY_UNLESS_REVOKING,
    ErrorCode.request_timed_out: CommitReaction.FIND_COORDINATOR,
    ErrorCode.coordinator_load_in_progress: CommitReaction.RETRY,
    ErrorCode.coordinator_not_available: CommitReaction.FIND_COORDINATOR,
    ErrorCode.not_coordinator: CommitReaction.FIND_COORDINATOR,
    ErrorCode.illegal_generation: CommitReaction.MEMBERSHIP,
    ErrorCode.unknown_member_id: CommitReaction.MEMBERSHIP,
    ErrorCode.rebalance_in_progress: CommitReaction.MEMBERSHIP,
    ErrorCode.fenced_instance_id: CommitReaction.MEMBERSHIP,
    ErrorCode.unknown_topic_id: CommitReaction.RETRY_UNLESS_REVOKING,
    ErrorCode.fenced_member_epoch: CommitReaction.MEMBERSHIP,
    ErrorCode.stale_member_epoch: CommitReaction.MEMBERSHIP,
}
_FETCH_REACTIONS: Mapping[int, CommitReaction] = {
    ErrorCode.unknown_topic_or_partition: CommitReaction.RETRY,
    ErrorCode.request_timed_out: CommitReaction.FIND_COORDINATOR,
    ErrorCode.coordinator_load_in_progress: CommitReaction.RETRY,
    ErrorCode.coordinator_not_available: CommitReaction.FIND_COORDINATOR,
    ErrorCode.not_coordinator: CommitReaction.FIND_COORDINATOR,
    ErrorCode.unknown_member_id: CommitReaction.RENEW_IDENTITY,
    ErrorCode.unstable_offset_commit: CommitReaction.RETRY,
    ErrorCode.unknown_topic_id: CommitReaction.RETRY,
    ErrorCode.stale_member_epoch: CommitReaction.RENEW_IDENTITY,
}
"""Error codes of OffsetCommit and OffsetFetch -> what to do; any other goes to the caller as it is."""


@dataclass(slots=True, eq=False)
class _OffsetRequest:
    """Something asked of the coordinator until it is answered: kept through retries."""

    waiting: list[tuple[Reply, int | None]]
    """The waiting commands, and their deadlines."""
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
        """Tell those who have waited long enough."""
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
    """The topics in which the positions were read, where they are known."""
    revoking: bool = False
    recreated: frozenset[TopicPartition] = frozenset()
    """Left out of the request: their topics were deleted, and others have their names."""


@dataclass(slots=True, eq=False, kw_only=True)
class _OffsetFetch(_OffsetRequest):
    partitions: frozenset[TopicPartition]


class CommitManager:
    """See the module. One ``OffsetStore``: the coordinator of the group.

    ``topic_id`` gives the id of the topic that a partition is read in.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: CoordinatorManager,
        membership: Membership,
        metadata: MetadataManager,
        backoff: ExponentialBackoff,
        unreachable: Unreachable,
        topic_id: Callable[[TopicPartition], uuid.UUID | None],
    ) -> None:
        self._config = config
        self._topic_id = topic_id
        self._unreachable = unreachable
        self._coordinator = coordinator
        self._membership = membership
        self._metadata = metadata
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
        self._unsent: list[AnySend] = []
        """What was noted as sent. The next step may raise; then these leave with the next poll."""
        coordinator.on_fatal(self._give_up)

    def __repr__(self) -> str:
        return f"<CommitManager {len(self._queue)} commits waiting, {len(self._lookups)} look-ups>"

    # -- what is asked ----------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets, deadline: int | None, retry: bool, reply: Reply, *, revoking: bool = False) -> None:
        """Commit once, or with ``retry`` until it is done or ``deadline`` passes. ``reply`` gets the offsets.

        ``revoking``: others wait for the partitions, so nothing is waited for that may never come.
        """
        if not offsets:
            reply(offsets, None)
            return
        try:
            # A member that is leaving when the next request is sent was a member when this was requested.
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
        """Others may read these from now on: what was asked for before and is still to be tried again is void."""
        self._order.gave_up(partitions)

    def fetch(self, partitions: frozenset[TopicPartition], deadline: int | None, reply: Reply) -> None:
        """Look up committed positions. Requests for the same partitions meanwhile share the answer."""
        request = self._lookups.get(partitions)
        if not partitions:
            reply({}, None)
        elif request is None:
            self._lookups[partitions] = _OffsetFetch([(reply, deadline)], True, partitions=partitions)
        else:
            request.waiting.append((reply, deadline))

    def polled(self, positions: Offsets, now: Now) -> None:
        """The application polls: commit what it has done with, when that is due."""
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
        """The next auto-commit is a whole interval away."""
        self._auto_due = now.mono + self._config.auto_commit_interval_ms

    def _auto_committed(self, value: object, error: OttlaError | None) -> None:
        del value
        self._auto_in_flight = False
        before, self._auto_failure = self._auto_failure, None if error is None else str(error)
        if error is None:
            return
        if self._auto_failure != before:
            _log.warning("auto-commit of group %r failed: %s", self._config.group_id, error)
        reaction = _COMMIT_REACTIONS.get(error.code) if isinstance(error, BrokerError) else None
        # A commit for a deleted topic is refused as long as it is assigned: the retry is not urgent.
        if error.retriable and reaction is not CommitReaction.RETRY_UNLESS_REVOKING and self._auto_due is not None:
            self._auto_due -= self._config.auto_commit_interval_ms - self._config.retry_backoff_ms

    # -- the two shapes ---------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Every commit and every look-up whose time has come."""
        if not (self._queue or self._in_flight or self._lookups):
            return Poll()  # in nearly every pass
        self._expire(now)
        if (self._queue or self._lookups) and (target := self._coordinator.target()) is not None:
            self._send_commits(target, now)
            self._send_lookups(target, now)
        sends, self._unsent = tuple(self._unsent), []
        return Poll(sends, self._wake_at(now))

    def _send_commits(self, target: ToCoordinator, now: Now) -> None:
        while self._queue and self._queue[0].not_before <= now.mono and self._order.may_send(self._queue[0].number):
            request = self._queue[0]
            message = self._commit_request(request)
            del self._queue[0]
            if message is not None:
                self._order.sent(request.number)
                self._in_flight[request.number] = request
                self._unsent.append(self._commit_send(request, message, target))

    def _send_lookups(self, target: ToCoordinator, now: Now) -> None:
        for partitions, lookup in self._lookups.items():
            if partitions not in self._asked and lookup.not_before <= now.mono:
                message = self._fetch_request(partitions)
                self._asked.add(partitions)
                self._unsent.append(self._fetch_send(lookup, message, target))

    # -- requests ---------------------------------------------------------------------------------------------------------

    def _commit_send(
        self, request: _OffsetCommit, message: offset_commit_request.OffsetCommitRequest, target: ToCoordinator
    ) -> AnySend:
        return Send(
            rpcs.OFFSET_COMMIT,
            message,
            target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_committed(request, response, now),
            lambda error, now: self._on_commit_failure(request, error, now),
        )

    def _fetch_send(
        self, request: _OffsetFetch, message: offset_fetch_request.OffsetFetchRequest, target: ToCoordinator
    ) -> AnySend:
        return Send(
            rpcs.OFFSET_FETCH,
            message,
            target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_fetched(request, response, now),
            lambda error, now: self._on_fetch_failure(request, error, now),
        )

    def _commit_request(self, request: _OffsetCommit) -> offset_commit_request.OffsetCommitRequest | None:
        left = self._order.left(request.number, request.offsets)
        if not left:
            request.done(request.offsets, None)
            return None
        request.recreated = self._recreated(request, left)
        left = {tp: position for tp, position in left.items() if tp not in request.recreated}
        if not left:
            self._finish(request, UnknownTopicIdError(self._description(request, min(request.recreated))))
            return None
        if request.attempts:
            try:
                self._renew_identity(request)
            except OttlaError as error:
                request.done(None, error)
                return None
        topics: dict[str, list[offset_commit_request.OffsetCommitRequestPartition]] = {}
        # The topic may be deleted by what is known of the cluster, and recreated already.
        ids = {tp.topic: topic_id for tp, topic_id in request.topic_ids.items() if tp not in request.recreated}
        for tp, position in left.items():
            epoch = -1 if position.leader_epoch is None else position.leader_epoch
            topics.setdefault(tp.topic, []).append(
                offset_commit_request.OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=position.offset,
                    committed_leader_epoch=epoch,
                    committed_metadata=position.metadata,
                )
            )
        return offset_commit_request.OffsetCommitRequest(
            group_id=self._config.group_id or "",
            generation_id_or_member_epoch=request.identity.generation,
            member_id=request.identity.member_id,
            group_instance_id=request.identity.instance_id,
            topics=tuple(
                offset_commit_request.OffsetCommitRequestTopic(
                    name=topic, topic_id=ids.get(topic) or self._metadata.current.topic_id(topic), partitions=tuple(items)
                )
                for topic, items in topics.items()
            ),
        )

    def _recreated(self, request: _OffsetCommit, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Partitions whose topic was deleted and created again since they were read.

        The request would name the new topic. A member that gives up its partitions, because there was no such topic for a moment,
        would commit the end of the old log, and what the new topic holds before that would never be read.
        """
        current = self._metadata.current
        ids = ((tp, request.topic_ids.get(tp), current.topic_id(tp.topic)) for tp in partitions)
        return frozenset(tp for tp, read, now in ids if read is not None and now is not None and read != now)

    def _description(self, request: _OffsetCommit, tp: TopicPartition) -> str:
        recreated = ", which was deleted and recreated" if tp in request.recreated else ""
        return f"committing {tp} for group {self._config.group_id!r}{recreated}"

    def _renew_identity(self, request: _OffsetCommit) -> None:
        gone = ", ".join(str(tp) for tp in sorted(self._order.given_up(request.number, request.offsets)))
        if gone:
            raise CommitFailedError(
                f"nothing was committed: {gone} went to others before the commit could be made", cause=request.last_error
            )
        request.identity = self._membership.identity()

    def _fetch_request(self, partitions: frozenset[TopicPartition]) -> offset_fetch_request.OffsetFetchRequest:
        identity = self._membership.reader()
        topics: dict[str, list[int]] = {}
        for tp in sorted(partitions):
            topics.setdefault(tp.topic, []).append(tp.partition)
        group = offset_fetch_request.OffsetFetchRequestGroup(
            group_id=self._config.group_id or "",
            member_id=identity.member_id or None,
            member_epoch=identity.generation,
            topics=tuple(
                offset_fetch_request.OffsetFetchRequestTopics(
                    name=topic, topic_id=self._metadata.current.topic_id(topic), partition_indexes=tuple(numbers)
                )
                for topic, numbers in topics.items()
            ),
        )
        return offset_fetch_request.OffsetFetchRequest(groups=(group,), require_stable=True)

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _on_committed(self, request: _OffsetCommit, response: offset_commit_response.OffsetCommitResponse, now: Now) -> None:
        """The first failing partition decides, but lacking authorisations are named together."""
        names = {topic_id: tp.topic for tp, topic_id in request.topic_ids.items()}
        current = self._metadata.current
        codes = {
            TopicPartition(topic.name or _name_of(topic.topic_id, names, current), part.partition_index): int(part.error_code)
            for topic in response.topics
            for part in topic.partitions
        }
        self._ended(request, (tp for tp, code in codes.items() if not code))
        failed = {tp: code for tp, code in codes.items() if code} | dict.fromkeys(request.recreated, ErrorCode.unknown_topic_id)
        denied = [tp.topic for tp, code in failed.items() if code == ErrorCode.topic_authorization_failed]
        for tp, code in failed.items():
            if code != ErrorCode.topic_authorization_failed:
                return self._commit_failed(request, code, self._description(request, tp), now)
        if denied:
            topics = ", ".join(sorted(set(denied)))
            return request.done(None, TopicAuthorizationFailedError(f"committing offsets of {topics}"))
        return request.done(request.offsets, None)

    def _commit_failed(self, request: _OffsetCommit, code: int, what: str, now: Now) -> None:
        reaction = _COMMIT_REACTIONS.get(code)
        if reaction is CommitReaction.MEMBERSHIP:
            return self._failed(request, self._membership.commit_refused(code, request.identity, now), now)
        if reaction is CommitReaction.RETRY_UNLESS_REVOKING and request.revoking:
            return self._finish(request, broker_error(code, what))
        return self._react(request, reaction, broker_error(code, what), now)

    def _on_fetched(self, request: _OffsetFetch, response: offset_fetch_response.OffsetFetchResponse, now: Now) -> None:
        """All partitions, or an error of one of them for all."""
        self._asked.discard(request.partitions)
        group = next((item for item in response.groups if item.group_id in (self._config.group_id, "")), None)
        what = f"looking up the commits of group {self._config.group_id!r}"
        if group is None:
            return self._failed(request, OttlaError(f"{what}: the answer does not name the group"), now)
        if group.error_code:
            code = int(group.error_code)
            return self._react(request, _FETCH_REACTIONS.get(code), broker_error(code, what), now)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(request.partitions)
        for topic in group.topics:
            name = topic.name or _name_of(topic.topic_id, {}, self._metadata.current)
            for part in topic.partitions:
                if part.error_code:
                    code = int(part.error_code)
                    error = broker_error(code, f"{what} in {name}-{part.partition_index}")
                    return self._react(request, _FETCH_REACTIONS.get(code), error, now)
                epoch = part.committed_leader_epoch if part.committed_leader_epoch >= 0 else None
                tp = TopicPartition(name, part.partition_index)
                if part.committed_offset >= 0 and tp in found:
                    found[tp] = OffsetAndMetadata(part.committed_offset, part.metadata or "", epoch)
        self._lookups.pop(request.partitions, None)
        return request.done(found, None)

    def _on_commit_failure(self, request: _OffsetCommit, error: OttlaError, now: Now) -> None:
        self._ended(request)
        self._coordinator.request_failed(error, now)
        self._failed(request, error, now)

    def _on_fetch_failure(self, request: _OffsetFetch, error: OttlaError, now: Now) -> None:
        self._asked.discard(request.partitions)
        self._coordinator.request_failed(error, now)
        self._failed(request, error, now)

    def _react(self, request: _OffsetRequest, reaction: CommitReaction | None, error: OttlaError, now: Now) -> None:
        if reaction is None:
            self._finish(request, error)
            return
        if reaction is CommitReaction.FIND_COORDINATOR:
            self._coordinator.mark_moved(str(error))
        error.retriable = error.retriable or reaction is CommitReaction.RENEW_IDENTITY
        self._failed(request, error, now)

    def _failed(self, request: _OffsetRequest, error: OttlaError, now: Now) -> None:
        """Try again later, if that was asked for and may help."""
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

    def _ended(self, request: _OffsetCommit, committed: Iterable[TopicPartition] = ()) -> None:
        del self._in_flight[request.number]
        self._order.ended(request.number, committed)

    def _expire(self, now: Now) -> None:
        """Complete commands whose deadline has passed. Requests in flight stay in flight."""
        for request in [
            request for request in (*self._queue, *self._in_flight.values(), *self._lookups.values()) if request.overdue(now)
        ]:
            request.give_up(self._too_late(request), now)
            if isinstance(request, _OffsetFetch) and not request.waiting and request.partitions not in self._asked:
                del self._lookups[request.partitions]
        self._queue = [request for request in self._queue if request.waiting]

    def _give_up(self, error: OttlaError, now: Now) -> None:
        """The coordinator cannot be looked up and waiting does not help: all waiting calls fail."""
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
        known, named = self._coordinator.node_id, self._coordinator.named
        cut_off = self._unreachable(COORDINATOR, () if named is None else (ToCoordinator(named),))
        reason = cut_off or request.last_error or self._coordinator.failure
        silent = "no answer" if known is None else f"node {known} was asked and has not answered yet"
        return timeout_error(f"{what} of group {self._config.group_id!r} was not answered in time", reason, silent)

    def _wake_at(self, now: Now) -> int | None:
        waiting: list[_OffsetRequest] = [*self._queue, *self._in_flight.values(), *self._lookups.values()]
        times = [at for request in waiting for at in (request.deadline, request.not_before) if at is not None and at > now.mono]
        return min(times, default=None)


def _name_of(topic_id: uuid.UUID | None, names: Mapping[uuid.UUID, str], metadata: Metadata) -> str:
    """The name of a topic that a response names by its id."""
    if topic_id is None:
        return ""
    return names.get(topic_id) or metadata.topic_name(topic_id) or str(topic_id)


class CommitOrder:
    """In which order commits were requested: one that is sent again must not overwrite a later one, nor another member's.

    A commit has the number that it got when it was requested. After the coordinator has taken one for a partition, only later ones
    are sent for it.
    """

    def __init__(self) -> None:
        self._last = 0
        self._in_flight: set[int] = set()
        self._committed: dict[TopicPartition, int] = {}
        self._given_up: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return f"<CommitOrder {self._last} asked for, {sorted(self._in_flight)} under way>"

    def next(self) -> int:
        """The number of a commit that is asked for now."""
        self._last += 1
        return self._last

    def may_send(self, number: int) -> bool:
        """Whether no later commit is under way: what becomes of that one has to be known before an earlier one is sent again."""
        return all(other < number for other in self._in_flight)

    def left(self, number: int, offsets: Offsets) -> Offsets:
        """What is still to be said of a commit: all but the partitions of which the coordinator has taken a later one."""
        return {tp: position for tp, position in offsets.items() if self._committed.get(tp, 0) < number}

    def sent(self, number: int) -> None:
        """A commit is on its way."""
        self._in_flight.add(number)

    def ended(self, number: int, committed: Iterable[TopicPartition] = ()) -> None:
        """It was answered, or will not be; ``committed`` are the partitions that the coordinator has committed."""
        self._in_flight.discard(number)
        for tp in committed:
            self._committed[tp] = max(number, self._committed.get(tp, 0))

    def gave_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Whatever was asked for of these until now was asked for by who held them then."""
        self._given_up.update(dict.fromkeys(partitions, self._last))

    def given_up(self, number: int, offsets: Offsets) -> frozenset[TopicPartition]:
        """The partitions of a commit that were given up since it was asked for."""
        return frozenset(tp for tp in offsets if self._given_up.get(tp, 0) >= number)
