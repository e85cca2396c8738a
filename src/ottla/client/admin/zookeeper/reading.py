"""What the nodes of groups mean: lists, descriptions and committed offsets.

Owns the reads of each call. Must not know who shows the results. Invariants: a node that disappears between two reads is skipped;
a malformed node is reported and never ends a call; a node below ``/consumers`` that is ephemeral, or has children but none of a
group's directories, is no group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from ottla.client.admin.zookeeper.results import (
    ACTIVE,
    DEAD,
    EMPTY,
    MalformedNode,
    ZooKeeperGroupDescription,
    ZooKeeperGroupListing,
    ZooKeeperGroupMember,
    ZooKeeperPartition,
)
from ottla.errors import ConfigError, GroupIdNotFoundError, ProtocolError
from ottla.types import FrozenMapping, Node as BrokerAddress, TopicPartition
from ottla.zookeeper import nodes, paths
from ottla.zookeeper.calls import Call, Steps, catch_up, is_live, read_children, read_each
from ottla.zookeeper.nodes import STATIC, ConsumerThread, GenerationNode, MemberRegistration
from ottla.zookeeper.operations import Children, Exists, GetChildren, GetData, Node

V = TypeVar("V")

DIRECTORIES = frozenset({"ids", "owners", "offsets", "generation"})
"""The children of a group's node: the members, the owners of partitions and the committed offsets; the generation of a central
one."""

_GENERATED_ID = re.compile(r"(?P<host>.+?)(-\d{13})?-[0-9a-f]{8}")
"""The part behind ``GROUP_`` of a generated id: host, milliseconds since 1970 (not in Ottla's), random digits."""

Brokers = tuple[tuple[BrokerAddress, ...], tuple[MalformedNode, ...]]
"""The registered brokers, and the nodes of those without an address."""
Offsets = tuple[dict[TopicPartition, int], tuple[MalformedNode, ...]]
"""The committed offsets, and the nodes that are none."""


class Report:
    """The malformed nodes that an attempt has found."""

    def __init__(self) -> None:
        self._malformed: list[MalformedNode] = []

    def decode(self, decoder: Callable[[bytes, str], V], node: Node, path: str) -> V | None:
        """Return what ``decoder`` reads from a node; ``None`` if the node is malformed."""
        try:
            return decoder(node.data, path)
        except ProtocolError as error:
            self._malformed.append(MalformedNode(path, str(error)))
            return None

    def add(self, path: str, problem: str) -> None:
        self._malformed.append(MalformedNode(path, f"the node {path} of ZooKeeper {problem}"))

    def malformed(self) -> tuple[MalformedNode, ...]:
        return tuple(self._malformed)


def list_groups() -> Call[tuple[ZooKeeperGroupListing, ...]]:
    """Return all groups, in the order of their ids."""

    def attempt() -> Steps[tuple[ZooKeeperGroupListing, ...]]:
        yield from catch_up()
        names = (yield from read_children(paths.CONSUMERS)) or ()
        directories = yield from read_each(GetChildren(paths.group(name)) for name in names)
        groups = [name for name, found in zip(names, directories, strict=True) if _is_group(found)]
        ids = yield from read_each(GetChildren(paths.ids(name)) for name in groups)
        members = [(name, one) for name, found in zip(groups, ids, strict=True) if found for one in found.names]
        stats = yield from read_each(Exists(paths.member(name, member_id)) for name, member_id in members)
        active = {name for (name, _), stat in zip(members, stats, strict=True) if stat is not None and is_live(stat)}
        generations = yield from read_each(GetData(paths.generation(name)) for name in groups)
        central = {name: _central_members(node, name) for name, node in zip(groups, generations, strict=True) if node is not None}
        return tuple(
            ZooKeeperGroupListing(name, ACTIVE if name in active or central.get(name) else EMPTY, name in central)
            for name in groups
        )

    return attempt


def describe_group(group_id: str) -> Call[ZooKeeperGroupDescription]:
    """Return one group. Raises ``GroupIdNotFoundError`` if there is none with this id."""

    def attempt() -> Steps[ZooKeeperGroupDescription]:
        yield from catch_up()
        yield from check_exists(group_id)
        report = Report()
        (generation,) = yield from read_each([GetData(paths.generation(group_id))])
        if generation is not None:
            report.decode(GenerationNode.decode, generation, paths.generation(group_id))
        members = yield from _members(group_id, report)
        owners = yield from _read_partitions(paths.owners(group_id), nodes.decode_owner, report)
        offsets = yield from _read_partitions(paths.offsets(group_id), nodes.decode_offset, report)
        topics = {tp.topic for tp in (*owners, *offsets)}
        topics |= {topic for _, _, one in members if one is not None and one.pattern == STATIC for topic in one.subscription}
        partitions = sorted({*(yield from _registered_partitions(topics, report)), *owners, *offsets})
        malformed = {node.path: node.error for node in report.malformed()}
        offsets_path = paths.offsets(group_id)
        errors = {tp: malformed.get(f"{offsets_path}/{tp.topic}/{tp.partition}") for tp in partitions}
        return ZooKeeperGroupDescription(
            group_id,
            ACTIVE if any(live for _, live, _ in members) or _central_members(generation, group_id) else EMPTY,
            tuple(_described(group_id, member_id, live, one, owners) for member_id, live, one in members),
            tuple(ZooKeeperPartition(*tp, offsets.get(tp), owners.get(tp), errors[tp]) for tp in partitions),
            report.malformed(),
            generation is not None,
        )

    return attempt


def group_state(group_id: str) -> Call[str]:
    """Return the state of a group, without reading its offsets."""

    def attempt() -> Steps[str]:
        yield from catch_up()
        (node,) = yield from read_each([GetChildren(paths.group(group_id))])
        members = (yield from read_children(paths.ids(group_id))) or ()
        stats = yield from read_each(Exists(paths.member(group_id, member_id)) for member_id in members)
        (generation,) = yield from read_each([GetData(paths.generation(group_id))])
        if any(stat is not None and is_live(stat) for stat in stats) or _central_members(generation, group_id):
            return ACTIVE
        return EMPTY if _is_group(node) else DEAD

    return attempt


def group_offsets(group_id: str) -> Call[Offsets]:
    """Return the committed offsets of a group; none if there is no such group."""

    def attempt() -> Steps[Offsets]:
        yield from catch_up()
        report = Report()
        offsets = yield from _read_partitions(paths.offsets(group_id), nodes.decode_offset, report)
        return {tp: offset for tp, offset in sorted(offsets.items()) if offset is not None}, report.malformed()

    return attempt


def brokers(listener: str) -> Call[Brokers]:
    """Return the addresses of all registered brokers for a listener or security protocol."""

    def attempt() -> Steps[Brokers]:
        yield from catch_up()
        report = Report()
        numbers = yield from _numbers_below(paths.BROKER_IDS, report, "is not that of a broker: its name is not a number")
        found = yield from read_each(GetData(paths.broker(number)) for number in numbers)
        addresses = [
            report.decode(partial(nodes.decode_broker, number, listener=listener), node, paths.broker(number))
            for number, node in zip(numbers, found, strict=True)
            if node is not None
        ]
        return tuple(address for address in addresses if address is not None), report.malformed()

    return attempt


def cluster_id() -> Call[str | None]:
    """Return the id of the Kafka cluster; ``None`` if there is none, as before Kafka 0.10.1. Raises ``ProtocolError``."""

    def attempt() -> Steps[str | None]:
        (node,) = yield from read_each([GetData(paths.CLUSTER_ID)])
        return None if node is None else nodes.decode_cluster_id(node.data, paths.CLUSTER_ID)

    return attempt


def check_exists(group_id: str) -> Steps[None]:
    """Raise ``GroupIdNotFoundError`` if there is no such group."""
    (node,) = yield from read_each([GetChildren(paths.group(group_id))])
    if node is None:
        raise no_group(group_id)
    if not _is_group(node):
        raise no_group(group_id, f"the node {paths.group(group_id)} has neither members nor owners nor offsets")


def no_group(group_id: str, why: str = "") -> GroupIdNotFoundError:
    """The error if there is no such group in ZooKeeper."""
    text = f"there is no group {group_id!r} in ZooKeeper"
    return GroupIdNotFoundError(f"{text}: {why}" if why else text)


def _central_members(generation: Node | None, group_id: str) -> int:
    """Return how many members a group has at the central coordinator; 1 if its generation is malformed, since it may have some."""
    try:
        return 0 if generation is None else GenerationNode.decode(generation.data, paths.generation(group_id)).members
    except ProtocolError:
        return 1


def _is_group(node: Children | None) -> bool:
    """Whether a node is that of a group. Without children it may be one whose first member was interrupted as it registered."""
    return node is not None and (bool(DIRECTORIES & {*node.names}) or not (node.names or is_live(node.stat)))


def _members(group_id: str, report: Report) -> Steps[list[tuple[str, bool, MemberRegistration | None]]]:
    """Return the id of each member, whether it is live, and what it has registered (``None``: malformed)."""
    names = (yield from read_children(paths.ids(group_id))) or ()
    found = yield from read_each(GetData(paths.member(group_id, name)) for name in names)
    return [
        (name, is_live(node.stat), report.decode(MemberRegistration.decode, node, paths.member(group_id, name)))
        for name, node in zip(names, found, strict=True)
        if node is not None
    ]


def _described(
    group_id: str,
    member_id: str,
    live: bool,
    registered: MemberRegistration | None,
    owners: Mapping[TopicPartition, ConsumerThread | None],
) -> ZooKeeperGroupMember:
    prefix = f"{group_id}_"
    generated = _GENERATED_ID.fullmatch(member_id.removeprefix(prefix)) if member_id.startswith(prefix) else None
    return ZooKeeperGroupMember(
        member_id,
        None if generated is None else generated["host"],
        "" if registered is None else registered.pattern,
        FrozenMapping({} if registered is None else registered.subscription),
        live,
        tuple(sorted(tp for tp, owner in owners.items() if owner is not None and owner.member_id == member_id)),
    )


def _read_partitions(directory: str, decoder: Callable[[bytes, str], V], report: Report) -> Steps[dict[TopicPartition, V | None]]:
    """Read the nodes ``directory/TOPIC/PARTITION``; the value of a malformed one is ``None``."""
    topics = (yield from read_children(directory)) or ()
    partitions: list[tuple[TopicPartition, str]] = []
    children = yield from read_each(GetChildren(f"{directory}/{topic}") for topic in topics)
    for topic, found in zip(topics, children, strict=True):
        for name in found.names if found is not None else ():
            path, number = f"{directory}/{topic}/{name}", paths.partition_number(name)
            if number is None:
                report.add(path, "does not have the number of a partition as its name")
            else:
                partitions.append((TopicPartition(topic, number), path))
    found_nodes = yield from read_each(GetData(path) for _, path in partitions)
    return {
        tp: report.decode(decoder, node, path) for (tp, path), node in zip(partitions, found_nodes, strict=True) if node is not None
    }


def _registered_partitions(topics: Iterable[str], report: Report) -> Steps[list[TopicPartition]]:
    """Return all partitions of those topics that exist."""
    names = sorted(filter(_can_exist, topics))
    found = yield from read_each(GetData(paths.topic(name)) for name in names)
    return [
        TopicPartition(name, number)
        for name, node in zip(names, found, strict=True)
        if node is not None
        for number in report.decode(nodes.decode_topic, node, paths.topic(name)) or ()
    ]


def _can_exist(topic: str) -> bool:
    """Whether a topic can have a node. A member may have registered any name."""
    try:
        paths.topic(topic)
    except ConfigError:
        return False
    return True


def _numbers_below(path: str, report: Report, problem: str) -> Steps[list[int]]:
    """Return the children of a node whose names are whole numbers."""
    names = (yield from read_children(path)) or ()
    numbers = {name: paths.partition_number(name) for name in names}
    for name in (name for name, number in numbers.items() if number is None):
        report.add(f"{path}/{name}", problem)
    return sorted(number for number in numbers.values() if number is not None)
