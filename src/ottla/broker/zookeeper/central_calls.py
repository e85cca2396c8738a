"""The central groups in ZooKeeper, as steps: read them all, and write the records of one group.

Owns the nodes of a central group, and what an unexpected outcome means. Must not know time, retries of connections, or why a record
is written. Invariants: each write checks the epoch of the election, so that of an earlier coordinator changes nothing; the node
``generation`` is written after the owners, and deleted after everything else, so what was interrupted halfway has the number of
the generation before, and some owners of the next one, for which all members have stopped; while a group has no members here,
members of Kafka 0.8 may use it, and nothing is written while it has some; while it has members, one of Kafka 0.8 that registers all
the same finds its partitions owned, and the node of an owner that is of its own is only replaced or deleted by a multi that fails
while the group has such a member; what was written to ``generation`` is never reported as refused, so the coordinator knows it.

The records have the paths of their nodes, without ``/consumers/``, as keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn, TypeVar

from ottla.broker.zookeeper.central_offsets import StoredOffset, decode_stored_offset, sort_offsets
from ottla.coordinator.central.group import CommittedOffset, StoredGroup
from ottla.coordinator.effects import ApiError
from ottla.coordinator.runtime import Record
from ottla.errors import KeeperCode, ProtocolError, ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import MOST_SURPRISES, Outcome, has_code
from ottla.zookeeper.calls import Steps, catch_up, is_live, read_children, read_each, read_tree
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.multis import parts
from ottla.zookeeper.nodes import GenerationNode, decode_found_generation, decode_owner
from ottla.zookeeper.operations import (
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Node,
    SetData,
    Stat,
    Write,
)

_log = logging.getLogger("ottla.broker")

_T = TypeVar("_T")
Offsets = Mapping[TopicPartition, CommittedOffset]
_ResultT = TypeVar("_ResultT")

_GROUPS_AT_ONCE = 100
"""Groups whose nodes are read, and decoded, at the same time."""
_OTHER_NODES = (KeeperCode.NONODE, KeeperCode.NODEEXISTS, KeeperCode.NOTEMPTY)
"""There are other nodes than this broker knows of."""
_SHOWN = 3
"""The number of members that a message names."""
_PREFIX = f"{paths.CONSUMERS}/"


# -- reading --------------------------------------------------------------------------------------------------------------


class LoadedGroup(NamedTuple):
    """A central group, and the nodes that it has."""

    group: StoredGroup
    nodes: set[str]


class Malformed:
    """The nodes that could not be understood, of each kind."""

    def __init__(self) -> None:
        self.generations = MalformedNodes("the generation of the group counts as 0, and it keeps its offsets")
        self.owners = MalformedNodes("it counts as one that does not return")
        self.offsets = MalformedNodes()
        self.names = MalformedNodes()


def load_groups(longest_session: int, malformed: Malformed) -> Steps[list[LoadedGroup]]:
    """Return all central groups. Malformed offsets are left out; a malformed owner is one that never registers; a group keeps its
    owners and offsets if its ``generation`` is malformed, and its sessions may last ``longest_session`` milliseconds then."""
    unknown = GenerationNode(generation=0, members=1, session_timeout_ms=longest_session, epoch=0)
    names = (yield from read_children(paths.CONSUMERS)) or ()
    names = tuple(name for name in names if paths.may_be_central(name))
    nodes = yield from read_each([GetData(paths.generation(name)) for name in names])
    generations = {
        name: malformed.generations.decoded(paths.generation(name), node, decode_found_generation)
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    }
    groups = list(generations)
    loaded = []
    for first in range(0, len(groups), _GROUPS_AT_ONCE):
        part = groups[first : first + _GROUPS_AT_ONCE]
        loaded += yield from _load_part({name: generations[name] for name in part}, malformed, unknown)
    return loaded


def _load_part(
    generations: Mapping[str, GenerationNode | None], malformed: Malformed, unknown: GenerationNode
) -> Steps[list[LoadedGroup]]:
    found = {name: {paths.CONSUMERS, paths.group(name), paths.generation(name)} for name in generations}
    yield from _note_existing(found, {paths.ids(name): name for name in generations})
    owners = yield from _read_partitions(found, paths.owners, partial(_decode_owner, malformed.owners), malformed.names)
    stored = yield from _read_partitions(found, paths.offsets, partial(_decode_offset, malformed.offsets), malformed.names)
    offsets = yield from sort_offsets(stored)
    return [
        LoadedGroup(
            StoredGroup(
                group_id=name,
                generation=node.generation,
                members=node.members,
                session_timeout_ms=node.session_timeout_ms,
                epoch=node.epoch,
                owners=owners[name],
                processes=node.processes,
                offsets=offsets[name].offsets,
                outdated=offsets[name].outdated,
                is_malformed=generations[name] is None,
            ),
            found[name],
        )
        for name, node in ((name, node or unknown) for name, node in generations.items())
    ]


def _decode_owner(malformed: MalformedNodes, path: str, node: Node) -> str:
    """Return the text of an owner, also of a malformed one: it may be that of a member that still reads."""
    malformed.decoded(path, node, decode_owner)
    return node.data.decode(errors="replace")


def _decode_offset(malformed: MalformedNodes, path: str, node: Node) -> StoredOffset | None:
    return malformed.decoded(path, node, lambda data, path: decode_stored_offset(node, path))


def _no_number(data: bytes, path: str) -> NoReturn:
    raise ProtocolError(f"the node {path} of ZooKeeper does not have the number of a partition as its name")


def _note_existing(found: Mapping[str, set[str]], of_group: Mapping[str, str]) -> Steps[None]:
    stats = yield from read_each([Exists(path) for path in of_group])
    for (path, name), stat in zip(of_group.items(), stats, strict=True):
        if stat is not None:
            found[name].add(path)


def _read_partitions(
    found: Mapping[str, set[str]],
    directory_of: Callable[[str], str],
    decode: Callable[[str, Node], _T | None],
    names: MalformedNodes,
) -> Steps[dict[str, dict[TopicPartition, _T]]]:
    """Read the nodes ``directory/TOPIC/PARTITION`` of groups, and note in ``found`` which there are."""
    topics = yield from _list(found, [(name, "", directory_of(name)) for name in found])
    partitions = yield from _list(found, [(name, child, path) for name, child, path in topics])
    nodes = yield from read_each([GetData(path) for _, _, path in partitions])
    values: dict[str, dict[TopicPartition, _T]] = {name: {} for name in found}
    for (name, child, path), node in zip(partitions, nodes, strict=True):
        topic, number = path.rsplit("/", 2)[1], paths.partition_number(child)
        if node is None or is_live(node.stat):  # the second is the owner of a member of 0.8, and disappears with it
            found[name].discard(path)
        elif number is None:
            names.decoded(path, node, _no_number)
        elif (value := decode(path, node)) is not None:
            values[name][TopicPartition(topic, number)] = value
    return values


def _list(found: Mapping[str, set[str]], directories: Sequence[tuple[str, str, str]]) -> Steps[list[tuple[str, str, str]]]:
    """Return (group, name, path) of each child of these nodes, and note in ``found`` all that exist."""
    listed = []
    lists = yield from read_each([GetChildren(path) for _, _, path in directories])
    for (group, _, path), children in zip(directories, lists, strict=True):
        if children is not None:
            below = [(group, child, f"{path}/{child}") for child in sorted(children.names)]
            found[group].update([path, *(child_path for _, _, child_path in below)])
            listed += below
    return listed


def read_offsets(group_id: str, malformed: Malformed) -> Steps[Offsets]:
    """Return the committed offsets of a group, with those that members of Kafka 0.8 have committed before this call, and without
    those of deleted topics."""
    yield from catch_up()
    return (yield from _read_offsets(group_id, malformed))


def _read_offsets(group_id: str, malformed: Malformed) -> Steps[Offsets]:
    decode = partial(_decode_offset, malformed.offsets)
    found = yield from _read_partitions({group_id: set()}, paths.offsets, decode, malformed.names)
    return (yield from sort_offsets(found))[group_id].offsets


# -- writing --------------------------------------------------------------------------------------------------------------


class GroupNodes:
    """The nodes of a group that this broker knows of. It alone writes them; if it is not so, it looks again."""

    def __init__(self, existing: set[str] | None = None, *, is_shared: bool = True) -> None:
        self.is_shared = is_shared
        """Whether members of Kafka 0.8 may use the group, and commit: it is not central, or has no members."""
        self.existing: set[str] = existing or set()
        self.left_over: set[str] = set()
        """Those of a session that has not ended yet, of a member of Kafka 0.8, and disappear with it."""
        self.refused_by: tuple[str, ...] = ()
        """Some of the owners' nodes of members of Kafka 0.8 for which the last generation was refused."""
        self.may_be_stored = False
        """Whether the multi that ends the present append may have been executed: its answer is missing, or what follows it."""
        self._has_all = existing is not None
        """Whether a node that is not in ``existing`` does not exist."""
        self._looked_for: set[str] = set()
        """Otherwise: those of which that is known."""

    @property
    def is_nothing(self) -> bool:
        """Whether this is as good as a new object: of a group that was deleted or refused, there is nothing to remember."""
        return self.is_shared and not self.existing

    def unknown(self, concerned: Iterable[str]) -> list[str]:
        """Return those of these nodes that may exist or not."""
        return [] if self._has_all else [path for path in dict.fromkeys(concerned) if path not in self._looked_for]

    def note(self, stats: Mapping[str, Stat | None]) -> None:
        """Note nodes that were looked for."""
        self._looked_for.update(stats)
        self.existing.update(path for path, stat in stats.items() if stat is not None)
        self.left_over.update(path for path, stat in stats.items() if stat is not None and is_live(stat))

    def forget(self) -> None:
        """Note that there may be other nodes: the outcome of a write is unknown, or another client has changed something."""
        for known in (self.existing, self.left_over, self._looked_for):
            known.clear()
        self._has_all = False

    def forget_missing(self) -> None:
        """Forget which nodes do not exist, so that deleted ones take no memory. To be written, they are looked for again."""
        self._looked_for &= self.existing

    def share(self) -> None:
        """Note that members of Kafka 0.8 may use the group from now on."""
        self.is_shared = True
        self.forget()

    def executed(self, writes: Iterable[Write]) -> None:
        """Note what a multi has created and deleted."""
        for write in writes:
            if isinstance(write, Create):
                self.existing.add(write.path)
                self._looked_for.add(write.path)
            elif isinstance(write, Delete):
                self.existing.discard(write.path)
                self.left_over.discard(write.path)


class Written(NamedTuple):
    """What follows from an append that is stored."""

    offsets: Offsets | None
    """Those of the group if it has members from now on: members of Kafka 0.8 may have committed."""
    beside: str | None
    """The members of Kafka 0.8 that the group has all the same; ``""``: it has none; ``None``: that is not known."""


def write_records(
    group_id: str, records: Sequence[Record], epoch_version: int, known: GroupNodes, malformed: Malformed
) -> Steps[Written]:
    """Write the records of one group.

    They are absolute, so after a lost answer they are written again, unless they were stored: look at what there is, and go on.

    Raises ``ApiError``: NOT_COORDINATOR if there was another election; INCONSISTENT_GROUP_PROTOCOL if the group has members of
    Kafka 0.8, NON_EMPTY_GROUP if it has and is to be deleted.
    """
    wanted = {f"{_PREFIX}{key.decode()}": value for key, value in records}
    members = _members_in(wanted, group_id)
    beside = None
    if not (known.may_be_stored and (yield from _is_stored(group_id, wanted, epoch_version, known))):
        beside = yield from _write_all(group_id, wanted, members, epoch_version, known)
    offsets = None
    if members and known.is_shared:
        # Only now: 1. The offsets are read. 2. A member of 0.8 commits, and leaves. 3. The multi proves that there is no member.
        offsets = yield from _read_offsets(group_id, malformed)
        known.is_shared = False
    elif not members and paths.generation(group_id) in wanted:
        known.share()
    known.may_be_stored = False
    return Written(offsets, beside)


def _is_stored(group_id: str, wanted: Mapping[str, bytes | None], epoch_version: int, known: GroupNodes) -> Steps[bool]:
    """Return whether the multi that ends this append was executed, as far as that is unknown. Raises ``ApiError``.

    1. It is executed, and the connection breaks before the answer. 2. A member of Kafka 0.8 registers, and owns partitions: the
    group may have no members any longer. 3. The same records would be refused, though they are stored, or delete these owners.

    That multi alone changes ``generation``, and always: to a node that did not exist, to a higher number, to no members or from
    none, to a longer session, or to nothing. No earlier append has left these bytes, since none ends before its outcome is known.
    """
    generation = paths.generation(group_id)
    yield from catch_up()  # another server may not have the multi yet
    (node,) = yield from read_each([GetData(generation)])
    if (None if node is None else node.data) != wanted[generation]:
        known.may_be_stored = False
        return False
    yield from _execute(group_id, epoch_version, (), ErrorCode.inconsistent_group_protocol, known)
    return True


def _write_all(
    group_id: str, wanted: dict[str, bytes | None], members: int | None, epoch_version: int, known: GroupNodes
) -> Steps[str | None]:
    """Write the nodes, whatever there is. Return ``Written.beside``. ``members``: those of the generation, if it is written."""
    owners = paths.owners(group_id)
    has_owners = bool(members) and any(path.startswith(f"{owners}/") for path in wanted)
    if members == 0 or has_owners:
        # Also those that this broker does not know: 1. The first of several multis creates owners. 2. The second one fails. 3. The
        # next generation has other owners.
        wanted[owners] = None
    if has_owners:
        yield from _check_refusal(group_id, known)
    proves = known.is_shared or bool(members)
    surprises, others = 0, ""
    while True:
        try:
            yield from _write(group_id, wanted, epoch_version, known, proves=proves and not others, beside_others=bool(others))
            return others if proves else None
        except ApiError as error:
            if error.code is not ErrorCode.inconsistent_group_protocol or known.is_shared or others:
                raise
            # Java's consumers register without a look at the generation. 1. One registers. 2. The members stop. 3. The generation
            # would be refused until that process is gone: but it finds each partition owned, takes none, and gives up.
            others = error.message
            known.forget()
        except ZooKeeperError as error:
            known.forget()
            surprises += 1
            if not has_code(error, *_OTHER_NODES) or surprises > MOST_SURPRISES:
                raise


def _check_refusal(group_id: str, known: GroupNodes) -> Steps[None]:
    """Refuse a generation again if it was refused, and the owners of Kafka 0.8 are still there. Raises ``ApiError``.

    1. A group has 10,000 partitions, and a generation is refused. 2. It is tried again twice a second. 3. To look at all nodes each
    time would be a load on ZooKeeper, and commits and the renewals of the lease wait behind it.
    """
    if not known.refused_by:
        return
    stats = yield from read_each([Exists(path) for path in known.refused_by])
    if all(stat is not None and is_live(stat) for stat in stats) and (yield from read_children(paths.ids(group_id))):
        raise _owned(group_id, known.refused_by)
    known.refused_by = ()


def _owned(group_id: str, owned: Iterable[str]) -> ApiError:
    message = f"group {group_id!r} has members of Kafka 0.8 in ZooKeeper that own partitions: {', '.join(owned)}"
    return ApiError(ErrorCode.inconsistent_group_protocol, message)


def _members_in(wanted: Mapping[str, bytes | None], group_id: str) -> int | None:
    """Return the members in the generation that is to be written; ``None``: it is not."""
    generation = paths.generation(group_id)
    data = wanted.get(generation)
    return None if data is None else GenerationNode.decode(data, generation).members


def _write(
    group_id: str, wanted: Mapping[str, bytes | None], epoch_version: int, known: GroupNodes, *, proves: bool, beside_others: bool
) -> Steps[None]:
    """Write the nodes, if there are no members of Kafka 0.8 (``proves``), or none that own something (``beside_others``)."""
    generation = paths.generation(group_id)
    if generation in wanted and wanted[generation] is None:
        return (yield from _remove(group_id, epoch_version, known))
    yield from _look(group_id, wanted, known)
    if beside_others and known.left_over:
        known.refused_by = tuple(sorted(known.left_over)[:_SHOWN])
        raise _owned(group_id, known.refused_by)
    for part in _divided([*_changes(group_id, wanted, known, proves=proves)]):
        before = _no_member(group_id, known) if proves else ()
        yield from _execute(group_id, epoch_version, (*before, *part), ErrorCode.inconsistent_group_protocol, known)
    if None in wanted.values():
        known.forget_missing()
    return None


def _look(group_id: str, wanted: Mapping[str, bytes | None], known: GroupNodes) -> Steps[None]:
    """Find out which of the nodes exist, of those above them, and of those below the ones that are to be deleted."""
    concerned = known.unknown([paths.ids(group_id), *(one for path in wanted for one in (*paths.parents(path), path))])
    stats = yield from read_each([Exists(path) for path in concerned])
    known.note(dict(zip(concerned, stats, strict=True)))
    deleted = [path for path in concerned if path in known.existing and path in wanted and wanted[path] is None]
    below = yield from read_tree(deleted)
    known.note(dict(below))


def _changes(group_id: str, wanted: Mapping[str, bytes | None], known: GroupNodes, *, proves: bool) -> Iterator[Write]:
    """Yield what makes the nodes as they should be, with parents that are missing, the generation last."""
    generation, owners = paths.generation(group_id), f"{paths.owners(group_id)}/"
    others = () if proves else [path for path in known.left_over if path.startswith(owners)]
    made: set[str] = set()
    if proves and paths.ids(group_id) not in known.existing:
        yield from _creations(paths.ids(group_id), b"", known, made)
    yield from map(Delete, _unwanted(wanted, known, others))
    for path in sorted(wanted, key=lambda path: path == generation):
        value = wanted[path]
        if value is None:
            continue
        if path in known.left_over:
            yield from (Delete(path), Create(path, value))
        elif path in known.existing:
            yield SetData(path, value)
        else:
            yield from _creations(path, value, known, made)


def _unwanted(wanted: Mapping[str, bytes | None], known: GroupNodes, others: Collection[str]) -> list[str]:
    """Return the nodes to delete, with all below them that no other record writes, from the bottom.

    ``others`` remain, and what is above them: 1. A member of Kafka 0.8 owns a partition that the group has not read. 2. The last
    member of the group leaves. 3. Without the owner's node, the next member of Kafka 0.8 would read the partition beside the first.
    """
    deleted = {path for path, value in wanted.items() if value is None}
    if not deleted:  # a commit: it must not look at all nodes of a large group
        return []
    kept: set[str] = set()
    for path in (*(wanted.keys() - deleted), *others):
        one = path
        while one and one not in kept:
            kept.add(one)
            one = _parent(one)
    is_deleted = {"": False, **dict.fromkeys(deleted, True)}

    def is_below(path: str) -> bool:
        if path not in is_deleted:
            is_deleted[path] = is_below(_parent(path))
        return is_deleted[path]

    return sorted([one for one in known.existing - kept if is_below(one)], reverse=True)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _creations(path: str, data: bytes, known: GroupNodes, made: set[str]) -> Iterator[Write]:
    """Yield the creation of a node, and of those above it that are missing. ``made``: what was created before."""
    for parent in paths.parents(path):
        if parent not in known.existing and parent not in made:
            made.add(parent)
            yield Create(parent)
    made.add(path)
    yield Create(path, data)


def _divided(writes: Sequence[Write]) -> list[tuple[Write, ...]]:
    """Divide writes into parts that each fit into a multi; one at least, since it checks the epoch."""
    sizes = [(one.path + one.data.decode("latin-1") if isinstance(one, Create | SetData) else one.path, one) for one in writes]
    return [tuple([write for _, write in part]) for part in parts(sizes)] or [()]


def _no_member(group_id: str, known: GroupNodes) -> tuple[Write, ...]:
    """Let a multi fail if the group has a member of Kafka 0.8 by then: a node with children cannot be deleted.

    Without the node there is no member, unless one has created it meanwhile: then the multi fails as well, which creates it.
    """
    ids = paths.ids(group_id)
    return (Delete(ids), Create(ids)) if ids in known.existing else ()


def _execute(group_id: str, epoch_version: int, writes: Sequence[Write], if_members: ErrorCode, known: GroupNodes) -> Steps[None]:
    """Execute writes if there was no other election. Raises ``ApiError``: NOT_COORDINATOR, ``if_members``."""
    outcome: Outcome
    generation = paths.generation(group_id)
    is_last = any(write.path == generation for write in writes)
    known.may_be_stored = known.may_be_stored or is_last
    (outcome,) = yield (Multi((Check(paths.COORDINATOR_EPOCH, epoch_version), *writes)),)
    if not isinstance(outcome, ZooKeeperError):
        return known.executed(writes)
    known.may_be_stored = known.may_be_stored and (not is_last or outcome.outcome_unknown)
    if outcome.path == paths.COORDINATOR_EPOCH and has_code(outcome, KeeperCode.BADVERSION, KeeperCode.NONODE):
        raise ApiError(ErrorCode.not_coordinator, f"{paths.COORDINATOR_EPOCH} is not that of this coordinator any more")
    if outcome.path == paths.ids(group_id) and has_code(outcome, KeeperCode.NOTEMPTY):
        members = yield from _members(group_id)
        if members:
            raise ApiError(if_members, f"group {group_id!r} has members of Kafka 0.8 in ZooKeeper: {members}")
    raise outcome


def _members(group_id: str) -> Steps[str]:
    """Return the names of the nodes below ``ids``, and which of them belong to no process; nothing if there are none."""
    names = (yield from read_children(paths.ids(group_id))) or ()
    stats = yield from read_each([Exists(paths.member(group_id, name)) for name in names[:_SHOWN]])
    shown = [
        name if is_live(stat) else f"{name} (the node belongs to no process, delete it)"
        for name, stat in zip(names, stats, strict=False)
        if stat is not None
    ]
    return ", ".join([*shown, *(["..."] if shown and len(names) > _SHOWN else [])])


def _remove(group_id: str, epoch_version: int, known: GroupNodes) -> Steps[None]:
    """Remove a group with everything below it. Its generation goes in the last multi, with the parent of the members of 0.8."""
    group, ids, generation = paths.group(group_id), paths.ids(group_id), paths.generation(group_id)
    tree = yield from read_tree([group])
    known.forget()
    known.note(dict(tree))
    known.is_shared = True
    if members := (yield from _members(group_id)):
        raise ApiError(ErrorCode.non_empty_group, f"group {group_id!r} has members of Kafka 0.8 in ZooKeeper: {members}")
    *before, last = _divided([Delete(path) for path, _ in reversed(tree) if path not in (group, ids, generation)])
    for part in before:
        yield from _execute(group_id, epoch_version, (*_no_member(group_id, known), *part), ErrorCode.non_empty_group, known)
    rest = [Delete(path) for path in (generation, ids, group) if path in known.existing]
    yield from _execute(group_id, epoch_version, (*last, *rest), ErrorCode.non_empty_group, known)
