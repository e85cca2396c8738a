"""The changes of topics, as steps in ZooKeeper: create, extend, alter, ask for a deletion, and remove what is left.

Owns the nodes that each change touches, and what an unexpected outcome means. Must not know time, retries of connections or who
asks. Invariants: one write decides about a change, so another broker sees all of it or nothing; a step whose answer was lost is
repeated, and a change that had been made already is recognized.

The deciding writes: the multi with the topic's node, ``SetData`` at the version that was read, and the node below
``/admin/delete_topics``, which Kafka's tools create as well.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.broker.cluster import TopicRegistration
from ottla.coordinator.effects import ApiError
from ottla.errors import KeeperCode, ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import MOST_SURPRISES, has_code, is_missing
from ottla.zookeeper.calls import Steps, read_children, read_each, read_tree
from ottla.zookeeper.multis import MULTI_OPERATIONS, parts
from ottla.zookeeper.nodes import TopicNode, decode_topic_node, encode_configs, encode_topic
from ottla.zookeeper.operations import Check, Create, Delete, Exists, GetData, Multi, SetData, Write

_MADE, _NODEEXISTS, _NONODE = None, KeeperCode.NODEEXISTS, KeeperCode.NONODE


def create_topic(topic: TopicRegistration) -> Steps[None]:
    """Create a topic. Raises ``ApiError``: TOPIC_ALREADY_EXISTS, also while one with this name is being deleted."""
    path, settings, marker = paths.topic(topic.name), paths.topic_config(topic.name), paths.deleted_topic(topic.name)
    unmarked = Create(marker), Delete(marker)  # fails if a deletion is asked for: it would concern this topic, too
    data, configs = encode_topic(topic.replicas, topic.topic_id), encode_configs(topic.configs)
    has_settings = False
    while True:
        write: Write = SetData(settings, configs) if has_settings else Create(settings, configs)
        error = yield from _write(Multi((*unmarked, write, Create(path, data), Create(paths.partitions(topic.name)))))
        if error is _MADE:
            return
        if error.path == marker and has_code(error, _NODEEXISTS):
            raise ApiError(ErrorCode.topic_already_exists, f"Topic '{topic.name}' is marked for deletion.")
        if error.path == settings and has_code(error, _NODEEXISTS, _NONODE):
            has_settings = error.code is _NODEEXISTS  # an operator may set them before the topic exists
        elif has_code(error, _NODEEXISTS):
            found = yield from _read_topic(topic.name)
            if found is not None and found[0].topic_id == topic.topic_id:
                return  # the answer of an earlier attempt was lost
            if found is not None:
                raise ApiError(ErrorCode.topic_already_exists, f"Topic '{topic.name}' already exists.")
        elif not error.retriable:
            raise error


def extend_topic(
    name: str, topic_id: uuid.UUID, partitions: int, added: Sequence[int] | None, place: Callable[[int], Sequence[int]]
) -> Steps[tuple[int, ...]]:
    """Give a topic ``partitions`` partitions, and return the broker of each. ``added``: the brokers of the new ones, otherwise
    ``place`` chooses them.

    Raises ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION, or INVALID_PARTITIONS if another client was faster.
    """
    wanted: tuple[int, ...] | None = None
    while True:
        found = yield from _read_same_topic(name, topic_id)
        if found is None:
            raise _unknown(name)
        replicas, version = found[0].replicas, found[1]
        if replicas == wanted:
            return wanted  # the answer of an earlier attempt was lost
        missing = partitions - len(replicas)
        if missing <= 0 or (added is not None and missing != len(added)):
            raise ApiError(ErrorCode.invalid_partitions, f"Topic '{name}' has {len(replicas)} partition(s) by now.")
        wanted = (*replicas, *(place(missing) if added is None else added))
        error = yield from _write(SetData(paths.topic(name), encode_topic(wanted, topic_id), version))
        if error is _MADE:
            return wanted
        if not (error.retriable or has_code(error, KeeperCode.BADVERSION, _NONODE)):
            raise error


def alter_topic(name: str, topic_id: uuid.UUID, configs: Mapping[str, str]) -> Steps[None]:
    """Replace the settings of a topic. Raises ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION."""
    settings, data, has_settings = paths.topic_config(name), encode_configs(configs), True
    while True:
        found = yield from _read_same_topic(name, topic_id)
        if found is None:
            raise _unknown(name)
        write: Write = SetData(settings, data) if has_settings else Create(settings, data)
        error = yield from _write(Multi((Check(paths.topic(name), found[1]), write)))
        if error is _MADE:
            return
        if error.path == settings and has_code(error, _NODEEXISTS, _NONODE):
            has_settings = error.code is _NODEEXISTS
        elif not (error.retriable or has_code(error, _NONODE, KeeperCode.BADVERSION)):
            raise error


def mark_deleted(name: str, topic_id: uuid.UUID) -> Steps[None]:
    """Ask for the deletion of a topic. Raises ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION.

    After a lost answer it first looks: 1. The deletion is asked for, and the answer is lost. 2. The topic is removed. 3. A client
    creates a topic with this name, which must stay.
    """
    marker, was_lost = paths.deleted_topic(name), False
    while True:
        found = yield from _read_same_topic(name, topic_id)
        if found is None:
            if was_lost:
                return
            raise _unknown(name)
        error = yield from _write(Multi((Check(paths.topic(name), found[1]), Create(marker))))
        if error is _MADE or has_code(error, _NODEEXISTS):
            return
        was_lost = was_lost or error.outcome_unknown
        if not (error.retriable or has_code(error, _NONODE, KeeperCode.BADVERSION)):
            raise error


def remove_topic(name: str) -> Steps[None]:
    """Remove all nodes of a topic, at last the one that asks for it, unless it asks no more. Raises ``ZooKeeperError``, also if
    other clients create nodes below it as fast as these are removed.

    The leaders of its partitions may write states until they learn of the deletion, and the broker that did this before may have
    died halfway: so each step looks at what there is. A step concerns some partitions only, so that a broker whose session ends
    again and again makes progress all the same. Each write checks that the deletion is still asked for:

    1. The topic is removed. 2. This broker has not learnt yet that nothing asks for it, and removes it once more. 3. A client
    creates a topic with this name. Without the check it would be removed.
    """
    marker, surprises = paths.deleted_topic(name), 0
    while True:
        try:
            removals = yield from _next_removals(name, marker)
        except ZooKeeperError as lost:
            if not lost.retriable:
                raise
            continue
        if not removals:
            return
        error = yield from _write(Multi((Check(marker), *removals)))
        if error is _MADE:
            surprises = 0
        elif has_code(error, _NONODE, KeeperCode.NOTEMPTY):
            surprises += 1
            if surprises > MOST_SURPRISES:
                raise error
        elif not error.retriable:
            raise error


def _next_removals(name: str, marker: str) -> Steps[list[Delete]]:
    """Return what removes some of the nodes, or at last the rest; nothing without the ``marker``.

    Nodes of other clients below the topic are removed with it, as Kafka's controller does: otherwise it could not be removed. The
    topic, its settings and the marker go together: a marker alone would concern the next topic with this name.
    """
    if (yield from read_each([Exists(marker)])) == [None]:
        return []
    numbers = (yield from read_children(paths.partitions(name))) or ()
    some = [f"{paths.partitions(name)}/{number}" for number in numbers[: MULTI_OPERATIONS // 2 - 1]]
    tree = yield from read_tree(some or [paths.topic(name), paths.topic_config(name)])
    children_first = [(path, Delete(path)) for path, _ in reversed(tree)]
    part = [removal for _, removal in next(parts(children_first), [])]
    return part if some or len(part) < len(tree) else [*part, Delete(marker)]


def _read_same_topic(name: str, topic_id: uuid.UUID) -> Steps[tuple[TopicNode, int] | None]:
    """Return what ``_read_topic`` returns; ``None`` also if the topic has another id: it was deleted, and created again."""
    found = yield from _read_topic(name)
    return None if found is None or found[0].topic_id != topic_id else found


def _read_topic(name: str) -> Steps[tuple[TopicNode, int] | None]:
    """Return a topic and the version of its node; ``None`` if there is none. Raises ``ProtocolError`` if it is malformed."""
    path = paths.topic(name)
    while True:
        (found,) = yield (GetData(path),)
        if not isinstance(found, ZooKeeperError):
            return decode_topic_node(found.data, path), found.stat.version
        if is_missing(found):
            return None
        if not found.retriable:
            raise found


def _write(operation: Multi | SetData) -> Steps[ZooKeeperError | None]:
    """Return the error of a write; ``None``: it was executed."""
    outcome: Any
    (outcome,) = yield (operation,)
    return outcome if isinstance(outcome, ZooKeeperError) else _MADE


def _unknown(name: str) -> ApiError:
    return ApiError(ErrorCode.unknown_topic_or_partition, f"There is no topic '{name}'.")
