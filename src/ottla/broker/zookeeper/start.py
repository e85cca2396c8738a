"""What a broker does in ZooKeeper before it loads its data: it finds out its cluster, its node id, and the topics.

Owns the calls that a start makes. Must not know the data directory, connections or time. Invariants: a data directory of another
cluster is refused before anything in it is touched, and before anything is created in ZooKeeper; a topic whose nodes say too little
never counts as deleted, since the records of a deleted one are removed; attempts after a lost connection use one generated id at
most.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.broker.cluster import TopicRegistration
from ottla.broker.ports import StoredTopic
from ottla.errors import KeeperCode, ProtocolError, StorageError, ZooKeeperError
from ottla.zookeeper import nodes, paths
from ottla.zookeeper.calls import Call, Steps, ask, catch_up, read_children, read_each
from ottla.zookeeper.operations import Create, Exists, GetData, SetData

PRODUCER_IDS_OF_START = 2**40
"""A broker that assigns a thousand in a second has enough for 34 years, and there are enough blocks for eight million starts."""
_LAST_PRODUCER_ID = 2**63 - 1

_log = logging.getLogger("ottla.broker")

_ROOTS = tuple(dict.fromkeys(node for root in paths.CLUSTER_ROOTS for node in (*paths.parents(root), root)))
"""The nodes that every broker creates at its start, unless they exist, each after its parent."""


class TopicWithoutId(NamedTuple):
    """A topic whose node a tool older than Kafka 2.8 has written: it leaves the id out, also where there was one."""

    name: str
    replicas: tuple[int, ...]
    configs: Mapping[str, str]


class JoinedCluster(NamedTuple):
    """The cluster that a broker belongs to, and its id there."""

    cluster_id: str
    node_id: int
    first_producer_id: int
    """The first of the producer ids that this start may assign."""


class FoundTopics(NamedTuple):
    """The topics of a cluster, which broker ``node_id`` has read."""

    node_id: int
    topics: tuple[TopicRegistration, ...]
    without_id: tuple[TopicWithoutId, ...] = ()
    malformed: Mapping[str, ProtocolError] = {}
    """Topic -> why its nodes cannot be read."""
    registered_at: tuple[str, int] | None = None
    """The host and port with which a broker is registered under this id; ``None``: no broker is."""

    def replicas(self) -> Iterator[tuple[int, ...]]:
        """Yield the brokers of the partitions of each topic that can be read."""
        yield from (topic.replicas for topic in self.topics)
        yield from (topic.replicas for topic in self.without_id)

    def topics_with(self, stored: Iterable[StoredTopic]) -> tuple[TopicRegistration, ...]:
        """Return the topics of a broker with these in its data directory.

        A topic without an id has the stored one: 1. A topic has an id. 2. A tool of Kafka 1.1.1 adds partitions, and writes the
        node without it. 3. This broker starts. It must not take its own topic for another one, and remove the records.

        Raises ``StorageError`` if a stored topic is malformed in ZooKeeper.
        """
        known = {topic.name: topic.topic_id for topic in stored}
        if not known and any(self.node_id in replicas for replicas in self.replicas()):
            _log.warning(
                "broker %d has partitions in ZooKeeper, but no topics in its data directory: they begin empty", self.node_id
            )
        again = [
            TopicRegistration(one.name, known[one.name], one.replicas, one.configs) for one in self.without_id if one.name in known
        ]
        found = (*self.topics, *again)
        copied = _copied_topics(found, known)
        for name, error in {**self.malformed, **copied}.items():
            if name in known:
                hint = "repair or delete the node; without it, the broker would remove its records of this topic"
                raise StorageError(f"topic {name}: {error}", hint=hint, cause=error)
            _log.warning("%s; topic %s is skipped", error, name)
        return tuple([topic for topic in found if topic.name not in copied])


def _copied_topics(topics: Sequence[TopicRegistration], known: Mapping[str, uuid.UUID]) -> dict[str, ProtocolError]:
    """Return the topics that have the id of another one: of those with the same id, the one that is known, or else the first, keeps
    it."""
    owners: dict[uuid.UUID, str] = {}
    for topic in sorted(topics, key=lambda one: known.get(one.name) != one.topic_id):
        owners.setdefault(topic.topic_id, topic.name)
    others = [(topic.name, owners[topic.topic_id]) for topic in topics if owners[topic.topic_id] != topic.name]
    return {name: nodes.copied_topic(paths.topic(name), owner) for name, owner in others}


def create_root(chroot: str, cluster_id: str | None = None) -> Call[None]:
    """Create the node below which all others are, on a connection without a chroot.

    ``cluster_id``: that of the data directory; ``None``: it is new. Raises ``StorageError`` if it belongs to a cluster, and the
    node does not exist.
    """

    def attempt() -> Steps[None]:
        if cluster_id is None:
            return (yield from _create_each([*paths.parents(chroot), chroot]))
        yield from catch_up()
        if (yield from ask(Exists(chroot))) is None:
            raise _no_cluster(cluster_id)
        return None

    return attempt


def join(node_id: int | None, cluster_id: str | None, new_cluster_id: str) -> Call[JoinedCluster]:
    """Find out the cluster, and create the nodes that every cluster has.

    ``node_id``: ``None`` for one that is generated. ``cluster_id``: that of the data directory; ``None``: it is new. The first
    broker of a cluster gives it ``new_cluster_id``.

    Raises ``StorageError`` if the data directory belongs to another cluster, ZooKeeper to a Kafka, or if it has lost the topics.
    """
    known = node_id

    def attempt() -> Steps[JoinedCluster]:
        nonlocal known
        if (yield from read_each([Exists(paths.CONTROLLER_EPOCH)])) != [None]:
            raise StorageError(
                f"a Kafka has run in this ZooKeeper ({paths.CONTROLLER_EPOCH} exists)",
                hint="its controller and this broker would undo each other's work: use another chroot in zookeeper.connect, or, if "
                "that Kafka is stopped for good, remove the node",
            )
        yield from catch_up()  # a server that is behind would not know the cluster id yet
        found = yield from _cluster_id(cluster_id, new_cluster_id)
        yield from _check_topics(found)
        yield from _create_each(_ROOTS)
        if known is None:
            with_partitions = {broker for replicas in (yield from _read_topics(0)).replicas() for broker in replicas}
            known = yield from _generate_node_id(with_partitions)
        return JoinedCluster(found, known, (yield from _take_producer_ids(known)))

    return attempt


def read_topics(joined: JoinedCluster, *, delete_topic_enable: bool = True) -> Call[FoundTopics]:
    """Read the topics, when the data directory is locked. Without ``delete_topic_enable``, also those that are to be deleted.

    Not before: 1. Another process still has the directory, and the topics are read here. 2. A topic is created there, and gets
    records. 3. That process ends, and this one has the directory. 4. It would take the topic for a deleted one.
    """

    def attempt() -> Steps[FoundTopics]:
        yield from catch_up()  # a server that is behind would not know the topic of step 2 yet
        yield from _cluster_id(joined.cluster_id, joined.cluster_id)
        yield from _check_topics(joined.cluster_id)
        topics = yield from _read_topics(joined.node_id, delete_topic_enable=delete_topic_enable)
        return topics._replace(registered_at=(yield from _read_address(joined.node_id)))

    return attempt


def _create_each(wanted: Iterable[str]) -> Steps[None]:
    """Create nodes in this order, unless they exist."""
    for outcome in (yield tuple([Create(path) for path in wanted])):
        if isinstance(outcome, ZooKeeperError) and outcome.code is not KeeperCode.NODEEXISTS:
            raise outcome


def _cluster_id(of_directory: str | None, new: str) -> Steps[str]:
    """Return the id of the cluster; the first broker of a cluster creates it. Raises ``StorageError``.

    Otherwise nothing is created: 1. ZooKeeper has lost its data, and refuses the brokers that run, since they have seen newer
    transactions than it has. 2. One that does not run is started again and again. 3. If each refused start created nodes, there
    would soon be enough transactions.
    """
    found = yield from _read_cluster_id()
    if found is None and of_directory is not None:
        raise _no_cluster(of_directory)
    if found is None:
        found = yield from _create_cluster(new)
    if of_directory not in (None, found):
        raise StorageError(
            f"the data directory belongs to cluster {of_directory}, and ZooKeeper to cluster {found}",
            hint="zookeeper.connect must be as at the last start, with the same chroot; or use a new data directory",
        )
    return found


def _no_cluster(of_directory: str) -> StorageError:
    return StorageError(
        f"the data directory belongs to cluster {of_directory}, and ZooKeeper knows no cluster",
        hint="zookeeper.connect must be as at the last start, with its chroot; if ZooKeeper has lost its data, restore it. "
        "A broker that ran without ZooKeeper cannot join with its topics: use a new data directory, and copy the records",
    )


def _create_cluster(new: str) -> Steps[str]:
    """Create the nodes of a cluster, the id as the last one, and return the id."""
    yield from _create_each(_ROOTS)
    try:
        yield from ask(Create(paths.CLUSTER_ID, nodes.encode_cluster_id(new)))
        return new
    except ZooKeeperError as error:
        if error.code is not KeeperCode.NODEEXISTS:
            raise
    found = yield from _read_cluster_id()  # another broker was faster
    if found is None:
        raise ZooKeeperError(KeeperCode.NONODE, paths.CLUSTER_ID)  # and its node is gone: someone empties this ZooKeeper
    return found


def _check_topics(cluster_id: str) -> Steps[None]:
    """Raise ``StorageError`` if the parent of the topics is missing: a cluster has had it before it had an id.

    Also with a new data directory: 1. An operator removes ``/brokers``. 2. A new broker creates it again. 3. Another broker finds
    no topics, and removes its records.
    """
    if (yield from read_children(paths.TOPICS)) is None:
        raise StorageError(
            f"ZooKeeper has cluster {cluster_id}, but not {paths.TOPICS}, the node of its topics",
            hint="restore it; if you create it without topics, all topics count as deleted, and brokers remove their records",
        )


def _read_cluster_id() -> Steps[str | None]:
    """Return the id of the cluster, if it has one. Raises ``ProtocolError``."""
    (node,) = yield from read_each([GetData(paths.CLUSTER_ID)])
    return None if node is None else nodes.decode_cluster_id(node.data, paths.CLUSTER_ID)


def _generate_node_id(with_partitions: set[int]) -> Steps[int]:
    """Return an id that no broker has: neither a registered one, nor one that has partitions and may come back."""
    registered = yield from read_children(paths.BROKER_IDS)
    used = with_partitions | {int(name) for name in registered or () if name.isdecimal()}
    while True:
        stat = yield from ask(SetData(paths.BROKER_SEQUENCE, b""))
        node_id = paths.RESERVED_BROKER_IDS + stat.version
        if node_id not in used:
            return node_id


def _take_producer_ids(node_id: int) -> Steps[int]:
    """Take the next block of producer ids, and return the first of them. Raises ``ProtocolError`` if there is none.

    The data directory does not count: 1. A broker assigns an id, and another broker's log keeps its last sequence. 2. The first one
    loses its directory. 3. It assigns the id again. The records of the second producer are acknowledged as duplicates, and lost.
    """
    while True:
        (last,) = yield from read_each([GetData(paths.PRODUCER_IDS)])
        start = 0
        if last is not None and last.data:  # Kafka creates the node without data
            start = nodes.decode_last_producer_id(last.data, paths.PRODUCER_IDS, _LAST_PRODUCER_ID - PRODUCER_IDS_OF_START) + 1
        data = nodes.encode_producer_ids(node_id, start, start + PRODUCER_IDS_OF_START - 1)
        try:
            if last is None:
                yield from ask(Create(paths.PRODUCER_IDS, data))
            else:
                yield from ask(SetData(paths.PRODUCER_IDS, data, last.stat.version))
            return start
        except ZooKeeperError as error:  # another broker was faster
            if error.code not in (KeeperCode.NODEEXISTS, KeeperCode.BADVERSION, KeeperCode.NONODE):
                raise


def _read_address(node_id: int) -> Steps[tuple[str, int] | None]:
    """Return where a broker is registered, if it is; one that cannot be read is at no address that a broker has."""
    (node,) = yield from read_each([GetData(paths.broker(node_id))])
    if node is None:
        return None
    try:
        found = nodes.decode_broker(node_id, node.data, paths.broker(node_id))
    except ProtocolError:
        return "", 0
    return found.host, found.port


def _read_topics(node_id: int, *, delete_topic_enable: bool = True) -> Steps[FoundTopics]:
    """Return the topics, with ``delete_topic_enable`` without those that are to be deleted."""
    names = yield from read_children(paths.TOPICS)
    # In this order, a topic that is deleted meanwhile is in the second list, or its node is gone when it is read.
    deleted = {*((yield from read_children(paths.DELETED_TOPICS)) or ())} if delete_topic_enable else set()
    wanted = [name for name in names or () if name not in deleted]
    read = yield from read_each([GetData(paths.topic(name)) for name in wanted])
    configs = yield from read_each([GetData(paths.topic_config(name)) for name in wanted])
    topics: list[TopicRegistration] = []
    without_id: list[TopicWithoutId] = []
    malformed: dict[str, ProtocolError] = {}
    for name, node, config in zip(wanted, read, configs, strict=True):
        if node is None:
            continue
        try:
            topic_id, replicas, _ = nodes.decode_topic_node(node.data, paths.topic(name))
            settings = {} if config is None else nodes.decode_configs(config.data, paths.topic_config(name))
        except ProtocolError as error:
            malformed[name] = error
            continue
        if topic_id is None:
            without_id.append(TopicWithoutId(name, replicas, settings))
        else:
            topics.append(TopicRegistration(name, topic_id, replicas, settings))
    return FoundTopics(node_id, tuple(topics), tuple(without_id), malformed)
