"""Which operations change the groups of Kafka 0.8's consumers: committed offsets are written, groups and topics are deleted.

Owns the order of the operations, and how many a multi has. Must not know who asks for the change. Invariants:

- No operation of a multi is executed while the group has a member: see ``_no_member``.
- A change that ended in the middle can be repeated, with the same final result.
- An offset that another client has committed since it was read is not replaced unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.client.admin.zookeeper.reading import check_exists, no_group
from ottla.errors import (
    IllegalStateError,
    KeeperCode,
    NonEmptyGroupError,
    ProtocolError,
    UnknownTopicOrPartitionError,
    ZooKeeperError,
)
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.calls import Call, Steps, Tree, ask, catch_up, is_live, read_children, read_each, read_tree
from ottla.zookeeper.multis import parts
from ottla.zookeeper.nodes import GenerationNode, decode_offset, encode_offset
from ottla.zookeeper.operations import Check, Create, Delete, Exists, GetData, Multi, Node, SetData, Stat, Write

ATTEMPTS = 5
"""How often a change is tried while other clients change the same nodes."""
CONFLICTS = frozenset({KeeperCode.NONODE, KeeperCode.NODEEXISTS, KeeperCode.BADVERSION, KeeperCode.NOTEMPTY})
"""Another client has changed the nodes after they were read."""
SHOWN = 5
"""The number of members that an error names."""

Progress = Callable[[int, int], object]
"""Called after each multi, with the number of partitions or nodes that are done, and of all."""


# -- committed offsets ----------------------------------------------------------------------------------------------------


def alter_group_offsets(
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    expected: Mapping[TopicPartition, int | None] | None,
    progress: Progress,
) -> Call[None]:
    """Write committed offsets, and the nodes above them that are missing.

    ``expected``: the committed offsets that the caller has read, ``None`` for a partition without. Raises ``IllegalStateError`` if
    a partition has neither this nor the new offset by now, and ``NonEmptyGroupError``.
    """
    left = list(parts([(paths.offset(group_id, *tp), tp) for tp in sorted(offsets)]))
    written = 0

    def write_part() -> Steps[None]:
        wanted = {tp: offsets[tp] for _, tp in left[0]}
        operations = yield from _prepare(group_id, wanted, expected, written)
        if operations:
            yield from ask(Multi(tuple(operations)))

    def attempt() -> Steps[None]:
        nonlocal written
        yield from catch_up()
        while left:
            yield from _despite_conflicts(group_id, write_part)
            written += len(left.pop(0))
            progress(written, len(offsets))

    return attempt


def _prepare(
    group_id: str, wanted: Mapping[TopicPartition, int], expected: Mapping[TopicPartition, int | None] | None, written: int
) -> Steps[list[Write]]:
    """Return the operations that write these offsets; none if they are the committed ones already."""
    vacancy = yield from _check_no_member(group_id, f"{written} offsets were written before" if written else "")
    where = {tp: paths.offset(group_id, *tp) for tp in wanted}
    found = dict(zip(wanted, (yield from read_each(GetData(path) for path in where.values())), strict=True))
    changed = {tp: node for tp, node in found.items() if _committed(node, where[tp]) != wanted[tp]}
    if expected is not None:
        _check_expected(group_id, {tp: _committed(node, where[tp]) for tp, node in changed.items()}, expected)
    if not changed:
        return []
    above = sorted({parent for tp in changed for parent in paths.parents(where[tp])})
    stats = yield from read_each(Exists(parent) for parent in above)
    missing = [Create(parent) for parent, stat in zip(above, stats, strict=True) if stat is None]
    operations: list[Write] = [*missing, *_no_member(group_id, vacancy)]
    for tp, node in changed.items():
        data = encode_offset(wanted[tp])
        operations.append(Create(where[tp], data) if node is None else SetData(where[tp], data, node.stat.version))
    return operations


def _check_expected(
    group_id: str, committed: Mapping[TopicPartition, int | None], expected: Mapping[TopicPartition, int | None]
) -> None:
    for tp, offset in committed.items():
        if offset != expected.get(tp):
            text = f"the committed offset of {tp} of group {group_id!r} in ZooKeeper is now {offset}, and was {expected.get(tp)}"
            raise IllegalStateError(text, hint="look at the group again")


def _committed(node: Node | None, path: str) -> int | None:
    """The committed offset; ``None`` if there is none, or a malformed one."""
    try:
        return None if node is None else decode_offset(node.data, path)
    except ProtocolError:
        return None


class _Vacancy(NamedTuple):
    """A group without members, as it was read."""

    has_ids: bool
    """Whether the parent of its members exists."""
    generation: int | None
    """The version of the node ``generation``; ``None``: the group is not a central one."""


def _no_member(group_id: str, vacancy: _Vacancy) -> tuple[Write, ...]:
    """Let a multi fail if the group has a member by then.

    A node with children cannot be deleted, and a member is a child of ``ids``: 1. The members are read: there are none. 2. A
    consumer starts and registers. 3. The multi fails. (A ``Check`` would not do: it compares the version of a node's data, which a
    new child does not change.) A consumer that registers later finds ``ids``, with the default ACL: others never see a part of a
    multi. Members of the central coordinator get a new ``generation``.
    """
    ids, generation = paths.ids(group_id), paths.generation(group_id)
    vacant = (Delete(ids), Create(ids)) if vacancy.has_ids else (Create(ids),)
    if vacancy.generation is None:
        return (*vacant, Create(generation), Delete(generation))
    return (*vacant, Check(generation, vacancy.generation))


def _check_no_member(group_id: str, before: str) -> Steps[_Vacancy]:
    """Return what shows that there is no member. Raises ``NonEmptyGroupError``."""
    generation = yield from _check_not_coordinated(group_id, before)
    ids = paths.ids(group_id)
    names = yield from read_children(ids)
    stats = yield from read_each(Exists(f"{ids}/{name}") for name in names or ())
    found = {name: stat for name, stat in zip(names or (), stats, strict=True) if stat is not None}
    _refuse_live(group_id, [name for name, stat in found.items() if is_live(stat)], before)
    if found:
        text = f"the node {ids}/{min(found)} of ZooKeeper belongs to no session, so it is no member and does not disappear"
        raise IllegalStateError(text, hint="delete this node")
    return _Vacancy(names is not None, generation)


def _check_not_coordinated(group_id: str, before: str) -> Steps[int | None]:
    """Return the version of the node ``generation``; ``None``: the group is not central.

    Raises ``NonEmptyGroupError`` if it has members at the central coordinator, and ``IllegalStateError`` while one is elected,
    which would not learn of the change.
    """
    path = paths.generation(group_id)
    node, coordinator = yield from read_each([GetData(path), GetData(paths.COORDINATOR)])
    if node is None:
        return None
    count = GenerationNode.decode(node.data, path).members
    if count:
        text = f"group {group_id!r} has {count} member{'s' * (count > 1)} at the central coordinator"
        raise NonEmptyGroupError(f"{text}; {before}" if before else text)
    if coordinator is not None:
        text = f"the central coordinator, broker {coordinator.data.decode(errors='replace')}, coordinates group {group_id!r}"
        raise IllegalStateError(text, hint="change it with the brokers: ottla group ... -b BROKER, or Admin")
    return node.stat.version


def _refuse_live(group_id: str, live: Sequence[str], before: str) -> None:
    if live:
        shown = ", ".join(live[:SHOWN]) + (", ..." if len(live) > SHOWN else "")
        text = f"group {group_id!r} in ZooKeeper has {len(live)} member{'s' * (len(live) > 1)}: {shown}"
        raise NonEmptyGroupError(f"{text}; {before}" if before else text)


# -- deletion -------------------------------------------------------------------------------------------------------------


def delete_group(group_id: str, progress: Progress, *, validate_only: bool = False) -> Call[None]:
    """Delete all nodes of a group. Raises ``GroupIdNotFoundError`` and ``NonEmptyGroupError``."""
    return _deletion(group_id, (paths.group(group_id),), progress, validate_only=validate_only)


def delete_group_topic(group_id: str, topic: str, progress: Progress, *, validate_only: bool = False) -> Call[None]:
    """Delete the owners and the committed offsets of one topic.

    Raises ``GroupIdNotFoundError``, ``UnknownTopicOrPartitionError`` and ``NonEmptyGroupError``.
    """
    roots = (paths.topic_owners(group_id, topic), paths.topic_offsets(group_id, topic))
    return _deletion(group_id, roots, progress, topic, validate_only=validate_only)


def _deletion(
    group_id: str, roots: tuple[str, ...], progress: Progress, topic: str | None = None, *, validate_only: bool
) -> Call[None]:
    deleted, tried = 0, False
    """How many nodes were deleted, and whether any may have been."""

    def delete() -> Steps[None]:
        nonlocal deleted, tried
        if not tried:
            yield from check_exists(group_id)
        before = f"{deleted} nodes were deleted before" if deleted else ""
        if topic is not None:
            vacancy = yield from _check_no_member(group_id, before)
        else:
            vacancy = _Vacancy(has_ids=True, generation=(yield from _check_not_coordinated(group_id, before)))
        tree = yield from read_tree(roots)
        if not tree and not tried:
            _refuse_nothing(group_id, topic)
        _check_nothing_live(group_id, tree, before)
        if validate_only:
            return
        total = deleted + len(tree)
        for operations, size in _deletions(group_id, topic, tree, vacancy):
            tried = True
            yield from ask(Multi(operations))
            deleted += size
            progress(deleted, total)

    def attempt() -> Steps[None]:
        yield from catch_up()
        yield from _despite_conflicts(group_id, delete)

    return attempt


def _refuse_nothing(group_id: str, topic: str | None) -> None:
    if topic is None:  # Another client has deleted it since it was found.
        raise no_group(group_id)
    text = f"group {group_id!r} in ZooKeeper has neither owners nor committed offsets of topic {topic!r}"
    raise UnknownTopicOrPartitionError(text, hint="see ottla group describe")


def _despite_conflicts(group_id: str, step: Callable[[], Steps[None]]) -> Steps[None]:
    """Run a step again if other clients have changed its nodes after it has read them."""
    conflict: ZooKeeperError | None = None
    for _ in range(ATTEMPTS):
        try:
            yield from step()
            return
        except ZooKeeperError as error:
            if error.code not in CONFLICTS:
                raise
            conflict = error
    raise IllegalStateError(f"other clients change group {group_id!r} in ZooKeeper all the time", cause=conflict)


def _check_nothing_live(group_id: str, tree: Tree, before: str) -> None:
    """Raise ``NonEmptyGroupError`` if a node belongs to a session: to a member, or to one whose registration is gone."""
    ids = f"{paths.ids(group_id)}/"
    live = [path for path, stat in tree if is_live(stat)]
    _refuse_live(group_id, [path.removeprefix(ids) for path in live if path.startswith(ids)] or live, before)


def _deletions(group_id: str, topic: str | None, tree: Tree, vacancy: _Vacancy) -> Iterator[tuple[tuple[Write, ...], int]]:
    """Return the operations of each multi, and how many nodes it deletes."""
    if topic is None:
        yield from _group_deletions(group_id, tree, vacancy.generation) if tree else ()
        return
    for part in parts(list(reversed(tree))):
        yield (*_no_member(group_id, vacancy), *_deletes(part)), len(part)
        vacancy = vacancy._replace(has_ids=True)


def _group_deletions(group_id: str, tree: Tree, generation: int | None) -> Iterator[tuple[tuple[Write, ...], int]]:
    """Delete a group. The parent of the members and the group's own node go last: until then it is recognized as a group."""
    group, ids, last_nodes = paths.group(group_id), paths.ids(group_id), {paths.group(group_id), paths.ids(group_id)}
    central = () if generation is None else (Delete(paths.generation(group_id)),)
    last_nodes.update(one.path for one in central)
    vacancy = _Vacancy(any(path == ids for path, _ in tree), generation)
    had_ids = vacancy.has_ids
    # Nodes of no session below ids are no members. They go first, since a multi fails while ids has children.
    for part in parts([(path, stat) for path, stat in reversed(tree) if path.startswith(f"{ids}/")]):
        yield _deletes(part), len(part)
    others = [(path, stat) for path, stat in reversed(tree) if path not in last_nodes and not path.startswith(f"{ids}/")]
    others_in_parts = list(parts(others)) or [[]]
    for part in others_in_parts[:-1]:
        yield (*_no_member(group_id, vacancy), *_deletes(part)), len(part)
        vacancy = vacancy._replace(has_ids=True)
    last: tuple[Write, ...] = _deletes(others_in_parts[-1])
    last = (*last, *_no_member(group_id, vacancy), *central, Delete(ids), Delete(group))
    yield last, len(others_in_parts[-1]) + 1 + had_ids + len(central)


def _deletes(part: Sequence[tuple[str, Stat]]) -> tuple[Write, ...]:
    return tuple(Delete(path) for path, _ in part)
