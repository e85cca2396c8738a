"""Records stay where they arrived: they are cut out of a frame before kio reads it, and put into the message as views.

kio copies what it reads, and nearly all of a long Fetch answer is records: the copy, into fresh memory, would cost as much as the
way from the broker. What is left without them is short.

Owns the cut and the way back into the message. Must not know what records are. Invariant: with its records put back a message is
what kio would have made of the whole frame, but that they are views of the frame, which they keep alive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ottla.protocol.bounds import EMPTY_RECORDS, RecordsSpan
from ottla.protocol.schema import cache, has_records, nested_class

WORTH = 1 << 16
"""A frame of fewer bytes is copied as quickly as it is cut."""

Put = Callable[[Any, Iterator[memoryview]], None]
"""Puts the next records, one after the other, into each place of a message that has some."""


def without_records(frame: memoryview, places: Sequence[RecordsSpan], *, flexible: bool) -> memoryview:
    """The frame with no records in these places."""
    empty = EMPTY_RECORDS[flexible]
    kept: list[bytes | memoryview] = []
    position = 0
    for place in places:
        kept += (frame[position : place.start], empty)
        position = place.end
    return memoryview(b"".join([*kept, frame[position:]]))


@cache
def put_of(cls: type[Any]) -> Put:
    """How to put records into a message of kio's class ``cls``, in the order of the frame."""
    steps = [
        (field.name, getattr(cls, field.name).__set__, None if inner is None else put_of(inner))
        for field in dataclasses.fields(cls)
        if ((inner := nested_class(field.type)) is not None and has_records(inner)) or field.metadata.get("kafka_type") == "records"
    ]

    def put(message: Any, records: Iterator[memoryview]) -> None:
        for name, set_value, put_inside in steps:
            value = getattr(message, name)
            if put_inside is not None:
                for item in value or ():
                    put_inside(item, records)
            elif value is not None:
                set_value(message, next(records))

    return put
