"""``Admin.describe_groups``, for the groups of every protocol with a coordinator.

Owns the requests and the meaning of their responses. Must not know time, retries or connections. Invariant: callers need not know
the protocol of a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ottla.client.admin.calls import Call, CallAttempt, PermanentFailure, ask_each, check, coordinators_of
from ottla.client.admin.results import GroupDescription, GroupMember
from ottla.errors import GroupIdNotFoundError, ProtocolError
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.consumer_protocol import decode_assignment
from ottla.protocol.messages import (
    consumer_group_describe_request,
    consumer_group_describe_response,
    describe_groups_request,
    describe_groups_response,
)
from ottla.types import Node, TopicPartition

_OTHER_TYPE = "is not a consumer group"
"""A part of Kafka 4's message of GROUP_ID_NOT_FOUND for a share group or a streams group."""


def describe_groups(group_ids: Iterable[str]) -> Call[dict[str, GroupDescription]]:
    """Return groups and their members, by group id.

    DescribeGroups knows classic groups, and Ottla's also central ones. A group for which it returns GROUP_ID_NOT_FOUND is described
    again as a consumer group; the brokers that return this error (version 6, Kafka 4.0) have ConsumerGroupDescribe.
    """
    ids = list(dict.fromkeys(group_ids))

    def attempt() -> CallAttempt[dict[str, GroupDescription]]:
        nodes = yield from coordinators_of(ids)
        classic = yield from ask_each(
            rpcs.DESCRIBE_GROUPS,
            [
                (describe_groups_request.DescribeGroupsRequest(groups=(group_id,), include_authorized_operations=False), node)
                for group_id, node in nodes.items()
            ],
        )
        groups: dict[str, _Group] = {group.group_id: group for response in classic for group in response.groups}
        missing = [group_id for group_id, group in groups.items() if group.error_code == ErrorCode.group_id_not_found]
        if missing:
            consumer = yield from ask_each(
                rpcs.CONSUMER_GROUP_DESCRIBE,
                [
                    (
                        consumer_group_describe_request.ConsumerGroupDescribeRequest(
                            group_ids=(group_id,), include_authorized_operations=False
                        ),
                        nodes[group_id],
                    )
                    for group_id in missing
                ],
            )
            groups |= {group.group_id: group for response in consumer for group in response.groups}
        return {group_id: _described(group, nodes[group_id]) for group_id, group in groups.items()}

    return attempt


_Group: TypeAlias = "describe_groups_response.DescribedGroup | consumer_group_describe_response.DescribedGroup"


def _described(group: _Group, coordinator: Node) -> GroupDescription:
    if group.error_code == ErrorCode.group_id_not_found or (not group.error_code and group.group_state == "Dead"):
        text = f"there is no group {group.group_id!r}"
        if _OTHER_TYPE in (group.error_message or ""):
            text = f"group {group.group_id!r} is neither a classic group nor a consumer group; other types cannot be described"
        raise PermanentFailure(GroupIdNotFoundError(text))
    check(group.error_code, group.error_message or f"group {group.group_id!r}")
    if isinstance(group, consumer_group_describe_response.DescribedGroup):
        return _consumer_group(group, coordinator)
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            member.group_instance_id,
            _assigned(group.protocol_type, member.member_assignment),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        coordinator,
        members,
        group_type="central" if group.is_central else "classic",
    )


def _consumer_group(group: consumer_group_describe_response.DescribedGroup, coordinator: Node) -> GroupDescription:
    def assigned(member: consumer_group_describe_response.Member) -> tuple[TopicPartition, ...]:
        topics = member.assignment.topic_partitions
        return tuple(sorted(TopicPartition(topic.topic_name, number) for topic in topics for number in topic.partitions))

    members = tuple(
        GroupMember(member.member_id, member.client_id, member.client_host, member.instance_id, assigned(member))
        for member in group.members
    )
    return GroupDescription(
        group.group_id, group.group_state, "consumer", group.assignor_name, coordinator, members, group_type="consumer"
    )


def _assigned(protocol_type: str, blob: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a member's assignment; none for other protocol types (Connect) and malformed assignments."""
    if protocol_type != "consumer":
        return ()
    try:
        return tuple(sorted(decode_assignment(blob).partitions))
    except ProtocolError:
        return ()
