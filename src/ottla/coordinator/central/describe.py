"""DescribeGroups and ListGroups of central groups.

Owns the descriptions, in terms that Kafka's tools know. Invariant: a description changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ottla.coordinator.central.decision import CentralContext, Result
from ottla.coordinator.central.group import CentralGroup
from ottla.coordinator.central.member import CentralMember
from ottla.coordinator.central.state import CentralState
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.describe import DescribeTarget, missing_group
from ottla.coordinator.effects import RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from ottla.protocol.messages import describe_groups_response, list_groups_request, list_groups_response
from ottla.types import Now

_CONSUMER = "consumer"
"""The type of the protocol."""
_CLASSIC, _CENTRAL = "classic", "central"
"""The type of the group: the one that Kafka's tools know and describe with DescribeGroups, and its own, for a filter."""

KAFKA_STATE: Mapping[CentralGroupState, str] = MappingProxyType(
    {
        CentralGroupState.EMPTY: "Empty",
        CentralGroupState.RECOVERING: "PreparingRebalance",
        CentralGroupState.STABLE: "Stable",
        CentralGroupState.STOPPING: "PreparingRebalance",
        CentralGroupState.ASSIGNING: "PreparingRebalance",
        CentralGroupState.STARTING: "CompletingRebalance",
        CentralGroupState.FAILED: "PreparingRebalance",
    }
)
"""State -> the name that Kafka's tools know."""


def describe_group(
    coordinator: CentralContext, state: CentralState, context: RequestContext, target: DescribeTarget, now: Now
) -> Result:
    """Describe one group and its members."""
    group = state.group(target.group_id)
    if group is None:
        return Result(answer=missing_group(context, target, "not found"))
    return Result(
        answer=describe_groups_response.DescribedGroup(
            error_code=ErrorCode.none,
            group_id=group.group_id,
            group_state=KAFKA_STATE[group.state],
            protocol_type=_CONSUMER,
            protocol_data=next((member.assignor for member in group.members.values()), ""),
            members=tuple(_described_member(group, member) for member in group.members.values()),
            authorized_operations=target.operations,
            is_central=True,
        )
    )


def _described_member(group: CentralGroup, member: CentralMember) -> describe_groups_response.DescribedGroupMember:
    share = tuple(sorted(group.share_of(member.member_id)))
    return describe_groups_response.DescribedGroupMember(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=encode_subscription(Subscription(tuple(sorted(group.topics_of(member))))),
        member_assignment=encode_assignment(Assignment(share)),
    )


def list_groups(
    request: list_groups_request.ListGroupsRequest, groups: Iterable[CentralGroup]
) -> tuple[list_groups_response.ListedGroup, ...]:
    """Return the groups that pass the filters for states and types. An empty filter passes all groups, an unknown name none."""
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.strip().lower() for name in request.types_filter}
    if types and not types & {_CLASSIC, _CENTRAL}:
        return ()
    return tuple(
        list_groups_response.ListedGroup(
            group_id=group.group_id,
            protocol_type=_CONSUMER,
            group_state=KAFKA_STATE[group.state],
            group_type=_CLASSIC,
            is_central=True,
        )
        for group in groups
        if not states or KAFKA_STATE[group.state].lower() in states
    )
