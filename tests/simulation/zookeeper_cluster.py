"""Brokers that share a ZooKeeper: the simulator's, without clients, on one virtual clock, and a tool that writes nodes.

Owns the nodes that the tool writes, and what a test looks at. Must not know what is tested. Invariants: all happens in
events of the clock; a process starts on the files of the last one, and knows the topics that ZooKeeper has then; the answers and
watches of a session come as kazoo's threads report them.
"""

from __future__ import annotations

import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ottla.broker.catalog import BrokerCatalog, Endpoint
from ottla.broker.cluster import TopicRegistration
from ottla.broker.effects import BrokerEffect, HangUp, NoReply, Push, Reply, Ticket
from ottla.broker.ports import CatalogChange
from ottla.errors import OttlaError, ProtocolError
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader
from ottla.simulation.clock import Clock
from ottla.simulation.files import MemoryStore
from ottla.simulation.network import Network
from ottla.simulation.zookeeper_broker import SESSION_TIMEOUT, ZooKeeperBroker
from ottla.simulation.zookeeper_server import HOST, SimZooKeeper
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import (
    decode_configs,
    decode_partition_state,
    decode_topic_node,
    encode_cluster_id,
    encode_configs,
    encode_topic,
)
from ottla.zookeeper.operations import Check, Create, Delete, Multi, Operation, SetData
from ottla.zookeeper.session import Ask, SessionReport

__all__ = ["CLUSTER_ID", "SESSION_TIMEOUT", "BrokerInCluster", "FailingStore", "ZooKeeperCluster"]

CLUSTER_ID = "simulation"
"""What the data directories of all brokers say."""

_LONGEST = 1 << 40


class FailingStore(MemoryStore):
    """A data directory whose catalog may not be writable."""

    is_full = False

    def change_catalog(self, *changes: CatalogChange) -> None:
        if self.is_full:
            raise OSError("no space left on device")
        super().change_catalog(*changes)


class Channel(Protocol):
    """The side of a member."""

    def on_push(self, api: Api, correlation_id: int, message: Any) -> None:
        """Take a request of the broker."""

    def on_closed(self) -> None:
        """Note that the broker has closed the connection, or is gone."""


class BrokerInCluster(ZooKeeperBroker):
    """One broker, which a test asks without a network, and whose channels lead to members of the test."""

    store: FailingStore

    def __init__(
        self,
        cluster: ZooKeeperCluster,
        node_id: int,
        port: int | None = None,
        store: FailingStore | None = None,
        **settings: object,
    ) -> None:
        self.port = port or 9000 + node_id
        self.replies: dict[Ticket, Any] = {}
        """The response to each request of the present process that has one."""
        self.on_reply: Callable[[Ticket, Any], None] = lambda ticket, response: None
        self.channels: dict[int, Channel] = {}
        """The connections of members."""
        self._cluster = cluster
        store = store or FailingStore(lambda: cluster.clock.now.wall)
        endpoint, host = Endpoint("127.0.0.1", self.port), f"broker-{node_id}-{self.port}"
        named = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(cluster.zookeeper, node_id, endpoint, store, named, host=host)

    @property
    def catalog(self) -> BrokerCatalog:
        return self.core.catalog

    def counts(self) -> Counter[str]:
        """How often each kind of operation was asked for, but for those of the election, and those that only renew the lease."""
        election = (paths.COORDINATOR, paths.COORDINATOR_EPOCH)
        names = [type(one).__name__ for one in self.asked if one.path not in election or _is_fenced(one)]
        return Counter(name for name in names if name != "Sync")

    def start(self, registered: Sequence[TopicRegistration] | None = None) -> None:
        """Start a process. ``registered``: the topics that it has read before; by default those in ZooKeeper now."""
        self.replies = {}
        super().start(self._cluster.registrations() if registered is None else registered)

    def kill(self) -> None:
        """End like kill -9."""
        super().kill()
        for connection in list(self.channels):
            self.hang_up(connection)

    def restart(self) -> None:
        self.kill()
        self.start()

    def disconnect(self) -> None:
        """Break the connection with ZooKeeper."""
        self.client.disconnect()

    def report(self, report: SessionReport) -> None:
        """Pass a report of the ZooKeeper client to the core."""
        self._process.take(self.core.on_session_report(report, self._cluster.clock.now))

    def hold(self, duration: int) -> None:
        """Let no answer arrive for a while."""
        self._cluster.network.hold((HOST, self.host, self.client.connection), duration)

    @property
    def in_flight(self) -> int:
        """How many operations have no answer yet."""
        return int(re.findall(r"(\d+) in flight", repr(self.zookeeper.session))[0])

    def change(self, multi: Multi, registration: TopicRegistration | None, name: str = "t") -> None:
        """Change a topic as a manager of this broker does: it is applied to the catalog when the multi succeeds. ``None``: it is
        deleted."""
        timeout, now = self.catalog.config.zookeeper_connection_timeout_ms, self._cluster.clock.now

        def changed(result: object, now: Now) -> None:
            if registration is not None:
                self.catalog.apply_registration(registration)
            else:
                self.catalog.delete_topic(self.catalog.topic(name))

        def failed(error: OttlaError, now: Now) -> None:
            raise AssertionError(error)

        self.zookeeper.session.ask(self, Ask(multi, timeout, changed, failed), now)
        self.zookeeper.step(now, self.catalog.outbox)
        self._process.take(self.catalog.outbox.take())

    def step(self) -> None:
        """End the step of a request that has begun a change."""
        self._process.take(self.core.on_job(("nothing",), None, self._cluster.clock.now))

    # -- requests ---------------------------------------------------------------------------------------------------------

    def send(self, api: Api, message: Any, connection: int = 0, correlation_id: int = 0, version: int | None = None) -> Ticket:
        """Send a request, or a member's answer, and return its number in ``replies``."""
        ticket = next(self._last_tickets)
        header = RequestHeader(api, SPOKEN[api].maximum if version is None else version, correlation_id, "test")
        self._process.handle(header, message, ticket, connection)
        return ticket

    def ask(self, api: Api, message: Any, version: int | None = None) -> Any:
        """Send a request, and let time pass until it is answered."""
        ticket = self.send(api, message, version=version)
        for _ in range(1000):
            if ticket in self.replies:
                return self.replies.pop(ticket)
            self._cluster.run(10)
        raise AssertionError(f"{api.name} is not answered")

    def hang_up(self, number: int) -> None:
        """Close a connection, and tell both sides."""
        channel = self.channels.pop(number, None)
        if channel is not None:
            self._cluster.clock.after(1, channel.on_closed)
        if self.up:
            self._process.take(self.core.on_disconnect(number, self._cluster.clock.now))

    def _perform(self, effect: BrokerEffect) -> None:
        match effect:
            case Reply(ticket, response):
                self.replies[ticket] = response
                self.on_reply(ticket, response)
            case NoReply():
                pass
            case Push(connection, api, correlation_id, message):
                if connection in self.channels:
                    self._cluster.clock.after(1, partial(self.channels[connection].on_push, api, correlation_id, message))
            case HangUp(connection):
                self._cluster.clock.after(1, partial(self.hang_up, connection))
            case _:
                super()._perform(effect)


def _is_fenced(operation: Operation[Any]) -> bool:
    """Whether it is a write of the central coordinator."""
    return isinstance(operation, Multi) and isinstance(operation.operations[0], Check)


class ZooKeeperCluster:
    """See the module. With a ``seed``, messages and reports take a random time."""

    def __init__(self, seed: int | None = None) -> None:
        chance = None if seed is None else random.Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, chance)
        self.zookeeper = SimZooKeeper(self.clock, self.network, chance)
        self.model = self.zookeeper.model
        self.brokers: list[BrokerInCluster] = []
        self._tool = self.model.open(_LONGEST, self.clock.now)
        for root in paths.CLUSTER_ROOTS:
            self.put(root)
        self.put(paths.CLUSTER_ID, encode_cluster_id(CLUSTER_ID))

    def add(self, *node_ids: int) -> list[BrokerInCluster]:
        """Add brokers, and start them."""
        added = [BrokerInCluster(self, node_id) for node_id in node_ids]
        self.brokers += added
        for broker in added:
            broker.start()
        return added

    def run(self, milliseconds: int = 500) -> None:
        """Let time pass."""
        self.clock.run(milliseconds)

    # -- nodes ------------------------------------------------------------------------------------------------------------

    def execute(self, operation: Operation[Any]) -> Any:
        """Execute an operation of the tool; returns its result. Raises its error."""
        executed = self.zookeeper.execute(self._tool, operation)
        assert executed is not None
        if executed.error is not None:
            raise executed.error
        return executed.result

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a node, with those above it that are missing, or replace its data."""
        for parent in paths.parents(path):
            if self.model.data(parent) is None:
                self.execute(Create(parent))
        self.execute(SetData(path, data) if self.model.data(path) is not None else Create(path, data))

    def remove(self, path: str) -> None:
        """Delete a node, with those below it."""
        for child in self.model.children(path):
            self.remove(f"{path}/{child}")
        self.execute(Delete(path))

    def create_topic(
        self,
        name: str,
        replicas: Sequence[int],
        topic_id: uuid.UUID | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic as a tool does, the settings first, or give it this data."""
        self.put(paths.topic_config(name), encode_configs(configs or {}))
        self.put(paths.topic(name), encode_topic(replicas, topic_id))

    def delete_topic(self, name: str) -> None:
        """Remove the nodes of a topic, as the broker does that carries out a deletion."""
        for path in (paths.topic(name), paths.topic_config(name), paths.deleted_topic(name)):
            if self.model.data(path) is not None:
                self.remove(path)

    def registrations(self) -> list[TopicRegistration]:
        """The topics that have an id and can be understood."""
        found = []
        for name in self.model.children(paths.TOPICS):
            try:
                node = decode_topic_node(self.model.data(f"{paths.TOPICS}/{name}") or b"", name)
                configs = decode_configs(self.model.data(f"{paths.TOPIC_CONFIGS}/{name}") or b'{"config":{}}', name)
            except ProtocolError:
                continue
            if node.topic_id is not None and self.model.data(f"{paths.DELETED_TOPICS}/{name}") is None:
                found.append(TopicRegistration(name, node.topic_id, node.replicas, configs))
        return found

    def topic_id(self, name: str) -> uuid.UUID | None:
        """The id of a topic in ZooKeeper."""
        return decode_topic_node(self.model.data(paths.topic(name)) or b"", name).topic_id

    def states(self, name: str) -> dict[int, int]:
        """Partition -> the leader epoch in its state, for each that has one."""
        states = {}
        for child in self.model.children(paths.partitions(name)):
            data = self.model.data(paths.partition_state(name, int(child)))
            if data is not None:
                states[int(child)] = decode_partition_state(data, name).leader_epoch
        return states

    # -- what must be true ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that each broker has the topics that are in ZooKeeper, and that all states are written and known."""
        wanted = {one.name: one for one in self.registrations()}
        for broker in self.brokers:
            if broker.up:
                found = {
                    topic.name: TopicRegistration(topic.name, topic.topic_id, topic.replicas, topic.stored().configs)
                    for topic in broker.catalog.topics
                }
                assert found == wanted, broker.node_id
                assert broker.zookeeper.is_registered
                for topic in broker.catalog.topics:
                    for partition, epoch in self.states(topic.name).items():
                        assert broker.catalog.leader_epoch(topic, partition) == epoch
        up = {broker.node_id for broker in self.brokers if broker.up}
        for one in wanted.values():
            assert {partition for partition, replica in enumerate(one.replicas) if replica in up} <= self.states(one.name).keys()
        ids = {int(name) for name in self.model.children(paths.BROKER_IDS)}
        assert all({*broker.catalog.cluster.brokers} == ids for broker in self.brokers if broker.up)
