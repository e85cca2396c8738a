"""The states of partitions in ZooKeeper: each broker writes those of its own, and reads the leader epochs of others.

Owns the nodes ``/brokers/topics/TOPIC/partitions/N/state``. Must not know requests, or why a topic has changed. Invariants: a state
has one writer, the broker that has the partition, so none is overwritten; a state that is as it should be is only read; while
something is left to write, ``is_ready`` is false; nothing is written before it is known that no other broker is registered with the
id of this one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.topics import Topic
from ottla.broker.zookeeper.backlog import Backlog
from ottla.broker.zookeeper.manager import ManagerPoll
from ottla.broker.zookeeper.topics import TopicRegistry
from ottla.errors import KeeperCode, OttlaError
from ottla.types import Now, TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, Outcome, has_code, is_missing
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.multis import parts
from ottla.zookeeper.nodes import decode_partition_state, encode_partition_state
from ottla.zookeeper.operations import Create, GetChildren, GetData, Multi, SetData
from ottla.zookeeper.session import SessionChanged, SessionState, WatchFired

_log = logging.getLogger(__name__)

MOST_AT_ONCE = 500
"""Partitions whose states are read, and then written, at the same time."""

_MOST_WAITS = 6
"""The back-off doubles, so these are six seconds. If the broker has written nothing by then, its next registration counts."""

_Write = tuple[TopicPartition, tuple[Create | SetData, ...]]
"""The changes of nodes that give a partition its state. They are parts of one multi."""


class PartitionStates:
    """See the module."""

    def __init__(self, catalog: BrokerCatalog, topics: TopicRegistry) -> None:
        self._catalog = catalog
        self._topics = topics
        self._asks = AskQueue(catalog.config.zookeeper_connection_timeout_ms)
        self.may_write = False
        """Whether no other broker is registered with the id of this one, as far as is known in this session."""
        self._is_connected = False
        self._has_news = False
        """Whether something has become due since the last poll."""
        self._own: Backlog[TopicPartition] = Backlog(MOST_AT_ONCE)
        """Partitions of this broker whose states may be missing or outdated."""
        self._others: Backlog[TopicPartition] = Backlog(MOST_AT_ONCE)
        """Partitions of other brokers whose leader epochs are to be read."""
        self._waits: Counter[TopicPartition] = Counter()
        """How often the state of a partition was read that has moved, and another broker had written it."""
        self._malformed = MalformedNodes("the leader epoch counts as 0")
        catalog.cluster.listeners.append(self._on_topic_changed)

    def __repr__(self) -> str:
        return f"<PartitionStates own: {self._own}, others: {self._others}>"

    @property
    def is_ready(self) -> bool:
        """Whether the states of all partitions that this broker has were written, or found to be right, since the session was last
        connected."""
        return self._is_connected and self._own.is_empty

    @property
    def is_due(self) -> bool:
        """Whether something is to be read or written that the last poll did not know of."""
        return self._has_news

    def read_epochs_of(self, broker_id: int) -> None:
        """Read the leader epochs of the partitions that another broker has: it has written them before it registered."""
        for topic in self._catalog.topics:
            for partition in topic.partitions:
                if self._catalog.cluster.replica(topic, partition) == broker_id:
                    self._others.add(TopicPartition(topic.name, partition))
        self._has_news = True

    def check_own(self) -> None:
        """Look at the states of all partitions that this broker has."""
        for topic in self._catalog.topics:
            self._add(topic, topic.partitions)

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Begin again after each connection: what was in flight has no outcome."""
        if isinstance(event, WatchFired):
            return
        self._asks.abandon()
        self._others.restart()
        self._own.restart()
        self._is_connected = event.state is SessionState.CONNECTED
        if self._is_connected:
            self.check_own()

    def _on_topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        if after is not None:
            known = before.replicas if before is not None else ()
            moved = [one for one in after.partitions if one >= len(known) or known[one] != after.replicas[one]]
            self._add(after, moved)
            self._add_others(after, moved)
        elif before is not None:
            for partition in before.partitions:
                self._own.drop(TopicPartition(before.name, partition))
                self._others.drop(TopicPartition(before.name, partition))
                self._waits.pop(TopicPartition(before.name, partition), None)

    def _add(self, topic: Topic, partitions: Iterable[int]) -> None:
        for partition in partitions:
            if self._catalog.cluster.is_mine(topic, partition):
                self._own.add(TopicPartition(topic.name, partition))
                self._has_news = True

    def _add_others(self, topic: Topic, partitions: Iterable[int]) -> None:
        """Read the leader epochs of partitions whose brokers are registered. Those of the others are read when they register.

        1. The node of a topic is malformed. 2. This broker starts, and reads the leader epochs of the topics that it knows. 3. The
        node is repaired. The brokers of its partitions may not register again for months.
        """
        for partition in partitions:
            replica = self._catalog.cluster.replica(topic, partition)
            if replica != self._catalog.node_id and replica in self._catalog.cluster.brokers:
                self._others.add(TopicPartition(topic.name, partition))
                self._has_news = True

    def poll(self, now: Now) -> ManagerPoll:
        """Return what is to be read and written.

        States are written after all topics were read since the session was connected. Otherwise: 1. This broker is disconnected.
        2. A topic is deleted, and created again with its partitions on another broker, which writes their states. 3. This broker
        is connected, and overwrites them with its own. 4. It reads the topics.
        """
        self._has_news = False
        if not self._is_connected:
            return ManagerPoll()
        if own := self._own.take(now) if self.may_write and self._topics.is_ready else []:
            self._asks.ask_all(_reads(own), lambda outcomes, now: self._on_own(own, outcomes, now))
        if others := self._others.take(now):
            self._asks.ask_all(_reads(others), lambda outcomes, now: self._on_others(others, outcomes, now))
        times = [at for at in (self._own.wake_at if self.may_write else None, self._others.wake_at) if at is not None]
        return ManagerPoll(self._asks.take(), min(times, default=None))

    # -- own partitions ---------------------------------------------------------------------------------------------------

    def _on_own(self, own: Sequence[TopicPartition], outcomes: Sequence[Outcome], now: Now) -> None:
        """Write what is missing or different."""
        missing: list[TopicPartition] = []
        writes: list[_Write] = []
        for one, outcome in zip(own, outcomes, strict=True):
            data = self._data_of(one)
            if isinstance(outcome, OttlaError) and not is_missing(outcome):
                self._fail(self._own, one, outcome, now)
            elif data is None:
                self._own.done(one)  # it was deleted meanwhile
            elif is_missing(outcome):
                missing.append(one)
            elif outcome.data == data:
                self._own.done(one)
            else:
                writes.append((one, (SetData(_state(one), data, outcome.stat.version),)))
        if missing:
            self._look_for_parents(missing, writes)
        else:
            self._write(writes)

    def _data_of(self, one: TopicPartition) -> bytes | None:
        """The state as it should be; ``None``: this broker does not have the partition."""
        topic = self._catalog.topics.get(one.topic)
        if topic is None or one.partition not in topic.partitions or not self._catalog.cluster.is_mine(topic, one.partition):
            return None
        return encode_partition_state(self._catalog.node_id, self._catalog.leader_epoch(topic, one.partition))

    def _look_for_parents(self, missing: Sequence[TopicPartition], writes: list[_Write]) -> None:
        """Create states, and what is missing above them.

        The parent of a topic's partitions is created by itself: several brokers have partitions of the topic, and may all create
        it at the same time. A multi that did so would fail for all but one of them.
        """
        topics = list(dict.fromkeys(one.topic for one in missing))
        for topic in topics:
            self._asks.ensure(paths.partitions(topic))

        def looked(outcomes: Sequence[Outcome], now: Now) -> None:
            found = dict(zip(topics, outcomes, strict=True))
            names = {topic: frozenset(outcome.names) for topic, outcome in found.items() if not isinstance(outcome, OttlaError)}
            for one in missing:
                outcome, data = found[one.topic], self._data_of(one)
                if is_missing(outcome) or data is None:
                    self._own.done(one)  # the topic was deleted meanwhile
                elif isinstance(outcome, OttlaError):
                    self._fail(self._own, one, outcome, now)
                else:
                    parent = Create(_state(one).rpartition("/")[0])
                    is_there = str(one.partition) in names[one.topic]
                    writes.append((one, (*(() if is_there else (parent,)), Create(_state(one), data))))
            self._write(writes)

        self._asks.ask_all([GetChildren(paths.partitions(topic)) for topic in topics], looked)

    def _write(self, writes: Sequence[_Write]) -> None:
        if not self.may_write:  # another broker has registered since the states were read
            for one, _ in writes:
                self._own.add(one)
                self._own.done(one)
            return
        for part in parts([("".join([operation.path for operation in write[1]]), write) for write in writes]):
            self._write_part([write for _, write in part])

    def _write_part(self, writes: Sequence[_Write]) -> None:
        own = [one for one, _ in writes]

        def written(result: object, now: Now) -> None:
            for one in own:
                self._own.done(one)

        def failed(error: OttlaError, now: Now) -> None:
            for one in own:
                self._fail(self._own, one, error, now)

        self._asks.ask(Multi(tuple([operation for _, operations in writes for operation in operations])), written, failed)

    # -- partitions of others ---------------------------------------------------------------------------------------------

    def _on_others(self, others: Sequence[TopicPartition], outcomes: Sequence[Outcome], now: Now) -> None:
        cluster, topics = self._catalog.cluster, self._catalog.topics
        for one, outcome in zip(others, outcomes, strict=True):
            if isinstance(outcome, OttlaError) and not is_missing(outcome):
                self._fail(self._others, one, outcome, now)
                continue
            state = self._malformed.decoded(_state(one), outcome, decode_partition_state)
            topic = topics.get(one.topic)
            if topic is None or one.partition not in topic.partitions or cluster.is_mine(topic, one.partition):
                self._others.done(one)
                continue
            replica = cluster.replica(topic, one.partition)
            is_outdated = state is not None and state.leader != replica
            cluster.set_leader_epoch(one, 0 if state is None or is_outdated else state.leader_epoch)
            if is_outdated and replica in cluster.brokers and self._waits[one] < _MOST_WAITS:
                # A tool has moved the partition, and its broker has not written the state yet.
                self._waits[one] += 1
                self._others.fail(one, now)
            else:
                self._waits.pop(one, None)
                self._others.done(one)

    def _fail(self, backlog: Backlog[TopicPartition], one: TopicPartition, error: OttlaError, now: Now) -> None:
        """Read a state again later: what is to be written depends on it."""
        # That nodes are not as they were read is no failure, but there is no hurry either: a topic is being deleted.
        is_change = has_code(error, KeeperCode.NONODE, KeeperCode.NODEEXISTS, KeeperCode.BADVERSION)
        if backlog.fail(one, now) and not is_change:
            level = logging.INFO if error.retriable else logging.WARNING
            _log.log(level, "the states of partitions could not be read and written in ZooKeeper: %s; trying again", error)


def _reads(partitions: Sequence[TopicPartition]) -> list[GetData]:
    return [GetData(_state(one)) for one in partitions]


def _state(one: TopicPartition) -> str:
    return paths.partition_state(one.topic, one.partition)
