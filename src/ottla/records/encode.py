"""Record batches written: for the coordinator's own log, for tools and for tests.

Owns the layout of records on the way out. Must not know of producers, sequences or logs beyond the numbers it is given.
Invariant: what it writes passes ``verify_batch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import crc32c

from ottla.records.compression import compress
from ottla.records.header import (
    CONTROL_BIT,
    CRC_OFFSET,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Compression,
    ControlType,
    pack_header,
)
from ottla.types import TimestampType


class NewRecord(NamedTuple):
    """A record that is not in a log yet. ``timestamp`` in milliseconds since 1970, -1 for none."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = -1


def _varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    if raw < 0x80:
        return _ONE_BYTE[raw]
    output = bytearray()
    while raw >= 0x80:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
    output.append(raw)
    return bytes(output)


_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
_NULL = _varint(-1)


def _sized(data: bytes | None) -> bytes:
    return _NULL if data is None else _varint(len(data)) + data


def _encode_record(record: NewRecord, offset_delta: int, base_timestamp: int) -> bytes:
    parts = [
        b"\0",
        _varint(record.timestamp - base_timestamp),
        _varint(offset_delta),
        _sized(record.key),
        _sized(record.value),
        _varint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += (_sized(name.encode()), _sized(value))
    body = b"".join(parts)
    return _varint(len(body)) + body


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch of version 2 with these records at ``base_offset`` and after.

    ``log_append_time`` (milliseconds) is the time of all records where ``timestamp_type`` is ``LOG_APPEND_TIME``. Raises
    ``ValueError`` for no records at all, and for ``LOG_APPEND_TIME`` without that time.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0].timestamp
    max_timestamp = max(record.timestamp for record in records)
    attributes = int(compression)
    if timestamp_type == TimestampType.LOG_APPEND_TIME:
        if log_append_time is None:
            raise ValueError("LOG_APPEND_TIME needs log_append_time")
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time
    attributes |= TRANSACTIONAL_BIT * transactional | CONTROL_BIT * control
    body = b"".join(_encode_record(record, delta, base_timestamp) for delta, record in enumerate(records))
    payload = compress(compression, body)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(payload),
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    front = pack_header(header)
    crc = crc32c.crc32c(payload, crc32c.crc32c(front[CRC_START:]))
    return b"".join((front[:CRC_OFFSET], crc.to_bytes(4, "big"), front[CRC_START:], payload))


def encode_end_transaction(
    marker: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    coordinator_epoch: int = 0,
    timestamp: int = -1,
) -> bytes:
    """The control batch that ends a transaction: one record whose key is (version 0, type), whose value names the coordinator."""
    kind = 1 if marker is ControlType.COMMIT else 0
    return encode_batch(
        [
            NewRecord(
                key=b"\0\0" + kind.to_bytes(2, "big"),
                value=b"\0\0" + coordinator_epoch.to_bytes(4, "big", signed=True),
                timestamp=timestamp,
            )
        ],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
