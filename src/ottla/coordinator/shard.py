"""One partition of ``__consumer_offsets``, as the runtime of the coordinator uses it: its groups, and what operations do to them.

Owns the choice of the code that decides on a request or a timer, and the ends of transactions that wait for open appends. Must not
know the order of operations (``runtime``), nor what a request means. Invariant: only ``replay`` changes the state.
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
from ottla.coordinator.consumer.subscription import regexes_resolved
from ottla.coordinator.effects import ProducerStamp, Reply, ResolvedRegexes, SetTimer, TimerKey
from ottla.coordinator.events import Event, TransactionalOffsetCommitted, TransactionEnded, is_durable, record_of
from ottla.coordinator.migration.downgrade import timer_fired
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.removal import delete_offsets_of_topics, expire_offsets
from ottla.coordinator.result import Result
from ottla.coordinator.runtime import BackgroundTask, Operation, Record, Request, TimerFired
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
"""The answer to a client when the log refused the coordinator's records; the client knows nothing about that log."""


@dataclass(frozen=True, slots=True)
class RegexesResolved(Operation):
    """The regular expressions of a group have been matched; ``None``: they could not be."""

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
        """The records of the durable events. Raises ``ProtocolError``."""
        return tuple([record_of(event) for event in events if is_durable(event)])

    def producer_of(self, events: Sequence[Event]) -> ProducerStamp | None:
        """In whose transaction offsets are committed."""
        return next((event.producer for event in events if isinstance(event, TransactionalOffsetCommitted)), None)

    def error_for_clients(self, error: ErrorCode) -> ErrorCode:
        """The answer when the log has refused records."""
        return _APPEND_ERRORS.get(error, error)

    def on_loaded(self, now: Now) -> Iterator[Result]:
        """The timers that the groups need, and the one of retention."""
        for group in list(self.state.groups().values()):
            yield self._on_group_loaded(group, now)
        # Partitions take turns, so that a broker with many groups does not look at all of them at once.
        interval = self._context.config.offsets_retention_check_interval_ms
        turn = interval * (self._partition + 1) // self._context.config.offsets_topic_partitions
        yield Result(effects=(SetTimer(retention_timer(self._partition), now.mono + turn),))

    def _on_group_loaded(self, group: Group, now: Now) -> Result:
        if isinstance(group, ConsumerGroup):
            return fencing.on_loaded(self._context, group, now)
        draft = ClassicGroupDraft(group, now)
        for member in group.members.values():
            draft.refresh_session(member)
        if len(group.members) > self._context.config.group_max_size:
            start_rebalance(draft, self._context)
        return draft.result()

    def parked(self, error: ErrorCode) -> Iterator[Reply]:
        """The answers to the JoinGroups and SyncGroups that wait for others."""
        for group in self.state.groups().values():
            for member in group.members.values() if isinstance(group, ClassicGroup) else ():
                if member.join is not None:
                    yield Reply(member.join, join_refused(error))
                if member.sync is not None:
                    yield Reply(member.sync, sync_refused(error))

    def end_transaction(self, producer_id: int, commit: bool, open_producers: Collection[int]) -> None:
        """The marker of a transaction is in the log. What it wrote and what is not known to be there yet is waited for."""
        event = TransactionEnded(producer_id, commit)
        if producer_id in open_producers:
            self._ended.append(event)
        else:
            self.state.replay((event,))

    def append_ended(self, open_producers: Callable[[], Collection[int]]) -> None:
        """Let those transactions end of which nothing is waited for any more."""
        if not self._ended:
            return
        still_open = open_producers()
        for event in [event for event in self._ended if event.producer_id not in still_open]:
            self._ended.remove(event)
            self.state.replay((event,))

    def not_stored(self, group_id: str, operation: Operation, error: ErrorCode, now: Now) -> Result | None:
        """What follows from records that could not be appended, besides an error for the sender of the request."""
        match operation:
            case RegexesResolved():
                return Result((RegexResolutionEnded(group_id),))
            case Request(route, _, body) if route.not_stored is not None:
                result: Result = route.not_stored(self._context, self.state, body, error, now)
                assert not any(is_durable(event) for event in result.events), "what follows a failed append needs none"
                return result
        return None

    def decide(self, group_id: str, operation: Operation, now: Now) -> Result:
        """What an operation does to a group. Raises ``ProtocolError``."""
        match operation:
            case Request(route, context, body):
                decided: Result = route.decide(self._context, self.state, context, body, now)
                return decided
            case RegexesResolved(matches):
                group = self.state.group(group_id)
                return regexes_resolved(self._context, group, matches, now) if isinstance(group, ConsumerGroup) else Result()
            case TimerFired(timer) | BackgroundTask(timer):
                return self._due_result(group_id, timer, now)
        raise AssertionError(f"no such operation: {operation}")

    def _due_result(self, group_id: str, key: TimerKey, now: Now) -> Result:
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
