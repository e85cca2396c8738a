"""Brokers that share a ZooKeeper: their cores, in-memory files and sessions on one virtual clock, and a tool that writes nodes.

Owns the processes of the brokers and what they have asked of ZooKeeper. Must not know what is tested. Invariants: all happens in
events of the clock; a process starts on the files of the last one, and knows the topics that ZooKeeper has then; the answers and
watches of a session come as kazoo's threads report them.
"""

from __future__ import annotations

import random
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ottla.broker.catalog import BrokerCatalog, Endpoint
from ottla.broker.cluster import TopicRegistration
from ottla.broker.config import broker_config
from ottla.broker.core import BrokerCore
from ottla.broker.effects import BrokerEffect, CancelTimer, Registered, RunJob, SetTimer
from ottla.broker.ports import CatalogChange
from ottla.broker.timers import Timers
from ottla.broker.zookeeper.assembly import ZooKeeperAssembly
from ottla.errors import OttlaError, ProtocolError
from ottla.simulation.clock import Clock
from ottla.simulation.files import MemoryStore
from ottla.simulation.network import Network
from ottla.simulation.zookeeper_server import HOST, SimZooKeeper, SimZooKeeperClient
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import decode_configs, decode_leader_epoch, decode_topic_node, encode_configs, encode_topic
from ottla.zookeeper.operations import Create, Delete, Multi, Operation, SetData
from ottla.zookeeper.session import Ask, Disconnect, Perform, SessionReport

SESSION_TIMEOUT = 6000
_LONGEST = 1 << 40


class FailingStore(MemoryStore):
    """A data directory whose catalog may not be writable."""

    is_full = False

    def change_catalog(self, *changes: CatalogChange) -> None:
        if self.is_full:
            raise OSError("no space left on device")
        super().change_catalog(*changes)


class RandomIds:
    """Topic ids that differ from broker to broker."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128))

    def new_id(self) -> str:
        return str(self.new_uuid())


class BrokerInCluster:
    """One broker: a process after the other on the same files."""

    def __init__(self, cluster: ZooKeeperCluster, node_id: int, port: int | None = None, store: FailingStore | None = None) -> None:
        self.node_id = node_id
        self.port = port or 9000 + node_id
        self.host = f"broker-{node_id}-{self.port}"
        self.store = store or FailingStore(lambda: cluster.clock.now.wall)
        self.is_up = False
        self.registered: list[Registered] = []
        """What the present process has reported of its registration."""
        self.asked: list[Operation[Any]] = []
        """The operations of the present process."""
        self.core: BrokerCore
        self.client: SimZooKeeperClient
        self._cluster = cluster
        self._processes = 0
        self._timers = Timers()
        self._ids = RandomIds(self.port)
        cluster.network.add_host(self.host, lambda peer: self.client.on_heal())

    @property
    def catalog(self) -> BrokerCatalog:
        return self.core.catalog

    @property
    def zookeeper(self) -> ZooKeeperAssembly:
        assert self.core.zookeeper is not None
        return self.core.zookeeper

    @property
    def session_id(self) -> int | None:
        return self.zookeeper.session.session_id

    def counts(self) -> Counter[str]:
        """How often each kind of operation was asked for, but for those that only renew the lease."""
        return Counter(type(operation).__name__ for operation in self.asked if type(operation).__name__ != "Sync")

    # -- processes --------------------------------------------------------------------------------------------------------

    def start(self, registered: Sequence[TopicRegistration] | None = None) -> None:
        """Start a process. ``registered``: the topics that it has read before; by default those in ZooKeeper now."""
        self._processes += 1
        process = self._processes
        self.is_up, self.registered, self.asked, self._timers = True, [], [], Timers()
        settings = {
            "node.id": self.node_id,
            "zookeeper.connect": "zookeeper:2181",
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT,
        }
        self.core = BrokerCore(broker_config(settings), Endpoint("127.0.0.1", self.port), self.store, self._ids)

        def post(report: SessionReport) -> None:
            if self._processes == process and self.is_up:
                self.report(report)

        self.client = self._cluster.zookeeper.client(self.host, SESSION_TIMEOUT, post, lambda action: action())
        _, effects = self.core.start(self._cluster.clock.now, self._cluster.registrations() if registered is None else registered)
        self._take(effects)
        self.client.start()

    def kill(self) -> None:
        """End like kill -9."""
        self.is_up = False
        self.client.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    def disconnect(self) -> None:
        """Break the connection with ZooKeeper."""
        self.client.disconnect()

    def expire(self) -> None:
        """End the session with ZooKeeper."""
        assert self.session_id is not None
        self._cluster.zookeeper.expire(self.session_id)

    def report(self, report: SessionReport) -> None:
        """Pass a report of the ZooKeeper client to the core."""
        self._take(self.core.on_session_report(report, self._cluster.clock.now))

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
        self._take(self.catalog.outbox.take())

    def step(self) -> None:
        """End the step of a request that has begun a change."""
        self._take(self.core.on_job(("nothing",), None, self._cluster.clock.now))

    # -- effects ----------------------------------------------------------------------------------------------------------

    def _take(self, effects: list[BrokerEffect]) -> None:
        clock = self._cluster.clock
        for effect in [*effects, *self.core.write_batches(clock.now)]:
            match effect:
                case SetTimer(key, at):
                    self._timers.set(key, at)
                    self._wake(at)
                case CancelTimer(key):
                    self._timers.cancel(key)
                case RunJob():
                    clock.after(1, self._job(effect))
                case Perform(number, operation):
                    self.asked.append(operation)
                    self.client.perform(number, operation)
                case Disconnect():
                    self.client.disconnect()
                case Registered():
                    self.registered.append(effect)

    def _job(self, job: RunJob) -> Any:
        process = self._processes

        def run() -> None:
            if self._processes == process and self.is_up:
                self._take(self.core.on_job(job.tag, job.job(), self._cluster.clock.now))

        return run

    def _wake(self, at: int) -> None:
        process = self._processes

        def fire() -> None:
            if self._processes != process or not self.is_up:
                return
            now = self._cluster.clock.now
            key = self._timers.pop_due(now.mono)
            if key is not None:
                self._take(self.core.on_timer(key, now))

        self._cluster.clock.at(at, fire)


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
                states[int(child)] = decode_leader_epoch(data, name)
        return states

    # -- what must be true ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that each broker has the topics that are in ZooKeeper, and that all states are written and known."""
        wanted = {one.name: one for one in self.registrations()}
        for broker in self.brokers:
            if broker.is_up:
                found = {
                    topic.name: TopicRegistration(topic.name, topic.topic_id, topic.replicas, topic.stored().configs)
                    for topic in broker.catalog.topics
                }
                assert found == wanted, broker.node_id
                assert broker.zookeeper.is_registered
                for topic in broker.catalog.topics:
                    for partition, epoch in self.states(topic.name).items():
                        assert broker.catalog.leader_epoch(topic, partition) == epoch
        up = {broker.node_id for broker in self.brokers if broker.is_up}
        for one in wanted.values():
            assert {partition for partition, replica in enumerate(one.replicas) if replica in up} <= self.states(one.name).keys()
        ids = {int(name) for name in self.model.children(paths.BROKER_IDS)}
        assert all({*broker.catalog.cluster.brokers} == ids for broker in self.brokers if broker.is_up)
