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
from ottla.records.fetched import PartitionRecords, Segment
from ottla.records.record import Origin

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COLUMN_BYTES = 2**31 - 1
"""What 32-bit offsets can reach."""

_MAX_ROWS = MAX_COLUMN_BYTES // 8


class _Piece:
    """The rows of one Arrow batch: consecutive segments, and what their origins have to say about how many rows."""

    __slots__ = ("bytes", "count", "origins", "segments", "topic_bytes")

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.origins: list[tuple[Origin, int]] = []
        self.count = 0
        self.bytes = 0
        self.topic_bytes = 0

    def has_room(self, size: int, topic_bytes: int) -> bool:
        """Whether so many more bytes of records and of topic names keep every column short enough."""
        return self.bytes + size <= MAX_COLUMN_BYTES and self.topic_bytes + topic_bytes <= MAX_COLUMN_BYTES

    def add(self, segment: Segment, size: int, topic_bytes: int) -> None:
        """Take one more segment."""
        batch, start, stop = segment
        self.segments.append(segment)
        if self.origins and self.origins[-1][0] is batch.origin:
            self.origins[-1] = (batch.origin, self.origins[-1][1] + stop - start)
        else:
            self.origins.append((batch.origin, stop - start))
        self.count += stop - start
        self.bytes += size
        self.topic_bytes += topic_bytes

    def runs(self, value: Callable[[Origin], Any]) -> list[tuple[Any, int]]:
        """A property of the origins with how many rows each holds for."""
        return [(value(origin), count) for origin, count in self.origins]


def _topic(piece: _Piece) -> columns.Node:
    return columns.repeated_strings(piece.runs(lambda origin: origin.topic.encode()), piece.count)


def _partition(piece: _Piece) -> columns.Node:
    return columns.repeated_ints(piece.runs(lambda origin: origin.partition), piece.count)


def _timestamp_type(piece: _Piece) -> columns.Node:
    return columns.repeated_ints(piece.runs(lambda origin: int(origin.timestamp_type)), piece.count)


_HEADERS: cdata.Field = ("+l", "headers", (("+s", "item", (("u", "key", ()), ("z", "value", ()))),))

_COLUMNS: dict[str, tuple[cdata.Field, Callable[[_Piece], columns.Node]]] = {
    "key": (("z", "key", ()), lambda piece: columns.binary_column(piece.segments, piece.count, columns.KEY)),
    "value": (("z", "value", ()), lambda piece: columns.binary_column(piece.segments, piece.count, columns.VALUE)),
    "topic": (("u", "topic", ()), _topic),
    "partition": (("i", "partition", ()), _partition),
    "offset": (("l", "offset", ()), lambda piece: columns.offset_column(piece.segments, piece.count)),
    "timestamp": (("tsu:UTC", "timestamp", ()), lambda piece: columns.timestamp_column(piece.segments, piece.count)),
    "timestampType": (("i", "timestampType", ()), _timestamp_type),
    "headers": (_HEADERS, lambda piece: columns.header_column(piece.segments, piece.count)),
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
    """A struct node for each piece of the rows."""
    fillers = [_COLUMNS[name][1] for name in (_COLUMNS if names is None else names)]
    for piece in _split(parts, max_rows):
        yield piece.count, 0, (None,), tuple([fill(piece) for fill in fillers])


def _split(parts: Iterable[PartitionRecords], max_rows: int) -> Iterator[_Piece]:
    piece = _Piece()
    for part in parts:
        topic_size = len(part.topic.encode())
        for batch, start, stop in part.segments:
            while start < stop:
                piece_stop = min(stop, start + max_rows - piece.count)
                topic_bytes = topic_size * (piece_stop - start)
                if piece.count and not piece.has_room(batch.payload_size, topic_bytes):
                    yield piece
                    piece = _Piece()
                    continue
                piece.add((batch, start, piece_stop), batch.payload_size, topic_bytes)
                start = piece_stop
                if piece.count == max_rows:
                    yield piece
                    piece = _Piece()
    if piece.count:
        yield piece
