"""Invalid bytes: flipped, truncated or random bytes result in records or ``CorruptRecordError``, within a short time."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import crc32c
import pytest
from hypothesis import example, given, strategies as st

from ottla import Records
from ottla.errors import CorruptRecordError
from ottla.records import (
    Compression,
    NewRecord,
    PartitionReader,
    control_marker,
    encode_batch,
    find_timestamp,
    iter_headers,
    iter_records,
    read_header,
    verify_batch,
)

LIMIT = 1 << 20
BATCH = [
    NewRecord(b"key", b"value" * 30, (("name", b"content"), ("null", None)), 1000),
    NewRecord(None, b"", (), -1),
    NewRecord(b"", None, (("", b""),), 2**45),
]


def consume(data: bytes) -> int:
    """Read everything, as objects and as columns; return the number of records."""
    reader = PartitionReader(data, topic="t", partition=0, fetch_offset=0, check_crcs=False, max_batch_bytes=LIMIT)
    parts = []
    try:
        while part := reader.read(2):
            parts.append(part)
    except CorruptRecordError:
        assert not reader.exhausted
    records = Records(parts)
    seen = [(record.offset, record.key, record.value, record.headers, record.timestamp, repr(record)) for record in records]
    assert len(seen) == len(records)
    table = records.to_arrow()
    table.validate(full=True)
    assert table["key"].to_pylist() == [key for _, key, *_ in seen]
    assert table["value"].to_pylist() == [value for _, _, value, *_ in seen]
    assert [[(h["key"], h["value"]) for h in its or ()] for its in table["headers"].to_pylist()] == [
        list(headers) for _, _, _, headers, *_ in seen
    ]
    return len(seen)


READERS: list[Callable[[bytes], object]] = [
    consume,
    read_header,
    verify_batch,
    control_marker,
    lambda data: find_timestamp(data, 0, 1000),
    lambda data: list(iter_headers(data)),
    lambda data: list(iter_records(data, max_batch_bytes=LIMIT)),
]


def survives(data: bytes) -> None:
    """Check that every reader ends with a result or ``CorruptRecordError``."""
    for read in READERS:
        with contextlib.suppress(CorruptRecordError):
            read(data)


def sealed(data: bytes | bytearray) -> bytes:
    """The bytes with the right checksum, so that the bytes after it are read."""
    data = bytearray(data)
    if len(data) >= 21:
        struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize("codec", Compression)
def test_every_flipped_byte(codec: Compression) -> None:
    good = encode_batch(BATCH, compression=codec)
    for position in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[position] ^= flip
            survives(bytes(bad))
            survives(sealed(bad))


@pytest.mark.parametrize("codec", Compression)
def test_every_truncation(codec: Compression) -> None:
    good = encode_batch(BATCH, compression=codec)
    for size in range(len(good)):
        cut = bytearray(good[:size])
        survives(bytes(cut))
        if size >= 61:
            struct.pack_into(">i", cut, 8, size - 12)
            survives(sealed(cut))
            with pytest.raises(CorruptRecordError):
                verify_batch(sealed(cut))


def test_a_flipped_byte_under_the_checksum_is_always_detected() -> None:
    good = encode_batch(BATCH)
    for position in range(21, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        with pytest.raises(CorruptRecordError):
            verify_batch(bad)


@given(data=st.binary(max_size=300))
@example(b"")
def test_any_bytes_at_all(data: bytes) -> None:
    survives(data)


@given(
    body=st.binary(max_size=200),
    count=st.integers(0, 40) | st.sampled_from([2**31 - 1, 2**16]),
    attributes=st.integers(0, 7) | st.integers(0, 2**15 - 1),
    last_delta=st.integers(0, 50) | st.just(2**31 - 1),
    base_offset=st.integers(0, 2**63 - 1),
    base_timestamp=st.integers(-(2**63), 2**63 - 1),
)
def test_a_sealed_header_around_any_bytes(
    body: bytes, count: int, attributes: int, last_delta: int, base_offset: int, base_timestamp: int
) -> None:
    header = struct.pack(
        ">qiibIhiqqqhii",
        base_offset, 49 + len(body), 0, 2, 0, attributes, last_delta, base_timestamp, 0, -1, -1, -1, count,
    )  # fmt: skip
    survives(sealed(header + body))


varints = st.integers(-3, 20) | st.integers(-(2**31), 2**31 - 1) | st.integers(-(2**63), 2**63 - 1)


def varint(number: int) -> bytes:
    raw, output = (number << 1) ^ (number >> 63), bytearray()
    while raw >= 0x80:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes((*output, raw))


@given(records=st.lists(st.tuples(st.lists(varints, max_size=9), st.binary(max_size=8)), min_size=1, max_size=4))
def test_records_with_wrong_varints(records: list[tuple[list[int], bytes]]) -> None:
    body = b""
    for numbers, filler in records:
        record = b"\0" + b"".join(varint(number) for number in numbers) + filler
        body += varint(len(record)) + record
    header = bytearray(encode_batch([NewRecord(None, None)] * len(records))[:61])
    struct.pack_into(">i", header, 8, 49 + len(body))
    survives(sealed(header + body))
