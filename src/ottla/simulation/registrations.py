"""What the brokers of Kafka 1.1.1 write into ZooKeeper: themselves, the topics, and the leaders of partitions.

Owns these nodes. Must not know who reads them. Invariant: the data has the form of Kafka 1.1.1; a broker that was killed is in
ZooKeeper until its session ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.simulation.zookeeper_server import SimZooKeeper
from ottla.types import Node
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import encode_broker, encode_partition_state, encode_topic
from ottla.zookeeper.operations import Create, Delete, Operation, SetData

SESSION_TIMEOUT = 6_000
"""Milliseconds for which a killed broker stays in ZooKeeper: the default of ``zookeeper.session.timeout.ms``."""

_ENDLESS = 1 << 40
"""The time-out of the model's session of a broker, which ends when the broker does and not by itself."""


class Registrations:
    """See the module."""

    def __init__(self, zookeeper: SimZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._clock = zookeeper.clock
        self._sessions: dict[int, int] = {}
        """Broker -> its session."""
        self._controller = zookeeper.model.open(_ENDLESS, self._clock.now)
        self._topics: Mapping[str, Sequence[int | None]] = {}
        for path in (*paths.parents(paths.broker(0)), paths.TOPICS):
            self._do(self._controller, Create(path))

    def register(self, node: Node) -> None:
        """Register a broker that has started. The session of its last process ends at once, if it is still there."""
        self._end(node.node_id, self._sessions.get(node.node_id))
        session_id = self._sessions[node.node_id] = self._zookeeper.model.open(_ENDLESS, self._clock.now)
        data = encode_broker(node.host, node.port, self._clock.now.wall)
        self._do(session_id, Create(paths.broker(node.node_id), data, ephemeral=True))

    def killed(self, node_id: int) -> None:
        """Note that a broker was killed."""
        session_id = self._sessions[node_id]
        self._clock.after(SESSION_TIMEOUT, lambda: self._end(node_id, session_id))

    def write_topics(self, topics: Mapping[str, Sequence[int | None]]) -> None:
        """Write all topics: the leader of each partition, ``None`` where there is none."""
        for name in self._topics.keys() - topics.keys():
            self._delete(paths.topic(name))
        for name, leaders in topics.items():
            if leaders != self._topics.get(name):
                self._write_topic(name, leaders)
        self._topics = dict(topics)

    def _write_topic(self, name: str, leaders: Sequence[int | None]) -> None:
        known = len(self._topics.get(name, ()))
        if len(leaders) != known:
            self._write(paths.topic(name), encode_topic([_replica(leader) for leader in leaders]))
        if not known:
            self._write(f"{paths.topic(name)}/partitions", b"")
        for number, leader in enumerate(leaders):
            state = paths.partition_state(name, number)
            if number >= known:
                self._write(paths.parents(state)[-1], b"")
            self._write(state, encode_partition_state(_replica(leader)))

    def _write(self, path: str, data: bytes) -> None:
        """Create a node, or replace its data if that is another one."""
        found = self._zookeeper.model.data(path)
        if found is None:
            self._do(self._controller, Create(path, data))
        elif found != data:
            self._do(self._controller, SetData(path, data))

    def _delete(self, path: str) -> None:
        for name in self._zookeeper.model.children(path):
            self._delete(f"{path}/{name}")
        self._do(self._controller, Delete(path))

    def _do(self, session_id: int, operation: Operation[object]) -> None:
        executed = self._zookeeper.execute(session_id, operation)
        assert executed is not None, "brokers are connected with the leader"
        assert executed.error is None, executed.error

    def _end(self, node_id: int, session_id: int | None) -> None:
        if session_id is not None and self._sessions.get(node_id) == session_id:
            del self._sessions[node_id]
            self._zookeeper.closed(session_id)


def _replica(leader: int | None) -> int:
    return -1 if leader is None else leader
