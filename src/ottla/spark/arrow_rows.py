"""Sends the rows of a task with a producer.

Owns the wait for the acknowledgements, and the errors about rows. Must not know transactions, nor Spark. Invariants: ``send_rows``
returns when all rows are acknowledged; its memory is bounded by ``buffer.memory``, as much again for the rows of Spark that are not
acknowledged, and two groups of ``in_groups``: the latest that was sent, and the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.errors import MessageTooLargeError, OttlaError, OttlaTimeoutError
from ottla.producer import Producer
from ottla.types import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.records.arrow_delivery import ArrowDelivery

GROUP_BYTES = 4 * 2**20
"""The size of a group of Spark's batches that are sent together. Spark passes 10,000 rows at a time, which the partitions of a
topic share: with 4 partitions and rows of 108 bytes a task is 8 % faster than if each batch is sent by itself."""

GROUP_ROWS = 250_000
"""The rows after which a group ends in any case: those of a column of nulls have no bytes."""

CHECK_INTERVAL = 0.5
"""Seconds for which the oldest rows are waited for before others are looked at, which may have failed."""

_ROW = re.compile(r"row (\d+)")
"""How an error of ``send_arrow`` begins. Of several batches, the rows of a task are counted through."""

_REFUSED = re.compile(r" to (\S+)-(\d+):")
"""The topic and the partition in an error of the broker."""

_ACCEPTED = re.compile(r"\d+ rows before that were accepted")
"""How the producer's note on an error of ``send_arrow`` begins."""


def in_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Return the rows of several batches together, in tables of about ``GROUP_BYTES``.

    The batches have to have all columns with which Spark has passed them. Those of a batch share one piece of memory, so that the
    columns that are not written keep it as well, and have to be counted.
    """
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if size >= GROUP_BYTES or rows >= GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def send_rows(
    producer: Producer, batches: Iterable[pa.RecordBatch | pa.Table], topic: str | None, columns: Sequence[str] | None = None
) -> int:
    """Send all rows, and wait for their acknowledgements; return their number.

    ``topic``: where all rows go. ``columns``: those that are written; ``None``: all.
    """
    sending = _Sending(producer, topic, columns)
    for batch in batches:
        sending.send(batch)
    sending.finish()
    producer.flush()
    return sending.rows


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """Rows of which some may have no outcome yet."""

    delivery: ArrowDelivery
    rows: pa.RecordBatch | pa.Table
    first: int
    """The number of the first row in the task."""
    size: int
    """The bytes of memory that the rows keep, those of columns that are not written included."""


class _Sending:
    """The rows of one task. ``rows`` is the number of those that were sent."""

    def __init__(self, producer: Producer, topic: str | None, columns: Sequence[str] | None) -> None:
        self.rows = 0
        self._producer = producer
        self._topic = topic
        self._columns = None if columns is None else list(columns)
        self._memory = producer._config.buffer_memory
        self._is_compressed = producer._config.compression_type != "none"
        self._pending: list[_Sent] = []
        """The oldest first. Any of them may be the first with an outcome: they go to several partitions."""

    def send(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Send rows, when those before take little enough memory. Raises the error of any that have failed."""
        self._check_done()
        while sum(sent.size for sent in self._pending) > self._memory:
            self._wait()
        rows = batch if self._columns is None else batch.select(self._columns)
        try:
            delivery = self._producer.send_arrow(rows, self._topic)
        except (OttlaError, ValueError) as error:
            _correct_notes(error)
            if (number := _row_of(error, rows)) is not None:
                error.args = (_ROW.sub(f"row {self.rows + number}", str(error.args[0]), count=1), *error.args[1:])
                _add_row(error, rows, number, self._topic)
            raise
        self._pending.append(_Sent(delivery, rows, self.rows, batch.nbytes))
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Wait until all rows are acknowledged."""
        while self._pending:
            self._wait()

    def _wait(self) -> None:
        """Wait for the oldest rows, for a moment, and look at all others."""
        self._settle(self._pending[0], CHECK_INTERVAL)
        self._check_done()

    def _check_done(self) -> None:
        """Let the rows go that are acknowledged. A failure ends the task here, and not after its last row."""
        for sent in [sent for sent in self._pending if sent.delivery.done()]:
            self._settle(sent, None)

    def _settle(self, sent: _Sent, timeout: float | None) -> None:
        """Wait until rows are acknowledged, and let them go; do nothing if they are not within ``timeout``."""
        try:
            sent.delivery.result(timeout)
        except MessageTooLargeError as error:  # the producer divides batches that are too large, so a single row is
            _name_refused(error, sent, self._topic, self._is_compressed)
            raise
        except OttlaTimeoutError:
            if timeout is None:
                raise
            return
        self._pending.remove(sent)


def _correct_notes(error: Exception) -> None:
    """Do not say that rows before the one in the error are written: a task does not wait for them when it closes its producer."""
    if hasattr(error, "__notes__"):
        notes = error.__notes__
        error.__notes__ = ["rows before that may be written" if _ACCEPTED.match(note) else note for note in notes]


def _name_refused(error: MessageTooLargeError, sent: _Sent, topic: str | None, is_compressed: bool) -> None:
    """Name the row that the broker has refused, whose answer has no number.

    It is the one with most bytes: if another one was refused, this one is as well. That does not hold for compressed rows.
    """
    number, is_only = _largest(sent.rows, str(error.args[0]), topic)
    row = f"row {sent.first + number}"
    if is_compressed and not is_only:
        row = f"probably {row}, which has most bytes before compression"
    error.args = (f"{row}: {error.args[0]}", *error.args[1:])
    _add_row(error, sent.rows, number, topic)


def _largest(rows: pa.RecordBatch | pa.Table, text: str, topic: str | None) -> tuple[int, bool]:
    """Return the number of the row with most bytes, of those that can be in the partition that ``text`` names, and whether it is
    the only one of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    refused = _REFUSED.search(text)
    possible = pa.repeat(True, rows.num_rows)
    if refused is not None and topic is None:
        possible = pc.equal(_as_bytes(rows.column("topic")), pa.scalar(refused[1].encode(), pa.large_binary()))
    if refused is not None and "partition" in rows.schema.names:
        possible = pc.and_(possible, pc.fill_null(pc.equal(rows.column("partition"), int(refused[2])), True))
    sizes = pc.if_else(possible, _sizes(rows), -1)
    return pc.index(sizes, pc.max(sizes)).as_py(), pc.sum(possible).as_py() == 1


def _sizes(rows: pa.RecordBatch | pa.Table) -> Any:
    """Return the bytes of each record."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for name in {"key", "value"} & {*rows.schema.names}:
        sizes = pc.add(sizes, _lengths(rows.column(name)))
    if "headers" in rows.schema.names:
        sizes = pc.add(sizes, pa.array(_header_sizes(rows.column("headers")), pa.int64()))
    return sizes


def _header_sizes(headers: Any) -> Iterator[int]:
    """Return the bytes of each row's headers."""
    import pyarrow.compute as pc

    each = pc.list_flatten(headers)
    ends = pc.add(_lengths(pc.struct_field(each, "key")), _lengths(pc.struct_field(each, "value"))).to_pylist()
    end = 0
    for count in pc.fill_null(pc.list_value_length(headers), 0).to_pylist():
        begin, end = end, end + count
        yield sum(ends[begin:end]) + 2 * count  # each has its two lengths as well


def _lengths(cells: Any) -> Any:
    """Return the bytes of each string or bytes. A null has none."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.binary_length(_as_bytes(cells)), 0)


def _as_bytes(cells: Any) -> Any:
    """Return strings, bytes or nulls as bytes. Strings of Spark need not be UTF-8, without which Arrow returns no ``str``."""
    import pyarrow as pa

    return cells.cast(pa.large_binary())


def _row_of(error: Exception, batch: pa.RecordBatch | pa.Table) -> int | None:
    """Return the number of the row with which an error of ``send_arrow`` begins."""
    found = _ROW.match(str(error.args[0])) if error.args else None
    return None if found is None or int(found[1]) >= batch.num_rows else int(found[1])


def _add_row(error: Exception, batch: pa.RecordBatch | pa.Table, number: int, topic: str | None) -> None:
    """Add the topic and the key of a row that cannot be sent to the error about it."""
    row = batch.slice(number, 1)
    to = short_repr(topic) if topic is not None else _shown(row.column("topic"))
    key = f", key {_shown(row.column('key'))}" if "key" in batch.schema.names else ""
    error.args = (f"{error.args[0]} (topic {to}{key})", *error.args[1:])


def _shown(cells: Any) -> str:
    """Return the first cell for the text of an error."""
    import pyarrow as pa

    cell = _as_bytes(cells)[0].as_py()
    is_text = cell is not None and cells.type not in (pa.binary(), pa.large_binary())
    return short_repr(cell.decode(errors="replace") if is_text else cell)
