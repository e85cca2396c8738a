"""What has to hold of the group that a coordinator keeps, after each request.

Owns the invariants of classic groups and of consumer groups; ``central_rules`` has those of central groups. Must not know members,
faults or commits. Invariant: it only looks.

- A partition is owned by one member, also while another one still has to revoke it.
- In a consumer group, member epoch <= assignment epoch <= group epoch; the last two never go back.
- In a classic group a stored generation never goes back; the leader is a member; all members support the assignor; only a join
  phase parks JoinGroup requests, and only a sync phase SyncGroup requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.coordinator.consumer.group import LEAVE_GROUP_STATIC_EPOCH, ConsumerGroup, MemberState
from ottla.coordinator.state import Group


class GroupRules:
    """See the module."""

    def __init__(self) -> None:
        self.group: Group | None = None
        """The group as it was when it was last looked at."""

    def look(self, group: Group | None) -> str | None:
        """Return what is wrong with the group as it is now, ``None`` if nothing is."""
        if group is self.group:
            return None
        before, self.group = self.group, group
        match group:
            case ConsumerGroup():
                problems = consumer_problems(group, before if isinstance(before, ConsumerGroup) else None)
            case ClassicGroup():
                problems = classic_problems(group, before if isinstance(before, ClassicGroup) else None)
            case None:
                return None
        return next(problems, None)


def consumer_problems(group: ConsumerGroup, before: ConsumerGroup | None) -> Iterator[str]:
    """Yield what is wrong with a consumer group."""
    owners: dict[tuple[UUID, int], str] = {}
    for member in group.members.values():
        for topic_id, numbers in member.owned_partitions():
            for number in numbers:
                other = owners.setdefault((topic_id, number), member.member_id)
                if other != member.member_id:
                    yield f"partition {number} of {topic_id} is owned by {other} and by {member.member_id}"
        if member.epoch == LEAVE_GROUP_STATIC_EPOCH:  # it is away, and keeps its state but not what it revoked
            continue
        if member.epoch > group.assignment_epoch:
            yield f"the epoch of {member.member_id} is {member.epoch}, that of the assignment {group.assignment_epoch}"
        if (member.state is MemberState.UNREVOKED_PARTITIONS) is not bool(member.revoking):
            yield f"{member.member_id} is {member.state.name} and revokes {dict(member.revoking)}"
    if owners.keys() != {(topic_id, number) for topic_id, numbers in group.owners.items() for number in numbers}:
        yield "the index of owners is not what the members own"
    if group.assignment_epoch > group.epoch:
        yield f"the assignment epoch is {group.assignment_epoch}, the group epoch {group.epoch}"
    if before is not None and (group.epoch < before.epoch or group.assignment_epoch < before.assignment_epoch):
        yield f"epochs {before.epoch} and {before.assignment_epoch} went back to {group.epoch} and {group.assignment_epoch}"


def classic_problems(group: ClassicGroup, before: ClassicGroup | None) -> Iterator[str]:
    """Yield what is wrong with a classic group."""
    members = group.members.values()
    if (group.leader in group.members) is not bool(members):
        yield f"the leader is {group.leader}, the members are {sorted(group.members)}"
    has_protocol = group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE)
    if has_protocol and not all(group.protocol in dict(member.protocols) for member in members):
        yield f"not all members support {group.protocol}"
    if group.state is ClassicGroupState.STABLE and not all(member.assignment for member in members):
        yield "the group is stable, and a member has no assignment"
    if group.state is not ClassicGroupState.PREPARING_REBALANCE and any(member.join is not None for member in members):
        yield f"a JoinGroup is parked in {group.state.value}"
    if group.state is not ClassicGroupState.COMPLETING_REBALANCE and any(member.sync is not None for member in members):
        yield f"a SyncGroup is parked in {group.state.value}"
    # A generation that was not written yet is forgotten when the coordinator loads the group again.
    if before is not None and before.stored is not None and group.generation < before.stored.generation:
        yield f"generation {before.stored.generation} went back to {group.generation}"
