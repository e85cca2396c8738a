"""Encodes record batches: for the logs of the coordinators, for tools and for tests.

Owns the encoding of records. Must not know producers, sequences or logs, apart from the numbers that it is given. Invariant: the
batches pass ``verify_batch``.

The source runs uncompiled or compiled by Cython, with the same result.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import crc32c

from ottla.records.compression import compress, decompress
from ottla.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_OFFSET,
    CRC_START,
    DELETE_HORIZON_BIT,
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

COMPILED = cython.compiled

Headers = tuple[tuple[str, bytes | None], ...]


class NewRecord(NamedTuple):
    """A record to encode. ``timestamp`` is in milliseconds since 1970; -1 for none."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = -1


Row = tuple[bytes | None, bytes | None, Headers, int]
"""A ``NewRecord``, or a tuple of its fields."""

_NO_TIMESTAMP = -1


@cython.ccall
@cython.exceptval(check=True)
def put_varint(output: bytearray, number: cython.longlong) -> cython.void:
    """Append a zigzag-encoded varint: groups of seven bits, the lowest first."""
    left: cython.ulonglong = number * 2 if number >= 0 else -2 * number - 1
    while left >= 0x80:
        output.append(left & 0x7F | 0x80)
        left >>= 7
    output.append(left)


@cython.ccall
@cython.exceptval(check=True)
def put_sized(output: bytearray, data: bytes | None) -> cython.void:
    """Append bytes with their length in front; ``None`` has the length -1."""
    if data is None:
        output.append(1)  # the length -1
    else:
        put_varint(output, len(data))
        output += data


def encode_records(rows: Iterable[tuple[int, Row]], base_timestamp: int) -> bytearray:
    """Encode records, each with its offset delta."""
    output = bytearray()
    body = bytearray()
    for delta, row in rows:
        key, value, headers, timestamp = row
        body.clear()
        body.append(0)  # attributes; none are defined
        put_varint(body, timestamp - base_timestamp)
        put_varint(body, delta)
        put_sized(body, key)
        put_sized(body, value)
        put_varint(body, len(headers))
        for name, content in headers:
            put_sized(body, name.encode())
            put_sized(body, content)
        put_varint(output, len(body))
        output += body
    return output


def encode_batch(
    records: Sequence[Row],
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
    """Encode one batch of version 2 with these records, from ``base_offset`` on.

    ``log_append_time`` (milliseconds) is the time of all records if ``timestamp_type`` is ``LOG_APPEND_TIME``. Raises
    ``ValueError`` for an empty sequence, and for ``LOG_APPEND_TIME`` without that time.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0][3]
    max_timestamp = max([record[3] for record in records])
    attributes = int(compression)
    if timestamp_type == TimestampType.LOG_APPEND_TIME:
        if log_append_time is None:
            raise ValueError("LOG_APPEND_TIME needs log_append_time")
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time
    attributes |= TRANSACTIONAL_BIT * transactional | CONTROL_BIT * control
    body = encode_records(enumerate(records), base_timestamp)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
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
    return assemble(header, body)[1]


def assemble(header: BatchHeader, records: bytes | bytearray | memoryview, level: int | None = None) -> tuple[BatchHeader, bytes]:
    """Join a header and its encoded records, compressed with the header's codec; set the length and the checksum."""
    payload = compress(header.compression, bytes(records), level) if records else b""
    header = header._replace(batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(payload))
    front = pack_header(header)
    crc = crc32c.crc32c(payload, crc32c.crc32c(front[CRC_START:]))
    written = b"".join((front[:CRC_OFFSET], crc.to_bytes(4, "big"), front[CRC_START:], payload))
    return header._replace(crc=crc), written


def encode_compacted(
    header: BatchHeader, records: Sequence[tuple[int, NewRecord]], *, delete_horizon: int | None
) -> tuple[BatchHeader, bytes]:
    """Encode a compacted batch, with only these of its records and their offsets; return also its header.

    Offsets, sequence numbers and the last offset are kept. ``delete_horizon`` (milliseconds since 1970) is the time after which
    tombstones in it may be removed (KIP-534), or ``None``. Without records only the header remains.
    """
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    if not records:
        empty = header._replace(attributes=attributes & ~CODEC_MASK, base_timestamp=_NO_TIMESTAMP, record_count=0)
        return assemble(empty, b"")
    base_timestamp = records[0][1].timestamp
    if delete_horizon is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, delete_horizon
    max_timestamp = header.max_timestamp
    if header.timestamp_type == TimestampType.CREATE_TIME:
        max_timestamp = max(record.timestamp for _, record in records)
    body = encode_records([(offset - header.base_offset, record) for offset, record in records], base_timestamp)
    left = header._replace(
        attributes=attributes, base_timestamp=base_timestamp, max_timestamp=max_timestamp, record_count=len(records)
    )
    return assemble(left, body)


def recompressed(header: BatchHeader, batch: bytes, codec: Compression, level: int | None = None) -> tuple[BatchHeader, bytes]:
    """Compress a verified batch with another codec, without other changes; return also its header."""
    records = decompress(header.compression, memoryview(batch)[HEADER_SIZE : header.size])
    return assemble(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), records, level)


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
    """Encode the control batch that ends a transaction: one record with the key (version 0, type) and the coordinator epoch."""
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
