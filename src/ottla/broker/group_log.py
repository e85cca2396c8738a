"""What remains of a log of groups without superseded records and after applying markers.

Owns the reading of ``__consumer_offsets`` after a start. Must not know what a record says. Invariant: a coordinator that replays
what is left knows what one knew that saw every record and every marker as they were written.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.coordinator_partitions import LoadedLog
from ottla.broker.markers import marker_kind
from ottla.broker.state_log import StoredSegment, read_entries
from ottla.coordinator.effects import ProducerStamp
from ottla.coordinator.events import DurableEvent, GroupRecord, events_of
from ottla.coordinator.pending import PendingWrites
from ottla.errors import ProtocolError
from ottla.records import ControlType


class CompactedGroupLog:
    """Takes records and markers in the order of the log; ``records`` is what is left of them."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes | None] = {}
        self._pending = PendingWrites[bytes, tuple[bytes | None, ProducerStamp]]()

    def write(self, key: bytes, value: bytes | None) -> None:
        """A record that was written outside of transactions."""
        self._latest.pop(key, None)
        self._latest[key] = value
        if value is None:
            self._pending.forget(key)
        else:
            self._pending.supersede(key)

    def write_in_transaction(self, producer: ProducerStamp, key: bytes, value: bytes | None) -> None:
        """A record that counts if a marker says so."""
        self._pending.write(producer.producer_id, key, (value, producer))

    def end(self, producer_id: int, *, commit: bool) -> None:
        """The marker of a transaction."""
        for key, (value, _) in self._pending.end(producer_id, commit=commit):
            self._latest.pop(key, None)
            self._latest[key] = value

    def records(self) -> list[GroupRecord]:
        """What counts, and what open transactions have written: before that if it is outdone by it, after it if not."""
        still_open = sorted(
            (written.number, written.superseded, (key, *written.value))
            for _, writes in self._pending.by_producer()
            for key, written in writes.items()
        )
        outdone = [record for _, is_outdone, record in still_open if is_outdone]
        return [*outdone, *self._latest.items(), *(record for _, is_outdone, record in still_open if not is_outdone)]


def read_groups(segments: Sequence[StoredSegment]) -> LoadedLog[Sequence[DurableEvent]]:
    """What the log says that these segments are, oldest first. Raises ``OSError``.

    This is for the disk thread, with the decoding: only the replay is left for the loop.
    """
    latest = CompactedGroupLog()
    damages: list[str] = []
    for header, entries in read_entries(segments, damages):
        for key, value in entries:
            if key is None:  # a coordinator writes none without
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
    damages += [f"a record cannot be understood: {error}" for error in errors]
    return LoadedLog(events, {event.group_id for event in events}, damages)
