"""Embedded brokers that are one cluster in a real ZooKeeper, each with a directory of its own.

Owns their start and end, and the questions of a test to the cluster. Must not know what is tested. Invariant: each cluster has its
own chroot, so tests do not see each other's brokers.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry

from ottla import Admin, Broker, Consumer, Producer
from ottla.client.admin.results import TopicDescription
from ottla.errors import OttlaError
from ottla.types import PartitionInfo

PATIENCE = 60.0
"""Seconds: a machine that is busy is no reason to fail."""
SETTINGS: Mapping[str, object] = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "zookeeper.session.timeout.ms": 6000,
    "auto.create.topics.enable": False,
}
VALUES = [b"%04d" % number for number in range(600)]
_numbers = itertools.count(1)


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until something is so. An error of Ottla counts as no."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
            reason = "it is not so"
        except OttlaError as error:
            reason = str(error)
        assert time.monotonic() < deadline, f"not within {seconds} s: {reason}"
        time.sleep(0.02)


def until_each(brokers: Iterable[Broker], condition: Callable[[Broker], object]) -> None:
    """Wait until something is so for each broker."""
    for broker in brokers:
        until(partial(condition, broker))


class BrokerCluster:
    """See the module. ``brokers`` are those that were started, whether they are open or not. They reach ZooKeeper by the address
    ``through``, if it is given."""

    def __init__(self, servers: str, folder: Path, through: str | None = None) -> None:
        self.chroot = f"/brokers-{next(_numbers)}"
        self.connect = f"{servers if through is None else through}{self.chroot}"
        self.folder = folder
        self.brokers: list[Broker] = []
        # Tests stop ZooKeeper for longer than a session of this client lasts.
        retry = KazooRetry(max_tries=-1, delay=0.02, max_delay=0.1, ignore_expire=True)
        # A server that accepts a connection and does not answer yet costs two thirds of the time-out.
        self.zookeeper = KazooClient(servers, timeout=5, connection_retry=retry, command_retry=retry)
        self.zookeeper.start(60)

    def start(self, settings: Mapping[str, object]) -> Broker:
        """Start a further broker, on a directory of its own."""
        folder = self.folder / f"broker-{len(self.brokers)}"
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        broker = Broker(folder, zookeeper=self.connect, settings={**SETTINGS, **changed})
        self.brokers.append(broker)
        return broker

    def ids(self) -> list[int]:
        """The ids of the registered brokers, as ZooKeeper has them."""
        return sorted(int(name) for name in self.children("brokers", "ids"))

    def children(self, *names: object) -> list[str]:
        """The children of a node; none if it does not exist."""
        try:
            return sorted(self.zookeeper.retry(self.zookeeper.get_children, self._path(*names)))
        except NoNodeError:
            return []

    def json(self, *names: object) -> Any:
        """The data of a node; ``None`` if it does not exist."""
        try:
            return json.loads(self.zookeeper.retry(self.zookeeper.get, self._path(*names))[0])
        except NoNodeError:
            return None

    def create_topic(self, topic: str, partitions: int = 6, broker: int = 0, **configs: str) -> None:
        """Create a topic on one broker, and wait until all brokers have it, with a leader for each partition."""
        with Admin(bootstrap_servers=self.brokers[broker].bootstrap_servers) as admin:
            admin.create_topics({topic: partitions}, configs={name.replace("_", "."): value for name, value in configs.items()})
        self.wait_for_leaders(topic, partitions)

    def wait_for_leaders(self, topic: str, partitions: int = 6) -> None:
        """Wait until every open broker says who leads each partition."""
        until_each(self.open_brokers(), lambda broker: len(led_partitions(broker, topic)) == partitions)

    def open_brokers(self) -> list[Broker]:
        """The brokers that run."""
        return [broker for broker in self.brokers if "closed" not in repr(broker)]

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()
        self.zookeeper.stop()
        self.zookeeper.close()

    def _path(self, *names: object) -> str:
        return "/".join([self.chroot, *map(str, names)])


@contextmanager
def cluster_of(
    count: int, servers: str, folder: Path, *, through: str | None = None, **settings: object
) -> Iterator[BrokerCluster]:
    """A cluster with so many brokers."""
    cluster = BrokerCluster(servers, folder, through)
    try:
        for _ in range(count):
            cluster.start(settings)
        until_each(cluster.brokers, lambda broker: len(nodes_of(broker)) == count)
        yield cluster
    finally:
        cluster.close()


def nodes_of(broker: Broker) -> dict[int, str]:
    """The cluster as one broker knows it: node id -> address."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return {node.node_id: f"{node.host}:{node.port}" for node in admin.describe_cluster().nodes}


def node_id_of(broker: Broker) -> int:
    """The node id of a broker."""
    return next(node_id for node_id, address in nodes_of(broker).items() if address == broker.bootstrap_servers)


def described(broker: Broker, topic: str) -> TopicDescription | None:
    """A topic as one broker knows it."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return admin.list_topics().get(topic)


def partitions_of(broker: Broker, topic: str) -> tuple[PartitionInfo, ...]:
    """The partitions of a topic, as one broker knows them."""
    found = described(broker, topic)
    return () if found is None else found.partitions


def led_partitions(broker: Broker, topic: str) -> list[int]:
    """The partitions of a topic that have a leader, as one broker knows them."""
    return [one.partition for one in partitions_of(broker, topic) if one.leader is not None]


def read_values(broker: Broker, topic: str, count: int, group: str | None = None, **settings: Any) -> list[bytes | None]:
    """The values of so many records of a topic, sorted, with Ottla's consumer."""
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=f"read-{next(_numbers)}" if group is None else group,
        auto_offset_reset="earliest",
        **settings,
    ) as consumer:
        consumer.subscribe([topic])
        while len(values) < count:
            assert time.monotonic() < deadline, f"{len(values)} of {count} records: {consumer.health()}"
            values += [record.value for record in consumer.poll(0.2)]
        consumer.commit()
    return sorted(values, key=lambda value: value or b"")


def produce(broker: Broker, topic: str, values: list[bytes] = VALUES, partitions: int = 6) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        sent = [producer.send(topic, value, partition=number % partitions) for number, value in enumerate(values)]
        producer.flush(PATIENCE)
        for delivery in sent:
            delivery.result(PATIENCE)


def folders(broker: Broker, topic: str) -> set[str]:
    """The folders of a topic's partitions, also of those that are being deleted."""
    return {name for name in os.listdir(broker.data_dir) if name.startswith(f"{topic}-")}
