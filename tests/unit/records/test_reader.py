"""Reading the response of one partition: returned and skipped records, the position, and errors."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import crc32c
import pytest

from ottla import Record, Records
from ottla.errors import CorruptRecordError, RecordDeserializationError
from ottla.records import (
    Compression,
    ControlType,
    InvalidBatchError,
    NewRecord,
    PartitionReader,
    encode_batch,
    encode_end_transaction,
    iter_entries,
    iter_records,
)
from ottla.types import IsolationLevel, TimestampType

COMMITTED = IsolationLevel.READ_COMMITTED


def batch(base_offset: int, *values: bytes, **fields: Any) -> bytes:
    records = [NewRecord(None, value, timestamp=1000 + number) for number, value in enumerate(values)]
    return encode_batch(records, base_offset=base_offset, **fields)


def transactional(base_offset: int, producer_id: int, *values: bytes) -> bytes:
    return batch(base_offset, *values, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def marker(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
    return encode_end_transaction(kind, producer_id=producer_id, producer_epoch=0, base_offset=base_offset)


def reader(data: bytes, fetch_offset: int = 0, **options: Any) -> PartitionReader:
    return PartitionReader(data, topic="t", partition=3, fetch_offset=fetch_offset, **options)


def values(data: PartitionReader, max_records: int = 1000) -> list[bytes]:
    records = data.read(max_records)
    return [record.value for record in records] if records else []


def compacted(data: bytes, deltas: list[int], last_delta: int) -> bytes:
    """A compacted batch: without some records, but with the offsets of the others and of the end."""
    header, body = bytearray(data[:61]), b""
    for delta in deltas:
        record = b"\0\0" + bytes((2 * delta,)) + b"\x01\x02" + b"%d" % delta + b"\0"
        body += bytes((2 * len(record),)) + record
    struct.pack_into(">i", header, 8, 49 + len(body))
    struct.pack_into(">i", header, 23, last_delta)
    struct.pack_into(">i", header, 57, len(deltas))
    struct.pack_into(">I", header, 17, crc32c.crc32c(body, crc32c.crc32c(bytes(header[21:]))))
    return bytes(header) + body


def test_records_are_complete_and_in_order() -> None:
    records = [
        NewRecord(b"k", b"v", (("h", b"1"), ("ü", None)), 1500),
        NewRecord(None, None, (), 1499),
        NewRecord(b"", b"", (("", b""),), 1501),
    ]
    for codec in Compression:
        read = reader(encode_batch(records, base_offset=7, leader_epoch=2, compression=codec), 7).read(10)
        assert read is not None
        assert (len(read), read.first_offset, read.last_offset, read.next_offset) == (3, 7, 9, 10)
        assert list(read) == [
            Record("t", 3, 7 + number, new.key, new.value, headers=new.headers, timestamp=new.timestamp, leader_epoch=2)
            for number, new in enumerate(records)
        ]


def test_a_read_returns_at_most_the_requested_number() -> None:
    data = reader(batch(0, b"0", b"1", b"2", leader_epoch=4) + batch(3, b"3", b"4", leader_epoch=5))
    seen = []
    for expected_position, epoch, left in ((2, 4, True), (4, 5, True), (5, 5, False)):
        seen.append(values(data, 2))
        assert (data.next_offset, data.next_leader_epoch, data.exhausted) == (expected_position, epoch, not left)
    assert seen == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert data.read(2) is None
    assert data.read(0) is None


def test_records_below_the_position_are_not_delivered() -> None:
    data = batch(0, b"0", b"1") + batch(2, b"2", b"3", b"4")
    assert values(reader(data, 3)) == [b"3", b"4"]
    assert values(reader(data, 1)) == [b"1", b"2", b"3", b"4"]
    past = reader(data, 9)
    assert (values(past), past.next_offset, past.exhausted) == ([], 9, True)


def test_the_log_append_time_is_that_of_every_record() -> None:
    data = batch(0, b"0", b"1", timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=77)
    read = reader(data).read(10)
    assert read is not None
    assert [(record.timestamp, record.timestamp_type) for record in read] == [(77, TimestampType.LOG_APPEND_TIME)] * 2


def test_a_partial_last_batch_is_left_for_the_next_fetch() -> None:
    data = reader(batch(0, b"0") + batch(1, b"1")[:-1])
    assert values(data) == [b"0"]
    assert (data.next_offset, data.exhausted) == (1, True)


@pytest.mark.parametrize("size", [1, 11, 60, 62])
def test_a_response_without_a_complete_batch_is_an_error(size: int) -> None:
    data = reader(batch(0, b"0")[:size])
    assert not data.exhausted
    with pytest.raises(CorruptRecordError, match=rf"t-3 at offset 0: the response has {size} bytes but no complete batch"):
        data.read(1)


def test_an_empty_response_is_exhausted() -> None:
    assert reader(b"").exhausted
    assert reader(b"").read(1) is None


def test_compacted_gaps_and_tails_are_passed() -> None:
    data = reader(compacted(batch(10, b""), [1, 4], last_delta=9) + compacted(batch(20, b""), [], last_delta=5), 10)
    read = data.read(10)
    assert read is not None
    assert [record.offset for record in read] == [11, 14]
    assert (data.next_offset, read.next_offset, data.exhausted) == (26, 26, True)
    assert values(reader(compacted(batch(10, b""), [1, 4], last_delta=9), 12)) == [b"4"]
    tail = reader(compacted(batch(10, b""), [1, 4], last_delta=9), 15)
    assert (values(tail), tail.next_offset) == ([], 20)


def test_control_batches_are_skipped_and_passed() -> None:
    data = reader(transactional(0, 1, b"0") + marker(1, 1, ControlType.COMMIT) + batch(2, b"2"))
    assert values(data, 1) == [b"0"]
    assert data.next_offset == 1
    assert values(data, 1) == [b"2"]
    only = reader(marker(5, 1, ControlType.ABORT), 5)
    assert (values(only), only.next_offset, only.exhausted) == ([], 6, True)


ABORTED = (
    transactional(0, 1, b"a0", b"a1")
    + transactional(2, 2, b"c2")
    + batch(3, b"plain")
    + transactional(4, 1, b"a4")
    + marker(5, 1, ControlType.ABORT)
    + transactional(6, 1, b"c6")
    + marker(7, 2, ControlType.COMMIT)
    + marker(8, 1, ControlType.COMMIT)
)


def test_read_uncommitted_delivers_aborted_records_too() -> None:
    assert values(reader(ABORTED, aborted=[(1, 0)])) == [b"a0", b"a1", b"c2", b"plain", b"a4", b"c6"]


def test_read_committed_hides_aborted_records() -> None:
    data = reader(ABORTED, isolation_level=COMMITTED, aborted=[(1, 0)])
    assert values(data) == [b"c2", b"plain", b"c6"]
    assert (data.next_offset, data.exhausted) == (9, True)


def test_read_committed_from_the_middle_of_an_aborted_transaction() -> None:
    assert values(reader(ABORTED, 4, isolation_level=COMMITTED, aborted=[(1, 0)])) == [b"c6"]


def test_a_producer_may_abort_twice_in_one_response() -> None:
    data = (
        transactional(0, 1, b"a")
        + marker(1, 1, ControlType.ABORT)
        + transactional(2, 1, b"c")
        + marker(3, 1, ControlType.COMMIT)
        + transactional(4, 1, b"a")
        + marker(5, 1, ControlType.ABORT)
    )
    assert values(reader(data, isolation_level=COMMITTED, aborted=[(1, 4), (1, 0)])) == [b"c"]


def test_an_aborted_transaction_that_begins_later_hides_nothing_yet() -> None:
    data = transactional(0, 1, b"c") + marker(1, 1, ControlType.COMMIT) + transactional(2, 1, b"a")
    assert values(reader(data, isolation_level=COMMITTED, aborted=[(1, 2)])) == [b"c"]


def test_read_committed_where_an_aborted_transaction_is_compacted_but_for_its_end() -> None:
    rest = (
        transactional(2, 1, b"a2") + marker(3, 1, ControlType.ABORT) + transactional(4, 1, b"c4") + marker(5, 1, ControlType.COMMIT)
    )
    assert values(reader(rest, isolation_level=COMMITTED, aborted=[(1, 0)])) == [b"c4"]
    only_the_end = marker(3, 1, ControlType.ABORT) + transactional(4, 1, b"c4") + marker(5, 1, ControlType.COMMIT)
    assert values(reader(only_the_end, isolation_level=COMMITTED, aborted=[(1, 0)])) == [b"c4"]


def test_an_abort_marker_of_one_producer_does_not_affect_others() -> None:
    data = transactional(0, 1, b"a") + marker(1, 2, ControlType.ABORT) + transactional(2, 1, b"a") + marker(3, 1, ControlType.ABORT)
    read = reader(data + batch(4, b"plain"), isolation_level=COMMITTED, aborted=[(1, 0)])
    assert (values(read), read.next_offset) == ([b"plain"], 5)


def test_a_whole_response_of_aborted_records_moves_the_position() -> None:
    data = reader(transactional(0, 1, b"a", b"a"), isolation_level=COMMITTED, aborted=[(1, 0)])
    assert (data.read(10), data.next_offset, data.exhausted) == (None, 2, True)


def test_records_before_a_corrupt_batch_are_returned_first() -> None:
    damaged = bytearray(batch(2, b"2"))
    damaged[-2] ^= 0xFF
    data = reader(batch(0, b"0", b"1") + damaged + batch(3, b"3"))
    assert values(data) == [b"0", b"1"]
    assert not data.exhausted
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"t-3 at offset 2: .*checksum.*seek") as caught:
            data.read(10)
        assert isinstance(caught.value, InvalidBatchError)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 3, 2)
    assert data.next_offset == 2


def test_checksums_are_verified_only_with_check_crcs() -> None:
    damaged = bytearray(batch(0, b"0"))
    damaged[-2] ^= 0x01
    assert values(reader(bytes(damaged), check_crcs=False)) == [b"1"]


def test_an_inflating_batch_is_refused_at_the_limit() -> None:
    data = reader(batch(0, bytes(1 << 20), compression=Compression.ZSTD), max_batch_bytes=1 << 16)
    with pytest.raises(CorruptRecordError, match="may inflate to 65536 bytes"):
        data.read(1)


def test_deserializers_run_at_the_first_access() -> None:
    calls = []

    def upper(raw: bytes | None) -> str:
        calls.append(raw)
        assert raw is not None
        return raw.decode().upper()

    data = encode_batch([NewRecord(b"1", b"a"), NewRecord(b"x", None)])
    read = reader(data, key_deserializer=int, value_deserializer=upper).read(10)
    assert read is not None
    good, bad = read
    assert calls == []
    assert (good.key, good.value, good.value, calls) == (1, "A", "A", [b"a"])
    with pytest.raises(RecordDeserializationError, match="key of t-3 at offset 1") as caught:
        _ = bad.key
    assert (caught.value.topic, caught.value.partition, caught.value.offset, caught.value.raw) == ("t", 3, 1, b"x")
    assert bad.value is None
    assert calls == [b"a"]


@pytest.mark.parametrize("asked", [False, True])
def test_deserializers_get_nulls_only_with_deserialize_nulls(asked: bool) -> None:
    def whatever(raw: bytes | None) -> str:
        return f"made of {raw!r}"

    data = encode_batch([NewRecord(None, None), NewRecord(b"", b"")])
    read = reader(data, key_deserializer=whatever, value_deserializer=whatever, deserialize_nulls=asked).read(10)
    assert read is not None
    null, empty = read
    assert (null.key, null.value) == (("made of None",) * 2 if asked else (None, None))
    assert (empty.key, empty.value) == ("made of b''",) * 2
    assert pickle.loads(pickle.dumps(null)) == null
    assert Records([read]).to_arrow()["value"].to_pylist() == [None, b""]


def test_every_stored_record_is_listed_for_tools() -> None:
    data = ABORTED + batch(9, b"9")[:-1]
    stored = list(iter_records(data))
    assert [(record.offset, record.header.is_control) for record in stored] == [
        (offset, offset in (5, 7, 8)) for offset in range(9)
    ]
    assert stored[3][1:] == (3, 1000, None, b"plain", ())
    with pytest.raises(CorruptRecordError, match="checksum"):
        list(iter_records(data[:100] + b"!" + data[101:]))


def test_a_log_is_read_as_a_table_batch_by_batch() -> None:
    keyed = encode_batch([NewRecord(b"k", b"v"), NewRecord(b"", None), NewRecord(None, b"")], base_offset=9)
    *_, (header, entries) = read = list(iter_entries(ABORTED + keyed + batch(12, b"cut")[:-1]))
    assert (header.base_offset, entries) == (9, [(b"k", b"v"), (b"", None), (None, b"")])
    flat = [entry for _, of_batch in read for entry in of_batch]
    assert flat == [(record.key, record.value) for record in iter_records(ABORTED + keyed)]
    with pytest.raises(CorruptRecordError, match="checksum"):
        list(iter_entries(keyed[:-1] + b"!"))
