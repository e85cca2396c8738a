"""Reconciliation: one member's next step towards the target assignment.

A pure function. Must not know requests, records or time. Invariants: no member gets a partition that another member owns; a
member's epoch does not move while it owns anything outside the target; it never moves past the target's.

A member moves from target to target in up to three steps, one for each of its heartbeats:

1. It owns partitions that the target gives to others. They move to ``revoking``, and it stays in its epoch until a heartbeat no
   longer lists them (UNREVOKED_PARTITIONS).
2. It reaches the epoch of the target and gets those of its new partitions that have no owner. Others may still be in step 1 with
   the rest (UNRELEASED_PARTITIONS).
3. Later heartbeats give it the rest, as the owners let go (STABLE).

Source: KIP-848, "Member epoch" and "Assignment reconciliation"; KIP-1251 for the epochs of single partitions. The same steps are in
``CurrentAssignmentBuilder`` of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from uuid import UUID

from ottla.assignors import Assignment
from ottla.coordinator.consumer.group import NO_PARTITIONS, ConsumerGroupMember, MemberState, PartitionEpochs

Owned = Mapping[UUID, Set[int]]
"""What a client says it has."""

_STABLE, _UNREVOKED, _UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS

TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    _STABLE: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
    _UNREVOKED: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
    _UNRELEASED: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
    MemberState.UNKNOWN: frozenset({_STABLE, _UNREVOKED, _UNRELEASED}),
}
"""Where one step may lead from a state."""


class UnknownStateError(Exception):
    """Only a newer broker would know what the member waits for; it must start again without partitions."""


@dataclass(frozen=True, slots=True)
class ReconciliationContext:
    """What a member's step depends on besides the member."""

    target_epoch: int
    target: Assignment
    subscribed: Set[UUID]
    """The topics of the member's present subscription. The target may be older than the subscription: then it names topics that the
    member has dropped since, and these are not given to it."""
    owners: PartitionEpochs
    """Every partition that a member owns."""
    owned: Owned | None = None
    """The partitions in its heartbeat; ``None`` where the heartbeat does not list any, since nothing has changed for the client."""
    resubscribed: bool = False
    """Whether this heartbeat changed the subscription."""


def reconcile(member: ConsumerGroupMember, context: ReconciliationContext) -> ConsumerGroupMember:
    """The member after one step: the very same object if there is none to take. Raises ``UnknownStateError``."""
    match member.state:
        case MemberState.STABLE if member.epoch == context.target_epoch:
            # A member that unsubscribes has reached the target and owns partitions of the topic that it dropped. The next target,
            # which takes them away, may be seconds off (``group.consumer.assignment.interval.ms``), so they are revoked now.
            return _without_unwanted(member, context) if context.resubscribed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if context.resubscribed:
                member = _without_unwanted(member, context)
            # A heartbeat that does not list partitions acknowledges nothing: it may have been sent before the client had learned
            # what to revoke. So ``None`` counts as "owns all of them".
            if _owns_any(context.owned, member.revoking):
                return member
        case MemberState.UNKNOWN:
            # Written by a newer broker, before a downgrade. Without partitions the member can take any step.
            if context.owned is None or any(context.owned.values()):
                raise UnknownStateError
    return _same_or(member, _next(member, context))


def _next(member: ConsumerGroupMember, context: ReconciliationContext) -> ConsumerGroupMember:
    """The step of a member that has revoked all that it had to."""
    kept: dict[UUID, Mapping[int, int]] = {}
    surplus: dict[UUID, Mapping[int, int]] = {}
    waits = False
    for topic_id, partitions in member.assigned.items():
        wanted = _target(context, topic_id)
        _put(kept, topic_id, {number: epoch for number, epoch in partitions.items() if number in wanted})
        _put(surplus, topic_id, {number: epoch for number, epoch in partitions.items() if number not in wanted})
    # A client that has lost the surplus already, since it began again for example, need not acknowledge the revocation.
    if surplus and _owns_any(context.owned, surplus):
        return replace(member, previous_epoch=member.epoch, state=_UNREVOKED, assigned=kept, revoking=surplus)
    for topic_id in context.target:
        has, others = kept.get(topic_id, NO_PARTITIONS), context.owners.get(topic_id, NO_PARTITIONS)
        own = (member.assigned.get(topic_id, NO_PARTITIONS), member.revoking.get(topic_id, NO_PARTITIONS))
        # A partition is free if it has no owner, or if the owner is this member itself: a newer target may give back to it what it
        # was revoking.
        missing = [number for number in _target(context, topic_id) if number not in has]
        free = [number for number in missing if number not in others or any(number in mine for mine in own)]
        waits = waits or len(free) < len(missing)
        if free:
            kept[topic_id] = {**has, **dict.fromkeys(free, context.target_epoch)}
    state = _UNRELEASED if waits else _STABLE
    return replace(member, epoch=context.target_epoch, previous_epoch=member.epoch, state=state, assigned=kept, revoking={})


def _without_unwanted(member: ConsumerGroupMember, context: ReconciliationContext) -> ConsumerGroupMember:
    """Topics that the member has just dropped are asked back at once, before there is a target that says so."""
    unwanted = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in context.subscribed}
    if not unwanted or not _owns_any(context.owned, unwanted):
        return member
    kept = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in unwanted}
    revoking = {**member.revoking}
    for topic_id, partitions in unwanted.items():
        revoking[topic_id] = {**revoking.get(topic_id, NO_PARTITIONS), **partitions}
    return replace(member, previous_epoch=member.epoch, state=_UNREVOKED, assigned=kept, revoking=revoking)


def _target(context: ReconciliationContext, topic_id: UUID) -> tuple[int, ...]:
    return context.target.get(topic_id, ()) if topic_id in context.subscribed else ()


def _owns_any(owned: Owned | None, partitions: PartitionEpochs) -> bool:
    """Whether the client has any of these. One that does not say may have all it was ever given."""
    if owned is None:
        return bool(partitions)
    return any(not owned[topic_id].isdisjoint(numbers) for topic_id, numbers in partitions.items() if topic_id in owned)


def _put(into: dict[UUID, Mapping[int, int]], topic_id: UUID, partitions: Mapping[int, int]) -> None:
    if partitions:
        into[topic_id] = partitions


def _same_or(member: ConsumerGroupMember, stepped: ConsumerGroupMember) -> ConsumerGroupMember:
    return member if stepped == member else stepped
