"""Whose offsets are those below ``/consumers/GROUP/offsets``: of the topic that there is, or of one that was deleted.

Owns the reading of the topics with these names. Must not know groups, nor the broker's own image of the topics, which may be older.
Invariants: an offset counts as outdated only if ZooKeeper says that its topic is gone, is to be deleted, or was created after the
offset was written; a topic that cannot be understood is there.

1. There is no coordinator: a broker was killed, or is cut off. 2. A topic is deleted, which has offsets, and perhaps created again.
3. A coordinator is elected. If it took the node for an offset of the new topic, its first records would never be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.coordinator.central.group import CommittedOffset
from ottla.errors import ProtocolError
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.calls import Steps, read_each
from ottla.zookeeper.nodes import decode_offset, decode_topic_node
from ottla.zookeeper.operations import Exists, GetData, Node

_TOPICS_AT_ONCE = 100
"""Topics whose nodes are read, and decoded, at the same time."""


class StoredOffset(NamedTuple):
    """The data of an offset's node, and the transaction that has written it."""

    offset: int
    mzxid: int


class _FoundTopic(NamedTuple):
    """The transaction that has created the node of a topic, and the topic's id; ``None``: it has none, or is malformed."""

    czxid: int
    topic_id: UUID | None


_UNKNOWN = _FoundTopic(-1, None)


class SortedOffsets(NamedTuple):
    """The offsets of a group, and the partitions of which there is only one of a deleted topic."""

    offsets: dict[TopicPartition, CommittedOffset]
    outdated: frozenset[TopicPartition]


def decode_stored_offset(node: Node, path: str) -> StoredOffset:
    """Read an offset's node. Raises ``ProtocolError``."""
    return StoredOffset(decode_offset(node.data, path), node.stat.mzxid)


def sort_offsets(stored: Mapping[str, Mapping[TopicPartition, StoredOffset]]) -> Steps[dict[str, SortedOffsets]]:
    """Sort the offsets of groups, which were read before this call: so a topic that is not there by now was deleted since."""
    topics = yield from _read_topics({partition.topic for offsets in stored.values() for partition in offsets})
    return {group_id: _sorted(offsets, topics) for group_id, offsets in stored.items()}


def _sorted(stored: Mapping[TopicPartition, StoredOffset], topics: Mapping[str, _FoundTopic | None]) -> SortedOffsets:
    offsets: dict[TopicPartition, CommittedOffset] = {}
    outdated: list[TopicPartition] = []
    for partition, one in stored.items():
        topic = topics[partition.topic]
        if topic is None or one.mzxid < topic.czxid:
            outdated.append(partition)
        else:
            offsets[partition] = CommittedOffset(one.offset, topic.topic_id)
    return SortedOffsets(offsets, frozenset(outdated))


def _read_topics(names: Iterable[str]) -> Steps[dict[str, _FoundTopic | None]]:
    """Read topics; ``None``: it does not exist, or is being deleted."""
    found: dict[str, _FoundTopic | None] = {}
    found.update(dict.fromkeys(names, _UNKNOWN))
    readable = sorted(filter(paths.is_name, found))
    for first in range(0, len(readable), _TOPICS_AT_ONCE):
        part = readable[first : first + _TOPICS_AT_ONCE]
        # First the topic: 1. It is being deleted. 2. It is gone, with what asks for that, and created again. The other way round,
        # the new one would count as the one that is to be deleted.
        nodes = yield from read_each([GetData(paths.topic(name)) for name in part])
        marks = yield from read_each([Exists(paths.deleted_topic(name)) for name in part])
        for name, node, mark in zip(part, nodes, marks, strict=True):
            found[name] = None if node is None or mark is not None else _found(name, node)
    return found


def _found(name: str, node: Node) -> _FoundTopic:
    try:
        return _FoundTopic(node.stat.czxid, decode_topic_node(node.data, paths.topic(name)).topic_id)
    except ProtocolError:  # the reader of the topics says so
        return _FoundTopic(node.stat.czxid, None)
