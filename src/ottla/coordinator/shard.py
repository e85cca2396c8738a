"""One partition of ``__consumer_offsets``, as the coordinator's runtime uses it.

Owns the choice of the handler for a request or a timer, and the ends of transactions that wait for open appends. Must not know the
order of operations (``runtime``), nor the meaning of a request. Invariant: only ``replay`` changes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ottla.coordinator.classic.answers import join_refused, sync_refused
from ottla.coordinator.classic.draft import ClassicGroupDraft
from ottla.coordinator.classic.group import ClassicGroup
from ottla.coordinator.classic.heartbeat import session_expired
from ottla.coordinator.classic.rebalance import join_phase_expired, start_rebalance, sync_phase_expired
from ottla.coordinator.consumer import fencing
from ottla.coordinator.consumer.events import RegexResolutionEnded
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.regex import regexes_resolved
from ottla.coordinator.effects import ProducerStamp, Reply, ResolvedRegexes, SetTimer, TimerKey
from ottla.coordinator.events import Event, TransactionalOffsetCommitted, TransactionEnded, is_durable, record_of
from ottla.coordinator.migration.downgrade import timer_fired
from ottla.coordinator.offset_deletion import delete_offsets_of_topics, expire_offsets
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.result import Result
from ottla.coordinator.runtime import BackgroundTask, Operation, Record, RequestOperation, TimerFired
from ottla.coordinator.state import Group, ShardState
from ottla.coordinator.timers import retention_timer
from ottla.protocol import ErrorCode
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
        """Return what follows when the records of an operation could not be appended, besides an error for the client."""
        match operation:
            case RegexesResolved():
                return Result((RegexResolutionEnded(group_id),))
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
