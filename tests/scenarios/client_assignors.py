"""Assignors for members of a consumer group that assign by themselves, and functions that inspect a computation.

Owns these assignors. Must not know what goes wrong. Invariant: an assignor here is a pure function, but for the time it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.assignors import Cluster, ConsumerPartitionAssignor, MemberAssignment, MemberSubscription
from ottla.client.groups.consumer.client_assignors import RunState
from ottla.protocol.apis import Api
from ottla.simulation.application import App
from ottla.types import ConsumerGroupMetadata, TopicPartition
from tests.scenarios.groups import join, sent
from tests.simulation.world import QUICK_GROUPS, World

PREPARE, INSTALL = Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT
SETTINGS = {**QUICK_GROUPS, "group.consumer.client.assignors.enable": True}
Members = Mapping[str, MemberSubscription]


class Weighted(ConsumerPartitionAssignor):
    """Each member's user data is its weight: the number of partitions that it can take. Keeps the arguments of all calls."""

    name = "weighted"

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self.asked: list[tuple[Cluster, Members]] = []
        self.heard: list[tuple[MemberAssignment, ConsumerGroupMetadata]] = []

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        return b"%d %s" % (self.weight, ",".join(sorted(topics)).encode())

    def assign(self, cluster: Cluster, members: Members) -> Any:
        self.asked.append((cluster, members))
        weights = {one: int((members[one].user_data or b"1").split()[0]) for one in members}
        places = [one for one in sorted(members, key=lambda one: (-weights[one], one)) for _ in range(weights[one])]
        shares: dict[str, list[TopicPartition]] = {one: [] for one in members}
        for place, number in enumerate(range(cluster.partitions["t"])):
            shares[places[place % len(places)]].append(TopicPartition("t", number))
        return {one: MemberAssignment(tuple(share), b"you have %d" % len(share)) for one, share in shares.items()}

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        self.heard.append((assignment, metadata))


def start(world: World, name: str, assignor: object, **settings: Any) -> App:
    return join(world, name, group_client_assignors=[assignor], **settings)


def run_state(app: App) -> RunState:
    state: RunState = app.membership._assignors.state
    return state


def member_id(app: App) -> str:
    assert app.membership is not None
    return app.membership.metadata().member_id


def assignor_of(app: App) -> str:
    assert app.membership is not None
    return app.membership.status.assignor


def installs(world: World, since: int = 0) -> list[Any]:
    return [message for _, message in sent(world, INSTALL, since)]


class Slow(Weighted):
    """Its next ``assign()`` takes ``takes`` milliseconds."""

    def __init__(self, world: World, app: str, takes: int = 0) -> None:
        super().__init__()
        self.world = world
        self.app = app
        self.takes = takes

    def assign(self, cluster: Cluster, members: Members) -> Any:
        takes, self.takes = self.takes, 0
        if takes:
            self.world.apps[self.app].busy(takes)
        return super().assign(cluster, members)


def computing(world: World, app: App) -> None:
    """Run until a member's assignor computes an assignment."""
    world.run_until(lambda: run_state(app) is RunState.COMPUTING)
