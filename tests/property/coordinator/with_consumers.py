"""Members of consumer groups for state machine tests, in groups of any type.

Owns the clients of the newer protocol. Must not know the other members of a group. Invariant: a client follows its assignment, or
is slow.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, rule

from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from tests.property.coordinator.consumer_client import OFFERS, ConsumerClient
from tests.property.coordinator.oracle import Reading, commit_error
from tests.property.coordinator.with_log import PRODUCERS, WithLog

SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"topics": ("orders",)},
    {"topics": ("orders", "bills")},
    {"topics": ("bills", "absent")},
    {"topics": ()},
    {"topics": (), "regex": "o.*"},
    {"topics": ("bills",), "regex": "[ob].*s"},
    {"topics": ("orders",), "assignor": "range", "regex": ""},
]
OWN_ASSIGNORS: list[dict[str, Any]] = [
    {"topics": ("orders",), "offers": OFFERS},
    {"topics": ("orders", "bills"), "offers": OFFERS},
    {"topics": (), "regex": "o.*", "offers": OFFERS[:1]},
]
"""Of members who can compute an assignment themselves."""


class WithConsumers(WithLog):
    """A machine with members of consumer groups, the ``others``."""

    consumers = Bundle("consumers")
    others: list[ConsumerClient]

    def consumer_comes(self, group: str, instance: str | None, subscription: dict[str, Any]) -> ConsumerClient:
        """Add a client, which sends its first heartbeat."""
        client = ConsumerClient(self.harness, f"m{len(self.others)}", group, instance, subscription)
        self.others.append(client)
        client.step()
        return client

    def readings(self) -> list[Reading]:
        """The partitions that all clients read."""
        return [
            Reading(one.group, one.member_id, frozenset(TopicPartition(topic, n) for topic, some in one.has.items() for n in some))
            for one in self.others
            if not one.is_gone
        ]

    def topic_is_gone(self, topic: str) -> None:
        """Let clients notice that a topic does not exist any more."""
        for one in self.others:
            one.has = {name: numbers for name, numbers in one.has.items() if name != topic}
            one.told = None if one.told is None else {name: numbers for name, numbers in one.told.items() if name != topic}

    @rule(client=consumers, steps=st.integers(1, 4))
    def a_consumer_acts(self, client: ConsumerClient, steps: int) -> None:
        for _ in range(steps):
            client.step()

    @rule(steps=st.integers(1, 8))
    def consumers_act(self, steps: int) -> None:
        for _ in range(steps):
            for client in self.others:
                client.step()

    @rule(client=consumers, subscription=st.sampled_from(SUBSCRIPTIONS))
    def a_consumer_changes_its_subscription(self, client: ConsumerClient, subscription: dict[str, Any]) -> None:
        client.subscribe(subscription)

    @rule(client=consumers)
    def a_consumer_loses_an_answer(self, client: ConsumerClient) -> None:
        client.again()

    @rule(client=consumers, slow=st.booleans())
    def a_consumer_becomes_slow_or_quick(self, client: ConsumerClient, slow: bool) -> None:
        client.slow = slow

    @rule(client=consumers, how=st.sampled_from(["leave", "pause", "vanish", "restart", "restart"]))
    def a_consumer_goes(self, client: ConsumerClient, how: str) -> None:
        getattr(client, how if how != "pause" or client.instance is not None else "leave")()

    @rule(client=consumers)
    def an_administrator_removes(self, client: ConsumerClient) -> None:
        self.harness.leave(client.member_id, group=client.group)

    @rule(client=consumers, behind=st.integers(-1, 2), partition=st.integers(0, 3), producer_id=st.none() | PRODUCERS)
    def a_consumer_commits(self, client: ConsumerClient, behind: int, partition: int, producer_id: int | None) -> None:
        """Commit with the member's epoch or another, in a transaction or not."""
        group = self.harness.coordinator.groups().get(client.group)
        if not isinstance(group, ConsumerGroup) or client.member_id not in group.members:
            return
        member = group.members[client.member_id]
        epoch = member.epoch - behind
        place = TopicPartition("orders", partition)
        who = {"member_id": client.member_id, "generation": epoch}
        if producer_id is None:
            ticket = self.commit_offset(place, client.group, **who)
        else:
            ticket = self.commit_in_transaction(producer_id, place, client.group, **who)
        if behind > 0 and not self.harness.waits(ticket) and commit_error(self.harness.answer(ticket)) is ErrorCode.none:
            topic_id = self.harness.topics.topic_id("orders")
            owned_partitions = {
                number: since for one, numbers in member.owned_partitions() if one == topic_id for number, since in numbers.items()
            }
            assert partition in owned_partitions
            assert owned_partitions[partition] <= epoch

    @rule()
    def regexes_are_matched(self) -> None:
        self.harness.run_jobs()

    def restart(self) -> None:
        """Restart; clients reconnect and repeat their requests."""
        super().restart()
        for client in self.others:
            if client.waiting:
                client.again()
