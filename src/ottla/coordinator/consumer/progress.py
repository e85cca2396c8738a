"""A member's step, in either protocol: its subscription, the group epoch, the target assignment, and its own reconciliation.

Owns the order of these. Must not know requests or answers. Invariant: all that a member may read then is in the draft's events.
"""

from __future__ import annotations

from ottla.coordinator.api_error import ApiError
from ottla.coordinator.consumer.draft import ConsumerGroupDraft
from ottla.coordinator.consumer.group import ConsumerGroupMember
from ottla.coordinator.consumer.machine import current_value
from ottla.coordinator.consumer.reconcile import Owned, ReconciliationContext, UnknownStateError, reconcile
from ottla.coordinator.consumer.subscription import begin_epoch_if_changed, resolve_if_due
from ottla.coordinator.consumer.target import assign_if_due, subscribed_ids
from ottla.coordinator.events import CurrentAssignmentUpdated, MemberSubscriptionUpdated, ResolvedRegexUpdated
from ottla.coordinator.ports import GroupContext
from ottla.protocol import ErrorCode
from ottla.protocol.group_records import ConsumerGroupMemberMetadataValue


def advance(
    draft: ConsumerGroupDraft,
    coordinator: GroupContext,
    before: ConsumerGroupMember,
    metadata: ConsumerGroupMemberMetadataValue,
    owned: Owned | None,
) -> tuple[ConsumerGroupMember, bool]:
    """The member after its step, and whether there was one. Raises ``ApiError``."""
    resubscribed = _take_up(draft, coordinator, before, metadata)
    assign_if_due(draft, coordinator)
    member = draft.group.members[before.member_id]
    after = _reconciled(draft, coordinator, member, owned, resubscribed)
    if after is not member:
        draft.apply(CurrentAssignmentUpdated(draft.group.group_id, member.member_id, current_value(after)))
    return after, after is not member


def _take_up(
    draft: ConsumerGroupDraft,
    coordinator: GroupContext,
    before: ConsumerGroupMember,
    metadata: ConsumerGroupMemberMetadataValue,
) -> bool:
    """What the member asks for becomes the group's business; whether it wants other topics than before."""
    group_id, old = draft.group.group_id, before.metadata
    if metadata != old or before.member_id not in draft.group.members:
        draft.apply(MemberSubscriptionUpdated(group_id, before.member_id, metadata))
    other_names = metadata.subscribed_topic_names != old.subscribed_topic_names
    other_regex = metadata.subscribed_topic_regex != old.subscribed_topic_regex
    changed = other_names or metadata.client_assignors != old.client_assignors
    if other_regex:
        left, taken = old.subscribed_topic_regex, metadata.subscribed_topic_regex
        changed = changed or left in draft.group.regexes or taken in draft.group.regexes
        if left and left not in draft.group.regex_subscribers:
            draft.apply(ResolvedRegexUpdated(group_id, left, None))
    resolve_if_due(draft, coordinator)
    begin_epoch_if_changed(draft, coordinator.topics, changed)
    return other_names or other_regex


def _reconciled(
    draft: ConsumerGroupDraft, coordinator: GroupContext, member: ConsumerGroupMember, owned: Owned | None, resubscribed: bool
) -> ConsumerGroupMember:
    group = draft.group
    if group.is_settled(member) and not resubscribed:
        return member
    question = ReconciliationContext(
        target_epoch=group.assignment_epoch,
        target=group.target.get(member.member_id, {}),
        subscribed=subscribed_ids(group, member.metadata, coordinator.topics),
        owners=group.owners,
        owned=owned,
        resubscribed=resubscribed,
    )
    try:
        return reconcile(member, question)
    except UnknownStateError:
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"The group coordinator does not know what member {member.member_id} waits for."
            " The member must abandon all its partitions and rejoin.",
        ) from None
