"""Invariants of timers: exactly the live members have them, and none has an effect before its time.

Owns the timers that a state needs. Must not know their effects. Invariant: reads, and changes nothing but in ``report_early``.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.coordinator.consumer.group import LEAVE_GROUP_STATIC_EPOCH, ConsumerGroup, MemberState
from ottla.coordinator.decision import join_timer, rebalance_timer, rejoin_timer, resync_timer, run_timer, session_timer, sync_timer
from ottla.coordinator.effects import SetTimer, TimerKey
from tests.unit.coordinator.harness import Harness

CHORES = ("expire", "forget")
"""Work that is tried again, and belongs to no member."""


class ArmedTimers:
    """The timers of one harness."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._ever: dict[TimerKey, None] = {}
        self._seen = 0

    def live_members_have_one_session_timer(self) -> None:
        """Exactly the live members have one session timer each."""
        for group in self._at_rest():
            pending = group.pending if isinstance(group, ClassicGroup) else ()
            expected = {session_timer(group.group_id, member_id) for member_id in (*group.members, *pending)}
            assert {key for key in self._of(group) if key[2] == "session"} == expected

    def rounds_and_members_have_their_timers(self) -> None:
        """A phase of a classic round has a timer, a revoking member has a deadline, and nothing else has any."""
        for group in self._at_rest():
            needed, possible = self._needed(group), set[TimerKey]()
            if isinstance(group, ConsumerGroup):
                for member_id, member in group.members.items():
                    if member.uses_classic_protocol:
                        possible |= {rejoin_timer(group.group_id, member_id), resync_timer(group.group_id, member_id)}
            armed = {key for key in self._of(group) if key[2] != "session"}
            assert needed <= armed <= needed | possible

    def the_shell_has_its_timers_in_time(self) -> None:
        """The shell's timer may be earlier than the coordinator's deadline, never later; no timer is left over."""
        if not self.harness.open:
            assert self.harness.timers.keys() >= self.harness.deadlines.keys()
            assert all(self.harness.timers[key] <= at for key, at in self.harness.deadlines.items()), "one is reported late"
        there = self.harness.coordinator.groups()
        assert all(key[1] in there or key[2] in CHORES for key in self.harness.deadlines)

    def report_early(self, number: int) -> None:
        """Report one of all timers that ever existed, unless it is due."""
        for effect in self.harness.trace[self._seen :]:
            if isinstance(effect, SetTimer) and isinstance(effect.key[1], str):
                self._ever[effect.key] = None
        self._seen = len(self.harness.trace)
        early = [key for key in self._ever if self.harness.deadlines.get(key, self.harness.mono + 1) > self.harness.mono]
        if not early:
            return
        key = early[number % len(early)]
        before = (self.harness.coordinator.groups(), self.harness.deadlines, len(self.harness.replies), dict(self.harness.open))
        self.harness.all_timers.pop(key, None)
        self.harness.tell("on_timer", key)
        after = (self.harness.coordinator.groups(), self.harness.deadlines, len(self.harness.replies), dict(self.harness.open))
        assert after == before

    def _of(self, group: ClassicGroup | ConsumerGroup) -> set[TimerKey]:
        return {key for key in self.harness.deadlines if key[1] == group.group_id and key[2] not in CHORES}

    def _needed(self, group: ClassicGroup | ConsumerGroup) -> set[TimerKey]:
        name = group.group_id
        if isinstance(group, ClassicGroup):
            in_join_phase = group.state is ClassicGroupState.PREPARING_REBALANCE
            return ({join_timer(name)} if in_join_phase else set()) | ({sync_timer(name)} if group.pending_sync else set())
        needed = {
            rebalance_timer(name, member_id)
            for member_id, member in group.members.items()
            if not member.uses_classic_protocol
            and member.state is MemberState.UNREVOKED_PARTITIONS
            and member.epoch != LEAVE_GROUP_STATIC_EPOCH
        }
        return needed | ({run_timer(name, group.client.run.member_id)} if group.client.run is not None else set())

    def _at_rest(self) -> list[ClassicGroup | ConsumerGroup]:
        """Groups that no open append can change."""
        busy = {partition for partition, _ in self.harness.open}
        groups = self.harness.coordinator.groups().values()
        return [group for group in groups if self.harness.coordinator.partition_for(group.group_id) not in busy]
