"""The types of fields: what the annotations of kio's message classes say, the codes of types of a fixed size, and varints.

Owns what the generated readers and writers have in common. Must not know any message. Invariants: annotations are read alike in
kio's classes and the merged ones of ``messages``; ``read_varint`` reads at most five bytes, as Kafka does.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.errors import ProtocolError

_F = TypeVar("_F")

if TYPE_CHECKING:

    def cache(function: _F) -> _F:
        """``functools.cache``, whose stub takes no classes as arguments."""
        return function
else:
    from functools import cache as cache


STRUCT_CODES = {
    "int8": "b",
    "uint8": "B",
    "bool": "?",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float64": "d",
    "timedelta_i32": "i",
    "uuid": "16s",
}
"""Types of a fixed size -> their code in a ``struct``."""


def nested_class(annotation: Any) -> type[Any] | None:
    """The message class inside an annotation such as ``tuple[Topic, ...] | None``, if there is one."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation
    for argument in typing.get_args(annotation):
        inner = nested_class(argument)
        if inner is not None:
            return inner
    return None


def is_tuple(annotation: Any) -> bool:
    """Whether the field is an array, nullable or not."""
    if typing.get_origin(annotation) is tuple:
        return True
    return any(typing.get_origin(argument) is tuple for argument in typing.get_args(annotation))


def is_nullable(annotation: Any) -> bool:
    """Whether the field may be null."""
    return types.NoneType in typing.get_args(annotation)


@cache
def has_records(cls: type[Any]) -> bool:
    """Whether a message has a field with record batches, at any depth."""
    fields = dataclasses.fields(cls)
    inner = [nested_class(field.type) for field in fields]
    return any(field.metadata.get("kafka_type") == "records" for field in fields) or any(map(has_records, filter(None, inner)))


_IMPLICIT: dict[str, object] = {
    "string": "",
    "bytes": b"",
    "uuid": None,
    "bool": False,
    "float64": 0.0,
    "timedelta_i32": timedelta(0),
    "records": None,
}
"""Types -> the protocol's default of a field that a version lacks and for which the schema has no default; numbers are 0."""


def implicit_default(field: dataclasses.Field[Any]) -> object:
    """The value of a field that a version lacks, if the schema has no default for it."""
    if is_tuple(field.type):
        return None if is_nullable(field.type) else ()
    if is_nullable(field.type):
        return None
    kind = field.metadata.get("kafka_type", "")
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode.none
    return _IMPLICIT.get(kind, 0)


WIDEST = 5
"""The maximum number of bytes of a varint."""

SMALL = [bytes((number,)) for number in range(0x80)]
"""The varints of one byte."""


def varint(number: int) -> bytes:
    """The shortest encoding of an unsigned number.

    Each byte has seven bits of it, the lowest first; the top bit is set in all bytes but the last.
    """
    if number < 0x80:
        return SMALL[number]
    output = bytearray()
    while number >= 0x80:
        output.append(number & 0x7F | 0x80)
        number >>= 7
    output.append(number)
    return bytes(output)


def wide_varint(number: int) -> bytes:
    """The encoding of a number in ``WIDEST`` bytes, for space that is reserved before the number is known. Readers accept it."""
    return bytes((*(number >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)), number >> 28))


def read_varint(frame: memoryview | bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it. Raises ``IndexError`` if the frame ends first."""
    byte = frame[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise ProtocolError(f"a length at byte {position} is longer than five bytes")
