"""Reconciliation: one member's next step towards the target assignment.

A pure function. Must not know requests, records or time. Invariants: no member gets a partition that another member owns; a
member's epoch does not change while it owns a partition outside the target; it never exceeds the epoch of the target.

A member moves from target to target in up to three steps, one for each of its heartbeats:

1. It owns partitions that the target gives to others. They move to ``revoking``, and it stays in its epoch until a heartbeat no
   longer lists them (UNREVOKED_PARTITIONS).
2. It reaches the epoch of the target and gets those of its new partitions that have no owner. Others may still be in step 1 with
   the rest (UNRELEASED_PARTITIONS).
3. Later heartbeats give it the rest, as the owners revoke them (STABLE).

Source: KIP-848, "Member epoch" and "Assignment reconciliation"; KIP-1251 for the epochs of single partitions. The same steps are in
``CurrentAssignmentBuilder`` of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from uuid import UUID

from ottla.assignors import Assignment
from ottla.coordinator.consumer.group import NO_PARTITIONS, ConsumerGroupMember, MemberState, PartitionEpochs

ReportedPartitions = Mapping[UUID, Set[int]]
"""The partitions that a client lists in a heartbeat as its own."""

_STABLE, _UNREVOKED, _UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS

TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    _STABLE: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
    _UNREVOKED: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
    _UNRELEASED: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
    MemberState.UNKNOWN: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
}
"""The states that one step may lead to."""


class UnknownStateError(Exception):
    """The member's state is one that only a newer broker understands; the member must rejoin without partitions."""


@dataclass(frozen=True, slots=True)
class ReconciliationContext:
    """The inputs of a member's step besides the member."""

    target_epoch: int
    target: Assignment
    subscribed: Set[UUID]
    """The topics of the member's present subscription. The target may be older than the subscription: then it names topics that the
    member has dropped since, and these are not given to it."""
    owners: PartitionEpochs
    """Every partition that a member owns."""
    owned: ReportedPartitions | None = None
    """The partitions in its heartbeat; ``None`` where the heartbeat does not list any, since nothing has changed for the client."""
    resubscribed: bool = False
    """Whether this heartbeat changed the subscription."""


def reconcile(member: ConsumerGroupMember, context: ReconciliationContext) -> ConsumerGroupMember:
    """Return the member after one step, or the same object if there is no step to take. Raises ``UnknownStateError``."""
    match member.state:
        case MemberState.STABLE if member.epoch == context.target_epoch:
            # The member has reached the newest target. A member that unsubscribes still owns partitions of the topic that it
            # dropped. The next target, which takes them away, may be seconds off (``group.consumer.assignment.interval.ms``), so
            # they are revoked now.
            return _revoke_unsubscribed(member, context) if context.resubscribed else member
        case MemberState.STABLE:
            # There is a newer target: take the first step towards it.
            pass
        case MemberState.UNREVOKED_PARTITIONS:
            if context.resubscribed:
                member = _revoke_unsubscribed(member, context)
            # The partitions are revoked when a heartbeat no longer lists them. A heartbeat without a list acknowledges nothing: the
            # client may have sent it before the answer with the revocation arrived. So ``None`` counts as "owns all of them".
            if _owns_any(context.owned, member.revoking):
                return member
            # The member moves on to the newest target, which may differ from the one that made it revoke. The revoked
            # partitions may be its own again, and there may be more to revoke.
        case MemberState.UNRELEASED_PARTITIONS:
            # Every heartbeat looks again, at the newest target: owners may have revoked the missing partitions meanwhile, or a
            # newer target no longer gives them to this member.
            pass
        case MemberState.UNKNOWN:
            # A newer broker with more states wrote the record, and the broker was downgraded since. This broker cannot tell what
            # the member waits for. A member without partitions can take any step; any other is fenced.
            if context.owned is None or any(context.owned.values()):
                raise UnknownStateError
    updated = _compute_next_assignment(member, context)
    return member if updated == member else updated


def _compute_next_assignment(member: ConsumerGroupMember, context: ReconciliationContext) -> ConsumerGroupMember:
    """Return a member, which has revoked all that it had to, after its step towards the target."""
    assigned: dict[UUID, Mapping[int, int]] = {}
    revoking: dict[UUID, Mapping[int, int]] = {}
    for topic_id, partitions in member.assigned.items():
        target = _target_partitions(context, topic_id)
        _put_nonempty(assigned, topic_id, {number: epoch for number, epoch in partitions.items() if number in target})
        _put_nonempty(revoking, topic_id, {number: epoch for number, epoch in partitions.items() if number not in target})
    # Step 1: revoke before anything is added. A client that does not list these partitions, since it has restarted for example, has
    # nothing to revoke and skips the step.
    if revoking and _owns_any(context.owned, revoking):
        return replace(member, previous_epoch=member.epoch, state=_UNREVOKED, assigned=assigned, revoking=revoking)
    # Steps 2 and 3: add the free partitions and reach the epoch of the target.
    has_unreleased_partitions = False
    for topic_id in context.target:
        present, owners = assigned.get(topic_id, NO_PARTITIONS), context.owners.get(topic_id, NO_PARTITIONS)
        own = (member.assigned.get(topic_id, NO_PARTITIONS), member.revoking.get(topic_id, NO_PARTITIONS))
        # A partition is free if it has no owner, or if the owner is this member itself: a newer target may assign to it again the
        # partitions that it was revoking.
        missing = [number for number in _target_partitions(context, topic_id) if number not in present]
        free = [number for number in missing if number not in owners or any(number in partitions for partitions in own)]
        has_unreleased_partitions = has_unreleased_partitions or len(free) < len(missing)
        if free:
            assigned[topic_id] = {**present, **dict.fromkeys(free, context.target_epoch)}
    state = _UNRELEASED if has_unreleased_partitions else _STABLE
    return replace(member, epoch=context.target_epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking={})


def _revoke_unsubscribed(member: ConsumerGroupMember, context: ReconciliationContext) -> ConsumerGroupMember:
    """Start to revoke the topics that the member has just dropped, before there is a target without them."""
    unsubscribed = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in context.subscribed}
    if not unsubscribed or not _owns_any(context.owned, unsubscribed):
        return member
    assigned = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in unsubscribed}
    revoking = {**member.revoking}
    for topic_id, partitions in unsubscribed.items():
        revoking[topic_id] = {**revoking.get(topic_id, NO_PARTITIONS), **partitions}
    return replace(member, previous_epoch=member.epoch, state=_UNREVOKED, assigned=assigned, revoking=revoking)


def _target_partitions(context: ReconciliationContext, topic_id: UUID) -> tuple[int, ...]:
    return context.target.get(topic_id, ()) if topic_id in context.subscribed else ()


def _owns_any(owned: ReportedPartitions | None, partitions: PartitionEpochs) -> bool:
    """Whether the client owns any of these partitions. A heartbeat without a list leaves open which, so it counts as all."""
    if owned is None:
        return bool(partitions)
    return any(not owned[topic_id].isdisjoint(numbers) for topic_id, numbers in partitions.items() if topic_id in owned)


def _put_nonempty(into: dict[UUID, Mapping[int, int]], topic_id: UUID, partitions: Mapping[int, int]) -> None:
    if partitions:
        into[topic_id] = partitions
