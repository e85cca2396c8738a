"""One partition of ``__consumer_offsets``, as the coordinator's runtime uses it.

Owns the choice of the handler for a request or a timer (``ROUTES`` by API, with the choice between the protocols of a group), and
the ends of transactions that wait for open appends. Must not know the order of operations (``runtime``), nor the meaning of a
request. Invariant: only ``replay`` changes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.coordinator.classic.group import ClassicGroup
from ottla.coordinator.classic.heartbeat import heartbeat, heartbeat_answer, session_expired
from ottla.coordinator.classic.join import join_group
from ottla.coordinator.classic.leave import leave_answer, leave_group
from ottla.coordinator.classic.machine import ClassicGroupDraft
from ottla.coordinator.classic.rebalance import join_phase_expired, join_refused, start_rebalance, sync_phase_expired, sync_refused
from ottla.coordinator.classic.sync import sync_group, sync_not_stored
from ottla.coordinator.consumer import client_runs, fencing
from ottla.coordinator.consumer.group import JOIN_GROUP_EPOCH, ConsumerGroup
from ottla.coordinator.consumer.heartbeat import consumer_group_heartbeat, heartbeat_refused
from ottla.coordinator.consumer.machine import RegexResolutionEnded
from ottla.coordinator.consumer.regex import regexes_resolved
from ottla.coordinator.decision import GroupContext, Result, retention_timer
from ottla.coordinator.describe import (
    describe_consumer_group,
    describe_consumer_group_refused,
    describe_group,
    describe_refused,
    described_consumer_groups,
    described_groups,
    join_described,
)
from ottla.coordinator.effects import ProducerStamp, Reply, RequestContext, ResolvedRegexes, SetTimer, TimerKey
from ottla.coordinator.events import Event, TransactionalOffsetCommitted, TransactionEnded, is_durable, record_of
from ottla.coordinator.migration.downgrade import leave_group as leave_by_heartbeat, timer_fired
from ottla.coordinator.migration.member import (
    heartbeat_in_consumer_group,
    join_consumer_group,
    leave_consumer_group,
    sync_consumer_group,
)
from ottla.coordinator.migration.upgrade import join_classic_group
from ottla.coordinator.offset_deletion import (
    delete_answer,
    delete_group,
    delete_offsets,
    delete_offsets_of_topics,
    deleted_groups,
    expire_offsets,
    join_deleted,
    offset_delete_refused,
)
from ottla.coordinator.offsets import commit_offsets, commit_refused, fetch_offsets, fetch_parts, fetch_refused, join_offsets
from ottla.coordinator.runtime import BackgroundTask, Operation, Record, RequestOperation, Route, SplitRoute, TimerFired
from ottla.coordinator.state import Group, ShardState
from ottla.coordinator.transactional_offsets import commit_in_transaction, commit_in_transaction_refused
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    consumer_group_describe_response,
)
from ottla.types import Now

_APPEND_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
    ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress,
}
"""Error of an append -> error for the client. The client knows nothing about ``__consumer_offsets``, so an error of that log would
mislead it."""


@dataclass(frozen=True, slots=True)
class RegexesResolved(Operation):
    """The regular expressions of a group have been resolved; ``None`` if that failed."""

    matches: ResolvedRegexes | None


class GroupShard:
    """The groups of one partition."""

    KEY = "group"

    def __init__(self, partition: int, coordinator: GroupContext) -> None:
        self.state = ShardState()
        self._partition = partition
        self._context = coordinator
        self._ended: list[TransactionEnded] = []

    def replay(self, events: Iterable[Event]) -> None:
        """Apply events."""
        self.state.replay(events)

    def records_of(self, events: Sequence[Event]) -> tuple[Record, ...]:
        """Return the records of the durable events. Raises ``ProtocolError``."""
        return tuple([record_of(event) for event in events if is_durable(event)])

    def producer_of(self, events: Sequence[Event]) -> ProducerStamp | None:
        """Return the producer in whose transaction these offsets are committed, if any."""
        return next((event.producer for event in events if isinstance(event, TransactionalOffsetCommitted)), None)

    def error_for_clients(self, error: ErrorCode) -> ErrorCode:
        """Return the error for clients after a failed append."""
        return _APPEND_ERRORS.get(error, error)

    def on_loaded(self, now: Now) -> Iterator[Result]:
        """Set the timers of the loaded groups, and the retention timer."""
        for group in list(self.state.groups().values()):
            yield self._on_group_loaded(group, now)
        # The first checks of the partitions are spread over the interval, so that a broker with many groups does not check all of
        # them at once.
        interval = self._context.config.offsets_retention_check_interval_ms
        delay = interval * (self._partition + 1) // self._context.config.offsets_topic_partitions
        yield Result(effects=(SetTimer(retention_timer(self._partition), now.mono + delay),))

    def _on_group_loaded(self, group: Group, now: Now) -> Result:
        if isinstance(group, ConsumerGroup):
            return fencing.on_loaded(self._context, group, now)
        draft = ClassicGroupDraft(group, now)
        for member in group.members.values():
            draft.refresh_session(member)
        if len(group.members) > self._context.config.group_max_size:
            start_rebalance(draft, self._context)
        return draft.result()

    def answer_parked(self, error: ErrorCode) -> Iterator[Reply]:
        """Answer all parked JoinGroups and SyncGroups with an error."""
        for group in self.state.groups().values():
            for member in group.members.values() if isinstance(group, ClassicGroup) else ():
                if member.join is not None:
                    yield Reply(member.join, join_refused(error))
                if member.sync is not None:
                    yield Reply(member.sync, sync_refused(error))

    def end_transaction(self, producer_id: int, commit: bool, open_producers: Collection[int]) -> None:
        """Apply the marker of a transaction, after all offsets that the transaction wrote before it.

        1. TxnOffsetCommit: the offsets go out as an append, which is open.
        2. The marker is written to the partition, and this method called, before the append is reported.
        3. Applied now, the transaction would end without these offsets, and they would stay pending for ever. So it ends after the
           producer's last open append.
        """
        event = TransactionEnded(producer_id, commit)
        if producer_id in open_producers:
            self._ended.append(event)
        else:
            self.state.replay((event,))

    def append_ended(self, open_producers: Callable[[], Collection[int]]) -> None:
        """End the transactions that waited for open appends and have none left."""
        if not self._ended:
            return
        still_open = open_producers()
        for event in [event for event in self._ended if event.producer_id not in still_open]:
            self._ended.remove(event)
            self.state.replay((event,))

    def not_stored(self, group_id: str, operation: Operation, error: ErrorCode, now: Now) -> Result | None:
        """Return the result of an operation whose records could not be appended; ``None``: only an error for the client."""
        match operation:
            case RegexesResolved():
                return Result((RegexResolutionEnded(group_id, None),))
            case RequestOperation(route, _, body) if route.not_stored is not None:
                result: Result = route.not_stored(self._context, self.state, body, error, now)
                assert not any(is_durable(event) for event in result.events), "after a failed append nothing is written"
                return result
        return None

    def decide(self, group_id: str, operation: Operation, now: Now) -> Result:
        """Decide on an operation on a group. Raises ``ProtocolError``."""
        match operation:
            case RequestOperation(route, context, body):
                decision: Result = route.decide(self._context, self.state, context, body, now)
                return decision
            case RegexesResolved(matches):
                group = self.state.group(group_id)
                return regexes_resolved(self._context, group, matches, now) if isinstance(group, ConsumerGroup) else Result()
            case TimerFired(timer) | BackgroundTask(timer):
                return self._on_timer(group_id, timer, now)
        raise AssertionError(f"unknown operation: {operation}")

    def _on_timer(self, group_id: str, key: TimerKey, now: Now) -> Result:
        group = self.state.group(group_id)
        if group is None:
            return Result()
        match key:
            case (_, _, "expire"):
                return expire_offsets(self._context, self.state, group_id, now)
            case (_, _, "forget", tuple(topics)):
                return delete_offsets_of_topics(self._context, self.state, group_id, topics)
        if isinstance(group, ConsumerGroup):
            return timer_fired(self._context, group, key, now)
        draft = ClassicGroupDraft(group, now)
        match key:
            case (_, _, "session", str(member_id)):
                session_expired(draft, self._context, member_id)
            case (_, _, "join"):
                join_phase_expired(draft, self._context)
            case (_, _, "sync"):
                sync_phase_expired(draft, self._context)
        return draft.result()


Decide = Callable[[GroupContext, ShardState, RequestContext, Any, Now], Result]

Refuse = Callable[[RequestContext, Any, ErrorCode], Any]

NotStored = Callable[[GroupContext, ShardState, Any, ErrorCode, Now], Result]


def _route(
    decide: Decide,
    refuse: Refuse,
    *,
    key_of: Callable[[Any], str] = lambda request: str(request.group_id),
    not_stored: NotStored | None = None,
) -> Route:
    return Route(decide, refuse, key_of, not_stored)


def _by_protocol(classic: Callable[..., Result], consumer: Callable[..., Result]) -> Decide:
    """Return the handler of a classic request that chooses by the type of its group. ``classic`` also handles missing groups."""

    def decide(coordinator: GroupContext, state: ShardState, context: RequestContext, request: Any, now: Now) -> Result:
        group = state.group(request.group_id)
        return (consumer if isinstance(group, ConsumerGroup) else classic)(coordinator, group, context, request, now)

    return decide


def _consumer_group_heartbeat(
    coordinator: GroupContext, state: ShardState, context: RequestContext, request: Any, now: Now
) -> Result:
    group = state.group(request.group_id)
    if isinstance(group, ClassicGroup):
        return join_classic_group(coordinator, group, context, request, now)
    if request.member_epoch < JOIN_GROUP_EPOCH:
        return leave_by_heartbeat(coordinator, group, context, request, now)
    return consumer_group_heartbeat(coordinator, group, context, request, now)


def _of_consumer_group(decide: Callable[..., Result]) -> Decide:
    """Return the handler of a request for consumer groups alone, which treats a classic group as missing."""
    return lambda coordinator, state, context, request, now: decide(
        coordinator, state.consumer_group(request.group_id), context, request, now
    )


def _sync_not_stored(coordinator: GroupContext, state: ShardState, request: Any, error: ErrorCode, now: Now) -> Result:
    return sync_not_stored(coordinator, state.classic_group(request.group_id), request, error, now)


def _heartbeat_refused(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Return the response with an error. While groups are loaded it is a success, so that members stay instead of rejoining."""
    return heartbeat_answer(ErrorCode.none if error is ErrorCode.coordinator_load_in_progress else error)


def _join_described_consumer_groups(groups: tuple[Any, ...]) -> Any:
    return consumer_group_describe_response.ConsumerGroupDescribeResponse(throttle_time=NO_THROTTLE, groups=groups)


ROUTES: Mapping[Api, Route | SplitRoute] = {
    Api.JOIN_GROUP: _route(_by_protocol(join_group, join_consumer_group), lambda context, request, error: join_refused(error)),
    Api.SYNC_GROUP: _route(
        _by_protocol(sync_group, sync_consumer_group),
        lambda context, request, error: sync_refused(error),
        not_stored=_sync_not_stored,
    ),
    Api.HEARTBEAT: _route(_by_protocol(heartbeat, heartbeat_in_consumer_group), _heartbeat_refused),
    Api.LEAVE_GROUP: _route(_by_protocol(leave_group, leave_consumer_group), lambda context, request, error: leave_answer(error)),
    Api.OFFSET_COMMIT: _route(commit_offsets, lambda context, request, error: commit_refused(request, error)),
    Api.TXN_OFFSET_COMMIT: _route(
        commit_in_transaction, lambda context, request, error: commit_in_transaction_refused(request, None, error)
    ),
    Api.OFFSET_FETCH: SplitRoute(_route(fetch_offsets, fetch_refused), split=fetch_parts, join=join_offsets),
    Api.DESCRIBE_GROUPS: SplitRoute(_route(describe_group, describe_refused), split=described_groups, join=join_described),
    Api.DELETE_GROUPS: SplitRoute(
        _route(delete_group, lambda context, group_id, error: delete_answer(group_id, error), key_of=str),
        split=deleted_groups,
        join=join_deleted,
    ),
    Api.OFFSET_DELETE: _route(delete_offsets, lambda context, request, error: offset_delete_refused(error)),
    Api.CONSUMER_GROUP_HEARTBEAT: _route(_consumer_group_heartbeat, lambda context, request, error: heartbeat_refused(error)),
    Api.CONSUMER_GROUP_DESCRIBE: SplitRoute(
        _route(describe_consumer_group, describe_consumer_group_refused),
        split=described_consumer_groups,
        join=_join_described_consumer_groups,
    ),
    Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT: _route(
        _of_consumer_group(client_runs.prepare_assignment), lambda context, request, error: client_runs.prepare_refused(error)
    ),
    Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT: _route(
        _of_consumer_group(client_runs.install_assignment), lambda context, request, error: client_runs.install_answer(error)
    ),
}
"""API -> its handler. ListGroups concerns all partitions; ``GroupCoordinator`` handles it."""
