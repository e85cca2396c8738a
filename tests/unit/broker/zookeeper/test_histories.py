"""Random histories of topics, brokers and connections: whatever has happened, all brokers come to agree with ZooKeeper."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import suppress

import pytest

from ottla.broker.core import BrokerCore
from ottla.broker.topic_changes import TopicChange
from ottla.coordinator.effects import ApiError
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import decode_topic_node, encode_configs, encode_topic
from tests.simulation.zookeeper_cluster import SESSION_TIMEOUT, ZooKeeperCluster

NAMES = ("a", "b", "c", "d")
BROKERS = (1, 2, 3)
STEPS = 60


class History:
    """Random steps on a cluster of three brokers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = ZooKeeperCluster(seed)
        self.cluster.add(*BROKERS)
        self.steps: tuple[Callable[[str], None], ...] = (
            self.create,
            self.create,
            self.delete,
            self.mark,
            self.grow,
            self.configure,
            self.disconnect,
            self.expire,
            self.kill,
            self.start,
            self.hold,
            self.fall_behind,
            self.restart_server,
            self.request,
            self.request,
            self.request,
        )
        self.requested: list[tuple[BrokerCore, TopicChange]] = []
        """What clients have requested, and the process of the broker."""

    def step(self) -> None:
        self.random.choice(self.steps)(self.random.choice(NAMES))
        self.cluster.run(self.random.choice((0, 1, 3, 10, 200)))

    def exists(self, name: str) -> bool:
        return self.cluster.model.data(paths.topic(name)) is not None

    def create(self, name: str) -> None:
        if not self.exists(name):
            replicas = self.random.choices(BROKERS, k=self.random.randint(1, 3))
            topic_id = self.random.choice((None, uuid.UUID(int=self.random.getrandbits(128))))
            self.cluster.create_topic(name, replicas, topic_id)

    def delete(self, name: str) -> None:
        if self.exists(name):
            self.cluster.delete_topic(name)

    def mark(self, name: str) -> None:
        if self.exists(name):
            self.cluster.put(paths.deleted_topic(name))

    def grow(self, name: str) -> None:
        if self.exists(name):
            node = decode_topic_node(self.cluster.model.data(paths.topic(name)) or b"", name)
            keeps_id = self.random.random() < 0.5
            replicas = (*node.replicas, self.random.choice(BROKERS))
            self.cluster.put(paths.topic(name), encode_topic(replicas, node.topic_id if keeps_id else None))

    def configure(self, name: str) -> None:
        if self.exists(name):
            self.cluster.put(paths.topic_config(name), encode_configs({"retention.ms": str(self.random.randint(1, 9))}))

    def request(self, name: str) -> None:
        """Request a change of a broker, as a client does."""
        broker = self.random.choice(self.cluster.brokers)
        if not broker.up:
            return
        topics, changes = broker.catalog.topics, broker.catalog.changes
        topic = topics.get(name)
        with suppress(ApiError):
            if topic is None:
                change = changes.create(name, self.random.randint(1, 3), {})
            else:
                change = self.random.choice(
                    (
                        lambda: changes.extend(topics.with_partitions(topic, topic.partition_count + 1)),
                        lambda: changes.alter(topics.altered(topic, {"retention.ms": str(self.random.randint(1, 9))})),
                        lambda: changes.delete(topic),
                    )
                )()
            broker.step()
            self.requested.append((broker.core, change))

    def disconnect(self, name: str) -> None:
        self.random.choice(self.cluster.brokers).disconnect()

    def expire(self, name: str) -> None:
        broker = self.random.choice(self.cluster.brokers)
        if broker.up and broker.session_id is not None:
            broker.expire_session()

    def hold(self, name: str) -> None:
        self.random.choice(self.cluster.brokers).hold(self.random.choice((5, 50, SESSION_TIMEOUT)))

    def fall_behind(self, name: str) -> None:
        """Connect a broker with a server that is cut off from the others, until it gets no answer from it."""
        session_id = self.random.choice(self.cluster.brokers).session_id
        if session_id is not None and self.cluster.zookeeper.is_connected(session_id):
            self.cluster.zookeeper.fall_behind(session_id)

    def restart_server(self, name: str) -> None:
        self.cluster.zookeeper.stop()
        self.cluster.run(self.random.choice((1, 200, SESSION_TIMEOUT)))
        self.cluster.zookeeper.start()

    def kill(self, name: str) -> None:
        broker = self.random.choice(self.cluster.brokers)
        if broker.up:
            broker.kill()

    def start(self, name: str) -> None:
        for broker in self.cluster.brokers:
            if not broker.up:
                broker.start()
                for topic in broker.catalog.topics:
                    if broker.catalog.cluster.is_mine(topic, 0) and self.random.random() < 0.5:  # as if it had lost records
                        broker.catalog.log(topic.name, 0).leader_epochs.start_next_epoch(0)


@pytest.mark.parametrize("seed", range(40))
def test_all_brokers_come_to_agree(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.start("")
    for name in history.cluster.model.children(paths.DELETED_TOPICS):
        history.cluster.delete_topic(name)
    history.cluster.run(3 * SESSION_TIMEOUT)
    history.cluster.check()
    alive = [broker.core for broker in history.cluster.brokers]
    assert all(change.is_done for core, change in history.requested if core in alive), "each request has its answer"
    asked = [sum(broker.counts().values()) for broker in history.cluster.brokers]
    history.cluster.run(60_000)
    assert [sum(broker.counts().values()) for broker in history.cluster.brokers] == asked, "nothing is left to do"
    for name in NAMES:
        if history.exists(name):
            assert history.cluster.topic_id(name) is not None
