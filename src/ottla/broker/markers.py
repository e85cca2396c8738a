"""The control batches that end transactions, as a broker reads and writes them.

Owns the meaning of one marker. Must not know logs or producers. Invariant: ``read_marker(marker_batch(...))`` says what was
written.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.records import ControlType, control_marker, encode_end_transaction, iter_records

_KEY = struct.Struct(">hh")
_COORDINATOR_EPOCH = struct.Struct(">hi")


class Marker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that said so."""

    kind: ControlType
    coordinator_epoch: int


class NewMarker(NamedTuple):
    """A marker that is not in a log yet."""

    commit: bool
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def read_marker(batch: bytes) -> Marker | None:
    """The marker in a control batch; ``None`` for other control records, or where compaction took it.

    Raises ``CorruptRecordError`` for a damaged batch.
    """
    kind = control_marker(batch)
    value = next(iter_records(batch)).value if kind is not None else None
    if kind is None or value is None or len(value) < _COORDINATOR_EPOCH.size:
        return None
    return Marker(kind, _COORDINATOR_EPOCH.unpack_from(value)[1])


def marker_kind(key: bytes) -> ControlType | None:
    """What the key of a control record says of its transaction; ``None`` for other control records."""
    if len(key) < _KEY.size:
        return None
    return {0: ControlType.ABORT, 1: ControlType.COMMIT}.get(_KEY.unpack_from(key)[1])


def marker_batch(commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, timestamp: int) -> bytes:
    """The batch that ends a transaction."""
    return encode_end_transaction(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp,
    )
