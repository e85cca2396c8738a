"""``Records`` as Arrow: which columns there are, of which types, and how filled buffers become arrays.

Owns the schema, which is that of Spark's Kafka source plus ``headers``, and the only import of ``pyarrow``, made when first
needed. Must not know how buffers are filled. Invariant: no column of a batch reaches 2 GiB.

Source of the schema: "Structured Streaming + Kafka Integration Guide", Apache Spark 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ottla.errors import OttlaError
from ottla.records import columns as buffers
from ottla.records.fetched import PartitionRecords, Segment

if TYPE_CHECKING:
    import pyarrow as pa
else:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise OttlaError(
            "Arrow columns need pyarrow, which is not installed", hint="pip install 'ottla[arrow]'", cause=error
        ) from error

MAX_COLUMN_BYTES = 2**31 - 1
"""What 32-bit offsets can reach."""

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Every field may be null by its type; in fact only ``key``, ``value`` and ``headers`` ever are."""


class _Rows:
    """The rows of one Arrow batch: consecutive segments of partitions."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.origins: list[tuple[Any, int]] = []
        self.count = 0
        self.bytes = 0
        self.topic_bytes = 0

    def add(self, segment: Segment) -> None:
        """Take one more segment."""
        batch, start, stop = segment
        self.segments.append(segment)
        self.origins.append((batch.origin, stop - start))
        self.count += stop - start
        self.bytes += batch.payload_size
        self.topic_bytes += (stop - start) * len(batch.origin.topic.encode())


def to_table(parts: Iterable[PartitionRecords], names: Sequence[str] | None) -> pa.Table:
    """All rows as one table."""
    return pa.Table.from_batches(to_batches(parts, names, None), _schema(names))


def to_batches(parts: Iterable[PartitionRecords], names: Sequence[str] | None, max_rows: int | None) -> Iterator[pa.RecordBatch]:
    """The rows in batches of ``max_rows`` at most, none of whose columns reaches 2 GiB."""
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, not {max_rows}")
    schema = _schema(names)
    return (
        pa.RecordBatch.from_arrays([_COLUMNS[name](rows) for name in schema.names], schema=schema)
        for rows in _split(parts, max_rows or MAX_COLUMN_BYTES // 8)
    )


def c_stream(parts: Iterable[PartitionRecords], requested_schema: Any) -> Any:
    """The rows as an Arrow C stream capsule."""
    return to_table(parts, None).__arrow_c_stream__(requested_schema)


def _schema(names: Sequence[str] | None) -> pa.Schema:
    if names is None:
        return SCHEMA
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown:
        raise ValueError(f"unknown columns {unknown}: there are {SCHEMA.names}")
    return pa.schema([SCHEMA.field(name) for name in names])


def _split(parts: Iterable[PartitionRecords], max_rows: int) -> Iterator[_Rows]:
    rows = _Rows()
    for part in parts:
        for batch, start, stop in part.segments:
            while start < stop:
                piece_stop = min(stop, start + max_rows - rows.count)
                piece = (batch, start, piece_stop)
                topic_bytes = len(batch.origin.topic.encode()) * (piece_stop - start)
                if rows.count and (rows.bytes + batch.payload_size > MAX_COLUMN_BYTES or rows.topic_bytes + topic_bytes > MAX_COLUMN_BYTES):
                    yield rows
                    rows = _Rows()
                    continue
                rows.add(piece)
                start = piece_stop
                if rows.count == max_rows:
                    yield rows
                    rows = _Rows()
    if rows.count:
        yield rows


def _buffer(data: bytes | bytearray | None) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def _binary(rows: _Rows, field: int) -> pa.Array:
    validity, offsets, data, nulls = buffers.binary_column(rows.segments, rows.count, field)
    return pa.Array.from_buffers(pa.binary(), rows.count, [_buffer(validity), _buffer(offsets), _buffer(data)], null_count=nulls)


def _key(rows: _Rows) -> pa.Array:
    return _binary(rows, buffers.KEY)


def _value(rows: _Rows) -> pa.Array:
    return _binary(rows, buffers.VALUE)


def _topic(rows: _Rows) -> pa.Array:
    runs = [(origin.topic.encode(), count) for origin, count in rows.origins]
    offsets, data = buffers.repeated_bytes(runs, rows.count)
    return pa.Array.from_buffers(pa.string(), rows.count, [None, _buffer(offsets), _buffer(data)], null_count=0)


def _fixed(type_: pa.DataType, data: bytearray, rows: _Rows) -> pa.Array:
    return pa.Array.from_buffers(type_, rows.count, [None, _buffer(data)], null_count=0)


def _partition(rows: _Rows) -> pa.Array:
    runs = [(origin.partition, count) for origin, count in rows.origins]
    return _fixed(pa.int32(), buffers.repeated_ints(runs, rows.count), rows)


def _offset(rows: _Rows) -> pa.Array:
    return _fixed(pa.int64(), buffers.offset_column(rows.segments, rows.count), rows)


def _timestamp(rows: _Rows) -> pa.Array:
    return _fixed(pa.timestamp("us", tz="UTC"), buffers.timestamp_column(rows.segments, rows.count), rows)


def _timestamp_type(rows: _Rows) -> pa.Array:
    runs = [(int(origin.timestamp_type), count) for origin, count in rows.origins]
    return _fixed(pa.int32(), buffers.repeated_ints(runs, rows.count), rows)


def _headers(rows: _Rows) -> pa.Array:
    validity, offsets, nulls, names, values = buffers.header_column(rows.segments, rows.count)
    name_offsets, name_data = names
    value_validity, value_offsets, value_data, value_nulls = values
    total = len(name_offsets) // 4 - 1
    name_array = pa.Array.from_buffers(pa.string(), total, [None, _buffer(name_offsets), _buffer(name_data)], null_count=0)
    value_array = pa.Array.from_buffers(
        pa.binary(),
        total,
        [_buffer(value_validity), _buffer(value_offsets), _buffer(value_data)],
        null_count=value_nulls,
    )
    type_ = SCHEMA.field("headers").type
    structs = pa.Array.from_buffers(type_.value_type, total, [None], null_count=0, children=[name_array, value_array])
    return pa.Array.from_buffers(type_, rows.count, [_buffer(validity), _buffer(offsets)], null_count=nulls, children=[structs])


_COLUMNS: dict[str, Callable[[_Rows], pa.Array]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}
