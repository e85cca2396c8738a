"""The target assignment: when it is computed, by which assignor, and which part of it must be written.

Owns the question that is put to an assignor, and who answers it: an assignor of the server's, or a member. Must not know any
assignor. Invariants: an assignor that fails changes nothing; at most one member is asked at a time; a member that does not answer
in time loses only that task, and if no member answers, the server's assignors assign.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from ottla.assignors import SERVER_ASSIGNORS, Assignment, GroupSpec, MemberSpec, PartitionAssignor, TopicSpec, checked
from ottla.coordinator.api_error import ApiError
from ottla.coordinator.consumer.client_side import AssignorRun, common_assignor
from ottla.coordinator.consumer.draft import ConsumerGroupDraft
from ottla.coordinator.consumer.events import AssignorRunStarted
from ottla.coordinator.consumer.group import LEAVE_FOR_A_WHILE, ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.consumer.machine import target_value
from ottla.coordinator.consumer.settings import assignment_interval
from ottla.coordinator.events import TargetAssignmentEpochUpdated, TargetAssignmentUpdated
from ottla.coordinator.ports import GroupContext, TopicImage
from ottla.coordinator.timers import run_timer
from ottla.errors import AssignmentError
from ottla.protocol import ErrorCode
from ottla.protocol.group_records import ConsumerGroupMemberMetadataValue, ConsumerGroupTargetAssignmentMetadataValue
from ottla.types import Now

_Kind = tuple[tuple[str, ...], str | None, str | None, str | None]


def assign_if_due(draft: ConsumerGroupDraft, coordinator: GroupContext) -> None:
    """Make the target assignment of the group epoch, unless there is one or the last is too fresh. Raises ``ApiError``.

    Where members can make it themselves, one of them is asked to, or is waited for if that has happened.
    """
    group = draft.group
    if group.epoch == group.assignment_epoch or group.client.run is not None or not is_due(coordinator, group, draft.now):
        return
    if not _ask_a_member(draft, coordinator):
        write_target(draft, _assigned(coordinator, group), group.epoch)


def write_target(draft: ConsumerGroupDraft, targets: Mapping[str, Assignment], epoch: int) -> None:
    """Set the targets of members in an epoch; other members keep their targets."""
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


def is_due(coordinator: GroupContext, group: ConsumerGroup, now: Now) -> bool:
    """Whether the last target assignment has been in force for long enough (KIP-1263)."""
    interval = assignment_interval(coordinator, group.group_id)
    return not 0 <= now.wall - group.assignment_timestamp < interval


def assignor_name(coordinator: GroupContext, group: ConsumerGroup) -> str:
    """The assignor that a group uses: one that its members run themselves, if all can, else one of the server's."""
    return _client_assignor(coordinator, group) or _server_assignor(coordinator, group)


def _client_assignor(coordinator: GroupContext, group: ConsumerGroup) -> str | None:
    """The assignor that all members can run themselves, if there is one and this broker allows it."""
    if not coordinator.config.group_consumer_client_assignors_enable:
        return None
    return common_assignor([member.metadata.client_assignors for member in group.members.values()])


def _server_assignor(coordinator: GroupContext, group: ConsumerGroup) -> str:
    """The one that most of the members want, else the broker's default."""
    name = group.preferred_assignor()
    return name if name is not None and name in coordinator.assignors else next(iter(coordinator.assignors))


def _ask_a_member(draft: ConsumerGroupDraft, coordinator: GroupContext) -> bool:
    """Have a member compute the next target assignment, if all can run the same assignor; whether one was asked.

    It hears of that with its next heartbeat, and has its own rebalance timeout to deliver.
    """
    group = draft.group
    name = _client_assignor(coordinator, group)
    member = None if name is None else _whom_to_ask(group)
    if name is None or member is None:
        return False
    draft.apply(AssignorRunStarted(group.group_id, AssignorRun(member.member_id, name)))
    draft.set_timer(run_timer(group.group_id, member.member_id), member.metadata.rebalance_timeout_ms)
    return True


def _whom_to_ask(group: ConsumerGroup) -> ConsumerGroupMember | None:
    """The member that did it before, else a stable member, else any: of those that are present and have not failed."""
    able = [
        member
        for member_id, member in group.members.items()
        if member.epoch != LEAVE_FOR_A_WHILE and member_id not in group.client.timed_out
    ]
    by = group.client.computed_by
    return min(able, key=lambda one: (one.member_id != by, not group.is_settled(one), one.member_id), default=None)


def subscribed_ids(group: ConsumerGroup, metadata: ConsumerGroupMemberMetadataValue, image: TopicImage) -> frozenset[UUID]:
    """The ids of the topics that a member wants and that exist."""
    ids = (image.topic_id(name) for name in group.topics_of(metadata))
    return frozenset(one for one in ids if one is not None)


def _assigned(coordinator: GroupContext, group: ConsumerGroup) -> dict[str, Assignment]:
    name = _server_assignor(coordinator, group)
    assignor: PartitionAssignor = coordinator.assignors[name]
    spec = group_spec(group, coordinator.topics)
    try:
        answer = assignor(spec)
        if SERVER_ASSIGNORS.get(name) is assignor:
            return dict(answer)  # type: ignore[arg-type]  # one of our own, whose answers are in order
        return checked(spec, answer, "it")
    except Exception as error:  # the user's code may raise anything
        why = error if isinstance(error, AssignmentError) else repr(error)
        message = f"Failed to compute a new target assignment for epoch {group.epoch}: assignor {name} failed: {why}"
        raise ApiError(ErrorCode.unknown_server_error, message) from error


def group_spec(group: ConsumerGroup, image: TopicImage) -> GroupSpec:
    """Members with equal subscriptions share one set of topics: there may be ten thousand of them."""
    kinds: dict[_Kind, MemberSpec] = {}
    topics_of: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    members: dict[str, MemberSpec] = {}
    for member_id, member in group.members.items():
        wants = member.metadata
        subscription = (wants.subscribed_topic_names, wants.subscribed_topic_regex)
        kind = (*subscription, wants.instance_id, wants.rack_id)
        spec = kinds.get(kind)
        if spec is None:
            if subscription not in topics_of:
                topics_of[subscription] = subscribed_ids(group, wants, image)
            spec = kinds[kind] = MemberSpec(topics_of[subscription], wants.instance_id, wants.rack_id)
        members[member_id] = spec
    topics: dict[UUID, TopicSpec] = {}
    for name in group.subscribed_topics():
        topic_id, count = image.topic_id(name), image.partition_count(name)
        if topic_id is not None and count is not None:
            topics[topic_id] = TopicSpec(name, count)
    return GroupSpec(members, group.target, topics)
