"""Brokers with a core each, which share a ZooKeeper, behind the calls of ``SimBroker``.

Owns the choice of the broker that a request of the test goes to, and the wait for its answer. Must not know what a broker does.
Invariant: which topics there are, and who leads a partition, is what ZooKeeper says.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ottla.broker.catalog import Endpoint
from ottla.broker.core import BrokerCore
from ottla.broker.faults.rules import Action, ExpireMember
from ottla.coordinator.state import Group, Offsets
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import find_coordinator_request
from ottla.simulation.broker import Asked, ClientEnd, Exchange, Sender
from ottla.simulation.clock import Clock
from ottla.simulation.cluster import Cluster
from ottla.simulation.files import MemoryStore
from ottla.simulation.network import Network
from ottla.simulation.requests import Unanswered, errors_in
from ottla.simulation.zookeeper_broker import ZooKeeperBroker
from ottla.simulation.zookeeper_server import SimZooKeeper
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import TopicNode, decode_topic_node

LIMIT = 30_000
"""Milliseconds until a request has to be answered."""

AGAIN = 50
"""Milliseconds between two attempts."""

_MOVING = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    }
)
"""Errors that end by themselves, when the brokers have read what is new in ZooKeeper."""

_GROUP_OF: dict[Api, Callable[[Any], str]] = {
    Api.OFFSET_FETCH: lambda message: message.groups[0].group_id,
    Api.OFFSET_COMMIT: lambda message: message.group_id,
    Api.OFFSET_DELETE: lambda message: message.group_id,
    Api.DESCRIBE_GROUPS: lambda message: message.groups[0],
    Api.CONSUMER_GROUP_DESCRIBE: lambda message: message.group_ids[0],
    Api.DELETE_GROUPS: lambda message: message.groups_names[0],
}
"""Requests that go to the coordinator, and the group of each."""


class SimBrokers:
    """See the module. ``nodes``: node id -> broker."""

    def __init__(self, network: Network, clock: Clock, zookeeper: SimZooKeeper, settings: dict[str, Any], count: int) -> None:
        """Start them, and let time pass until they are registered."""
        self.cluster = Cluster(count, int(settings.get("node.id", 1)))
        self.settings = settings
        """What a process of each broker is started with."""
        self.seen: list[tuple[int, Api, Any]] = []
        """Every request, with the time at which it was handled."""
        self.observers: list[Callable[[Exchange], None]] = []
        """Called with every request that is answered, and its response."""
        self.turn_observers: list[Callable[[Sender | None], None]] = []
        """Called at the end of each turn of a core, with the sender of the request that was executed in it, if there was one."""
        self.request_observers: list[Callable[[Asked], None]] = []
        """Called with every request before it is executed."""
        self.push_observers: list[Callable[[Api, Any], None]] = []
        """Called with every request that a core sends to a member."""
        self.connection_numbers: Iterator[int] = itertools.count(1)
        self.nodes: dict[int, ZooKeeperBroker] = {}
        self._clock = clock
        self._zookeeper = zookeeper
        self._owners: dict[int, ZooKeeperBroker] = {}
        """Connection -> its broker."""
        for node in self.cluster.nodes.values():
            store, note_up = MemoryStore(lambda: clock.now.wall), partial(self._note_up, node.node_id)
            broker = ZooKeeperBroker(zookeeper, node.node_id, Endpoint(node.host, node.port), store, settings, note_up=note_up)
            broker.seen, broker.observers, broker.turn_observers = self.seen, self.observers, self.turn_observers
            broker.push_observers, broker.request_observers = self.push_observers, self.request_observers
            self.nodes[node.node_id] = broker
            broker.start()
        self._run_until(self._know_each_other, "a cluster")

    def _know_each_other(self) -> bool:
        """Whether each broker is registered, and knows all others."""
        return all(broker.core.catalog.cluster.brokers.keys() == self.nodes.keys() for broker in self.nodes.values())

    def _note_up(self, node_id: int, up: bool) -> None:
        if up:
            self.cluster.up.add(node_id)
        else:
            self.cluster.up.remove(node_id)
        self.cluster.host = min(self.cluster.up, default=self.cluster.host)

    @property
    def up(self) -> bool:
        """Whether a broker runs."""
        return bool(self.cluster.up)

    @property
    def running(self) -> Iterator[ZooKeeperBroker]:
        """The brokers that run, or are stopped."""
        return (broker for broker in self.nodes.values() if broker.up)

    @property
    def struck(self) -> int:
        """How often a fault has struck."""
        return sum(broker.struck for broker in self.nodes.values())

    @property
    def answers(self) -> bool:
        """Whether a broker executes requests at once."""
        return any(broker.serves for broker in self.running)

    @property
    def core(self) -> BrokerCore:
        """The core of the first broker that runs."""
        return self.nodes[self.cluster.host].core

    # -- what is true -----------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicNode | None:
        """A topic as ZooKeeper has it."""
        data = self._zookeeper.model.data(paths.topic(name))
        return None if data is None else decode_topic_node(data, name)

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of a topic, which exists."""
        topic = self.topic(name)
        assert topic is not None
        assert topic.topic_id is not None
        return topic.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The topic with an id, if it exists."""
        return next((name for name in self._zookeeper.model.children(paths.TOPICS) if self.topic_id(name) == topic_id), None)

    def partition_count(self, name: str) -> int:
        """The number of partitions of a topic, 0 if it does not exist."""
        topic = self.topic(name)
        return 0 if topic is None else len(topic.replicas)

    def leader(self, tp: TopicPartition) -> ZooKeeperBroker | None:
        """The broker that has a partition, which exists; ``None`` if it does not run."""
        topic = self.topic(tp.topic)
        broker = None if topic is None or tp.partition >= len(topic.replicas) else self.nodes[topic.replicas[tp.partition]]
        return None if broker is None or not broker.up else broker

    def can_produce(self, tp: TopicPartition) -> bool:
        """Whether the leader of a partition would write records at once."""
        broker = self.leader(tp)
        return broker is not None and broker.serves and (broker.core.catalog.topics.partition_count(tp.topic) or 0) > tp.partition

    @property
    def can_change_topics(self) -> bool:
        """Whether a broker can change topics now."""
        return self._zookeeper.up and next(self._in_zookeeper(), None) is not None

    def state_of(self, group: str) -> tuple[Group | None, Offsets] | None:
        """A group and its committed offsets as its coordinator has them; ``None``: no process has loaded them."""
        states = (broker.core.state.groups.state_of(group) for broker in self.running)
        return next((state for state in states if state is not None), None)

    # -- processes --------------------------------------------------------------------------------------------------------

    def start(self, node_id: int | None = None) -> None:
        """Start a broker, by default all that do not run, as soon as ZooKeeper can be reached."""
        for broker in self._meant(node_id):
            broker.start_when_possible()

    def kill(self, node_id: int | None = None) -> None:
        """End a broker like kill -9, all by default: files stay, connections break, the session expires."""
        for broker in self._meant(node_id):
            broker.kill()

    def _meant(self, node_id: int | None) -> list[ZooKeeperBroker]:
        return list(self.nodes.values()) if node_id is None else [self.nodes[node_id]]

    def set_fault(
        self, action: Action, *apis: Api, times: int | None = 1, after: int = 0, lasts: int | None = None, **match: str
    ) -> None:
        """Inject a fault into each broker that runs."""
        for broker in self.running:
            broker.set_fault(action, *apis, times=times, after=after, lasts=lasts, **match)

    def expire(self, command: ExpireMember) -> int:
        """Expire members' sessions; returns their number."""
        return sum(broker.expire(command) for broker in self.running)

    def clear_faults(self) -> None:
        """Remove all faults."""
        for broker in self.running:
            broker.clear_faults()

    # -- requests of the test ---------------------------------------------------------------------------------------------

    def ask(self, api: Api, message: Any, limit: int = LIMIT) -> Any:
        """Send a request of the test itself to the broker that it is meant for, and let time pass until it is executed; returns
        the response. Raises ``Unanswered`` after ``limit`` milliseconds."""
        until = self._clock.now.mono + limit
        while True:
            broker = self._meant_for(api, message, until)
            response = self.ask_of(broker, api, message, until)
            moving = _MOVING.intersection(errors_in(response))
            if not moving or self._clock.now.mono + AGAIN > until:
                return response
            self._clock.run(AGAIN)

    def ask_of(self, broker: ZooKeeperBroker, api: Api, message: Any, until: int) -> Any:
        """Send a request to a broker; returns the response. Raises ``Unanswered`` at ``until``."""
        ticket = broker.send(api, message)
        process = broker.core
        while (response := broker.take_answer(ticket)) is None:
            if broker.core is not process or not broker.up or not self._clock.step(until):
                raise Unanswered(f"broker {broker.node_id} has not answered {api.name}")
        return response

    def _meant_for(self, api: Api, message: Any, until: int) -> ZooKeeperBroker:
        """Choose the broker for a request, when there is one that serves."""
        if api is Api.PRODUCE:
            topic = message.topic_data[0]
            name = topic.name or self.topic_name(topic.topic_id) or ""
            tp = TopicPartition(name, topic.partition_data[0].index)
            self._run_until(lambda: self.can_produce(tp), f"a leader of {tp}", until)
            return self._found(self.leader(tp))
        if api in _GROUP_OF:
            node_id = self.coordinator(_GROUP_OF[api](message), until)
            self._run_until(lambda: self.nodes[node_id].serves, f"the coordinator, broker {node_id}", until)
            return self.nodes[node_id]
        self._run_until(lambda: next(self._in_zookeeper(), None) is not None, "a broker", until)
        return self._found(next(self._in_zookeeper(), None))

    def _found(self, broker: ZooKeeperBroker | None) -> ZooKeeperBroker:
        assert broker is not None
        return broker

    def _in_zookeeper(self) -> Iterator[ZooKeeperBroker]:
        """The brokers that serve, are registered, and have not lost ZooKeeper."""
        return (
            broker for broker in self.running if broker.serves and broker.zookeeper.is_registered and broker.client.is_connected
        )

    def coordinator(self, group: str, until: int | None = None) -> int:
        """Ask for the coordinator of a group until there is one; returns its id."""
        until = self._clock.now.mono + LIMIT if until is None else until
        request = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
        response = self.ask(Api.FIND_COORDINATOR, request, until - self._clock.now.mono)
        (found,) = response.coordinators
        if found.error_code is not ErrorCode.none:
            raise Unanswered(f"{group} has no coordinator: {found.error_code.name}")
        node_id: int = found.node_id
        return node_id

    def _run_until(self, condition: Callable[[], bool], what: str, until: int | None = None) -> None:
        until = self._clock.now.mono + LIMIT if until is None else until
        while not condition():
            if not self._clock.step(until):
                raise Unanswered(f"there is not yet {what}")

    # -- connections ------------------------------------------------------------------------------------------------------

    def accept(self, client: ClientEnd, number: int, node_id: int) -> None:
        """Accept a connection to a broker. One that is stopped reads nothing from it yet."""
        self._owners[number] = self.nodes[node_id]
        self.nodes[node_id].accept(client, number, node_id)

    def node_of(self, number: int) -> int | None:
        """The broker of a connection that is open."""
        owner = self._owners.get(number)
        return None if owner is None else owner.node_of(number)

    def hang_up(self, number: int) -> None:
        """Handle the end of a connection that the client has closed or lost."""
        owner = self._owners.pop(number, None)
        if owner is not None:
            owner.hang_up(number)

    def receive(self, number: int, data: bytes) -> None:
        """Receive bytes from a client."""
        owner = self._owners.get(number)
        if owner is not None:
            owner.receive(number, data)

    def break_connection(self, number: int) -> None:
        """Break a connection, if it is open."""
        owner = self._owners.pop(number, None)
        if owner is not None:
            owner.break_connection(number)
