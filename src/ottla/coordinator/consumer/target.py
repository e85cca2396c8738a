"""The target assignment: when it is computed, by which assignor, and which part of it must be written.

Owns the input of assignors, and the choice between a server-side assignor and a member that assigns for the group. Must not know
any assignor. Invariants: an assignor that fails changes nothing; at most one member computes an assignment at a time; a member that
does not deliver in time loses only that task, and if all fail, a server-side assignor assigns.

Source: ``TargetAssignmentBuilder`` of Apache Kafka; KIP-848, "Client side mode", for members that assign.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from ottla.assignors import SERVER_ASSIGNORS, Assignment, GroupSpec, MemberSpec, PartitionAssignor, TopicSpec, checked
from ottla.coordinator.consumer.client_side import AssignorRun, common_assignor
from ottla.coordinator.consumer.group import LEAVE_GROUP_STATIC_EPOCH, ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.consumer.machine import AssignorRunStarted, ConsumerGroupDraft, target_value
from ottla.coordinator.decision import GroupContext, TopicImage, assignment_interval, run_timer
from ottla.coordinator.effects import ApiError
from ottla.coordinator.events import TargetAssignmentEpochUpdated, TargetAssignmentUpdated
from ottla.errors import AssignmentError
from ottla.protocol import ErrorCode
from ottla.protocol.group_records import ConsumerGroupMemberMetadataValue, ConsumerGroupTargetAssignmentMetadataValue
from ottla.types import Now

_MemberSpecKey = tuple[tuple[str, ...], str | None, str | None, str | None]


def update_target_if_due(draft: ConsumerGroupDraft, coordinator: GroupContext) -> None:
    """Compute the target assignment of the group epoch, unless there is one or the last is too recent. Raises ``ApiError``.

    If all members can run the same assignor, this starts one of them instead, and does nothing while that one computes.
    """
    group = draft.group
    if (
        group.epoch == group.assignment_epoch
        or group.client.run is not None
        or not is_assignment_due(coordinator, group, draft.now)
    ):
        return
    if not _start_client_assignor(draft, coordinator):
        write_target(draft, _compute_assignment(coordinator, group), group.epoch)


def write_target(draft: ConsumerGroupDraft, targets: Mapping[str, Assignment], epoch: int) -> None:
    """Set the targets of these members and the assignment epoch. Only targets that have changed are written; other members keep
    theirs.
    """
    group = draft.group
    draft.apply(
        *(
            TargetAssignmentUpdated(group.group_id, member_id, target_value(target))
            for member_id, target in targets.items()
            if target is not group.target.get(member_id) and target != group.target.get(member_id)
        ),
        TargetAssignmentEpochUpdated(
            group.group_id,
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=draft.now.wall),
        ),
    )


def is_assignment_due(coordinator: GroupContext, group: ConsumerGroup, now: Now) -> bool:
    """Whether the last target assignment has been in force for the assignment interval (KIP-1263)."""
    interval = assignment_interval(coordinator, group.group_id)
    # After the clock was set back the timestamp lies in the future: then an assignment is due as well.
    return not 0 <= now.wall - group.assignment_timestamp < interval


def assignor_name(coordinator: GroupContext, group: ConsumerGroup) -> str:
    """Return the name of the group's assignor: one that all members can run themselves, else a server-side one."""
    return _client_assignor(coordinator, group) or _server_assignor(coordinator, group)


def _client_assignor(coordinator: GroupContext, group: ConsumerGroup) -> str | None:
    """Return the assignor that all members can run themselves, if there is one and this broker allows it."""
    if not coordinator.config.group_consumer_client_assignors_enable:
        return None
    return common_assignor([member.metadata.client_assignors for member in group.members.values()])


def _server_assignor(coordinator: GroupContext, group: ConsumerGroup) -> str:
    """Return the server-side assignor that most members prefer, else the broker's default."""
    name = group.preferred_assignor()
    return name if name is not None and name in coordinator.assignors else next(iter(coordinator.assignors))


def _start_client_assignor(draft: ConsumerGroupDraft, coordinator: GroupContext) -> bool:
    """Choose a member to compute the next target assignment, if all can run the same assignor. Return whether one was chosen.

    The response to its next heartbeat tells the member; it has its rebalance timeout to install the assignment.
    """
    group = draft.group
    name = _client_assignor(coordinator, group)
    member = None if name is None else _select_member(group)
    if name is None or member is None:
        return False
    draft.apply(AssignorRunStarted(group.group_id, AssignorRun(member.member_id, name)))
    draft.set_timer(run_timer(group.group_id, member.member_id), member.metadata.rebalance_timeout_ms)
    return True


def _select_member(group: ConsumerGroup) -> ConsumerGroupMember | None:
    """Return the member that computed the last assignment, else a stable member, else any.

    Static members that are away, and members that did not deliver in time, are left out.
    """
    candidates = [
        member
        for member_id, member in group.members.items()
        if member.epoch != LEAVE_GROUP_STATIC_EPOCH and member_id not in group.client.timed_out
    ]
    last = group.client.computed_by
    return min(
        candidates,
        key=lambda member: (member.member_id != last, not group.is_settled(member), member.member_id),
        default=None,
    )


def subscribed_topic_ids(group: ConsumerGroup, metadata: ConsumerGroupMemberMetadataValue, image: TopicImage) -> frozenset[UUID]:
    """Return the ids of the existing topics that a member subscribes to."""
    ids = (image.topic_id(name) for name in group.topics_of(metadata))
    return frozenset(topic_id for topic_id in ids if topic_id is not None)


def _compute_assignment(coordinator: GroupContext, group: ConsumerGroup) -> dict[str, Assignment]:
    name = _server_assignor(coordinator, group)
    assignor: PartitionAssignor = coordinator.assignors[name]
    spec = group_spec(group, coordinator.topics)
    try:
        assignment = assignor(spec)
        if SERVER_ASSIGNORS.get(name) is assignor:
            return dict(assignment)  # type: ignore[arg-type]  # built-in assignors need no check
        return checked(spec, assignment, "it")
    except Exception as error:  # a user's assignor may raise anything
        reason = error if isinstance(error, AssignmentError) else repr(error)
        message = f"Failed to compute a new target assignment for epoch {group.epoch}: assignor {name} failed: {reason}"
        raise ApiError(ErrorCode.unknown_server_error, message) from error


def group_spec(group: ConsumerGroup, image: TopicImage) -> GroupSpec:
    """Return the input of an assignor.

    Members with equal subscriptions, instance ids and racks share one ``MemberSpec``, and members with equal subscriptions one set
    of topics: a group may have ten thousand members.
    """
    specs: dict[_MemberSpecKey, MemberSpec] = {}
    topics_of: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    members: dict[str, MemberSpec] = {}
    for member_id, member in group.members.items():
        metadata = member.metadata
        subscription = (metadata.subscribed_topic_names, metadata.subscribed_topic_regex)
        key = (*subscription, metadata.instance_id, metadata.rack_id)
        spec = specs.get(key)
        if spec is None:
            if subscription not in topics_of:
                topics_of[subscription] = subscribed_topic_ids(group, metadata, image)
            spec = specs[key] = MemberSpec(topics_of[subscription], metadata.instance_id, metadata.rack_id)
        members[member_id] = spec
    topics: dict[UUID, TopicSpec] = {}
    for name in group.subscribed_topics():
        topic_id, count = image.topic_id(name), image.partition_count(name)
        if topic_id is not None and count is not None:
            topics[topic_id] = TopicSpec(name, count)
    return GroupSpec(members, group.target, topics)
