"""``Records``: length, iteration, splitting, and the Arrow columns."""

from __future__ import annotations

import datetime
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from ottla import Records
from ottla.records import Compression, NewRecord, PartitionReader, PartitionRecords, arrow as arrow_module, encode_batch
from ottla.types import OffsetAndMetadata, TimestampType, TopicPartition


def part(topic: str, partition: int, *batches: bytes, fetch_offset: int = 0, limit: int = 10_000) -> PartitionRecords:
    read = PartitionReader(b"".join(batches), topic=topic, partition=partition, fetch_offset=fetch_offset).read(limit)
    assert read is not None
    return read


def batch(base_offset: int, count: int, **fields: Any) -> bytes:
    new = [
        NewRecord(
            None if number % 3 == 0 else b"key-%d" % number,
            None if number % 4 == 0 else b"value-%d" % number * (number % 5),
            tuple((f"h{i}", None if i == 1 else b"x" * i) for i in range(number % 4)),
            1_600_000_000_000 + number,
        )
        for number in range(base_offset, base_offset + count)
    ]
    return encode_batch(new, base_offset=base_offset, **fields)


@pytest.fixture
def records() -> Records:
    return Records(
        [
            part("a", 0, batch(0, 7), batch(7, 5, compression=Compression.LZ4), fetch_offset=2),
            part("b", 1, batch(0, 4, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=5), limit=3),
            part("a", 0, batch(12, 2, leader_epoch=6), fetch_offset=12),
        ]
    )


def rows(records: Records) -> list[dict[str, Any]]:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": epoch + datetime.timedelta(milliseconds=record.timestamp),
            "timestampType": int(record.timestamp_type),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for record in records
    ]


def test_the_length_is_exact_and_iteration_in_order(records: Records) -> None:
    assert len(records) == 15
    assert [(record.topic, record.offset) for record in records] == (
        [("a", offset) for offset in range(2, 12)] + [("b", 0), ("b", 1), ("b", 2)] + [("a", 12), ("a", 13)]
    )
    assert len(list(records)) == len(list(records)) == 15


def test_records_are_reached_by_position(records: Records) -> None:
    assert [records[position] for position in range(15)] == list(records)
    assert records[-1] == list(records)[-1]
    for position in (15, -16):
        with pytest.raises(IndexError):
            records[position]


def test_records_are_split_by_partition(records: Records) -> None:
    assert records.partitions() == [TopicPartition("a", 0), TopicPartition("b", 1)]
    split = records.by_partition()
    assert {topic_partition: len(its) for topic_partition, its in split.items()} == {("a", 0): 12, ("b", 1): 3}
    assert [record.offset for record in split[TopicPartition("a", 0)]] == list(range(2, 14))
    assert records.next_offsets() == {
        TopicPartition("a", 0): OffsetAndMetadata(14, leader_epoch=6),
        TopicPartition("b", 1): OffsetAndMetadata(3),
    }
    assert repr(records) == "<Records 15 (a-0: 12, b-1: 3)>"
    assert repr(records.parts[0]) == "<PartitionRecords a-0 offsets 2..11, 10 records>"


def test_nothing_is_nothing() -> None:
    nothing = Records.empty()
    assert not nothing
    assert (len(nothing), list(nothing), nothing.partitions(), nothing.by_partition()) == (0, [], [], {})
    assert nothing.to_arrow().schema == arrow_module.schema()
    assert nothing.to_arrow().num_rows == 0
    assert list(nothing.to_batches()) == []
    assert pa.table(nothing).schema == arrow_module.schema()
    assert repr(nothing) == "<Records 0>"


def test_columns_and_objects_have_the_same_values(records: Records) -> None:
    table = records.to_arrow()
    table.validate(full=True)
    assert table.to_pylist() == rows(records)
    assert [column.null_count for column in table.columns] == [5, 4, 0, 0, 0, 0, 0, 4]


def test_the_schema_is_that_of_spark() -> None:
    assert [(field.name, str(field.type), field.nullable) for field in arrow_module.schema()] == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", True),
        ("partition", "int32", True),
        ("offset", "int64", True),
        ("timestamp", "timestamp[us, tz=UTC]", True),
        ("timestampType", "int32", True),
        ("headers", "list<item: struct<key: string, value: binary>>", True),
    ]


def test_columns_can_be_chosen(records: Records) -> None:
    table = records.to_arrow(columns=["offset", "value"])
    assert table.schema.names == ["offset", "value"]
    assert table.to_pylist() == [{name: row[name] for name in ("offset", "value")} for row in rows(records)]
    with pytest.raises(ValueError, match=r"unknown columns \['size'\]"):
        records.to_arrow(columns=["size"])
    for call in (records.to_arrow, lambda columns: records.to_batches(columns=columns)):
        with pytest.raises(TypeError, match=r"columns are a list of names, not 'key': \['key'\]"):
            call("key")
    for wrong in (0, -1, 1.5, "5", True):
        with pytest.raises(ValueError, match=f"max_rows must be a whole number of at least 1, not {wrong!r}"):
            records.to_batches(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("max_rows", [1, 2, 4, 10, 15, 100])
def test_batches_have_no_more_rows_than_asked_for(records: Records, max_rows: int) -> None:
    batches = list(records.to_batches(max_rows))
    assert all(0 < len(batch) <= max_rows for batch in batches)
    assert len(batches) == -(-15 // max_rows)
    assert [row for batch in batches for row in batch.to_pylist()] == rows(records)
    with pytest.raises(ValueError, match="at least 1"):
        records.to_batches(0)


def test_columns_are_split_before_they_get_too_long(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_module, "MAX_COLUMN_BYTES", 400)
    batches = list(records.to_batches())
    assert len(batches) > 1
    assert [row for batch in batches for row in batch.to_pylist()] == rows(records)
    assert records.to_arrow().to_pylist() == rows(records)


def test_any_arrow_library_reads_records_as_they_are(records: Records) -> None:
    assert pa.table(records).to_pylist() == rows(records)
    assert pa.RecordBatchReader.from_stream(records).read_all().to_pylist() == rows(records)


def test_headers_of_any_script_are_text() -> None:
    new = [NewRecord(None, b"v", (("größe", b"1"), ("", None))), NewRecord(None, b"v"), NewRecord(None, b"v", (("a", b""),))]
    table = Records([part("t", 0, encode_batch(new))]).to_arrow()
    table.validate(full=True)
    assert table["headers"].to_pylist() == [
        [{"key": "größe", "value": b"1"}, {"key": "", "value": None}],
        None,
        [{"key": "a", "value": b""}],
    ]


def test_timestamps_beyond_microseconds_become_the_nearest_possible() -> None:
    new = [NewRecord(None, None, (), time) for time in (0, 2**62, -(2**62), -1)]
    table = Records([part("t", 0, encode_batch(new))]).to_arrow(columns=["timestamp"])
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [0, 9223372036854774000, -9223372036854774000, -1000]


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
from ottla.errors import OttlaError
from ottla.records import Records
try:
    Records.empty().to_arrow()
except OttlaError as error:
    assert "pip install 'ottla[arrow]'" in str(error), error
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
