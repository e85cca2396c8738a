"""Decodes long responses without copying their records: they are cut out of the frame and inserted into the message as views.

kio copies all bytes that it reads, and a long Fetch response consists almost entirely of records. Copying them into fresh memory
takes about as long as receiving them. Without its records a response is short.

Owns the cut and the insertion. Must not know the format of records. Invariant: the message is equal to the one that kio decodes
from the whole frame, except that its records are views of the frame, which keep the frame alive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ottla.protocol.bounds import EMPTY_RECORDS, RecordsSpan
from ottla.protocol.schema import cache, has_records, nested_class

MIN_FRAME_SIZE = 1 << 16
"""Frames of fewer bytes are decoded whole: the cut takes as long as the copy."""

InsertRecords = Callable[[Any, Iterator[memoryview]], None]
"""Sets each records field of a message, in the order of the frame, to the next of the views."""


def without_records(frame: memoryview, spans: Sequence[RecordsSpan], *, flexible: bool) -> memoryview:
    """A copy of the frame with empty records at these positions."""
    empty = EMPTY_RECORDS[flexible]
    kept: list[bytes | memoryview] = []
    position = 0
    for span in spans:
        kept += (frame[position : span.start], empty)
        position = span.end
    return memoryview(b"".join([*kept, frame[position:]]))


@cache
def records_inserter(cls: type[Any]) -> InsertRecords:
    """The function that inserts records into messages of kio's class ``cls``."""
    steps = [
        (field.name, getattr(cls, field.name).__set__, None if inner is None else records_inserter(inner))
        for field in dataclasses.fields(cls)
        if ((inner := nested_class(field.type)) is not None and has_records(inner)) or field.metadata.get("kafka_type") == "records"
    ]

    def insert(message: Any, records: Iterator[memoryview]) -> None:
        for name, set_value, insert_inside in steps:
            value = getattr(message, name)
            if insert_inside is not None:
                for item in value or ():
                    insert_inside(item, records)
            elif value is not None:
                set_value(message, next(records))

    return insert
