"""Whatever clients, time, logs and restarts do to classic groups, in any order: what must hold after each step."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from ottla.coordinator.classic.group import ClassicGroup, GroupState
from ottla.coordinator.effects import Append
from ottla.coordinator.events import OffsetCommitted
from ottla.coordinator.timers import join_timer, session_timer, sync_timer
from ottla.protocol import ErrorCode
from tests.property.coordinator.client import Client
from tests.unit.coordinator.harness import DELAYED, IMMEDIATE, Harness

GROUPS = st.sampled_from(["g", "h"])
PROTOCOLS = st.sampled_from([{"range": b"r", "sticky": b"s"}, {"range": b"R", "sticky": b"s"}, {"sticky": b"s", "range": b"r"}])
"""All know both: a loaded group knows of its members the protocol it had chosen, and takes no one who does not."""
LOG_ERRORS = st.sampled_from([ErrorCode.not_enough_replicas, ErrorCode.not_leader_or_follower, ErrorCode.message_too_large])
LONGEST_WAIT = 400_000
"""Longer than a rebalance timeout (300 s), a new member's wait (300 s) and some sessions (6 s)."""


class Groups(RuleBasedStateMachine):
    """Some clients that behave and some that do not, on one coordinator."""

    clients = Bundle("clients")

    @initialize(delay=st.sampled_from([0, 500]), limit=st.sampled_from([3, 1_000]))
    def begin(self, delay: int, limit: int) -> None:
        self.harness = Harness(group_initial_rebalance_delay_ms=delay, group_max_size=limit)
        self.crowd: list[Client] = []
        self.commits: dict[int, int] = {}
        self.memberships: dict[tuple[str, int], frozenset[str]] = {}
        self.seen: set[int] = set()

    # Clients.

    @rule(target=clients, group=GROUPS, instance=st.sampled_from([None, None, "i1", "i2"]), protocols=PROTOCOLS)
    def come(self, group: str, instance: str | None, protocols: dict[str, bytes]) -> Client:
        client = Client(self.harness, f"c{len(self.crowd)}", group, instance, protocols)
        self.crowd.append(client)
        client.step()
        return client

    @rule(client=clients, steps=st.integers(1, 4))
    def act(self, client: Client, steps: int) -> None:
        for _ in range(steps):
            client.step()

    @rule(steps=st.integers(1, 6))
    def all_act(self, steps: int) -> None:
        for _ in range(steps):
            for client in self.crowd:
                client.step()

    @rule()
    def all_act_for_long(self) -> None:
        self.all_act(20)

    @rule(client=clients)
    def lose_the_connection(self, client: Client) -> None:
        client.connection_lost()

    @rule(client=clients, protocols=PROTOCOLS)
    def join_again(self, client: Client, protocols: dict[str, bytes]) -> None:
        client.protocols = protocols
        client.send_join()

    @rule(client=clients)
    def restart_the_client(self, client: Client) -> None:
        client.forget()

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        client.send_leave()
        self.crowd = [one for one in self.crowd if one is not client]

    @rule(client=consumes(clients))
    def die(self, client: Client) -> None:
        self.crowd = [one for one in self.crowd if one is not client]

    @rule(client=clients, older=st.integers(0, 1), partition=st.integers(0, 4))
    def commit(self, client: Client, older: int, partition: int) -> None:
        offset, generation = len(self.commits), client.generation - older
        group = self.harness.coordinator.groups().get(client.group)
        ticket = self.harness.commit(
            {("orders", partition): offset}, client.member_id, generation, client.group, instance=client.instance
        )
        self.commits[ticket] = offset
        if group is not None and not self.harness.waits(ticket) and self._error(ticket) is ErrorCode.none:
            allowed = group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE)
            member = group.members.get(client.member_id)
            assert (allowed and member is not None and generation == group.generation) or (
                group.state is GroupState.EMPTY and generation < 0
            )

    @rule(group=GROUPS)
    def commit_as_administrator(self, group: str) -> None:
        offset = len(self.commits)
        self.commits[self.harness.commit({("orders", 0): offset}, group=group)] = offset

    @rule(group=GROUPS, member_id=st.sampled_from(["", "nobody"]), instance=st.sampled_from([None, "i1", "i9"]))
    def strangers(self, group: str, member_id: str, instance: str | None) -> None:
        self.harness.beat(member_id, 1, group, instance)
        self.harness.sync(member_id, 1, group=group, instance=instance)
        self.harness.leave((member_id, instance if member_id else None), group=group)

    @rule(groups=st.lists(GROUPS, unique=True))
    def delete(self, groups: list[str]) -> None:
        self.harness.delete(*groups)

    # Surroundings.

    @rule(milliseconds=st.sampled_from([0, 1, 400, 500, 3_000, 6_000, 60_000, 300_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.harness.sleep(milliseconds)

    @rule()
    def appends_take_long(self) -> None:
        self.harness.appends = DELAYED

    @rule(error=LOG_ERRORS)
    def the_next_append_fails(self, error: ErrorCode) -> None:
        def fail_once(append: Append) -> ErrorCode:
            self.harness.appends = IMMEDIATE
            return error

        self.harness.appends = fail_once

    @rule()
    def open_appends_succeed(self) -> None:
        self.harness.appends = IMMEDIATE
        self.harness.settle()

    @rule(error=LOG_ERRORS)
    def open_appends_fail(self, error: ErrorCode) -> None:
        durable = self.harness.coordinator.durable_state()
        self.harness.appends = DELAYED
        self.harness.settle(error=error)
        assert self.harness.coordinator.durable_state() == durable
        self.harness.appends = IMMEDIATE

    @rule()
    def the_broker_restarts(self) -> None:
        self.harness.appends = IMMEDIATE
        self.harness.restart()
        self.memberships.clear()
        for client in self.crowd:
            if client.waiting:
                client.connection_lost()

    @rule(group=GROUPS)
    def the_coordinator_moves_away_and_back(self, group: str) -> None:
        harness = self.harness
        partition = harness.coordinator.partition_for(group)
        harness.perform(harness.coordinator.unload(partition, harness.now))
        harness.open = {key: append for key, append in harness.open.items() if append.partition != partition}
        harness.perform(harness.coordinator.load(partition, harness.log[partition], harness.now))
        self.memberships.clear()

    @rule()
    def all_is_well_for_a_while(self) -> None:
        """With a log that works and clients that behave, every group becomes stable and every client gets its share."""
        self.harness.appends = IMMEDIATE
        self.harness.settle()
        latest = {(client.group, client.instance or client.name): client for client in self.crowd}
        self.crowd = list(latest.values())  # of two with one instance id the first is no use any more
        for _ in range(LONGEST_WAIT // 2_000):
            if all(self._has_settled(name) for name in ("g", "h")):
                return
            for client in self.crowd:
                client.step()
                client.step()
            self.harness.sleep(2_000)
        raise AssertionError(self.harness.coordinator.groups())

    def _has_settled(self, name: str) -> bool:
        clients = [client for client in self.crowd if client.group == name]
        group = self.harness.coordinator.groups().get(name)
        if not clients:
            return group is None or group.state is GroupState.EMPTY
        if group is None or group.state is not GroupState.STABLE:
            return False
        assigned = [client for client in clients if client.assignment is not None]
        return (
            len(group.members) == min(len(clients), self.harness.config.group_max_size)
            and {client.member_id for client in assigned} == group.members.keys()
            and {client.generation for client in assigned} == {group.generation}
        )

    def _error(self, ticket: int) -> ErrorCode:
        error = self.harness.answer(ticket).topics[0].partitions[0].error_code
        assert isinstance(error, ErrorCode)
        return error

    # What must hold.

    def _groups_at_rest(self) -> list[ClassicGroup]:
        busy = {partition for partition, _ in self.harness.open}
        groups = self.harness.coordinator.groups().values()
        return [group for group in groups if self.harness.coordinator.partition_for(group.group_id) not in busy]

    @invariant()
    def the_log_says_what_is(self) -> None:
        assert self.harness.replayed() == self.harness.coordinator.durable_state()

    @invariant()
    def compaction_changes_nothing(self) -> None:
        compacted = {partition: list(dict(records).items()) for partition, records in self.harness.log.items()}
        kept = self.harness.log
        self.harness.log = compacted
        replayed = self.harness.replayed()
        self.harness.log = kept
        assert replayed == self.harness.coordinator.durable_state()

    @invariant()
    def groups_are_consistent(self) -> None:
        for group in self.harness.coordinator.groups().values():
            members = group.members.values()
            assert (group.leader in group.members) if group.members else group.leader is None
            instances = [member.instance_id for member in members if member.instance_id is not None]
            assert len(instances) == len(set(instances))
            assert group.pending.isdisjoint(group.members)
            assert group.pending_sync <= group.members.keys()
            assert (group.state is GroupState.EMPTY) <= (not group.members)
            match group.state:
                case GroupState.STABLE:
                    assert all(member.assignment for member in members)
                case GroupState.COMPLETING_REBALANCE:
                    assert not any(member.assignment for member in members)
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                assert all(group.protocol in dict(member.protocols) for member in members)
                assert all(member.join is None for member in members)
            if group.state is not GroupState.COMPLETING_REBALANCE:
                assert all(member.sync is None for member in members)

    @invariant()
    def everybody_alive_has_one_timer(self) -> None:
        if not self.harness.open:
            assert self.harness.timers == self.harness.coordinator.armed_timers()
        for group in self._groups_at_rest():
            name = group.group_id
            expected = {session_timer(name, member_id) for member_id in (*group.members, *group.pending)}
            if group.state is GroupState.PREPARING_REBALANCE:
                expected.add(join_timer(name))
            if group.pending_sync:
                expected.add(sync_timer(name))
            assert {key for key in self.harness.timers if key[1] == name} == expected

    @invariant()
    def who_waits_is_known(self) -> None:
        """No answer is lost: what is not answered is parked in a group, unless an append is open."""
        waiting = self.harness.asked - self.harness.replies.keys()
        members = [member for group in self.harness.coordinator.groups().values() for member in group.members.values()]
        parked = [ticket for member in members for ticket in (member.join, member.sync) if ticket is not None]
        assert len(parked) == len(set(parked))
        assert waiting >= set(parked)
        if not self.harness.open:
            assert waiting == set(parked)

    @invariant()
    def answers_are_true(self) -> None:
        for ticket in self.harness.replies.keys() - self.seen:
            self.seen.add(ticket)
            answer = self.harness.replies[ticket]
            if ticket in self.commits:
                assert self._is_stored(self.commits[ticket]) == (self._error(ticket) is ErrorCode.none)
            elif getattr(answer, "members", ()) and hasattr(answer, "skip_assignment"):
                self._check_membership(answer)

    def _is_stored(self, offset: int) -> bool:
        return any(isinstance(event, OffsetCommitted) and event.value.offset == offset for event in self.harness.events())

    def _check_membership(self, answer: Any) -> None:
        """A generation has one membership, whoever is told and whenever; a static member counts by its instance id."""
        names = frozenset(member.group_instance_id or member.member_id for member in answer.members)
        known = self.memberships.setdefault((answer.leader, answer.generation_id), names)
        assert known == names

    def teardown(self) -> None:
        """Nobody waits for ever, and who is not heard of is gone in the end."""
        if not hasattr(self, "harness"):
            return
        self.harness.appends = IMMEDIATE
        self.harness.settle()
        self.harness.sleep(2 * LONGEST_WAIT)
        assert self.harness.asked == self.harness.replies.keys()
        assert self.harness.timers == {}
        assert {group.state for group in self.harness.coordinator.groups().values()} <= {GroupState.EMPTY}


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
