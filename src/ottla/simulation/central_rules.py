"""What has to hold of a group of the central coordinator, in each operation that ZooKeeper executes, and in what clients get.

Owns the invariants of the election, of generations and owners, and of who commits. Must not know members, faults or offsets.
Invariant: it only looks.

- An election raises the epoch by one. What belongs to the group is only written by the broker that won the last election.
- A generation never goes back; the owners change only with it, or when the group is emptied. If they do not fit into one multi,
  they change before it: until the last one no member is started, and no commit is accepted. A coordinator that is elected in
  between takes the owners that it finds for those of the generation.
- A Start gives a member what ZooKeeper says of that generation.
- A commit is accepted only from the owner of the partition in the generation that it names. It may be the owner no more: 1. All
  members were silent, and the group is empty. 2. One of them returns before the next generation begins, and a commit of its with
  it. No one else has committed the partition since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.zookeeper import ZooKeeperModel
from ottla.types import TopicPartition
from ottla.zookeeper import multis, paths
from ottla.zookeeper.nodes import GenerationNode, decode_coordinator_epoch, decode_owner
from ottla.zookeeper.operations import Create, Delete, Multi, Operation, SetData, Write

Owners = Mapping[TopicPartition, str]
"""Partition -> the id of the member that owns it."""


class CentralRules:
    """See the module. ``model``: ZooKeeper, in which an operation was executed when it is looked at."""

    def __init__(self, group_id: str, model: ZooKeeperModel) -> None:
        self.owners: Owners = {}
        """The present ones."""
        self.generation = -1
        self._model = model
        self._group = paths.group(group_id)
        self._owners_of: dict[int, Owners] = {}
        """Generation -> its owners."""
        self._had_owners: dict[int, Owners] = {}
        """The same, with the last owner of partitions that have none any more: they were deleted before the next generation."""
        self._is_unfinished = False
        """Whether the owners that this coordinator writes are not yet those of a generation."""
        self._group_id = group_id
        self._elected = model.owner(paths.COORDINATOR)
        """The session that won the last election."""
        self._epoch = int(model.data(paths.COORDINATOR_EPOCH) or b"0")

    # -- ZooKeeper --------------------------------------------------------------------------------------------------------

    def on_operation(self, session_id: int, operation: Operation[Any]) -> str | None:
        """Return what is wrong with an operation that was executed, ``None`` if nothing is."""
        writes = operation.operations if isinstance(operation, Multi) else (operation,)
        changed = [write for write in writes if isinstance(write, Create | SetData | Delete)]
        return next(self._problems(session_id, changed), None)

    def _problems(self, session_id: int, writes: Sequence[Write]) -> Iterator[str]:
        for write in writes:
            if write.path == paths.COORDINATOR_EPOCH and isinstance(write, Create | SetData):
                yield from self._elect(session_id, write)
        of_group = [write for write in writes if write.path.startswith(self._group + "/")]
        if not of_group:
            return
        if session_id != self._elected:
            yield f"session {session_id} writes {of_group[0].path}; session {self._elected} won the election of epoch {self._epoch}"
        yield from self._look(is_full=self._is_full(writes))

    def _is_full(self, writes: Sequence[Write]) -> bool:
        """Whether a multi is one of several: all but the last have as much as fits, besides the proof that there are no members of
        Kafka 0.8, which deletes and creates a node."""
        proof = 2 * any(write == Delete(paths.ids(self._group_id)) for write in writes)
        return len(writes) - proof >= multis.MULTI_OPERATIONS

    def _elect(self, session_id: int, write: Create | SetData) -> Iterator[str]:
        epoch = decode_coordinator_epoch(write.data, write.path) if write.data else 0
        if epoch == 0:
            return  # the node is prepared
        if (session_id, epoch) == (self._elected, self._epoch):
            return  # a node that is created again is written several times, to begin with another version
        if epoch != self._epoch + 1:
            yield f"epoch {epoch} follows epoch {self._epoch}"
        self._elected, self._epoch = session_id, epoch
        self._is_unfinished = False

    def _look(self, *, is_full: bool) -> Iterator[str]:
        """Look at the group as it is now, after a multi."""
        data = self._model.data(paths.generation(self._group_id))
        if data is None:
            if self.generation >= 0:
                yield f"generation {self.generation} is gone"
            return
        node, owners = GenerationNode.decode(data, self._group), self._read_owners()
        if node.generation < self.generation:
            yield f"generation {self.generation} went back to {node.generation}"
        if node.epoch > self._epoch:
            yield f"generation {node.generation} has epoch {node.epoch}, and the last election has epoch {self._epoch}"
        if node.generation == self.generation and owners != self.owners and owners:
            if not is_full:
                yield f"the owners change in generation {node.generation}, from {_text(self.owners)} to {_text(owners)}"
            self._is_unfinished = True
        elif node.generation != self.generation or not node.members:
            self._is_unfinished = False
        if owners and not node.members:
            yield f"the group is empty, and has the owners {_text(owners)}"
        self.generation, self.owners = node.generation, owners
        if owners:
            self._owners_of[node.generation] = owners
            self._had_owners[node.generation] = {**self._had_owners.get(node.generation, {}), **owners}

    def _read_owners(self) -> Owners:
        found: dict[TopicPartition, str] = {}
        for topic in self._model.children(paths.owners(self._group_id)):
            for number in self._model.children(paths.topic_owners(self._group_id, topic)):
                path = paths.owner(self._group_id, topic, int(number))
                found[TopicPartition(topic, int(number))] = decode_owner(self._model.data(path) or b"", path).member_id
        return found

    # -- clients ----------------------------------------------------------------------------------------------------------

    def on_push(self, api: Api, message: Any) -> str | None:
        """Return what is wrong with a request of the coordinator."""
        if api is not Api.START or message.group_id != self._group_id:
            return None
        given = {TopicPartition(topic.topic, one.partition) for topic in message.topics for one in topic.partitions}
        stored = {tp for tp, owner in self._owners_of.get(message.generation, {}).items() if owner == message.member_id}
        if message.generation > self.generation:
            return f"generation {message.generation} starts, and ZooKeeper has {self.generation}"
        if message.generation == self.generation and self._is_unfinished:
            return f"generation {message.generation} starts, and ZooKeeper has owners of the next one"
        if given != stored:
            return (
                f"{message.member_id} gets {sorted(given)} of generation {message.generation}, and ZooKeeper has {sorted(stored)}"
            )
        return None

    def on_commit(self, request: Any, response: Any, name_of: Callable[[UUID], str | None]) -> str | None:
        """Return what is wrong with an OffsetCommit that was answered. ``name_of``: the name of the topic with an id."""
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        if request.group_id != self._group_id or not member_id:
            return None
        owners = self._had_owners.get(generation, {})
        for asked, answered in zip(request.topics, response.topics, strict=True):
            for one in answered.partitions:
                tp = TopicPartition(asked.name or name_of(asked.topic_id) or "", one.partition_index)
                if one.error_code is not ErrorCode.none:
                    continue
                if generation == self.generation and self._is_unfinished:
                    return f"a commit of {tp} in generation {generation} was accepted while owners of the next one are written"
                if owners.get(tp) != member_id:
                    return f"a commit of {tp} by {member_id} in generation {generation} was accepted; the owner is {owners.get(tp)}"
        return None


def _text(owners: Owners) -> str:
    return ", ".join(f"{tp}: {owner}" for tp, owner in sorted(owners.items()))
