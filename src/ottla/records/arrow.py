"""``Records`` as Arrow: the columns, their types, and the division into batches.

Owns the schema, which is that of Spark's Kafka source with ``headers``, and the import of ``pyarrow``, at its first use. Must not
know how buffers are filled (``columns``) or passed to Arrow libraries (``cdata``). Invariant: each column of a batch has less than
2 GiB.

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
from ottla.types import as_integer

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COLUMN_BYTES = 2**31 - 1
"""The maximum of a 32-bit offset."""

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
"""Name -> (type as a format string of the C data interface, function that fills the column). All fields are nullable by type, but
only ``key``, ``value`` and ``headers`` are ever null."""


def to_table(parts: Iterable[PartitionRecords], names: Sequence[str] | None) -> pa.Table:
    """All rows as one table."""
    pyarrow, types, fillers = _layout(_chosen(names))
    imported = pyarrow.RecordBatch._import_from_c
    return pyarrow.Table.from_batches([imported(columns.export(rows, fillers), types) for rows in _pieces(parts, _MAX_ROWS)], types)


def to_batches(parts: Iterable[PartitionRecords], names: Sequence[str] | None, max_rows: int | None) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most ``max_rows``, each column with less than 2 GiB."""
    most = None if max_rows is None else as_integer(max_rows)
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
    """The names as a tuple. Raises ``TypeError`` for a string, which would be a sequence of letters."""
    if isinstance(names, str):
        raise TypeError(f"columns are a list of names, not {names!r}: [{names!r}]")
    return None if names is None else tuple(names)


def schema(names: Sequence[str] | None = None) -> pa.Schema:
    """The types of all columns, or of the named ones. Raises ``ValueError`` for an unknown name."""
    _, types, _ = _layout(_chosen(names))
    return types


@cache
def _layout(names: tuple[str, ...] | None) -> tuple[Any, pa.Schema, Sequence[columns.Filler]]:
    """``pyarrow``, the types of these columns, and the functions that fill them."""
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
