"""``Records`` as Arrow: which columns there are, of which types, and in what pieces they are made.

Owns the schema, which is that of Spark's Kafka source plus ``headers``, and the only import of ``pyarrow``, made when first
needed. Must not know how buffers are filled (``columns``) nor how they travel (``cdata``). Invariant: no column of a piece
reaches 2 GiB.

Source of the schema: "Structured Streaming + Kafka Integration Guide", Apache Spark 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ottla.errors import OttlaError
from ottla.records import cdata, columns
from ottla.records.header_columns import header_column
from ottla.records.partition_records import PartitionRecords
from ottla.records.rows import Rows, pieces
from ottla.types import whole

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COLUMN_BYTES = 2**31 - 1
"""What 32-bit offsets can reach."""

_MAX_ROWS = MAX_COLUMN_BYTES // 8


_HEADERS: cdata.Field = ("+l", "headers", (("+s", "item", (("u", "key", ()), ("z", "value", ()))),))

_COLUMNS: dict[str, tuple[cdata.Field, columns.Filler]] = {
    "key": (("z", "key", ()), columns.key_column),
    "value": (("z", "value", ()), columns.value_column),
    "topic": (("u", "topic", ()), columns.topic_column),
    "partition": (("i", "partition", ()), columns.partition_column),
    "offset": (("l", "offset", ()), columns.offset_column),
    "timestamp": (("tsu:UTC", "timestamp", ()), columns.timestamp_column),
    "timestampType": (("i", "timestampType", ()), columns.timestamp_type_column),
    "headers": (_HEADERS, header_column),
}
"""Name -> (type in the format strings of the C data interface, how it is filled). Every field may be null by its type; in fact
only ``key``, ``value`` and ``headers`` ever are."""


def to_table(parts: Iterable[PartitionRecords], names: Sequence[str] | None) -> pa.Table:
    """All rows as one table."""
    pyarrow, types, fillers = _layout(_chosen(names))
    imported = pyarrow.RecordBatch._import_from_c
    return pyarrow.Table.from_batches([imported(columns.export(rows, fillers), types) for rows in _pieces(parts, _MAX_ROWS)], types)


def to_batches(parts: Iterable[PartitionRecords], names: Sequence[str] | None, max_rows: int | None) -> Iterator[pa.RecordBatch]:
    """The rows in batches of ``max_rows`` at most, none of whose columns reaches 2 GiB."""
    most = None if max_rows is None else whole(max_rows)
    if max_rows is not None and (most is None or most < 1):
        raise ValueError(f"max_rows must be a whole number of at least 1, not {max_rows!r}")
    pyarrow, types, fillers = _layout(_chosen(names))
    imported = pyarrow.RecordBatch._import_from_c
    return (imported(columns.export(rows, fillers), types) for rows in _pieces(parts, most or _MAX_ROWS))


def c_stream(parts: Iterable[PartitionRecords]) -> object:
    """The rows as an Arrow C stream capsule; needs no ``pyarrow``."""
    field: cdata.Field = ("+s", "", tuple(field for field, _ in _COLUMNS.values()))
    fillers = [fill for _, fill in _COLUMNS.values()]
    return cdata.stream_capsule(field, (columns.export(rows, fillers) for rows in _pieces(parts, _MAX_ROWS)))


def _chosen(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of columns. A string is a sequence of strings too: its letters."""
    if isinstance(names, str):
        raise TypeError(f"columns are a list of names, not {names!r}: [{names!r}]")
    return None if names is None else tuple(names)


def schema(names: Sequence[str] | None = None) -> pa.Schema:
    """The types of all columns, or of those named; raises ``ValueError`` for a name that is none."""
    _, types, _ = _layout(_chosen(names))
    return types


@cache
def _layout(names: tuple[str, ...] | None) -> tuple[Any, pa.Schema, Sequence[columns.Filler]]:
    """``pyarrow``, the types of these columns, and how each is filled."""
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
    if names is not None:
        unknown = [name for name in names if name not in types.names]
        if unknown:
            raise ValueError(f"unknown columns {unknown}: there are {types.names}")
        types = pyarrow.schema([types.field(name) for name in names])
    return pyarrow, types, [_COLUMNS[name][1] for name in types.names]


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise OttlaError("this needs pyarrow, which is not installed", hint="pip install 'ottla[arrow]'", cause=error) from error
    return pyarrow


def _pieces(parts: Iterable[PartitionRecords], max_rows: int) -> Iterator[Rows]:
    return pieces(parts, max_rows, MAX_COLUMN_BYTES)
