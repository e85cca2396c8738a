"""A broker's check of produced batches, the check of stored ones in recovery, and the search for a timestamp."""

from __future__ import annotations

import struct

import crc32c
import pytest

from ottla.errors import CorruptRecordError
from ottla.protocol import ErrorCode
from ottla.records import (
    HEADER_SIZE,
    Compression,
    ControlType,
    InvalidBatchError,
    NewRecord,
    control_marker,
    encode_batch,
    encode_end_transaction,
    find_timestamp,
    verify_batch,
)

RECORDS = [NewRecord(b"k%d" % i, b"v" * i, (("h", None),) * (i % 2), 1000 + 10 * i) for i in range(5)]


def resealed(data: bytes | bytearray) -> bytes:
    """The same bytes with the right length and checksum."""
    data = bytearray(data)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def raw_batch(body: bytes, count: int = 1) -> bytes:
    """A batch with hand-made records and the right checksum."""
    header = bytearray(encode_batch([NewRecord(None, None)] * count)[:HEADER_SIZE])
    return resealed(header + body)


@pytest.mark.parametrize("codec", Compression)
def test_a_good_batch_passes(codec: Compression) -> None:
    data = encode_batch(RECORDS, compression=codec, base_offset=3)
    assert verify_batch(b"??" + data, 2).record_count == 5


def test_a_flipped_bit_fails_the_checksum() -> None:
    data = bytearray(encode_batch(RECORDS))
    data[-1] ^= 1
    with pytest.raises(InvalidBatchError, match="fails its checksum") as caught:
        verify_batch(data)
    assert caught.value.code == ErrorCode.corrupt_message


def test_a_truncated_batch_is_refused() -> None:
    data = encode_batch(RECORDS)
    with pytest.raises(InvalidBatchError, match="truncated batch at byte 0"):
        verify_batch(data[:-1])


def test_an_unknown_codec_is_named() -> None:
    data = bytearray(encode_batch(RECORDS))
    data[22] |= 5
    with pytest.raises(InvalidBatchError, match="unknown compression codec 5") as caught:
        verify_batch(resealed(data))
    assert caught.value.code == ErrorCode.unsupported_compression_type


def test_damaged_compressed_bytes_are_refused() -> None:
    for codec in list(Compression)[1:]:
        data = encode_batch(RECORDS, compression=codec)
        with pytest.raises(InvalidBatchError, match=r"cannot be read|cut short") as caught:
            verify_batch(resealed(data[:-3]))
        assert caught.value.code == ErrorCode.invalid_record


@pytest.mark.parametrize("count", [4, 6, 2**31 - 1])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_a_false_count_is_refused(count: int, codec: Compression) -> None:
    data = bytearray(encode_batch(RECORDS, compression=codec))
    struct.pack_into(">i", data, 57, count)
    with pytest.raises(InvalidBatchError, match=f"claims {count} records") as caught:
        verify_batch(resealed(data))
    assert caught.value.code == ErrorCode.invalid_record
    struct.pack_into(">i", data, 23, count - 1)
    with pytest.raises(CorruptRecordError):
        verify_batch(resealed(data))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\x10" + b"\0" * 6, "length reaches beyond"),
        (b"\x01" + b"\0" * 6, "length reaches beyond"),
        (b"\x0c\0\0\x02\x01\x01\0", "offset deltas do not count"),
        (b"\x0c\0\0\0\x03\x01\0", "key's length"),
        (b"\x0c\0\0\0\x0a\x01\0", "key's length"),
        (b"\x0c\0\0\0\x01\x03\0", "value's length"),
        (b"\x0c\0\0\0\x01\x0a\0", "value's length"),
        (b"\x0c\0\0\0\x01\x01\x01", "count of headers"),
        (b"\x0c\0\0\0\x01\x01\x02", "count of headers"),
        (b"\x10\0\0\0\x01\x01\x02\x01\0", "header's length"),
        (b"\x10\0\0\0\x01\x01\x02\x06\0", "header's length"),
        (b"\x10\0\0\0\x01\x01\x02\0\x03", "header's length"),
        (b"\x10\0\0\0\x01\x01\x02\0\x02", "header's length"),
        (b"\x0e\0\0\0\x01\x01\0\0", "left at the end of a record"),
        (b"\x0c\0\0\0\x01\x01\0\0", "left after the last record"),
        (b"\x0c\0" + b"\xff" * 5, "varint is too long"),
        (b"\x20\0" + b"\x80" * 10 + b"\0" * 5, "varint is too long"),
        (b"\x20\0" + b"\xff" * 9 + b"\x02" + b"\0" * 5, "varint is too long"),
        (b"\x14\0\0" + b"\xff" * 4 + b"\x1f" + b"\x01\x01\0", "varint is too long"),
    ],
)
def test_false_lengths_are_refused(body: bytes, says: str) -> None:
    with pytest.raises(InvalidBatchError, match=says) as caught:
        verify_batch(raw_batch(body))
    assert caught.value.code == ErrorCode.invalid_record


def test_the_longest_varints_are_understood() -> None:
    body = b"\0" + b"\xff" * 9 + b"\x01" + b"\x80\x80\x80\x80\0" + b"\x01\x01\0"
    assert verify_batch(raw_batch(bytes((2 * len(body),)) + body)).record_count == 1


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_an_inflating_batch_is_refused_at_the_limit(codec: Compression) -> None:
    data = encode_batch([NewRecord(None, bytes(5_000_000))], compression=codec)
    assert verify_batch(data, max_uncompressed=5_000_100).record_count == 1
    with pytest.raises(InvalidBatchError, match="may inflate to 1000000 bytes"):
        verify_batch(data, max_uncompressed=1_000_000)


def test_the_first_record_at_or_after_a_time_is_found() -> None:
    for codec in Compression:
        data = b"." + encode_batch(RECORDS, base_offset=100, compression=codec)
        assert find_timestamp(data, 1, 0) == (100, 1000)
        assert find_timestamp(data, 1, 1010) == (101, 1010)
        assert find_timestamp(data, 1, 1011) == (102, 1020)
        assert find_timestamp(data, 1, 1041) is None
        assert find_timestamp(data, 1, 2**70) is None


def test_commit_and_abort_markers_are_distinguished() -> None:
    for marker in ControlType:
        data = encode_end_transaction(marker, producer_id=1, producer_epoch=0)
        assert verify_batch(data).is_control
        assert control_marker(b"." + data, 1) is marker
    other = encode_batch([NewRecord(b"\0\0\0\x02", b"")], control=True)
    assert control_marker(other) is None
    with pytest.raises(InvalidBatchError, match="has no type"):
        control_marker(encode_batch([NewRecord(b"\0\0", b"")], control=True))
    with pytest.raises(InvalidBatchError, match="not a control batch"):
        control_marker(encode_batch(RECORDS))
