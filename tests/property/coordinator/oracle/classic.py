"""Invariants of classic groups.

Owns the valid states of a group's members, generations and parked requests. Must not know how they arose. Invariant:
reads, and changes nothing.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from tests.property.coordinator.oracle.log import LogOfGroups
from tests.unit.coordinator.harness import Harness


class ClassicGroups:
    """The classic groups of one harness."""

    def __init__(self, harness: Harness, log: LogOfGroups) -> None:
        self.harness = harness
        self.log = log
        self._generations: dict[str, tuple[int, int]] = {}

    def forget(self) -> None:
        """Forget the generations that are not in the log, which another coordinator does not know."""
        self._generations.clear()

    def groups(self) -> list[ClassicGroup]:
        """The groups."""
        return [group for group in self.harness.coordinator.groups().values() if isinstance(group, ClassicGroup)]

    def members_match_their_group(self) -> None:
        """The leader is a member, all members support the protocol, and a group without members is empty."""
        for group in self.groups():
            members = group.members.values()
            assert all(member_id == member.member_id for member_id, member in group.members.items())
            assert (group.leader in group.members) if group.members else group.leader is None
            assert (group.state is ClassicGroupState.EMPTY) <= (not group.members)
            assert group.state is not ClassicGroupState.DEAD
            assert group.pending.isdisjoint(group.members)
            if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
                assert members
                assert all(group.protocol in dict(member.protocols) for member in members)

    def instances_are_members(self) -> None:
        """An instance is one member, and a member at most one instance."""
        for group in self.groups():
            instances = [member.instance_id for member in group.members.values() if member.instance_id is not None]
            assert len(instances) == len(set(instances))

    def stable_members_have_assignments(self) -> None:
        """Each member of a stable group has an assignment."""
        for group in self.groups():
            assert group.state is not ClassicGroupState.STABLE or all(member.assignment for member in group.members.values())

    def parked_requests_match_the_state(self) -> None:
        """JoinGroups are parked in the join phase, SyncGroups in the sync phase, and only for the members that sent them."""
        for group in self.groups():
            members = group.members.values()
            assert group.pending_sync <= group.members.keys()
            if group.state is not ClassicGroupState.PREPARING_REBALANCE:
                assert all(member.join is None for member in members)
            if group.state is not ClassicGroupState.COMPLETING_REBALANCE:
                assert all(member.sync is None for member in members)
            assert all(member.member_id not in group.pending_sync for member in members if member.sync is not None)

    def generations_never_decrease(self) -> None:
        """The generation of a group never decreases while the group exists."""
        self.log.read_on()
        generations = {group.group_id: (self.log.deletions[group.group_id], group.generation) for group in self.groups()}
        for name, (deletions, generation) in self._generations.items():
            if generations.get(name, (-1, 0))[0] == deletions:
                assert generations[name][1] >= generation
        self._generations = generations
