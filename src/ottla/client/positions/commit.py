"""Commits and committed offsets: OffsetCommit, OffsetFetch, and auto-commit.

Owns the queue of commits, the look-ups of committed offsets and the timer of auto-commit. Must not know how a membership works,
nor who uses a committed offset. Invariants:

- Commits are sent in the order of the calls, each with the identity of the member that called. A retry has the current identity; it
  never overwrites a later commit, and fails if partitions of it were given up meanwhile.
- A call fails at its deadline, but its request stays in flight: the coordinator may still execute it, even after a request that
  was sent later over another connection.
- No request is sent while the coordinator is unknown. At most one auto-commit is in flight. Auto-commit commits only positions that
  came with a ``Polled``, so only records that an earlier poll has returned.
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
from ottla.client.effects import AnySend, Poll, Send, ToCoordinator, Unreachable
from ottla.client.events import Offsets, Reply
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
    """Stores the offsets of a group."""

    def commit(self, offsets: Offsets, deadline: int | None, retry: bool, reply: Reply) -> None:
        """Commit these offsets."""

    def fetch(self, partitions: frozenset[TopicPartition], deadline: int | None, reply: Reply) -> None:
        """Call ``reply`` with the committed offset of each partition, or ``None``."""


class CommitReaction(enum.Enum):
    """The reaction to an error code."""

    RETRY = "retry after the back-off"
    FIND_COORDINATOR = "the group has another coordinator: find it, then retry"
    MEMBERSHIP = "the identity was refused: the membership decides"
    RENEW_IDENTITY = "the member's identity has changed: retry with the current one"
    RETRY_UNLESS_REVOKING = "retry after the back-off, unless a revocation waits: a deleted topic must not delay it"


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
"""Error codes of OffsetCommit and OffsetFetch -> reaction. The caller gets the error of any other code."""


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
    recreated: frozenset[TopicPartition] = frozenset()
    """Partitions that the request leaves out: their topics were deleted, and others have the names."""


@dataclass(slots=True, eq=False, kw_only=True)
class _OffsetFetch(_OffsetRequest):
    partitions: frozenset[TopicPartition]


class CommitManager:
    """See the module. It is the ``OffsetStore`` of a group with a coordinator.

    ``topic_id`` returns the id of the topic in which a partition is read.
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
        """Requests already noted as in flight. If the next step of a poll raises, the next poll returns them."""
        coordinator.on_fatal(self._give_up)

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
        """Other members may read these partitions now: retries of earlier commits of them are void."""
        self._order.gave_up(partitions)

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
        reaction = _COMMIT_REACTIONS.get(error.code) if isinstance(error, BrokerError) else None
        # A retriable failure is retried after the back-off, not the interval; but with a deleted topic the commit fails for as long
        # as the topic is assigned.
        if error.retriable and reaction is not CommitReaction.RETRY_UNLESS_REVOKING and self._auto_due is not None:
            self._auto_due -= self._config.auto_commit_interval_ms - self._config.retry_backoff_ms

    # -- the two shapes ---------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Return the commits and look-ups that are due."""
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
        # The id in which the positions were read, not that of the metadata: the topic may have been deleted and recreated since.
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
        """Partitions whose topic was deleted and recreated since they were read.

        1. The topic is deleted, so the member has to revoke its partitions, and commits their positions first. 2. The topic is
        created again. 3. The request would name the new topic: its records before the end of the old log would never be read.
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
                f"nothing was committed: {gone} was revoked before the commit could be retried", cause=request.last_error
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
        """End the commit, or react to the first error in it; missing authorizations are reported together."""
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
        """Reply with the offsets of all partitions, or with the error of one of them."""
        self._asked.discard(request.partitions)
        group = next((item for item in response.groups if item.group_id in (self._config.group_id, "")), None)
        what = f"looking up the commits of group {self._config.group_id!r}"
        if group is None:
            return self._failed(request, OttlaError(f"{what}: the response does not contain the group"), now)
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

    def _ended(self, request: _OffsetCommit, committed: Iterable[TopicPartition] = ()) -> None:
        del self._in_flight[request.number]
        self._order.ended(request.number, committed)

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
        known, named = self._coordinator.node_id, self._coordinator.named
        cut_off = self._unreachable(COORDINATOR, () if named is None else (ToCoordinator(named),))
        reason = cut_off or request.last_error or self._coordinator.failure
        silent = "no answer" if known is None else f"node {known} has not answered yet"
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
    """The order in which commits were requested: a retry must not overwrite a later commit, nor one of another member.

    Each commit gets a number when it is requested. After a commit has succeeded for a partition, only later ones are sent for it.
    """

    def __init__(self) -> None:
        self._last = 0
        self._in_flight: set[int] = set()
        self._committed: dict[TopicPartition, int] = {}
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
        """The offsets that a commit still has to send: without partitions for which a later commit has succeeded."""
        return {tp: position for tp, position in offsets.items() if self._committed.get(tp, 0) < number}

    def sent(self, number: int) -> None:
        """Note that a commit is in flight."""
        self._in_flight.add(number)

    def ended(self, number: int, committed: Iterable[TopicPartition] = ()) -> None:
        """Note that a commit was answered, or will not be; ``committed``: its partitions that succeeded."""
        self._in_flight.discard(number)
        for tp in committed:
            self._committed[tp] = max(number, self._committed.get(tp, 0))

    def gave_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the member has given up these partitions after all commits so far."""
        self._given_up.update(dict.fromkeys(partitions, self._last))

    def given_up(self, number: int, offsets: Offsets) -> frozenset[TopicPartition]:
        """The partitions of a commit that were given up since it was requested."""
        return frozenset(tp for tp in offsets if self._given_up.get(tp, 0) >= number)
