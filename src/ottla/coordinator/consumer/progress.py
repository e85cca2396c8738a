"""What brings a member forward, whichever protocol it speaks: its wishes, the group's epoch, the target, and its own next step.

Owns the order of these. Must not know requests or answers. Invariant: all that a member may read then is in the draft's events.
"""

from __future__ import annotations

from ottla.coordinator.consumer.answers import Refused
from ottla.coordinator.consumer.draft import ConsumerDraft
from ottla.coordinator.consumer.group import ConsumerMember
from ottla.coordinator.consumer.machine import current_value
from ottla.coordinator.consumer.reconcile import Owned, Question, UnknownStateError, reconcile
from ottla.coordinator.consumer.subscription import begin_epoch_if_changed, match_if_due
from ottla.coordinator.consumer.target import assign_if_due, subscribed_ids
from ottla.coordinator.events import CurrentWritten, RegexWritten, SubscriptionWritten
from ottla.coordinator.ports import Surroundings
from ottla.protocol import ErrorCode
from ottla.protocol.group_records import ConsumerGroupMemberMetadataValue


def advance(
    draft: ConsumerDraft,
    around: Surroundings,
    before: ConsumerMember,
    wishes: ConsumerGroupMemberMetadataValue,
    owned: Owned | None,
) -> tuple[ConsumerMember, bool]:
    """The member after its step, and whether there was one. Raises ``Refused``."""
    resubscribed = _take_up(draft, around, before, wishes)
    assign_if_due(draft, around)
    member = draft.group.members[before.member_id]
    after = _reconciled(draft, around, member, owned, resubscribed)
    if after is not member:
        draft.happen(CurrentWritten(draft.group.group_id, member.member_id, current_value(after)))
    return after, after is not member


def _take_up(
    draft: ConsumerDraft,
    around: Surroundings,
    before: ConsumerMember,
    wishes: ConsumerGroupMemberMetadataValue,
) -> bool:
    """What the member asks for becomes the group's business; whether it wants other topics than before."""
    group_id, old = draft.group.group_id, before.metadata
    if wishes != old or before.member_id not in draft.group.members:
        draft.happen(SubscriptionWritten(group_id, before.member_id, wishes))
    other_names = wishes.subscribed_topic_names != old.subscribed_topic_names
    other_regex = wishes.subscribed_topic_regex != old.subscribed_topic_regex
    changed = other_names or wishes.client_assignors != old.client_assignors
    if other_regex:
        left, taken = old.subscribed_topic_regex, wishes.subscribed_topic_regex
        changed = changed or left in draft.group.regexes or taken in draft.group.regexes
        if left and left not in draft.group.regex_subscribers:
            draft.happen(RegexWritten(group_id, left, None))
    match_if_due(draft, around)
    begin_epoch_if_changed(draft, around.topics, changed)
    return other_names or other_regex


def _reconciled(
    draft: ConsumerDraft, around: Surroundings, member: ConsumerMember, owned: Owned | None, resubscribed: bool
) -> ConsumerMember:
    group = draft.group
    if group.is_settled(member) and not resubscribed:
        return member
    question = Question(
        target_epoch=group.assignment_epoch,
        target=group.target.get(member.member_id, {}),
        subscribed=subscribed_ids(group, member.metadata, around.topics),
        holders=group.holders,
        owned=owned,
        resubscribed=resubscribed,
    )
    try:
        return reconcile(member, question)
    except UnknownStateError:
        raise Refused(
            ErrorCode.fenced_member_epoch,
            f"The group coordinator does not know what member {member.member_id} waits for."
            " The member must abandon all its partitions and rejoin.",
        ) from None
