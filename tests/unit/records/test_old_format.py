"""Messages of the formats 0 and 1, as kafka-python writes them, are read like version 2."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from ottla.records import Compression, InvalidBatchError, NewRecord, PartitionReader, encode_batch
from ottla.records.compression import compress

NOW = 1_700_000_000_000
GZIP, SNAPPY, LZ4 = Compression.GZIP, Compression.SNAPPY, Compression.LZ4

Row = tuple[int, bytes | None, bytes | None, int]
"""Offset, key, value, timestamp."""


def rows(first: int, number: int) -> list[Row]:
    """The first one has no key, the second no value."""
    keys, contents = [None, b"", *[b"k"] * number], [b"v", None, *[b"w%d" % one for one in range(number)]]
    return [(first + one, keys[one], contents[one], NOW + one) for one in range(number)]


def messages(magic: int, written: Sequence[Row]) -> bytes:
    """One message for each record."""
    builder = LegacyRecordBatchBuilder(magic, 0, 1_000_000)
    for offset, key, value, timestamp in written:
        builder.append(offset, timestamp, key, value)
    return bytes(builder.build())


def packed(magic: int, inner: Sequence[Row], offset: int, codec: Compression, attributes: int = 0) -> bytes:
    """One message at ``offset`` that contains the others, compressed."""
    outer = bytearray(messages(magic, [(offset, None, bytes(compress(codec, messages(magic, inner))), NOW + 500)]))
    outer[17] = codec | attributes
    struct.pack_into(">I", outer, 12, zlib.crc32(outer[16:]))
    return bytes(outer)


def stored(magic: int, first: int, number: int, codec: Compression, attributes: int = 0) -> bytes:
    """A compressed set as in a log: the outer offset is the last one; from format 1 on the inner ones count from 0."""
    inner: list[Any] = rows(first, number)
    if magic:
        inner = [(offset - first, *rest) for offset, *rest in inner]
    return packed(magic, inner, first + number - 1, codec, attributes)


def read(data: bytes, fetch_offset: int = 0, **options: Any) -> list[Row]:
    reader = PartitionReader(data, topic="t", partition=0, fetch_offset=fetch_offset, **options)
    found = []
    while not reader.exhausted:
        found += [(one.offset, one.key, one.value, one.timestamp) for one in reader.read(3) or ()]
    return found


def as_read(magic: int, written: Sequence[Row]) -> list[Row]:
    return [row if magic else (*row[:3], -1) for row in written]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_are_read_as_they_were_written(magic: int) -> None:
    written = rows(7, 10)
    assert read(messages(magic, written)) == as_read(magic, written)
    assert read(messages(magic, written), fetch_offset=12) == as_read(magic, written[5:])


@pytest.mark.parametrize(("magic", "codec"), [(0, GZIP), (0, SNAPPY), (1, GZIP), (1, SNAPPY), (1, LZ4)])
def test_compressed_sets_are_unpacked(magic: int, codec: Compression) -> None:
    data = stored(magic, 0, 5, codec) + stored(magic, 5, 4, codec)
    expected = as_read(magic, rows(0, 5) + rows(5, 4))
    assert read(data) == expected
    assert read(data, fetch_offset=6) == expected[6:]
    assert read(data[:-1]) == expected[:5], "a message that is cut short is not there"


def test_old_and_new_ones_follow_each_other() -> None:
    new = encode_batch([NewRecord(b"k", b"new", timestamp=NOW)], base_offset=5)
    data = stored(0, 0, 3, GZIP) + messages(1, rows(3, 2)) + new + messages(0, rows(6, 2))
    assert [row[0] for row in read(data)] == list(range(8))


def test_compacted_messages_keep_their_offsets() -> None:
    left = [row for row in rows(0, 10) if row[0] in (2, 5, 9)]
    assert read(messages(1, left)) == left
    assert [row[0] for row in read(packed(1, left, 109, GZIP))] == [102, 105, 109]


def test_the_time_of_the_broker_is_that_of_all_in_a_set() -> None:
    assert {row[3] for row in read(stored(1, 0, 3, GZIP, attributes=0x08))} == {NOW + 500}


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_before_a_damaged_one_are_returned_first(magic: int) -> None:
    data = bytearray(messages(magic, rows(0, 4)))
    data[-1] ^= 1
    reader = PartitionReader(bytes(data), topic="t", partition=0, fetch_offset=0)
    records = reader.read(100)
    assert records is not None
    assert [record.offset for record in records] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(InvalidBatchError, match=f"t-0 at offset 3: wrong checksum of the message of format {magic}"):
            reader.read(100)


def test_a_set_that_would_inflate_beyond_the_limit_is_refused() -> None:
    data = packed(1, [(0, None, bytes(100_000), NOW)], 0, GZIP)
    with pytest.raises(InvalidBatchError, match="compressed batch refused"):
        read(data, max_batch_bytes=50_000)


@pytest.mark.parametrize("size", range(-1, 40))
def test_a_false_length_is_refused_or_counts_as_truncated(size: int) -> None:
    data = bytearray(messages(1, [(0, b"key", b"value", NOW)]) + bytes(20))
    struct.pack_into(">i", data, 8, size)
    reader = PartitionReader(bytes(data), topic="t", partition=0, fetch_offset=0, check_crcs=False)
    if size == 30:
        assert reader.read(1) is not None
    else:
        with pytest.raises(InvalidBatchError):
            reader.read(1)
