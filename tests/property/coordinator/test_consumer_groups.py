"""Invariants of consumer groups under any order of requests, time, topic changes, log failures and restarts."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, initialize, rule

from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerGroupState
from tests.example_counts import examples
from tests.property.coordinator.consumer_client import ConsumerClient
from tests.property.coordinator.oracle import Oracle
from tests.property.coordinator.with_consumers import OWN_ASSIGNORS, SUBSCRIPTIONS, WithConsumers
from tests.unit.coordinator.harness import IMMEDIATE, Harness

GROUPS = st.sampled_from(["c", "d"])


class ConsumerGroups(WithConsumers):
    """Members of two groups, on one coordinator."""

    consumers = Bundle("consumers")

    @initialize(interval=st.sampled_from([0, 0, 1_000]), limit=st.sampled_from([3, 1_000]), client_side=st.booleans())
    def begin(self, interval: int, limit: int, client_side: bool) -> None:
        self.harness = Harness(
            group_consumer_assignment_interval_ms=interval,
            group_consumer_max_size=limit,
            group_consumer_client_assignors_enable=client_side,
        )
        self.others: list[ConsumerClient] = []
        self.oracle = Oracle(self.harness, self.readings)

    # Members.

    @rule(
        target=consumers,
        group=GROUPS,
        instance=st.sampled_from([None, None, "i1", "i2"]),
        subscription=st.sampled_from(SUBSCRIPTIONS + OWN_ASSIGNORS),
    )
    def come(self, group: str, instance: str | None, subscription: dict[str, Any]) -> ConsumerClient:
        return self.consumer_comes(group, instance, subscription)

    @rule(group=GROUPS, member_id=st.sampled_from(["", "m0.0", "nobody"]), epoch=st.integers(-3, 6), owned=st.booleans())
    def strangers(self, group: str, member_id: str, epoch: int, owned: bool) -> None:
        known = self.harness.coordinator.groups().get(group)
        if epoch > 0 and known is not None and member_id in known.members:
            return  # that is the member itself
        if epoch < 1 and known is not None and member_id in known.members:
            return
        if epoch == 0 and member_id != "":
            return
        self.harness.cg_beat(member_id, epoch, group=group, owned={"orders": [0]} if owned else None)

    @rule(client=consumers, error=st.integers(0, 1))
    def compute_unasked(self, client: ConsumerClient, error: int) -> None:
        client.compute(error)

    @rule(groups=st.lists(GROUPS, unique=True))
    def delete(self, groups: list[str]) -> None:
        self.delete_groups(groups)

    @rule(group=GROUPS)
    def a_classic_member_comes_by(self, group: str) -> None:
        known = self.harness.coordinator.groups().get(group)
        if not isinstance(known, ConsumerGroup) or known.members:
            self.harness.join(group=group)

    # Topics, time and restarts.

    @rule(topic=st.sampled_from(["orders", "bills", "other"]), partitions=st.sampled_from([0, 1, 4, 6]))
    def topics_change(self, topic: str, partitions: int) -> None:
        if partitions and partitions < self.harness.topics.counts.get(topic, 0):
            return
        self.harness.change_topics(**{topic: partitions})
        if not partitions:
            self.topic_is_gone(topic)

    @rule(milliseconds=st.sampled_from([0, 1, 500, 1_000, 10_000, 20_000, 45_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.harness.sleep(milliseconds)

    @rule()
    def the_broker_restarts(self) -> None:
        self.restart()

    @rule(group=GROUPS)
    def the_coordinator_moves_away_and_back(self, group: str) -> None:
        self.move_away_and_back(group)

    @rule()
    def settle_all_groups(self) -> None:
        """With a working log and well-behaved members, every group becomes stable and each partition has an owner."""
        self.harness.appends = IMMEDIATE
        self.harness.settle()
        for client in self.others:
            client.slow = False
        for _ in range(60):
            if all(self._has_settled(name) for name in ("c", "d")):
                return
            for _ in range(2):
                for client in self.others:
                    client.step()
            self.harness.run_jobs()
            self.harness.sleep(2_000)
        raise AssertionError(self.harness.coordinator.groups())

    def _has_settled(self, name: str) -> bool:
        clients = {one.member_id: one for one in self.others if one.group == name and not one.is_gone}
        group = self.harness.coordinator.groups().get(name)
        if not clients or group is None:
            return not clients and (group is None or not group.members)
        if not isinstance(group, ConsumerGroup):
            return bool(group.members)  # a classic group refuses members of the other protocol
        if group.state is not ConsumerGroupState.STABLE or group.image_version != self.harness.topics.version:
            return False
        if group.members.keys() - clients.keys() or any(one.waiting for one in clients.values()):
            return False
        read = [
            (topic, number)
            for member_id in group.members
            for topic, numbers in clients[member_id].has.items()
            for number in numbers
        ]
        wanted = {name for name in group.subscribed_topics() if name in self.harness.topics.counts}
        everything = {(topic, number) for topic in wanted for number in range(self.harness.topics.counts[topic])}
        failed = any(one.error for one in group.client.messages.values())  # then each member keeps its previous assignment
        complete = set(read) == everything or failed
        return len(read) == len(set(read)) and complete


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
