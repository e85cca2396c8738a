"""The control batches that end transactions, as a broker reads and writes them.

Owns the format of one marker. Must not know logs or producers. Invariant: ``read_marker(marker_batch(...))`` returns what was
written.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.records import ControlType, control_marker, encode_end_transaction, iter_records

_KEY = struct.Struct(">hh")
_COORDINATOR_EPOCH = struct.Struct(">hi")


class EndTransactionMarker(NamedTuple):
    """The outcome of a transaction, and the epoch of its coordinator."""

    kind: ControlType
    coordinator_epoch: int


class TxnMarkerEntry(NamedTuple):
    """A marker to be written (Kafka's ``TxnMarkerEntry``)."""

    commit: bool
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def read_marker(batch: bytes) -> EndTransactionMarker | None:
    """Return the marker in a control batch; ``None`` for other control records, or if compaction has removed it.

    Raises ``CorruptRecordError`` for a damaged batch.
    """
    kind = control_marker(batch)
    value = next(iter_records(batch)).value if kind is not None else None
    if kind is None or value is None or len(value) < _COORDINATOR_EPOCH.size:
        return None
    return EndTransactionMarker(kind, _COORDINATOR_EPOCH.unpack_from(value)[1])


def marker_kind(key: bytes) -> ControlType | None:
    """Return the outcome in the key of a marker; ``None`` for other control records."""
    if len(key) < _KEY.size:
        return None
    return {0: ControlType.ABORT, 1: ControlType.COMMIT}.get(_KEY.unpack_from(key)[1])


def marker_batch(commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, timestamp: int) -> bytes:
    """Return the batch that ends a transaction."""
    return encode_end_transaction(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp,
    )
