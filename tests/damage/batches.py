"""Record batches, offsets of groups and markers, decoded for the oracle.

Owns a second decoder of Kafka's formats. Must not use any code of the broker or of its client. Invariant: a batch is returned only
if its checksum fits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21
_TRANSACTIONAL, _CONTROL = 16, 32


class Row(NamedTuple):
    """A record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Batch(NamedTuple):
    """A batch as it lies in its file. ``rows`` are its records; compaction may have removed some of them."""

    position: int
    data: bytes
    base: int
    last: int
    producer_id: int
    transactional: bool
    control: bool
    rows: tuple[Row, ...]

    @property
    def content(self) -> bytes:
        """Its bytes without the leader epoch, which neither its checksum nor its neighbours vouch for."""
        return self.data[:12] + self.data[16:]


def batch_at(data: bytes, position: int) -> Batch | None:
    """The batch at a position; ``None`` where it is not whole or its checksum does not fit."""
    if len(data) - position < _HEADER.size:
        return None
    base, length, _, magic, crc, attributes, delta, first, _, producer_id, _, _, count = _HEADER.unpack_from(data, position)
    end = position + 12 + length
    if magic != 2 or length < _HEADER.size - 12 or end > len(data) or crc32c.crc32c(data[position + _CRC_START : end]) != crc:
        return None
    assert not attributes & 7, "the test writes no compressed batches"
    rows = tuple(_rows(data[position + _HEADER.size : end], count, base, first))
    transactional, control = bool(attributes & _TRANSACTIONAL), bool(attributes & _CONTROL)
    return Batch(position, data[position:end], base, base + delta, producer_id, transactional, control, rows)


def batches_in(data: bytes) -> list[Batch]:
    """The batches of a whole file, up to the first that is none."""
    found: list[Batch] = []
    while (batch := batch_at(data, found[-1].position + len(found[-1].data) if found else 0)) is not None:
        found.append(batch)
    return found


def is_commit(marker: Batch) -> bool:
    """Whether a control batch ends its transaction with a commit."""
    (row,) = marker.rows
    assert row.key is not None
    return bool(row.key[3])


def committed_offset(row: Row) -> tuple[tuple[str, str, int], int | None] | None:
    """Group, topic, partition and offset in a record of ``__consumer_offsets``; ``None`` for other records."""
    assert row.key is not None
    (version,) = struct.unpack_from(">h", row.key)
    if version not in (0, 1):
        return None
    position, texts = 2, []
    for _ in range(2):
        (size,) = struct.unpack_from(">h", row.key, position)
        texts.append(row.key[position + 2 : position + 2 + size].decode())
        position += 2 + size
    (partition,) = struct.unpack_from(">i", row.key, position)
    offset = None if row.value is None else struct.unpack_from(">q", row.value, 2)[0]
    return (texts[0], texts[1], partition), offset


def _rows(data: bytes, count: int, base: int, first: int) -> Iterator[Row]:
    position = 0
    for _ in range(count):
        _, position = _varint(data, position)
        delta, position = _varint(data, position + 1)
        offset, position = _varint(data, position)
        key, position = _bytes(data, position)
        value, position = _bytes(data, position)
        headers, position = _varint(data, position)
        assert not headers
        yield Row(base + offset, first + delta, key, value)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), position


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)
