"""The central groups, as the coordinator's runtime uses them.

Owns the choice of the handler for a request, an answer or a timer (``ROUTES`` by API). Must not know the order of operations
(``runtime``), nor the meaning of a request. Invariant: only ``replay`` changes the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.coordinator.central.answers import Pings, answer_missing, answered, ping, session_ended
from ottla.coordinator.central.decision import (
    CentralContext,
    GoOn,
    Result,
    check_timer,
    deleted_topics_timer,
    emptied_timer,
    recovery_timer,
)
from ottla.coordinator.central.describe import describe_group
from ottla.coordinator.central.events import DurableEvent, Event, records_of
from ottla.coordinator.central.group import CentralGroup, StoredGroup
from ottla.coordinator.central.machine import Draft
from ottla.coordinator.central.membership import connection_closed, leave, register
from ottla.coordinator.central.messages import left, register_refused
from ottla.coordinator.central.offsets import (
    commit_offsets,
    delete_group,
    delete_offsets,
    delete_offsets_of_topics,
    delete_outdated_offsets,
    fetch_offsets,
)
from ottla.coordinator.central.patterns import end_resolution
from ottla.coordinator.central.rebalance import (
    advance,
    backoff_ended,
    give_time_to_start,
    recovery_ended,
    request_check,
    start_generation,
    store_empty_group,
)
from ottla.coordinator.central.state import CentralState
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.describe import describe_refused, described_groups, join_described
from ottla.coordinator.effects import ProducerStamp, Reply, RequestContext, ResolvedRegexes, SetTimer, TimerKey
from ottla.coordinator.offset_deletion import delete_answer, deleted_groups, join_deleted, offset_delete_refused
from ottla.coordinator.offsets import commit_refused, fetch_parts, fetch_refused, join_offsets
from ottla.coordinator.runtime import BackgroundTask, Operation, Record, RequestOperation, Route, SplitRoute, TimerFired
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_request, register_request
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.multis import part_of_multi

logger = logging.getLogger("ottla.broker")

_OTHERS = ErrorCode.inconsistent_group_protocol
"""The error of an append to a group that has members of Kafka 0.8."""
_TOLD = frozenset({ErrorCode.not_coordinator, _OTHERS, ErrorCode.non_empty_group})
"""The errors of an append that clients get as they are; of others, which are ZooKeeper's, they know nothing."""
_TO_NON_MEMBERS: Mapping[Api, ErrorCode] = {
    Api.OFFSET_COMMIT: ErrorCode.unknown_member_id,
    Api.OFFSET_DELETE: ErrorCode.non_empty_group,
}
"""What those get instead of ``_OTHERS`` who change offsets without being a member: the errors of Kafka for a group with members."""
_ABOVE_TOPICS = 4
"""The nodes of a group, of its offsets and of members of Kafka 0.8, and the one above all groups."""
_LONGEST_OFFSET = len(paths.offset("g", "t" * 249, 2**31 - 1)) + len(str(2**63 - 1))
"""The longest path of an offset in a group with a short name, with its data: names of topics have 249 characters at most."""


@dataclass(frozen=True, slots=True)
class AnswerReceived(Operation):
    """A member has answered a Ping, Stop or Start, or so it seems."""

    context: RequestContext
    message: Any


@dataclass(frozen=True, slots=True)
class ConnectionClosed(Operation):
    """A connection is closed, which may be the channel of members."""

    connection: int


@dataclass(frozen=True, slots=True)
class RegexesResolved(Operation):
    """The patterns of a group have been matched; ``None`` if that failed."""

    matches: ResolvedRegexes | None


class CentralShard:
    """All central groups."""

    KEY = "group"

    def __init__(self, coordinator: CentralContext, groups: Iterable[StoredGroup]) -> None:
        self.state = CentralState(groups)
        self._context = coordinator

    def replay(self, events: Iterable[Event]) -> None:
        """Apply events."""
        self.state.replay(events)

    def records_of(self, events: Sequence[Event]) -> tuple[Record, ...]:
        """Return the records of the durable events."""
        return tuple(record for event in events if isinstance(event, DurableEvent) for record in records_of(event))

    def producer_of(self, events: Sequence[Event]) -> ProducerStamp | None:
        """Return ``None``: these groups take no part in transactions."""
        return None

    def error_for_clients(self, error: ErrorCode) -> ErrorCode:
        """Return the error for clients after a failed append."""
        return error if error in _TOLD else ErrorCode.coordinator_not_available

    def on_loaded(self, now: Now) -> Iterator[Result]:
        """Wait for the members that were found: each reads on for one session at most without a coordinator. Delete the offsets of
        topics that were deleted meanwhile."""
        for group in self.state.groups().values():
            if self.state.outdated(group.group_id):
                yield Result(effects=(GoOn(deleted_topics_timer(group.group_id, ())),))
            timer = recovery_timer if group.state is CentralGroupState.RECOVERING else emptied_timer
            if group.stored_members > 0:
                yield Result(effects=(SetTimer(timer(group.group_id), now.mono + group.session_timeout_ms),))

    def answer_parked(self, error: ErrorCode) -> tuple[Reply, ...]:
        """Return nothing: no requests are parked."""
        return ()

    def append_ended(self, open_producers: Callable[[], Collection[int]]) -> None:
        """Do nothing: nothing waits for appends of other groups."""

    def not_stored(self, group_id: str, operation: Operation, error: ErrorCode, now: Now) -> Result | None:
        """Return what follows from a failed operation; ``None``: an error for the client, or another attempt of a timer's work."""
        match operation:
            case RequestOperation(route, context, body) if error is _OTHERS and context.api in _TO_NON_MEMBERS:
                return Result(answer=route.refuse(context, body, _TO_NON_MEMBERS[context.api]))
            case RequestOperation():
                return None
            case TimerFired((_, _, "forget", _)) | BackgroundTask((_, _, "forget", _)) if error is _OTHERS:
                return Result()  # the offsets belong to those members now
            case TimerFired(timer) | BackgroundTask(timer):
                logger.debug("group %r: %r failed (%s), and is tried again", group_id, timer[2], error.name)
                return None
            case RegexesResolved() if (group := self.state.group(group_id)) is not None:
                return self._regexes_resolved(Draft(group, now), None)
        return Result()

    def decide(self, group_id: str, operation: Operation, now: Now) -> Result:
        """Decide on an operation on a group."""
        if isinstance(operation, RequestOperation):
            decision: Result = operation.route.decide(self._context, self.state, operation.context, operation.body, now)
            return decision
        group = self.state.group(group_id)
        if group is None:
            return Result()
        draft, pings = Draft(group, now), self.state.pings(group_id)
        match operation:
            case AnswerReceived(context, message):
                answered(draft, pings, self._context, context, message)
            case ConnectionClosed(connection):
                connection_closed(draft, connection)
            case RegexesResolved(matches):
                return self._regexes_resolved(draft, matches)
            case TimerFired(timer) | BackgroundTask(timer):
                return self._on_timer(draft, pings, timer)
            case _:
                raise AssertionError(f"unknown operation: {operation}")
        return draft.result()

    def _regexes_resolved(self, draft: Draft, matches: ResolvedRegexes | None) -> Result:
        end_resolution(draft, matches)
        if matches is None:
            draft.set_timer(check_timer(draft.group.group_id), self._context.config.append_retry_backoff_ms)
        else:
            advance(draft, self._context)
        return draft.result()

    def _on_timer(self, draft: Draft, pings: Pings, timer: TimerKey) -> Result:
        context = self._context
        match timer:
            case (_, str(group_id), "forget", ()):
                return delete_outdated_offsets(self.state, group_id)
            case (_, str(group_id), "forget", tuple(topics)):
                return delete_offsets_of_topics(context, self.state, group_id, topics)
            case (_, _, "session", str(member_id)):
                session_ended(draft, pings, context, member_id)
            case (_, _, "ping", str(member_id)):
                ping(draft, pings, context, member_id)
            case (_, _, "answer", str(member_id)):
                answer_missing(draft, context, member_id)
            case (_, _, str(work)) if work in _WORK:
                _WORK[work](draft, context)
            case _:
                raise AssertionError(f"unknown timer: {timer}")
        return draft.result()


_WORK: Mapping[str, Callable[[Draft, CentralContext], None]] = {
    "check": request_check,
    "recovery": recovery_ended,
    "backoff": backoff_ended,
    "generation": start_generation,
    "started": lambda draft, context: give_time_to_start(draft),
    "emptied": store_empty_group,
}
"""The kind of a group's timer -> its work."""


# Requests


def _of_group(decide: Callable[..., Result]) -> Callable[..., Result]:
    """Return the handler of a request that concerns one group, and not its offsets."""

    def of_group(coordinator: CentralContext, state: CentralState, context: RequestContext, request: Any, now: Now) -> Result:
        group: CentralGroup | None = state.group(request.group_id)
        return decide(coordinator, group, context, request, now)

    return of_group


def _register(
    coordinator: CentralContext,
    state: CentralState,
    context: RequestContext,
    request: register_request.RegisterRequest,
    now: Now,
) -> Result:
    group = state.group(request.group_id)
    return register(coordinator, group, context, request, now, state.first_generation)


def _route(
    decide: Callable[..., Result],
    refuse: Callable[[RequestContext, Any, ErrorCode], Any],
    key_of: Callable[[Any], str] = lambda request: str(request.group_id),
    part_of_append: Callable[[Any], float] | None = None,
) -> Route:
    return Route(decide, refuse, key_of, part_of_append=part_of_append)


def _part_of_multi(request: offset_commit_request.OffsetCommitRequest) -> float:
    """Return which part of a multi a commit may need: for its partitions, for topics, and for the nodes above that may be missing.

    Commits may share one since they are decided by the members and owners, which no commit changes.
    """
    nodes = sum(1 + len(topic.partitions) for topic in request.topics) + _ABOVE_TOPICS
    return part_of_multi(nodes, _LONGEST_OFFSET + len(request.group_id.encode()))


ROUTES: Mapping[Api, Route | SplitRoute] = {
    Api.REGISTER: _route(_register, lambda context, request, error: register_refused(error)),
    Api.LEAVE: _route(_of_group(leave), lambda context, request, error: left(error)),
    Api.OFFSET_COMMIT: _route(
        commit_offsets, lambda context, request, error: commit_refused(request, error), part_of_append=_part_of_multi
    ),
    Api.OFFSET_FETCH: SplitRoute(_route(fetch_offsets, fetch_refused), split=fetch_parts, join=join_offsets),
    Api.DESCRIBE_GROUPS: SplitRoute(_route(describe_group, describe_refused), split=described_groups, join=join_described),
    Api.DELETE_GROUPS: SplitRoute(
        _route(delete_group, lambda context, group_id, error: delete_answer(group_id, error), key_of=str),
        split=deleted_groups,
        join=join_deleted,
    ),
    Api.OFFSET_DELETE: _route(delete_offsets, lambda context, request, error: offset_delete_refused(error)),
}
"""API -> its handler. Ping, Stop and Start are no requests (``AnswerReceived``)."""
