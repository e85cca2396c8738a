"""``Record``: its attributes, its equality, and that it owns its bytes."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest

from ottla import Record, Records
from ottla.records import Compression, NewRecord, PartitionReader, PartitionRecords, encode_batch
from ottla.types import TimestampType


def one(**fields: Any) -> Record:
    given: dict[str, Any] = {"topic": "t", "partition": 1, "offset": 2, "key": b"k", "value": b"v", **fields}
    return Record(**given)


def test_the_repr_of_a_record() -> None:
    record = one(timestamp=5, headers=[("h", b"x")], leader_epoch=7)
    assert (record.topic, record.partition, record.offset, record.timestamp, record.leader_epoch) == ("t", 1, 2, 5, 7)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"x"),))
    assert record.timestamp_type is TimestampType.CREATE_TIME
    assert repr(record) == (
        "Record(topic='t', partition=1, offset=2, timestamp=5, timestamp_type=CREATE_TIME, key=b'k', value=b'v',"
        " headers=(('h', b'x'),), leader_epoch=7)"
    )


@pytest.mark.parametrize(
    "name",
    ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch", "other"],
)
def test_a_record_cannot_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(one(), name, None)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "u"},
        {"partition": 2},
        {"offset": 3},
        {"key": None},
        {"value": b""},
        {"headers": [("h", None)]},
        {"timestamp": 1},
        {"timestamp_type": TimestampType.LOG_APPEND_TIME},
        {"leader_epoch": 0},
    ],
)
def test_records_are_equal_by_content(change: dict[str, Any]) -> None:
    assert one() == one()
    assert hash(one()) == hash(one())
    assert one() != one(**change)
    assert one() != "t"


def test_a_record_travels() -> None:
    record = one(headers=[("h", None)], leader_epoch=3, timestamp=9)
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.copy(record) == record


def test_header_names_that_are_not_utf8_are_replaced() -> None:
    data = bytearray(encode_batch([NewRecord(None, None, (("ab", b"x"),))]))
    data[data.index(b"ab")] = 0xFF
    records = Records([_read(bytes(data))])
    assert records[0].headers == (("\ufffdb", b"x"),)
    assert records.to_arrow()["headers"].to_pylist() == [[{"key": "\ufffdb", "value": b"x"}]]
    records.to_arrow().validate(full=True)


def _read(data: bytes) -> PartitionRecords:
    read = PartitionReader(data, topic="t", partition=0, fetch_offset=0, check_crcs=False).read(1000)
    assert read is not None
    return read


def test_a_kept_record_does_not_pin_the_response() -> None:
    class Watched(bytearray):
        pass

    new = [NewRecord(b"k%d" % number, bytes(100), (("h", b"x"),)) for number in range(100)]
    for codec in Compression:
        data = Watched(encode_batch(new, compression=codec))
        gone = weakref.ref(data)
        reader = PartitionReader(data, topic="t", partition=0, fetch_offset=0)
        read = reader.read(1000)
        assert read is not None
        records = Records([read])
        assert len(records) == 100
        kept = records[50]
        del data, reader, read
        assert gone() is not None or codec
        del records
        gc.collect()
        assert gone() is None
        assert (kept.key, kept.value, kept.headers) == (b"k50", bytes(100), (("h", b"x"),))


def test_records_in_a_cycle_with_their_deserializer_are_collected() -> None:
    class Service:
        def __init__(self) -> None:
            reader = PartitionReader(
                encode_batch([NewRecord(b"k", b"v")]), topic="t", partition=0, fetch_offset=0, value_deserializer=self.decode
            )
            read = reader.read(1)
            assert read is not None
            self.last = next(iter(read))

        def decode(self, raw: bytes | None) -> object:
            return self

    service = Service()
    assert service.last.value is service
    gone = weakref.ref(service)
    del service
    gc.collect()
    assert gone() is None
