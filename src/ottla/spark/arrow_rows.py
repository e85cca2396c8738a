"""Sends the rows of a task with a producer.

Owns the wait for the acknowledgements, and the errors about rows. Must not know transactions, nor Spark. Invariants: ``send_rows``
returns when all rows are acknowledged; its memory is bounded by ``buffer.memory`` and one batch of Spark's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.errors import OttlaError
from ottla.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa

_ROW = re.compile(r"row (\d+)")


def send_rows(producer: Producer, batches: Iterable[pa.RecordBatch], topic: str | None) -> int:
    """Send all rows, and wait for their acknowledgements; return their number. ``topic``: where all rows go."""
    rows = 0
    pending: deque[Any] = deque()
    for batch in batches:
        try:
            pending.append(producer.send_arrow(batch, topic))
        except (OttlaError, ValueError) as error:
            _add_row(error, batch, topic)
            raise
        rows += batch.num_rows
        while pending and pending[0].done():  # a failure ends the task here, and not after its last row
            pending.popleft().result()
    for delivery in pending:
        delivery.result()
    producer.flush()
    return rows


def _add_row(error: Exception, batch: pa.RecordBatch, topic: str | None) -> None:
    """Add the topic and the key of a row that cannot be sent to the error about it, which begins with the number of the row."""
    found = _ROW.match(str(error.args[0])) if error.args else None
    if found is None or int(found[1]) >= batch.num_rows:
        return
    row = batch.slice(int(found[1]), 1).to_pydict()
    to = topic if topic is not None else row["topic"][0]
    key = f", key {row['key'][0]!r}" if "key" in row else ""
    error.args = (f"{error.args[0]} (topic {to!r}{key})", *error.args[1:])
