"""Invariants of central groups under any order of frames, time, changes of topics, failed appends and elections."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.coordinator.central.flag import RebalanceFlag
from ottla.coordinator.central.states import CentralGroupState
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from tests.example_counts import examples
from tests.property.coordinator.central_members import CLOSED, SESSION, Consumer, Network
from tests.unit.coordinator.central.harness import DELAYED, IMMEDIATE, Topics, code_of, failing

MEMBERS = st.sampled_from(["a", "a'", "b", "c", "d"])
"""``a'`` is another process with the member id ``a``."""
SUBSCRIPTIONS = st.sampled_from([{"orders": 1}, {"orders": 1, "bills": 1}, {"missing": 1}])
APPENDS = {
    "stored": IMMEDIATE,
    "open": DELAYED,
    "failing": failing(ErrorCode.request_timed_out),
    "deposed": failing(ErrorCode.not_coordinator),
}


class CentralGroups(RuleBasedStateMachine):
    """Consumers of one group, on one coordinator after the other."""

    @initialize(retries=st.sampled_from([1, 4]))
    def begin(self, retries: int) -> None:
        self.network = Network(topics=Topics({"orders": 3, "bills": 2}), rebalance_max_retries=retries)
        self.highest = 0
        self.commits: dict[int, tuple[str, int, int]] = {}
        """Ticket -> member, generation and offset of a commit without a response."""
        self.offset = 0
        self.committed: set[bytes | None] = {None}
        """What the offset may be; several while outcomes are unknown."""

    # Members and their frames.

    @rule(member=MEMBERS, topics=SUBSCRIPTIONS)
    def come(self, member: str, topics: dict[str, int]) -> None:
        consumer = self.network.consumers.setdefault(member, Consumer(member.rstrip("'"), topics, member))
        if consumer.connection is None:
            consumer.topics = topics
            self.network.consume(consumer)
            self.network.arrive(consumer)

    @rule(member=MEMBERS)
    def come_early(self, member: str) -> None:
        if member in self.network.consumers:
            self.network.consume_early(self.network.consumers[member])

    @rule(member=MEMBERS, frames=st.integers(1, 3))
    def frames_arrive(self, member: str, frames: int) -> None:
        if member in self.network.consumers:
            for _ in range(frames):
                self.network.arrive(self.network.consumers[member])

    @rule(member=MEMBERS, frames=st.integers(1, 4))
    def member_reads(self, member: str, frames: int) -> None:
        if member in self.network.consumers:
            for _ in range(frames):
                self.network.read(self.network.consumers[member])

    @rule(member=MEMBERS)
    def application_stops(self, member: str) -> None:
        if member in self.network.consumers:
            self.network.stop(self.network.consumers[member])

    @rule(members=st.lists(MEMBERS, unique=True))
    def members_obey(self, members: list[str]) -> None:
        self.obey([one for name, one in self.network.consumers.items() if name in members])

    @rule(member=MEMBERS)
    def connection_breaks(self, member: str) -> None:
        if member in self.network.consumers:
            self.network.break_connection(self.network.consumers[member])

    @rule(place=st.integers(0, 3))
    def old_frames_arrive(self, place: int) -> None:
        broken = self.network.broken()
        if place < len(broken):
            self.network.arrive_on(broken[place])

    @rule(member=MEMBERS)
    def member_leaves(self, member: str) -> None:
        if member in self.network.consumers:
            self.network.leave_group(self.network.consumers[member])

    # Commits.

    @rule(member=st.one_of(MEMBERS, st.sampled_from(["x", ""])), back=st.sampled_from([0, 0, 1, -1]))
    def commit(self, member: str, back: int) -> None:
        consumer = self.network.consumers.get(member)
        generation = consumer.generation if consumer is not None else self.highest
        generation = -1 if member == "" else generation - back
        self.offset += 1
        member = member.rstrip("'")
        ticket = self.network.commit(member, generation, self.offset, orders=0)
        self.commits[ticket] = (member, generation, self.offset)
        self.judge_commits()

    def judge_commits(self) -> None:
        """An accepted commit comes from a member, with the present generation, or has none; it is the offset from now on."""
        for ticket in [ticket for ticket in self.commits if ticket in self.network.replies]:
            member, generation, offset = self.commits.pop(ticket)
            code = code_of(self.network.replies[ticket])
            if code is ErrorCode.none:
                assert generation < 0 or member in {one.member_id for one in self.network.consumers.values()}
                assert generation < 0 or generation == self.network.generation_at[ticket]
                self.committed = {str(offset).encode()}
            elif code is ErrorCode.not_coordinator and "g" not in self.network.coordinator.groups():
                self.committed.add(str(offset).encode())

    # Time, topics, what is stored, and elections.

    @rule(milliseconds=st.sampled_from([0, 500, 1_500, 3_000, 3_000, 9_000, 20_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.network.sleep(milliseconds)

    @rule(topic=st.sampled_from(["orders", "bills"]), partitions=st.sampled_from([0, 2, 3, 5]))
    def topics_change(self, topic: str, partitions: int) -> None:
        if partitions and partitions < self.network.topics.counts.get(topic, 0):
            return
        self.network.change_topics(**{topic: partitions})
        if topic == "orders" and not partitions:
            self.committed.add(None)

    @rule(how=st.sampled_from(sorted(APPENDS)))
    def appends_are(self, how: str) -> None:
        self.network.appends = APPENDS[how]

    @rule(error=st.sampled_from([ErrorCode.none, ErrorCode.none, ErrorCode.request_timed_out]))
    def append_ends(self, error: ErrorCode) -> None:
        if self.network.open:
            self.network.settle(min(self.network.open), error)
        self.judge_commits()

    @rule(written=st.sampled_from([0, 1, 3, 99]), crash=st.booleans())
    def another_is_elected(self, written: int, crash: bool) -> None:
        for append in self.network.open.values():
            self.committed |= {value for key, value in append.records if b"/offsets/orders/0" in key}
        self.commits.clear()
        self.network.replace_coordinator(written, crash=crash)
        self.committed = {self.network.nodes.get("g/offsets/orders/0")}

    # What must be true.

    @invariant()
    def nothing_forbidden_has_happened(self) -> None:
        self.judge_commits()
        assert self.network.problems == []

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        readers = Counter(
            partition for consumer in self.network.consumers.values() for partition in consumer.may_read(self.network.mono)
        )
        assert all(count == 1 for count in readers.values()), readers

    @invariant()
    def the_generation_never_goes_back(self) -> None:
        generation = self.network.node().generation if "g/generation" in self.network.nodes else 0
        assert generation >= self.highest
        self.highest = generation

    @invariant()
    def offsets_change_only_by_accepted_commits(self) -> None:
        if not self.network.open:
            assert self.network.nodes.get("g/offsets/orders/0") in self.committed

    @invariant()
    def the_state_is_what_is_stored(self) -> None:
        if self.network.open:
            return
        found = {one.group_id: one for one in self.network.stored_groups()}
        groups = self.network.coordinator.groups()
        assert found.keys() == groups.keys()
        for group_id, group in groups.items():
            one = found[group_id]
            assert (one.generation, one.session_timeout_ms) == (group.generation, group.session_timeout_ms)
            assert (one.epoch, one.processes) == (group.epoch, group.processes)
            assert {partition: str(owner) for partition, owner in group.owners.items()} == one.owners
            stored, outdated = self.network.stored_offsets(group_id), self.network.outdated(group_id)
            offsets = self.network.coordinator.offsets(group_id)
            assert offsets == {partition: stored[partition] for partition in stored.keys() - outdated}

    @invariant()
    def each_member_has_its_timers(self) -> None:
        if "g" not in self.network.coordinator.groups():
            return
        group, timers = self.network.group(), self.network.coordinator.armed_timers()
        sessions = {key[3] for key in timers if key[2] == "session"}
        assert sessions == group.members.keys() | group.leases or self.network.open
        assert {key[3] for key in timers if key[2] == "answer"} <= group.members.keys() or self.network.open
        assert timers.keys() <= self.network.timers.keys() or self.network.open, "the shell knows all timers"

    @invariant()
    def the_indexes_are_what_the_members_say(self) -> None:
        served = self.network.coordinator._runtime.served(0)
        assert served is not None
        state = served.shard.state
        topics: dict[str, set[str]] = {}
        for group_id, group in state.groups().items():
            for member in group.members.values():
                for topic in member.topics:
                    topics.setdefault(topic, set()).add(group_id)
        assert {topic: set(groups) for topic, groups in state.consumer_groups_per_topic.items()} == topics
        channels = {member.connection for group in state.groups().values() for member in group.members.values()}
        assert set(state.channels()) == channels - {None}

    # The end.

    def obey(self, consumers: list[Consumer]) -> None:
        """Let members do all that they are asked, with a network without delay."""
        for _ in range(200):
            before = len(self.network.trace)
            for consumer in consumers:
                self.network.arrive(consumer)
                self.network.read(consumer)
                self.network.stop(consumer)
            used = [one.connection for one in consumers if one.connection is not None and one.connection not in self.network.early]
            idle = not any(connection.up or connection.down for connection in used)
            if idle and len(self.network.trace) == before:
                return
        raise AssertionError("it does not end")

    def teardown(self) -> None:
        """Every history that becomes quiet ends with all partitions of the members' topics read."""
        network = self.network
        network.appends = IMMEDIATE
        for connection in network.early:
            connection.down.append(CLOSED)
        for _ in range(40):
            network.settle()
            for connection in network.broken():
                for _ in range(len(connection.up)):
                    network.arrive_on(connection)
            for consumer in network.consumers.values():
                network.end_lease(consumer)
                if consumer.wants:
                    network.consume(consumer)
            self.obey(list(network.consumers.values()))
            self.nothing_forbidden_has_happened()
            self.no_partition_is_read_twice()
            network.sleep(SESSION // 6)
        assert network.asked == network.replies.keys() | network.silent, "a request has no answer"
        if "g" not in network.coordinator.groups():
            return
        members = {consumer.member_id for consumer in network.consumers.values() if consumer.wants}
        group = network.group()
        assert group.members.keys() == members
        assert not group.leases
        assert group.flag is RebalanceFlag.IDLE
        assert group.state is (CentralGroupState.STABLE if members else CentralGroupState.EMPTY)
        read: dict[TopicPartition, str] = {
            partition: one.member_id for one in network.consumers.values() for partition in one.may_read(network.mono)
        }
        assert read == {partition: owner.member_id for partition, owner in network.computed().items()}
        assert {f"g/owners/{topic}/{n}" for topic, n in read} == {path for path in network.nodes if "/owners/" in path}
        assert network.node().members == len(members) or group.state is CentralGroupState.STABLE
        before = len(network.trace)
        network.sleep(SESSION // 3)
        self.obey(list(network.consumers.values()))
        assert not [effect for effect in network.trace[before:] if type(effect).__name__ == "Append"], "it is quiet"


TestCentralGroups = CentralGroups.TestCase
TestCentralGroups.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
