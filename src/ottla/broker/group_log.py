"""The content of a partition of ``__consumer_offsets``: its log without superseded records, with transaction markers applied.

Owns the reading of ``__consumer_offsets`` after a start. Must not know the meaning of a record. Invariant: to replay the remaining
records gives the same state as to replay every record and every marker.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.coordinator_log import StoredSegment, read_entries
from ottla.broker.coordinator_partitions import LoadedLog
from ottla.broker.markers import marker_kind
from ottla.coordinator.effects import ProducerStamp
from ottla.coordinator.events import DurableEvent, GroupRecord, events_of
from ottla.coordinator.state import PendingWrites
from ottla.errors import ProtocolError
from ottla.records import ControlType


class CompactedGroupLog:
    """Takes records and markers in log order; ``records`` returns the remaining records."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes | None] = {}
        self._pending = PendingWrites[bytes, tuple[bytes | None, ProducerStamp]]()

    def write(self, key: bytes, value: bytes | None) -> None:
        """Add a record that was written outside of transactions."""
        self._latest.pop(key, None)
        self._latest[key] = value
        if value is None:
            self._pending.forget(key)
        else:
            self._pending.supersede(key)

    def write_in_transaction(self, producer: ProducerStamp, key: bytes, value: bytes | None) -> None:
        """Add a record of a transaction. It takes effect when a marker commits it."""
        self._pending.write(producer.producer_id, key, (value, producer))

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Apply the marker of a transaction."""
        for key, (value, _) in self._pending.end(producer_id, commit=commit):
            self._latest.pop(key, None)
            self._latest[key] = value

    def records(self) -> list[GroupRecord]:
        """Return the committed records, and those of open transactions: before the committed ones if one of these supersedes them,
        else after."""
        still_open = sorted(
            (written.number, written.superseded, (key, *written.value))
            for _, writes in self._pending.by_producer()
            for key, written in writes.items()
        )
        superseded = [record for _, is_superseded, record in still_open if is_superseded]
        return [*superseded, *self._latest.items(), *(record for _, is_superseded, record in still_open if not is_superseded)]


def read_groups(segments: Sequence[StoredSegment]) -> LoadedLog[Sequence[DurableEvent]]:
    """Read the state in a log from its segments, oldest first. Raises ``OSError``.

    This runs on the disk thread and includes the decoding: the event loop only replays the result.
    """
    latest = CompactedGroupLog()
    damages: list[str] = []
    for header, entries in read_entries(segments, damages):
        for key, value in entries:
            if key is None:  # coordinators write no record without a key
                continue
            if header.is_control:
                kind = marker_kind(key)
                if kind is not None:
                    latest.end(header.producer_id, commit=kind is ControlType.COMMIT)
            elif header.is_transactional:
                latest.write_in_transaction(ProducerStamp(header.producer_id, header.producer_epoch), key, value)
            else:
                latest.write(key, value)
    errors: list[ProtocolError] = []
    events = events_of(latest.records(), errors)
    damages += [f"a record cannot be decoded: {error}" for error in errors]
    return LoadedLog(events, {event.group_id for event in events}, damages)
