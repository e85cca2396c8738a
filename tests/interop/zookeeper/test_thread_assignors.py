"""The assignors of zookeeper groups and those of Java's old consumers, on the same random groups in a real ZooKeeper."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.assignors.threads import THREAD_ASSIGNORS, Owners
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import ConsumerThread, MemberRegistration
from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, run_tool

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).parents[3] / "tools" / "OldAssignors.java"
VERSION = "1.1.1"
GROUPS = 60


@dataclass(frozen=True)
class Group:
    """Member id -> the number of streams for each of its topics, and topic -> its partitions."""

    name: str
    members: Mapping[str, Mapping[str, int]]
    topics: Mapping[str, int]

    def owners(self, assignor: str) -> Owners:
        threads: dict[str, list[ConsumerThread]] = {}
        for member_id, streams in self.members.items():
            for topic, count in streams.items():
                threads.setdefault(topic, []).extend(ConsumerThread(member_id, number) for number in range(count))
        return THREAD_ASSIGNORS[assignor](threads, {topic: range(count) for topic, count in self.topics.items()})


def a_group(dice: random.Random, number: int) -> Group:
    topics = {f"{dice.choice(['orders', 'a', 'b_1', 'Q.x'])}-{number}{letter}": dice.randint(0, 25) for letter in "abcd"}
    topics = dict(dice.sample(sorted(topics.items()), dice.randint(1, 4)))
    alike = {topic: dice.choice([1, 2, 12]) for topic in topics}
    members = {}
    for member in range(dice.randint(1, 6)):
        streams = {topic: dice.choice([1, 2, 3, 11, 13]) for topic in dice.sample(sorted(topics), dice.randint(1, len(topics)))}
        members[f"g{number}_host{dice.choice('.-_')}{member}-{dice.getrandbits(32):08x}"] = dice.choice([alike, streams])
    return Group(f"g{number}", members, topics)


def register(zookeeper: str, groups: Sequence[Group]) -> None:
    """Write the nodes of topics and members."""
    client = KazooClient(zookeeper)
    client.start()
    for group in groups:
        for topic, count in group.topics.items():
            data = json.dumps({"version": 1, "partitions": {str(number): [1] for number in range(count)}})
            client.create(paths.topic(topic), data.encode(), makepath=True)
        for member_id, streams in group.members.items():
            client.create(paths.member(group.name, member_id), MemberRegistration(streams).encode(), makepath=True)
    client.stop()
    client.close()


def owners_in_java(zookeeper: str, questions: Sequence[tuple[str, str]]) -> list[Owners]:
    """The owners by Java's assignors, for each group and assignor. Each member has computed its own share."""
    lines = "".join(json.dumps({"group": group, "assignor": assignor}) + "\n" for group, assignor in questions)
    answers = run_tool("run", str(PROGRAM), zookeeper, stdin=lines, version=VERSION, timeout=100).splitlines()
    responses = [json.loads(line) for line in answers if line.startswith("{")]
    assert len(responses) == len(questions)
    return [
        {
            TopicPartition(topic, partition): ConsumerThread(member_id, thread)
            for member_id, share in response["owners"].items()
            for topic, partition, thread in share
        }
        for response in responses
    ]


def test_the_owners_are_those_of_java(kafka_tool: KafkaTool, zookeeper_server: ZooKeeperServer) -> None:
    run_tool("fetch", version=VERSION, timeout=FETCH_TIMEOUT)
    dice = random.Random(11)
    seed = Group("seed", {"C1": {"five": 2}, "C2": {"five": 2}}, {"five": 5})
    # Two topics of more than ten partitions, and a member with more than ten threads.
    many = Group("many", {"m-a": {"left": 12, "right": 12}, "m-b": {"left": 3, "right": 3}}, {"left": 40, "right": 23})
    groups = [seed, many, *(a_group(dice, number) for number in range(GROUPS))]
    register(zookeeper_server.connect_string, groups)
    asked = [(group, assignor) for group in groups for assignor in THREAD_ASSIGNORS]
    theirs = owners_in_java(zookeeper_server.connect_string, [(group.name, assignor) for group, assignor in asked])
    for (group, assignor), owners in zip(asked, theirs, strict=True):
        assert group.owners(assignor) == owners, (assignor, group)
