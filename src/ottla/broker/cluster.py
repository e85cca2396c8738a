"""The brokers of the cluster, and which of them leads a partition.

Owns the registered brokers, the leader epochs that they have reported, and the placement of new partitions. Must not know ZooKeeper
or requests. Invariants: a partition is led by its one replica or by no broker; a broker without ZooKeeper is its whole cluster; the
broker that is registered with an id has its partitions, whichever other process has the same id.
"""

from __future__ import annotations

import heapq
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ottla.broker.effects import NodeEndpoint
from ottla.broker.topics import Topic
from ottla.types import FrozenMapping, TopicPartition

NO_LEADER = -1
"""The protocol's number for a partition without a leader."""


class TopicRegistration(NamedTuple):
    """A topic as ZooKeeper has it: its id, the broker of each partition, and its own settings."""

    name: str
    topic_id: uuid.UUID
    replicas: tuple[int, ...]
    configs: Mapping[str, str]


class Cluster:
    """See the module. ``me`` is this broker, one of ``brokers`` unless it is displaced; ``is_alone``: it has no ZooKeeper."""

    def __init__(self, me: NodeEndpoint, *, is_alone: bool) -> None:
        self.me = me
        self.is_alone = is_alone
        self.brokers: Mapping[int, NodeEndpoint] = {me.node_id: me}
        """The registered brokers, by id, in its order."""
        self.is_displaced = False
        """Whether another broker is registered with the id of this one, at another address. Then it leads no partition here."""
        self.started_at: Mapping[int, int] = {}
        """When each registered broker has started (ms since 1970), as far as is known."""
        self.is_known = is_alone
        """Whether the registered brokers were ever read."""
        self._led: Counter[int] = Counter()
        """Broker -> the partitions that it has, whether it is registered or not."""
        self._leader_epochs: dict[TopicPartition, int] = {}
        """What other brokers have reported; 0 where nothing is known."""
        self.listeners: list[Callable[[Topic | None, Topic | None], None]] = []
        """Called with each topic before and after its change, in the order of the changes."""

    def __repr__(self) -> str:
        return f"<Cluster {sorted(self.brokers)}>"

    def set_brokers(self, others: Collection[NodeEndpoint]) -> None:
        """Note which other brokers are registered."""
        self.is_known = True
        mine = [broker for broker in (self.brokers.get(self.me.node_id),) if broker is not None]
        self.brokers = {broker.node_id: broker for broker in sorted({*others, *mine})}

    def set_displaced(self, by: NodeEndpoint | None) -> None:
        """Note that another broker is registered with the id of this one. ``by``: its address; ``None``: it cannot be read."""
        self.is_displaced = True
        others = {node_id: broker for node_id, broker in self.brokers.items() if node_id != self.me.node_id}
        self.brokers = dict(sorted({**others, **({} if by is None else {by.node_id: by})}.items()))

    def set_undisplaced(self) -> None:
        """Note that no other broker is registered with the id of this one."""
        self.is_displaced = False
        self.brokers = dict(sorted({**self.brokers, self.me.node_id: self.me}.items()))

    @property
    def is_shared(self) -> bool:
        """Whether another broker is registered, or has partitions and may come back."""
        return len({*self.brokers, *self._led}) > 1

    @property
    def controller_id(self) -> int:
        """The broker that clients take for the controller. Any broker changes topics, so all name the same one."""
        return min(self.brokers, default=self.me.node_id)

    def replica(self, topic: Topic, partition: int) -> int:
        """Return the broker that has a partition."""
        return topic.replicas[partition] if topic.replicas else self.me.node_id

    def is_mine(self, topic: Topic, partition: int) -> bool:
        """Whether this broker has a partition."""
        return not topic.replicas or topic.replicas[partition] == self.me.node_id

    def leader(self, topic: Topic, partition: int) -> int:
        """Return the broker that leads a partition; ``NO_LEADER`` if the one that has it is not registered."""
        replica = self.replica(topic, partition)
        return replica if replica in self.brokers else NO_LEADER

    def leader_endpoint(self, topic: Topic, partition: int) -> NodeEndpoint | None:
        """Return the broker that leads a partition, if it is registered."""
        return self.brokers.get(self.replica(topic, partition))

    def leader_epoch_of_other(self, topic: Topic, partition: int) -> int:
        """Return the leader epoch of a partition that another broker has."""
        return self._leader_epochs.get(TopicPartition(topic.name, partition), 0)

    def set_leader_epoch(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Note the leader epoch that another broker has reported."""
        if leader_epoch:
            self._leader_epochs[topic_partition] = leader_epoch
        else:
            self._leader_epochs.pop(topic_partition, None)

    def note_change(self, before: Topic | None, after: Topic | None) -> None:
        """Note a topic that was created, extended or deleted."""
        if before is not None:
            self._led.subtract(before.replicas)
        if after is not None:
            self._led.update(after.replicas)
        elif before is not None:
            for partition in before.partitions:
                self._leader_epochs.pop(TopicPartition(before.name, partition), None)
        self._led = +self._led  # without brokers that have none left
        for listener in self.listeners:
            listener(before, after)

    def place(self, partitions: int, expected: Mapping[int, int] = FrozenMapping()) -> tuple[int, ...]:
        """Return a broker for each new partition: the one with the fewest. ``expected``: broker -> partitions that it is getting
        already."""
        fewest = [(self._led[broker] + expected.get(broker, 0), broker) for broker in self.brokers or (self.me.node_id,)]
        heapq.heapify(fewest)
        places = []
        for _ in range(partitions):
            count, broker = fewest[0]
            heapq.heapreplace(fewest, (count + 1, broker))
            places.append(broker)
        return tuple(places)
