"""Encoded records are read unchanged, as objects and as columns, from any position, with gaps and limits."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, strategies as st

from ottla import Record, Records
from ottla.records import (
    Compression,
    NewRecord,
    PartitionReader,
    PartitionRecords,
    encode_batch,
    find_timestamp,
    iter_records,
    read_header,
    verify_batch,
)
from ottla.types import TimestampType

content = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), content), max_size=3).map(tuple)
timestamps = st.integers(-1, 2**60)
runs = st.lists(st.lists(st.builds(NewRecord, content, content, headers, timestamps), min_size=1, max_size=12), max_size=5)
codecs = st.sampled_from(Compression)


def read_all(data: bytes, fetch_offset: int, step: int) -> tuple[list[PartitionRecords], PartitionReader]:
    reader = PartitionReader(data, topic="topic", partition=1, fetch_offset=fetch_offset)
    parts = []
    while part := reader.read(step):
        assert len(part) <= step
        assert reader.next_offset == part.next_offset
        parts.append(part)
    assert reader.exhausted
    return parts, reader


@given(runs=runs, codec=codecs, fetch_offset=st.integers(0, 70), step=st.integers(1, 30), log_append=st.none() | timestamps)
def test_written_records_are_read_back(
    runs: list[list[NewRecord]], codec: Compression, fetch_offset: int, step: int, log_append: int | None
) -> None:
    data, expected, offset = b"", [], 0
    stamped = TimestampType.CREATE_TIME if log_append is None else TimestampType.LOG_APPEND_TIME
    for epoch, new in enumerate(runs):
        batch = encode_batch(
            new,
            base_offset=offset,
            leader_epoch=epoch,
            compression=codec,
            timestamp_type=stamped,
            log_append_time=log_append,
        )
        assert verify_batch(batch) == read_header(batch)
        data += batch
        expected += [
            Record(
                "topic",
                1,
                offset + delta,
                record.key,
                record.value,
                headers=record.headers,
                timestamp=record.timestamp if log_append is None else log_append,
                timestamp_type=stamped,
                leader_epoch=epoch,
            )
            for delta, record in enumerate(new)
        ]
        offset += len(new)
    visible = [record for record in expected if record.offset >= fetch_offset]
    parts, reader = read_all(data, fetch_offset, step)
    assert reader.next_offset == max(fetch_offset, offset)
    records = Records(parts)
    assert list(records) == visible
    assert len(records) == len(visible)
    assert [(stored.offset, stored.key, stored.value, stored.headers) for stored in iter_records(data)] == [
        (record.offset, record.key, record.value, record.headers) for record in expected
    ]
    table = records.to_arrow()
    table.validate(full=True)
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [
        min(record.timestamp, 2**63 // 1000 - 1) * 1000 for record in visible
    ]
    assert table.drop_columns("timestamp").to_pylist() == [
        {
            "key": record.key,
            "value": record.value,
            "topic": "topic",
            "partition": 1,
            "offset": record.offset,
            "timestampType": int(stamped),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for record in visible
    ]


@given(
    new=st.lists(st.builds(NewRecord, content, content, headers, timestamps), min_size=1, max_size=12),
    codec=codecs,
    target=timestamps,
)
def test_a_timestamp_lookup_equals_a_linear_search(new: list[NewRecord], codec: Compression, target: int) -> None:
    data = encode_batch(new, base_offset=5, compression=codec)
    plain = [(5 + delta, record.timestamp) for delta, record in enumerate(new) if record.timestamp >= target]
    assert find_timestamp(data, 0, target) == (plain[0] if plain else None)
