"""Clients of classic groups on one coordinator, as rules that hypothesis runs in any order; the oracle checks each step."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, initialize, rule

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from tests.property.coordinator.client import Client
from tests.property.coordinator.oracle import Oracle, commit_error
from tests.property.coordinator.with_log import PARTITIONS, PRODUCERS, WithLog
from tests.unit.coordinator.harness import IMMEDIATE, Harness, subscription

GROUPS = st.sampled_from(["g", "h"])
TOPICS = st.sampled_from(["orders", "bills"])
ORDERS, BOTH = subscription("orders"), subscription("orders", "bills")
PROTOCOLS = st.sampled_from(
    [{"range": ORDERS, "sticky": b"s"}, {"range": BOTH, "sticky": ORDERS}, {"sticky": ORDERS, "range": BOTH}]
)
"""All know both: a loaded group knows of its members the protocol it had chosen, and takes no one who does not."""
RETENTION = 100_000
LONGEST_WAIT = 400_000
"""Longer than a rebalance timeout (300 s), a new member's wait (300 s) and some sessions (6 s)."""


class Groups(WithLog):
    """Well-behaved and other clients on one coordinator."""

    clients = Bundle("clients")

    @initialize(delay=st.sampled_from([0, 500]), limit=st.sampled_from([3, 1_000]))
    def begin(self, delay: int, limit: int) -> None:
        self.harness = Harness(
            group_initial_rebalance_delay_ms=delay,
            group_max_size=limit,
            offsets_retention_ms=RETENTION,
            offsets_retention_check_interval_ms=RETENTION // 4,
        )
        self.crowd: list[Client] = []
        self.oracle = Oracle(self.harness)

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

    @rule(client=clients, older=st.integers(0, 1), partition=PARTITIONS)
    def commit(self, client: Client, older: int, partition: TopicPartition) -> None:
        generation = client.generation - older
        group = self.harness.coordinator.groups().get(client.group)
        ticket = self.commit_offset(
            partition, client.group, member_id=client.member_id, generation=generation, instance=client.instance
        )
        if (
            isinstance(group, ClassicGroup)
            and not self.harness.waits(ticket)
            and commit_error(self.harness.answer(ticket)) is ErrorCode.none
        ):
            allowed = group.state in (ClassicGroupState.STABLE, ClassicGroupState.PREPARING_REBALANCE)
            member = group.members.get(client.member_id)
            assert (allowed and member is not None and generation == group.generation) or (
                group.state is ClassicGroupState.EMPTY and generation < 0
            )

    @rule(group=GROUPS, partition=PARTITIONS)
    def commit_as_administrator(self, group: str, partition: TopicPartition) -> None:
        self.commit_offset(partition, group)

    @rule(client=clients, older=st.integers(0, 1), partition=PARTITIONS, producer_id=PRODUCERS)
    def commit_in_a_transaction(self, client: Client, older: int, partition: TopicPartition, producer_id: int) -> None:
        who = {"member_id": client.member_id, "generation": client.generation - older, "instance": client.instance}
        self.commit_in_transaction(producer_id, partition, client.group, **who)

    @rule(group=GROUPS, partition=PARTITIONS)
    def delete_an_offset(self, group: str, partition: TopicPartition) -> None:
        self.oracle.log.removals.add((group, partition))
        self.harness.delete_offsets((partition.topic, partition.partition), group=group)

    @rule(groups=st.lists(GROUPS, unique=True))
    def delete(self, groups: list[str]) -> None:
        self.delete_groups(groups)

    @rule(group=GROUPS, member_id=st.sampled_from(["", "nobody"]), instance=st.sampled_from([None, "i1", "i9"]))
    def strangers(self, group: str, member_id: str, instance: str | None) -> None:
        self.harness.beat(member_id, 1, group, instance)
        self.harness.sync(member_id, 1, group=group, instance=instance)
        self.harness.leave((member_id, instance if member_id else None), group=group)

    # Topics, time and restarts.

    @rule(topic=TOPICS, partitions=st.sampled_from([0, 0, 2, 4]))
    def topics_change(self, topic: str, partitions: int) -> None:
        """Delete a topic, recreate it, or add partitions."""
        count = self.harness.topics.counts.get(topic, 0)
        if partitions == 0 or count < partitions:
            self.harness.topics.generations[topic] += not count
            self.harness.change_topics(**{topic: partitions})

    @rule(milliseconds=st.sampled_from([0, 1, 400, 500, 3_000, 6_000, 60_000, 300_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.harness.sleep(milliseconds)

    @rule()
    def the_broker_restarts(self) -> None:
        self.restart()
        for client in self.crowd:
            if client.waiting:
                client.connection_lost()

    @rule(group=GROUPS)
    def the_coordinator_moves_away_and_back(self, group: str) -> None:
        self.move_away_and_back(group)

    @rule()
    def settle_all_groups(self) -> None:
        """With a working log and well-behaved clients, every group becomes stable and every client gets a share."""
        self.harness.appends = IMMEDIATE
        self.harness.settle()
        latest = {(client.group, client.instance or client.name): client for client in self.crowd}
        self.crowd = list(latest.values())  # the first of two clients with one instance id is fenced
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
            return group is None or group.state is ClassicGroupState.EMPTY
        if group is None or group.state is not ClassicGroupState.STABLE:
            return False
        assigned = [client for client in clients if client.assignment is not None]
        return (
            len(group.members) == min(len(clients), self.harness.config.group_max_size)
            and {client.member_id for client in assigned} == group.members.keys()
            and {client.generation for client in assigned} == {group.generation}
        )
