"""Invariants of groups with members of both protocols, which are converted from one to the other and back."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, initialize, rule

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.coordinator.consumer.group import ConsumerGroupState
from tests.example_counts import examples
from tests.property.coordinator.classic_groups import BOTH, GROUPS, ORDERS, RETENTION, Groups
from tests.property.coordinator.client import ReadingClient
from tests.property.coordinator.consumer_client import ConsumerClient
from tests.property.coordinator.oracle import Oracle, Reading
from tests.property.coordinator.with_consumers import SUBSCRIPTIONS, WithConsumers
from tests.unit.coordinator.harness import IMMEDIATE, Harness

PROTOCOLS = st.sampled_from(
    [{"range": ORDERS, "sticky": ORDERS}, {"range": BOTH, "sticky": BOTH}, {"sticky": BOTH, "range": ORDERS}]
)
INSTANCES = st.sampled_from([None, None, None, "i1", "i2"])
POLICIES = st.sampled_from(["bidirectional", "bidirectional", "bidirectional", "upgrade", "downgrade", "disabled"])


class MixedGroups(Groups, WithConsumers):
    """The rules of classic groups, with members of the consumer protocol in them, and transactions of both."""

    clients = Bundle("clients")
    consumers = Bundle("consumers")

    @initialize(delay=st.sampled_from([0, 500]), limit=st.sampled_from([3, 1_000]), policy=POLICIES)
    def begin(self, delay: int, limit: int, policy: str = "bidirectional") -> None:
        self.harness = Harness(
            group_initial_rebalance_delay_ms=delay,
            group_max_size=limit,
            group_consumer_migration_policy=policy,
            offsets_retention_ms=RETENTION,
            offsets_retention_check_interval_ms=RETENTION // 4,
        )
        self.crowd: list[Any] = []
        self.others: list[ConsumerClient] = []
        self.oracle = Oracle(self.harness, self.readings)

    def readings(self) -> list[Reading]:
        """The partitions that clients of either protocol read."""
        classic = [Reading(one.group, one.member_id, one.reads()) for one in self.crowd if one.assignment]
        return classic + super().readings()

    @rule(target=clients, group=GROUPS, instance=INSTANCES, protocols=PROTOCOLS)
    def come(self, group: str, instance: str | None, protocols: dict[str, bytes]) -> ReadingClient:
        client = ReadingClient(self.harness, f"c{len(self.crowd)}", group, instance, protocols)
        self.crowd.append(client)
        client.step()
        return client

    @rule(client=clients, protocols=PROTOCOLS)
    def join_again(self, client: ReadingClient, protocols: dict[str, bytes]) -> None:
        client.protocols = protocols
        client.send_join()

    @rule(target=consumers, group=GROUPS, instance=INSTANCES, subscription=st.sampled_from(SUBSCRIPTIONS))
    def a_consumer_comes(self, group: str, instance: str | None, subscription: dict[str, Any]) -> ConsumerClient:
        return self.consumer_comes(group, instance, subscription)

    @rule(steps=st.integers(1, 12))
    def all_clients_step(self, steps: int) -> None:
        for _ in range(steps):
            for client in (*self.crowd, *self.others):
                client.step()

    @rule(topic=st.sampled_from(["orders", "bills"]), partitions=st.sampled_from([0, 0, 2, 4]))
    def topics_change(self, topic: str, partitions: int) -> None:
        super().topics_change(topic, partitions)
        if not partitions:
            self.topic_is_gone(topic)

    @rule()
    def settle_all_groups(self) -> None:
        """Every group settles in one protocol, and each subscribed partition has an owner."""
        self.harness.appends = IMMEDIATE
        self.harness.settle()
        latest = {(client.group, client.instance or client.name): client for client in self.crowd}
        self.crowd = list(latest.values())
        for rival in self.others:  # two processes with one instance id would fence each other for ever
            if (rival.group, rival.instance) in latest:
                rival.vanish()
            rival.slow = False
        for _ in range(250):
            if all(self._has_settled(name) for name in ("g", "h")):
                return
            for _ in range(2):
                for client in (*self.crowd, *self.others):
                    client.step()
            self.harness.run_jobs()
            self.harness.sleep(2_000)
        raise AssertionError(self.harness.coordinator.groups())

    def _has_settled(self, name: str) -> bool:
        classic = {one.member_id: one for one in self.crowd if one.group == name}
        others = {one.member_id: one for one in self.others if one.group == name and not one.is_gone}
        group = self.harness.coordinator.groups().get(name)
        if group is None or not group.members:
            return not classic and not others
        if isinstance(group, ClassicGroup):
            kept_out = self.harness.config.group_consumer_migration_policy in ("downgrade", "disabled")
            is_full = len(group.members) == min(len(classic), self.harness.config.group_max_size)
            return group.state is ClassicGroupState.STABLE and (kept_out or not others) and is_full
        if group.state is not ConsumerGroupState.STABLE or group.image_version != self.harness.topics.version:
            return False
        return (
            group.members.keys() == classic.keys() | others.keys()
            and all(one.assignment is not None and one.generation == group.members[name].epoch for name, one in classic.items())
            and not any(one.waiting for one in others.values())
        )


TestMixedGroups = MixedGroups.TestCase
TestMixedGroups.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
