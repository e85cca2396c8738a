"""Rewrites values that Kafka accepts and kio refuses to values that kio accepts.

Kafka skips unknown tagged fields (KIP-482), treats any negative length as null and any byte except 0 as true, and replaces invalid
UTF-8 with U+FFFD. kio refuses all of these, and error codes that it does not know; any of them in a message would close the
connection.

Owns the copy of a message with such values replaced, and the replacement of each kind of field; the walks of ``reading`` find the
fields. Must not know any message. Invariant: a message without such values is not changed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ottla.errors import ProtocolError
from ottla.protocol.schema import WIDEST, read_varint, varint, wide_varint

Frame = memoryview | bytes

_read_int16 = struct.Struct(">h").unpack_from
_pack_int16 = struct.Struct(">h").pack
_NULL_INT32 = b"\xff\xff\xff\xff"
_NULL_STRUCT = b"\xff"
_MAX_STRING = 0x7FFF
"""The maximum bytes of a string whose length has two bytes."""


class Rewrite:
    """A copy of a message with parts replaced, created from beginning to end.

    ``changed``: whether anything was replaced, apart from records that were cut out.
    """

    def __init__(self, frame: Frame) -> None:
        self.changed = False
        self._frame = frame
        self._copied = 0
        self._copy = bytearray()

    def replace(self, start: int, end: int, content: bytes) -> None:
        """Replace the bytes from ``start`` to ``end`` with ``content``."""
        self.changed = True
        self.cut(start, end, content)

    def cut(self, start: int, end: int, content: bytes) -> None:
        """The same for records, without setting ``changed``: they are inserted into the message later."""
        self._copy_until(start)
        self._copy += content
        self._copied = end

    def reserve(self, start: int, end: int) -> int:
        """Reserve space for a number that replaces the one from ``start`` to ``end``; return its position in the copy."""
        self._copy_until(start)
        self._copied = end
        self._copy += bytes(WIDEST)
        return len(self._copy) - WIDEST

    def fill(self, reserved: int, number: int) -> None:
        """Write a number into the space reserved for it."""
        self._copy[reserved : reserved + WIDEST] = wide_varint(number)

    def size_since(self, reserved: int, position: int) -> int:
        """Copy up to the message's ``position``; return the number of bytes in the copy after a reserved space."""
        self._copy_until(position)
        return len(self._copy) - reserved - WIDEST

    def result(self) -> memoryview:
        """The copy, up to the end of the message."""
        self._copy_until(len(self._frame))
        return memoryview(self._copy).toreadonly()

    def _copy_until(self, position: int) -> None:
        self._copy += self._frame[self._copied : position]
        self._copied = position


# Each of these walks over one value that starts at ``position`` and returns the position after it.


def compact_string(frame: Frame, position: int, rewrite: Rewrite) -> int:
    """A string of a flexible version."""
    size, begin = read_varint(frame, position)
    if size < 2:
        return begin
    end = _end(frame, begin, size - 1)
    text = _as_utf8(frame[begin:end])
    if text is not None:
        rewrite.replace(position, end, varint(len(text) + 1) + text)
    return end


def legacy_string(frame: Frame, position: int, rewrite: Rewrite) -> int:
    """A string with a length of two bytes."""
    (size,) = _read_int16(frame, position)
    begin = position + 2
    if size < -1:
        rewrite.replace(position, begin, _pack_int16(-1))
    if size <= 0:
        return begin
    end = _end(frame, begin, size)
    text = _as_utf8(frame[begin:end])
    if text is not None:
        if len(text) > _MAX_STRING:
            raise ProtocolError(f"a string of {size} bytes at byte {begin} is not UTF-8, and too long to be rewritten")
        rewrite.replace(position, end, _pack_int16(len(text)) + text)
    return end


def negative_length(position: int, rewrite: Rewrite) -> None:
    """Replace a negative length of four bytes, which ends at ``position``, by that of null."""
    rewrite.replace(position - 4, position, _NULL_INT32)


def boolean(frame: Frame, position: int, rewrite: Rewrite) -> int:
    """True or false."""
    if frame[position] > 1:
        rewrite.replace(position, position + 1, b"\1")
    return position + 1


def error_code(frame: Frame, position: int, rewrite: Rewrite) -> int:
    """An error code; one that kio does not know becomes UNKNOWN_SERVER_ERROR."""
    if _read_int16(frame, position)[0] not in _known_codes():
        rewrite.replace(position, position + 2, _pack_int16(-1))
    return position + 2


def struct_or_null(frame: Frame, position: int, rewrite: Rewrite) -> bool:
    """Whether a structure follows the byte at ``position``: not if the byte is negative."""
    if frame[position] < 0x80:
        return True
    if frame[position] != _NULL_STRUCT[0]:
        rewrite.replace(position, position + 1, _NULL_STRUCT)
    return False


def tagged_struct_or_null(frame: Frame, position: int, rewrite: Rewrite) -> bool:
    """The same for a tagged field, where Kafka writes 0 for null, and kio expects -1 as in other fields."""
    if frame[position] > 1:
        raise ProtocolError(f"a tagged structure begins with the byte {frame[position]}, neither 0 nor 1")
    if frame[position] == 0:
        rewrite.replace(position, position + 1, _NULL_STRUCT)
    return frame[position] == 1


def tags(frame: Frame, position: int, walks: Mapping[int, Callable[..., int]], records: list[Any] | None, rewrite: Rewrite) -> int:
    """A section of tagged fields; those without a walk are left out.

    Like Kafka, this ignores the size of a known field, and accepts tags in any order.
    """
    count, begin = read_varint(frame, position)
    reserved_count = rewrite.reserve(position, begin)
    position, kept = begin, 0
    for _ in range(count):
        start = position
        tag, size_at = read_varint(frame, position)
        size, position = read_varint(frame, size_at)
        walk = walks.get(tag)
        if walk is None:
            position = _end(frame, position, size)
            rewrite.replace(start, position, b"")
        else:
            reserved_size = rewrite.reserve(size_at, position)
            position = walk(frame, position, records, rewrite)
            rewrite.fill(reserved_size, rewrite.size_since(reserved_size, position))
            kept += 1
    rewrite.fill(reserved_count, kept)
    return position


def _end(frame: Frame, begin: int, size: int) -> int:
    if size > len(frame) - begin:
        raise IndexError
    return begin + size


def _as_utf8(content: Frame) -> bytes | None:
    """The content with invalid UTF-8 replaced by U+FFFD; ``None`` if it is valid."""
    try:
        str(content, "utf-8")
    except UnicodeDecodeError:
        return str(content, "utf-8", "replace").encode()
    return None


@cache
def _known_codes() -> frozenset[int]:
    from kio.schema.errors import ErrorCode

    return frozenset(map(int, ErrorCode))
