"""``Records``, the result of a poll: iterable as objects, convertible to Arrow columns.

Owns this container. Must not know the layout of batches (``batch``, ``columns``) nor their source. Invariants: lengths are exact,
the container is immutable, and iterating never raises.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, SupportsIndex, overload

from ottla.records import arrow
from ottla.records.partition_records import PartitionRecords
from ottla.records.record import Record, RecordIterator, make_record
from ottla.types import K_co, OffsetAndMetadata, TopicPartition, V_co

if TYPE_CHECKING:
    import pyarrow as pa


class Records(Generic[K_co, V_co]):
    """The records of one poll, in order within each partition.

    Iterating creates ``Record`` objects one at a time; ``to_arrow()`` and ``to_batches()`` return columns without creating them;
    ``by_partition()`` splits the records; ``records[-1]`` is a record, ``records[:10]`` a list of records. Libraries that accept
    Arrow streams accept a ``Records``. To send the records to another process, pickle ``list(records)`` or ``to_arrow()``.
    """

    __slots__ = ("_count", "parts")

    def __init__(self, parts: Iterable[PartitionRecords] = ()) -> None:
        self.parts = tuple(parts)
        self._count = sum(map(len, self.parts))

    @classmethod
    def empty(cls) -> Records[Any, Any]:
        """No records."""
        return _EMPTY

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[Record[K_co, V_co]]:
        return RecordIterator([segment for part in self.parts for segment in part.segments])

    @overload
    def __getitem__(self, position: SupportsIndex) -> Record[K_co, V_co]: ...

    @overload
    def __getitem__(self, position: slice) -> list[Record[K_co, V_co]]: ...

    def __getitem__(self, position: SupportsIndex | slice) -> Record[K_co, V_co] | list[Record[K_co, V_co]]:
        if isinstance(position, slice):
            rows = range(*position.indices(self._count))
            upwards = rows if rows.step > 0 else rows[::-1]
            records = list(islice(self, upwards.start, upwards.stop, upwards.step)) if upwards else []
            return records if rows.step > 0 else records[::-1]
        if not hasattr(position, "__index__"):
            raise TypeError(f"the index of a record is a whole number or a slice, not {position!r}")
        row = number = operator.index(position)
        if row < 0:
            row += self._count
        if 0 <= row < self._count:
            for part in self.parts:
                for batch, start, stop in part.segments:
                    if row < stop - start:
                        return make_record(batch, start + row)
                    row -= stop - start
        raise IndexError(f"record {number} of {self._count}")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        # The container is immutable: records and their deserialized values are created again for each iteration.
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("Records cannot be pickled: pickle list(records), or records.to_arrow()")

    def __repr__(self) -> str:
        counts = ", ".join(f"{tp}: {len(records)}" for tp, records in self.by_partition().items())
        return f"<Records {self._count}{f' ({counts})' if counts else ''}>"

    def partitions(self) -> list[TopicPartition]:
        """The partitions of these records, each once, in the order of their first records."""
        return list(dict.fromkeys(part.topic_partition for part in self.parts))

    def by_partition(self) -> dict[TopicPartition, Records[K_co, V_co]]:
        """The records of each partition."""
        parts: dict[TopicPartition, list[PartitionRecords]] = {}
        for part in self.parts:
            parts.setdefault(part.topic_partition, []).append(part)
        return {topic_partition: Records(its) for topic_partition, its in parts.items()}

    def next_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offset to commit for each partition after all its records here are processed."""
        return {
            part.topic_partition: OffsetAndMetadata(part.next_offset, leader_epoch=part.next_leader_epoch) for part in self.parts
        }

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All records as a ``pyarrow.Table`` with the columns of Spark's Kafka schema and ``headers``, or the named columns.

        ``key`` and ``value`` are the raw bytes: deserializers are for ``Record``. Needs ``pip install 'ottla[arrow]'``.
        Raises ``ValueError`` for an unknown column.
        """
        return arrow.to_table(self.parts, columns)

    def to_batches(self, max_rows: int | None = None, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """As ``to_arrow``, but an iterator of ``pyarrow.RecordBatch`` with at most ``max_rows`` rows each.

        Each column of a batch has less than 2 GiB, the limit of 32-bit offsets.
        """
        return arrow.to_batches(self.parts, columns, max_rows)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All records and columns as an Arrow stream (the Arrow PyCapsule interface); needs no ``pyarrow``."""
        return arrow.c_stream(self.parts)


_EMPTY: Records[Any, Any] = Records()
