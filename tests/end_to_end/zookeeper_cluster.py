"""An embedded broker that is registered in a real ZooKeeper as Kafka registers itself, for members of ZooKeeper groups.

Owns the nodes of the broker and its topics, and what a test asks of the group's nodes. Must not know what is tested. Invariant:
each cluster has its own chroot, so tests do not see each other's groups.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry

from ottla import Admin, Broker
from ottla.types import TopicPartition

_numbers = itertools.count(1)


class ZooKeeperCluster:
    """A broker in ZooKeeper. ``connect`` is the connect string with the cluster's chroot."""

    def __init__(self, broker: Broker, servers: str) -> None:
        self.broker = broker
        self.chroot = f"/cluster{next(_numbers)}"
        self.connect = f"{servers}{self.chroot}"
        # Tests restart ZooKeeper. On a busy machine that may take longer than the session, so a call that meets a lost connection
        # or an expired session is repeated too.
        retry = KazooRetry(max_tries=-1, delay=0.02, max_delay=0.1, ignore_expire=True)
        self.zookeeper = KazooClient(servers, timeout=20, connection_retry=retry, command_retry=retry)
        self.zookeeper.start(60)
        self.zookeeper.ensure_path(f"{self.chroot}/brokers/topics")
        self.zookeeper.ensure_path(f"{self.chroot}/brokers/ids")
        self._admin = Admin(bootstrap_servers=broker.bootstrap_servers)

    def register(self) -> None:
        """Register the broker. The node is not ephemeral, so that a restart of ZooKeeper does not concern the broker."""
        host, _, port = self.broker.bootstrap_servers.rpartition(":")
        data = {"endpoints": [f"PLAINTEXT://{host}:{port}"], "host": host, "port": int(port), "version": 4, "timestamp": "1"}
        self.zookeeper.create(f"{self.chroot}/brokers/ids/1", json.dumps(data).encode())

    def unregister(self) -> None:
        """Delete the broker's node, as at its end."""
        self.zookeeper.delete(f"{self.chroot}/brokers/ids/1")

    def create_topic(self, topic: str, partitions: int) -> str:
        """Create a topic on the broker and in ZooKeeper."""
        self._admin.create_topics({topic: partitions})
        self.zookeeper.create(f"{self.chroot}/brokers/topics/{topic}", _partitions(partitions))
        return topic

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""
        self._admin.create_partitions({topic: partitions})
        self.zookeeper.retry(self.zookeeper.set, f"{self.chroot}/brokers/topics/{topic}", _partitions(partitions))

    def path(self, group: str, *names: object) -> str:
        """The path of a node of a group."""
        return "/".join([self.chroot, "consumers", group, *map(str, names)])

    def data(self, group: str, *names: object) -> str | None:
        """The data of a node of a group; ``None`` if it does not exist."""
        try:
            data: bytes = self.zookeeper.retry(self.zookeeper.get, self.path(group, *names))[0]
        except NoNodeError:
            return None
        return data.decode()

    def children(self, group: str, *names: object) -> list[str]:
        """The children of a node of a group, in order."""
        try:
            return sorted(self.zookeeper.retry(self.zookeeper.get_children, self.path(group, *names)))
        except NoNodeError:
            return []

    def owners(self, group: str, topic: str) -> dict[int, str | None]:
        """Partition -> the consumer thread that owns it."""
        return {int(number): self.data(group, "owners", topic, number) for number in self.children(group, "owners", topic)}

    def offsets(self, group: str, topic: str) -> dict[TopicPartition, int]:
        """The committed offsets in ZooKeeper."""
        numbers = self.children(group, "offsets", topic)
        return {TopicPartition(topic, int(number)): int(self.data(group, "offsets", topic, number) or -1) for number in numbers}

    def close(self) -> None:
        self._admin.close()
        self.zookeeper.stop()
        self.zookeeper.close()


def _partitions(count: int) -> bytes:
    return json.dumps({"version": 1, "partitions": {str(number): [1] for number in range(count)}}).encode()


@contextmanager
def registered(broker: Broker, servers: str) -> Iterator[ZooKeeperCluster]:
    """A cluster with a registered broker."""
    cluster = ZooKeeperCluster(broker, servers)
    try:
        cluster.register()
        yield cluster
    finally:
        cluster.close()
