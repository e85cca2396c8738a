"""The table of the APIs of the group coordinator: the handler, the response with an error, the group.

Owns the mapping, and the choice between the protocols of a group; must not know shards or appends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ottla.coordinator.classic.answers import heartbeat_answer, join_refused, leave_answer, sync_refused
from ottla.coordinator.classic.group import ClassicGroup
from ottla.coordinator.classic.heartbeat import heartbeat
from ottla.coordinator.classic.join import join_group
from ottla.coordinator.classic.leave import leave_group
from ottla.coordinator.classic.sync import sync_group, sync_not_stored
from ottla.coordinator.consumer import client_runs
from ottla.coordinator.consumer.answers import heartbeat_refused
from ottla.coordinator.consumer.group import JOIN_GROUP_EPOCH, ConsumerGroup
from ottla.coordinator.consumer.heartbeat import consumer_group_heartbeat
from ottla.coordinator.describe import (
    describe_consumer_group,
    describe_consumer_group_refused,
    describe_group,
    describe_refused,
    described_consumer_groups,
    described_groups,
)
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.migration.downgrade import leave_group as leave_by_heartbeat
from ottla.coordinator.migration.member import (
    heartbeat_in_consumer_group,
    join_consumer_group,
    leave_consumer_group,
    sync_consumer_group,
)
from ottla.coordinator.migration.upgrade import join_classic_group
from ottla.coordinator.offset_deletion import delete_answer, delete_group, delete_offsets, offset_delete_refused
from ottla.coordinator.offsets import commit_offsets, commit_refused, fetch_offsets, fetch_parts, fetch_refused
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.result import Result
from ottla.coordinator.runtime import Route, SplitRoute
from ottla.coordinator.state import ShardState
from ottla.coordinator.transactional_offsets import commit_in_transaction, commit_in_transaction_refused
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    consumer_group_describe_response,
    delete_groups_response,
    describe_groups_response,
    offset_fetch_response,
)
from ottla.types import Now

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


def _join_offsets(groups: tuple[Any, ...]) -> Any:
    return offset_fetch_response.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups)


def _join_described(groups: tuple[Any, ...]) -> Any:
    return describe_groups_response.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=groups)


def _join_described_consumer_groups(groups: tuple[Any, ...]) -> Any:
    return consumer_group_describe_response.ConsumerGroupDescribeResponse(throttle_time=NO_THROTTLE, groups=groups)


def _join_deleted(results: tuple[Any, ...]) -> Any:
    return delete_groups_response.DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=results)


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
    Api.OFFSET_FETCH: SplitRoute(_route(fetch_offsets, fetch_refused), split=fetch_parts, join=_join_offsets),
    Api.DESCRIBE_GROUPS: SplitRoute(_route(describe_group, describe_refused), split=described_groups, join=_join_described),
    Api.DELETE_GROUPS: SplitRoute(
        _route(delete_group, lambda context, group_id, error: delete_answer(group_id, error), key_of=str),
        split=lambda request: tuple(dict.fromkeys(request.groups_names)),
        join=_join_deleted,
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
