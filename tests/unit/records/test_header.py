"""Headers of record batches: fields, derived properties and errors."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import CorruptRecordError
from ottla.records import (
    HEADER_SIZE,
    Compression,
    InvalidBatchError,
    NewRecord,
    encode_batch,
    first_offset,
    iter_headers,
    last_header,
    read_header,
    verify_batch,
)
from ottla.types import TimestampType

TWO = [NewRecord(b"a", b"1", timestamp=1000), NewRecord(b"b", b"2", timestamp=900)]


def batch(**fields: Any) -> bytearray:
    return bytearray(encode_batch(TWO, **fields))


def test_every_field_is_read_back() -> None:
    data = batch(base_offset=7, leader_epoch=3, producer_id=11, producer_epoch=2, base_sequence=5, transactional=True)
    header = read_header(data)
    assert header.base_offset == 7
    assert header.size == len(data) == header.batch_length + 12
    assert (header.leader_epoch, header.magic) == (3, 2)
    assert (header.last_offset, header.next_offset, header.record_count) == (8, 9, 2)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (11, 2, 5, 6)
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize("codec", Compression)
def test_the_codec_stands_in_the_attributes(codec: Compression) -> None:
    assert read_header(batch(compression=codec)).compression is codec


def test_log_append_time_is_the_time_of_the_batch() -> None:
    header = read_header(batch(timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=5000))
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 5000


@pytest.mark.parametrize(("base", "last"), [(-1, -1), (0, 1), (2**31 - 2, 2**31 - 1), (2**31 - 1, 0)])
def test_the_last_sequence_wraps_to_zero(base: int, last: int) -> None:
    assert read_header(batch(base_sequence=base)).last_sequence == last


def test_headers_are_read_from_any_buffer(tmp_path: Path) -> None:
    data = b"xyz" + batch(base_offset=4)
    path = tmp_path / "segment.log"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for buffer in (data, bytearray(data), memoryview(data), mapped):
            assert read_header(buffer, 3).base_offset == 4
            assert verify_batch(buffer, 3).base_offset == 4
            assert [position for position, _ in iter_headers(buffer, 3)] == [3]


def test_whole_batches_are_listed_and_a_partial_last_one_is_not() -> None:
    first, second = bytes(batch(base_offset=0)), bytes(batch(base_offset=2))
    data = first + second
    assert [(position, header.base_offset) for position, header in iter_headers(data)] == [(0, 0), (len(first), 2)]
    assert [position for position, _ in iter_headers(data, len(first))] == [len(first)]
    for cut in (1, 11, 60, len(second) - 1):
        assert [position for position, _ in iter_headers(first + second[:cut])] == [0]
        assert [position for position, _ in iter_headers(data, end=len(first) + cut)] == [0]


def test_the_last_whole_batch_is_found_without_reading_the_others() -> None:
    first, second = bytes(batch(base_offset=0)), bytes(batch(base_offset=2))
    assert last_header(b"") is None
    assert last_header(first[:-1]) is None
    for data in (first + second, first + second + first[:-1], memoryview(first + second)):
        assert last_header(data) == read_header(second)
    assert last_header(first + second[:-1]) == read_header(first)
    assert (first_offset(first), first_offset(second[:12])) == (0, 2)
    for length in (-12, -1, 0, 48):  # with such a length the loop would never reach the end
        with pytest.raises(InvalidBatchError, match="claims"):
            last_header(first + struct.pack(">qi", 2, length) + second[12:] + second)


@pytest.mark.parametrize(
    ("position", "raw", "says"),
    [
        (8, b"\x00\x00\x00\x30", "48 bytes, too few"),
        (8, b"\xff\xff\xff\xff", "-1 bytes, too few"),
        (16, b"\x01", "format 1"),
        (0, b"\xff" * 8, "base offset -1"),
        (57, b"\xff\xff\xff\xff", "-1 records"),
        (23, b"\x80\x00\x00\x00", "offset delta -2147483648"),
    ],
)
def test_an_invalid_header_is_refused_with_its_position(position: int, raw: bytes, says: str) -> None:
    data = batch()
    data[position : position + len(raw)] = raw
    with pytest.raises(CorruptRecordError, match=says):
        read_header(data)
    with pytest.raises(CorruptRecordError, match=r"at byte 5\b"):
        read_header(b"....." + data, 5)


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1])
def test_a_truncated_header_is_refused(size: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"at byte 0: {size} bytes left of 61"):
        read_header(bytes(batch())[:size])
    with pytest.raises(CorruptRecordError, match="at byte -1"):
        read_header(bytes(batch()), -1)
