"""What an operator does to a cluster: topics, leaders, and the question whether all is well.

Owns the admin clients, which are peers'. Must not know groups' rules. Invariant: each call is tried again until it worked, since a
cluster in trouble refuses and forgets; the controller answers before the nodes have heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import kafka
import kafka.admin
from confluent_kafka import ConsumerGroupTopicPartitions, ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec, TopicMetadata

PATIENCE = 120.0
"""Seconds after which something that an operator does will never work."""
T = TypeVar("T")


def patiently(what: str, attempt: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """What ``attempt`` gives, once it is neither an error nor ``None``; fails the test where it never is."""
    until = time.monotonic() + seconds
    why: object = "not so"
    while time.monotonic() < until:
        try:
            found = attempt()
        except (KafkaException, kafka.errors.KafkaError, TimeoutError) as error:
            why = error
        else:
            if found is not None:
                return found
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s: {why}")


class Operator:
    """See the module."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def topic(self, name: str) -> TopicMetadata | None:
        """What is known of a topic; ``None`` where there is none."""
        found = self._admin.list_topics(name, timeout=10).topics[name]
        return None if found.error is not None else found

    def create(self, name: str, partitions: int, replicas: int) -> None:
        """Make a topic, and wait until it has all its leaders."""
        new = NewTopic(name, partitions, replicas, config={"min.insync.replicas": "1"})

        def make() -> bool:
            try:
                self._admin.create_topics([new])[name].result(10)
            except KafkaException as error:
                # Of an attempt before this one nothing may have been heard.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            return True

        patiently(f"create {name}", make)
        patiently(f"see {name}", lambda: self._there(name, partitions))

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        patiently(f"delete {name}", lambda: self.topic(name) is None or self._admin.delete_topics([name])[name].result(10))

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, and wait until they have leaders."""
        new = NewPartitions(name, partitions)
        patiently(f"grow {name}", lambda: self._there(name, partitions) or self._admin.create_partitions([new])[name].result(10))

    def move(self, name: str, nodes: Iterable[int]) -> None:
        """Move each partition on to the next nodes, and let the first of them lead it."""
        ring = sorted(nodes)
        metadata = patiently(f"see {name}", lambda: self.topic(name))
        wanted = {}
        for number, partition in metadata.partitions.items():
            first = ring[(ring.index(partition.replicas[0]) + 1) % len(ring)] if partition.replicas[0] in ring else ring[0]
            at = ring.index(first)
            wanted[number] = [ring[(at + more) % len(ring)] for more in range(len(partition.replicas))]
        client = kafka.admin.KafkaAdminClient(bootstrap_servers=self._servers.split(","))
        try:
            moves = {kafka.TopicPartition(name, number): replicas for number, replicas in wanted.items()}
            patiently(f"move {name}", lambda: client.alter_partition_reassignments(moves))
        finally:
            client.close()
        patiently(f"see {name} moved", lambda: self._replicas(name) == wanted or None)
        self.prefer()

    def prefer(self) -> None:
        """Let the first replica of each partition lead it, where it can."""
        patiently("elect leaders", lambda: self._admin.elect_leaders(ElectionType.PREFERRED).result(20) is not None or None)

    def leader(self, name: str, partition: int) -> int:
        """The node that leads a partition."""

        def look() -> int | None:
            found = self.topic(name)
            return found.partitions[partition].leader if found is not None and found.partitions[partition].leader > 0 else None

        return patiently(f"find the leader of {name}-{partition}", look)

    def coordinator(self, group: str) -> int:
        """The node that coordinates a group."""

        def look() -> int | None:
            node = self._admin.describe_consumer_groups([group])[group].result(20).coordinator
            return node.id if node is not None and node.id > 0 else None

        return patiently(f"find the coordinator of {group}", look)

    def wait_until_whole(self, nodes: Iterable[int]) -> None:
        """Wait until all nodes are there, and each partition of each topic has a leader and all its replicas in sync."""
        expected = set(nodes)

        def whole() -> bool | None:
            found = self._admin.list_topics(timeout=10)
            partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
            in_sync = all(one.leader > 0 and set(one.isrs) == set(one.replicas) for one in partitions)
            return (set(found.brokers) == expected and in_sync) or None

        patiently("all replicas in sync", whole)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group, as its coordinator answers them."""

        def look() -> dict[tuple[str, int], int]:
            asked = ConsumerGroupTopicPartitions(group)
            answer = self._admin.list_consumer_group_offsets([asked])[group].result(20)
            return {(one.topic, one.partition): one.offset for one in answer.topic_partitions}

        return patiently(f"ask for the offsets of {group}", look)

    def ends(self, name: str) -> dict[int, int]:
        """Where each partition of a topic ends."""
        metadata = patiently(f"see {name}", lambda: self.topic(name))
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in metadata.partitions}
        return patiently(
            f"find the ends of {name}",
            lambda: {tp.partition: found.result(10).offset for tp, found in self._admin.list_offsets(asked).items()},
        )

    def _there(self, name: str, partitions: int) -> bool | None:
        found = self.topic(name)
        ready = found is not None and len(found.partitions) >= partitions
        return (ready and all(one.leader > 0 for one in found.partitions.values())) or None

    def _replicas(self, name: str) -> dict[int, list[int]] | None:
        found = self.topic(name)
        return None if found is None else {number: list(one.replicas) for number, one in found.partitions.items()}
