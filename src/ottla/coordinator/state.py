"""What one shard knows: its groups and their offsets.

Owns the state, and ``replay``, the only function that writes it, live and on load alike. Must not know requests, answers or timers.
Invariant: replaying the durable events alone gives the durable part of the state; a log from which compaction has dropped any
superseded records gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ottla.coordinator.classic.group import ClassicGroup, GroupState
from ottla.coordinator.classic.machine import evolve
from ottla.coordinator.events import Event, OffsetCommitted, OffsetDeleted
from ottla.protocol.group_records import GroupMetadataValue, OffsetCommitValue
from ottla.types import TopicPartition

Offsets = Mapping[TopicPartition, OffsetCommitValue]

_NO_OFFSETS: Offsets = MappingProxyType({})


class ShardState:
    """Groups and offsets of one partition of ``__consumer_offsets``."""

    def __init__(self) -> None:
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets: dict[str, dict[TopicPartition, OffsetCommitValue]] = {}

    def group(self, group_id: str) -> ClassicGroup | None:
        """A group, ``None`` if it is not there."""
        return self._groups.get(group_id)

    def groups(self) -> Mapping[str, ClassicGroup]:
        """All groups by id."""
        return MappingProxyType(self._groups)

    def offsets(self, group_id: str) -> Offsets:
        """The committed offsets of a group."""
        return self._offsets.get(group_id, _NO_OFFSETS)

    def durable(self) -> dict[str, tuple[GroupMetadataValue | None, dict[TopicPartition, OffsetCommitValue]]]:
        """What the log holds: for each group its last record and its offsets."""
        return {group_id: (group.stored, dict(self.offsets(group_id))) for group_id, group in self._groups.items()}

    def replay(self, event: Event) -> None:
        """Let an event happen."""
        match event:
            case OffsetCommitted(group_id, partition, value):
                self._groups.setdefault(group_id, ClassicGroup(group_id))
                self._offsets.setdefault(group_id, {})[partition] = value
            case OffsetDeleted(group_id, partition):
                self._delete_offset(group_id, partition)
            case _:
                group = evolve(self._groups.get(event.group_id) or ClassicGroup(event.group_id), event)
                self._keep(group)

    def _keep(self, group: ClassicGroup) -> None:
        if group.state is not GroupState.DEAD:
            self._groups[group.group_id] = group
        elif group.group_id in self._offsets:
            self._groups[group.group_id] = ClassicGroup(group.group_id)
        else:
            self._groups.pop(group.group_id, None)

    def _delete_offset(self, group_id: str, partition: TopicPartition) -> None:
        offsets = self._offsets.get(group_id, {})
        offsets.pop(partition, None)
        if not offsets:
            self._offsets.pop(group_id, None)
            group = self._groups.get(group_id)
            if group == ClassicGroup(group_id):
                del self._groups[group_id]
