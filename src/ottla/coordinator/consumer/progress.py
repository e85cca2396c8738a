"""A member's step, in either protocol: its subscription, the group epoch, the target assignment, and its own reconciliation.

Owns the order of these. Must not know requests or answers. Invariant: the member's new assignment is in the draft's events.
"""

from __future__ import annotations

from ottla.coordinator.consumer.group import ConsumerGroupMember
from ottla.coordinator.consumer.group_epoch import bump_epoch_if_changed
from ottla.coordinator.consumer.machine import ConsumerGroupDraft, current_value
from ottla.coordinator.consumer.reconcile import ReconciliationContext, ReportedPartitions, UnknownStateError, reconcile
from ottla.coordinator.consumer.regex import resolve_if_due
from ottla.coordinator.consumer.target import subscribed_topic_ids, update_target_if_due
from ottla.coordinator.decision import GroupContext
from ottla.coordinator.effects import ApiError
from ottla.coordinator.events import CurrentAssignmentUpdated, MemberSubscriptionUpdated, ResolvedRegexUpdated
from ottla.protocol import ErrorCode
from ottla.protocol.group_records import ConsumerGroupMemberMetadataValue


def advance(
    draft: ConsumerGroupDraft,
    coordinator: GroupContext,
    before: ConsumerGroupMember,
    metadata: ConsumerGroupMemberMetadataValue,
    owned: ReportedPartitions | None,
) -> tuple[ConsumerGroupMember, bool]:
    """Return the member after its step, and whether its current assignment has changed. Raises ``ApiError``."""
    resubscribed = _update_subscription(draft, coordinator, before, metadata)
    update_target_if_due(draft, coordinator)
    member = draft.group.members[before.member_id]
    after = _reconcile_member(draft, coordinator, member, owned, resubscribed)
    if after is not member:
        draft.apply(CurrentAssignmentUpdated(draft.group.group_id, member.member_id, current_value(after)))
    return after, after is not member


def _update_subscription(
    draft: ConsumerGroupDraft,
    coordinator: GroupContext,
    before: ConsumerGroupMember,
    metadata: ConsumerGroupMemberMetadataValue,
) -> bool:
    """Store the member's metadata and begin a new group epoch if needed. Return whether the member's subscription has changed."""
    group_id, old = draft.group.group_id, before.metadata
    if metadata != old or before.member_id not in draft.group.members:
        draft.apply(MemberSubscriptionUpdated(group_id, before.member_id, metadata))
    names_changed = metadata.subscribed_topic_names != old.subscribed_topic_names
    regex_changed = metadata.subscribed_topic_regex != old.subscribed_topic_regex
    begins_epoch = names_changed or metadata.client_assignors != old.client_assignors
    if regex_changed:
        # A regular expression that is not resolved yet matches no topics, so it begins no epoch. Its resolution does, if it matches
        # any.
        old_regex, new_regex = old.subscribed_topic_regex, metadata.subscribed_topic_regex
        begins_epoch = begins_epoch or old_regex in draft.group.regexes or new_regex in draft.group.regexes
        if old_regex and old_regex not in draft.group.regex_subscribers:
            draft.apply(ResolvedRegexUpdated(group_id, old_regex, None))
    resolve_if_due(draft, coordinator)
    bump_epoch_if_changed(draft, coordinator.topics, begins_epoch)
    return names_changed or regex_changed


def _reconcile_member(
    draft: ConsumerGroupDraft,
    coordinator: GroupContext,
    member: ConsumerGroupMember,
    owned: ReportedPartitions | None,
    resubscribed: bool,
) -> ConsumerGroupMember:
    group = draft.group
    if group.is_settled(member) and not resubscribed:
        return member
    reconciliation = ReconciliationContext(
        target_epoch=group.assignment_epoch,
        target=group.target.get(member.member_id, {}),
        subscribed=subscribed_topic_ids(group, member.metadata, coordinator.topics),
        owners=group.owners,
        owned=owned,
        resubscribed=resubscribed,
    )
    try:
        return reconcile(member, reconciliation)
    except UnknownStateError:
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"Member {member.member_id} is in a state that this version of the group coordinator does not know."
            " The member must abandon all its partitions and rejoin.",
        ) from None
