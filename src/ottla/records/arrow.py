"""``Records`` as Arrow: which columns there are, of which types, and in what pieces they are made.

Owns the schema, which is that of Spark's Kafka source plus ``headers``, and the only import of ``pyarrow``, made when first
needed. Must not know how buffers are filled (``columns``) nor how they travel (``cdata``). Invariant: no column of a piece
reaches 2 GiB.

Source of the schema: "Structured Streaming + Kafka Integration Guide", Apache Spark 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ottla.errors import OttlaError
from ottla.records import cdata, columns
from ottla.records.fetched import PartitionRecords

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COLUMN_BYTES = 2**31 - 1
"""What 32-bit offsets can reach."""

_MAX_ROWS = MAX_COLUMN_BYTES // 8


def _topic(rows: columns.Rows) -> columns.Node:
    return columns.repeated_strings([(origin.topic.encode(), count) for origin, count in rows.origins], rows.count)


def _partition(rows: columns.Rows) -> columns.Node:
    return columns.repeated_ints([(origin.partition, count) for origin, count in rows.origins], rows.count)


def _timestamp_type(rows: columns.Rows) -> columns.Node:
    return columns.repeated_ints([(origin.timestamp_type, count) for origin, count in rows.origins], rows.count)


_HEADERS: cdata.Field = ("+l", "headers", (("+s", "item", (("u", "key", ()), ("z", "value", ()))),))

_COLUMNS: dict[str, tuple[cdata.Field, Callable[[columns.Rows], columns.Node]]] = {
    "key": (("z", "key", ()), lambda rows: columns.binary_column(rows, columns.KEY)),
    "value": (("z", "value", ()), lambda rows: columns.binary_column(rows, columns.VALUE)),
    "topic": (("u", "topic", ()), _topic),
    "partition": (("i", "partition", ()), _partition),
    "offset": (("l", "offset", ()), columns.offset_column),
    "timestamp": (("tsu:UTC", "timestamp", ()), columns.timestamp_column),
    "timestampType": (("i", "timestampType", ()), _timestamp_type),
    "headers": (_HEADERS, columns.header_column),
}
"""Name -> (type in the format strings of the C data interface, how it is filled). Every field may be null by its type; in fact
only ``key``, ``value`` and ``headers`` ever are."""


def to_table(parts: Iterable[PartitionRecords], names: Sequence[str] | None) -> pa.Table:
    """All rows as one table."""
    return _pyarrow().Table.from_batches(to_batches(parts, names, None), schema(names))


def to_batches(parts: Iterable[PartitionRecords], names: Sequence[str] | None, max_rows: int | None) -> Iterator[pa.RecordBatch]:
    """The rows in batches of ``max_rows`` at most, none of whose columns reaches 2 GiB."""
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, not {max_rows}")
    types = schema(names)
    pyarrow = _pyarrow()
    return (_imported(pyarrow, node, types) for node in _nodes(parts, names, max_rows or _MAX_ROWS))


def _imported(pyarrow: Any, node: columns.Node, types: pa.Schema) -> pa.RecordBatch:
    return pyarrow.RecordBatch._import_from_c(cdata.export_array(node), types)


def c_stream(parts: Iterable[PartitionRecords]) -> object:
    """The rows as an Arrow C stream capsule; needs no ``pyarrow``."""
    field: cdata.Field = ("+s", "", tuple(field for field, _ in _COLUMNS.values()))
    return cdata.stream_capsule(field, _nodes(parts, None, _MAX_ROWS))


def schema(names: Sequence[str] | None = None) -> pa.Schema:
    """The types of all columns, or of those named; raises ``ValueError`` for a name that is none."""
    return _schema(None if names is None else tuple(names))


@cache
def _schema(names: tuple[str, ...] | None) -> pa.Schema:
    pyarrow = _pyarrow()
    types = pyarrow.schema(
        [
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.timestamp("us", tz="UTC")),
            ("timestampType", pyarrow.int32()),
            ("headers", pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))),
        ]
    )
    if names is None:
        return types
    unknown = [name for name in names if name not in types.names]
    if unknown:
        raise ValueError(f"unknown columns {unknown}: there are {types.names}")
    return pyarrow.schema([types.field(name) for name in names])


@cache
def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise OttlaError("this needs pyarrow, which is not installed", hint="pip install 'ottla[arrow]'", cause=error) from error
    return pyarrow


def _nodes(parts: Iterable[PartitionRecords], names: Sequence[str] | None, max_rows: int) -> Iterator[columns.Node]:
    """A node of all columns for each piece of the rows."""
    fillers = [_COLUMNS[name][1] for name in (_COLUMNS if names is None else names)]
    for rows in columns.pieces(parts, max_rows, MAX_COLUMN_BYTES):
        yield rows.count, 0, (None,), tuple([fill(rows) for fill in fillers])
