"""The log equals the state: read whole, read compacted, read after a restart.

Owns its own reader of the log, marker by marker, independent of the coordinator's. Must not know requests. Invariant: the
log is read once, from front to back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    GroupMetadataDeleted,
    GroupMetadataUpdated,
    GroupRecord,
    OffsetCommitted,
    OffsetDeleted,
    TransactionalOffsetCommitted,
    event_of,
)
from ottla.protocol.group_records import OffsetCommitValue
from ottla.types import TopicPartition
from tests.unit.coordinator.harness import Harness
from tests.unit.coordinator.marked_log import Marker, latest, marked

Place = tuple[str, TopicPartition]
Records = list[GroupRecord]


def compacted(records: Records, cut: int, *, tombstones: bool) -> Records:
    """The log, compacted before ``cut`` to the latest record of each key; ``tombstones``: whether they are still kept.

    Nothing is compacted from the start of the first open transaction on.
    """
    cut = min([cut, *(place for place, record in enumerate(records) if len(record) == 3)])
    kept: dict[bytes, bytes | None] = {}
    for key, value, *_ in records[:cut]:
        kept.pop(key, None)
        kept[key] = value
    return [*((key, value) for key, value in kept.items() if tombstones or value is not None), *records[cut:]]


class LogOfGroups:
    """The log of one harness."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.removals: set[Place] = set()
        """Offsets that someone has asked to remove, in this step or while it was open."""
        self.written_offsets: set[int] = set()
        self.reached: set[tuple[str, str, int]] = set()
        """Groups, members and member epochs."""
        self.assigned: set[tuple[str, int, bytes]] = set()
        """Groups, generations and assignments."""
        self.generations: dict[str, set[int]] = {}
        self.deletions: Counter[str] = Counter()
        """How often a group of that name has ended."""
        self.offsets: dict[Place, tuple[int, OffsetCommitValue]] = {}
        """What counts, and where it stands in the log."""
        self._open: dict[int, dict[Place, tuple[int, OffsetCommitValue]]] = {}
        self._unexplained: list[tuple[Place, OffsetCommitValue | None]] = []
        self._read = dict.fromkeys(harness.log, 0)

    def the_log_equals_the_state(self) -> None:
        """Loading the log gives the durable part of the live state, both record by record and as the broker loads it."""
        coordinator = self.harness.coordinator
        for reading in (marked, latest):
            loaded = self.harness.reloaded({partition: reading(log) for partition, log in self.harness.log.items()})
            assert loaded.durable_state() == coordinator.durable_state()
            assert loaded.pending_offsets() == coordinator.pending_offsets()

    def compaction_changes_nothing(self) -> None:
        """Compaction up to any offset, with or without its tombstones, changes nothing."""
        live = self.harness.coordinator.durable_state()
        for part, tombstones in ((1, True), (1, False), (2, True), (3, False)):
            log = {
                partition: compacted(marked(entries), len(entries) // part, tombstones=tombstones)
                for partition, entries in self.harness.log.items()
            }
            assert self.harness.reloaded(log).durable_state() == live

    def the_last_commit_counts(self) -> None:
        """The committed offset is the last one in the log that was neither aborted nor deleted."""
        self.read_on()
        stored = {
            (group_id, partition): value
            for group_id, (_, offsets) in self.harness.coordinator.durable_state().items()
            for partition, value in offsets.items()
        }
        assert stored == {place: value for place, (_, value) in self.offsets.items()}

    def offsets_are_removed_for_a_reason(self) -> None:
        """A committed offset is removed with its topic, by request, or by age; by age not while a transaction may change it."""
        self.read_on()
        for place, committed in self._unexplained:
            topic_id = self.harness.topics.topic_id(place[1].topic)
            if place in self.removals or topic_id is None:
                continue
            assert committed is not None, "it had not been committed yet"
            is_gone = committed.topic_id != topic_id
            age = self.harness.now.wall - committed.commit_timestamp
            assert is_gone or age >= self.harness.config.offsets_retention_ms
        self._unexplained.clear()
        if not self.harness.open:
            self.removals.clear()

    def deleted_groups_leave_no_records(self) -> None:
        """A fully compacted log has no record of a deleted group."""
        there = self.harness.coordinator.durable_state().keys()
        for entries in self.harness.log.values():
            decided: list[Any] = [record for record in marked(entries) if len(record) == 2]
            for record in compacted(decided, len(decided), tombstones=False):
                event = event_of(*record)
                assert event is None or event.group_id in there

    def read_on(self) -> None:
        """Read the records that were written since."""
        for partition, log in self.harness.log.items():
            for number in range(self._read[partition], len(log)):
                entry = log[number]
                if isinstance(entry, Marker):
                    self._end(entry)
                else:
                    self._take(number, event_of(*entry))
            self._read[partition] = len(log)

    def _end(self, marker: Marker) -> None:
        for place, (number, value) in self._open.pop(marker.producer_id, {}).items():
            if marker.commit and self.offsets.get(place, (-1, None))[0] < number:
                self.offsets[place] = (number, value)

    def _take(self, number: int, event: Any) -> None:
        match event:
            case TransactionalOffsetCommitted(group_id, partition, value, producer):
                self._open.setdefault(producer.producer_id, {})[group_id, partition] = (number, value)
                self.written_offsets.add(value.offset)
            case OffsetCommitted(group_id, partition, value):
                self.offsets[group_id, partition] = (number, value)
                self.written_offsets.add(value.offset)
            case OffsetDeleted(group_id, partition):
                place = (group_id, partition)
                _, value = self.offsets.pop(place, (-1, None))
                is_open = [places.pop(place, None) for places in self._open.values()]
                self._unexplained.append((place, None if any(is_open) else value))
            case GroupMetadataDeleted(group_id) | GroupEpochUpdated(group_id, None):
                self.deletions[group_id] += 1
            case CurrentAssignmentUpdated(group_id, member_id, current) if current is not None:
                self.reached.add((group_id, member_id, current.member_epoch))
            case GroupEpochUpdated(group_id, epoch):
                self.generations.setdefault(group_id, set()).add(epoch.epoch)
            case GroupMetadataUpdated(group_id, group):
                self.generations.setdefault(group_id, set()).add(group.generation)
                self.assigned |= {(group_id, group.generation, member.assignment) for member in group.members}
