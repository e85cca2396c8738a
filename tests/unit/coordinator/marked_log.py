"""A partition of ``__consumer_offsets`` in memory, with the markers of transactions where they stand.

Owns two ways to read it: record by record, and as the broker reads it after a start. Must not know the content of records.
Invariant: both lead to the same state of a coordinator, or the broker has a bug.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.group_coordinator_service import CompactedGroupLog
from ottla.coordinator.events import GroupRecord


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    commit: bool


Log = list[GroupRecord | Marker]


_NOTHING = (b"\0\x63", None)
"""A record of an unknown type."""


def marked(log: Log) -> list[GroupRecord]:
    """Return the records that a reader sees after the markers: committed ones in their place, without aborted ones."""
    records: list[GroupRecord] = []
    undecided: list[int] = []
    for entry in log:
        if isinstance(entry, Marker):
            own = [place for place in undecided if _producer_of(records[place]) == entry.producer_id]
            undecided = [place for place in undecided if place not in own]
            for place in own:
                records[place] = records[place][:2] if entry.commit else _NOTHING
        else:
            if _producer_of(entry) is not None:
                undecided.append(len(records))
            records.append(entry)
    return records


def _producer_of(record: GroupRecord) -> int | None:
    return record[2].producer_id if len(record) == 3 else None


def latest(log: Log) -> list[GroupRecord]:
    """Return the records that remain after compaction, as the broker loads them."""
    left = CompactedGroupLog()
    for entry in log:
        match entry:
            case Marker(producer_id, commit):
                left.end(producer_id, commit=commit)
            case (key, value, producer):
                left.write_in_transaction(producer, key, value)
            case (key, value):
                left.write(key, value)
    return left.records()
