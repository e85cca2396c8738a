"""Whether the lengths inside a message fit into its frame, checked before the message is decoded.

kio's parser reserves memory for as many items as an array announces before it reads the first one; an array that announces two
thousand million items would end the process. So the arrays of a message are walked first, and one that announces more items than
bytes are left is refused.

Owns that walk, derived from kio's own classes; must not make values of what it walks. Invariant: when ``check`` returns, every
array of the message announces no more items than the bytes behind it could hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ottla.errors import ProtocolError
from ottla.protocol.schema import cache, is_nullable, is_tuple, nested_class

Walk = Callable[[memoryview, int], int]
"""Goes over one item that starts at a position and returns the position behind it."""

_FIXED = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
"""Types of a fixed size -> their bytes."""


def check(cls: type[Any], frame: memoryview, position: int) -> None:
    """Walk the arrays of a message of kio's class ``cls``; raises ``ProtocolError`` where a length does not fit."""
    walk = _array_walk(cls)
    if walk is None:
        return
    try:
        walk(frame, position)
    except IndexError:
        raise ProtocolError(f"{cls.__name__} is cut off at byte {len(frame)}") from None


@cache
def _array_walk(cls: type[Any]) -> Walk | None:
    """The walk of a message, or ``None`` if nothing in it is an array."""
    return _entity_walk(cls) if _has_array(cls) else None


@cache
def _has_array(cls: type[Any]) -> bool:
    return any(
        is_tuple(field.type) or ((inner := nested_class(field.type)) is not None and _has_array(inner))
        for field in dataclasses.fields(cls)
    )


@cache
def _entity_walk(cls: type[Any]) -> Walk:
    """A walk over all fields; neighbours of fixed size are passed in one step."""
    flexible = bool(cls.__flexible__)
    steps: list[Walk | int] = []
    tags: dict[int, Walk] = {}
    for field in dataclasses.fields(cls):
        if "tag" in field.metadata:
            tags[field.metadata["tag"]] = _field_walk(field, flexible, tagged=True)
            continue
        size = None if is_tuple(field.type) else _FIXED.get(field.metadata.get("kafka_type", ""))
        if size is None:
            steps.append(_field_walk(field, flexible, tagged=False))
        elif steps and isinstance(last := steps[-1], int):
            steps[-1] = last + size
        else:
            steps.append(size)
    if flexible:
        steps.append(_tags_walk(tags))
    return _in_turn(steps)


def _in_turn(steps: list[Walk | int]) -> Walk:
    def walk(frame: memoryview, position: int) -> int:
        for step in steps:
            position = position + step if isinstance(step, int) else step(frame, position)
        if position > len(frame):
            raise IndexError
        return position

    return walk


def _field_walk(field: dataclasses.Field[Any], flexible: bool, *, tagged: bool) -> Walk:
    inner = nested_class(field.type)
    kind = field.metadata.get("kafka_type", "")
    item = _entity_walk(inner) if inner is not None else _primitive_walk(kind, flexible)
    if is_tuple(field.type):
        return _items_walk(item, None if inner is not None else _FIXED.get(kind), flexible)
    if inner is not None and is_nullable(field.type) and not tagged:
        return _nullable_walk(item)
    return item


def _primitive_walk(kind: str, flexible: bool) -> Walk:
    if kind in _FIXED:
        return _in_turn([_FIXED[kind]])
    if flexible:
        return _compact_bytes
    return _short_string if kind == "string" else _long_bytes


def _items_walk(item: Walk, item_size: int | None, flexible: bool) -> Walk:
    def walk(frame: memoryview, position: int) -> int:
        if flexible:
            count, position = _varint(frame, position)
            count -= 1
        else:
            count, position = _int(frame, position, 4), position + 4
        if count > len(frame) - position:
            raise ProtocolError(f"an array announces {count} items, {len(frame) - position} bytes are left in the message")
        if item_size is not None:
            return position + max(count, 0) * item_size
        for _ in range(count):
            position = item(frame, position)
        return position

    return walk


def _nullable_walk(item: Walk) -> Walk:
    def walk(frame: memoryview, position: int) -> int:
        return item(frame, position + 1) if _int(frame, position, 1) >= 0 else position + 1

    return walk


def _tags_walk(tags: dict[int, Walk]) -> Walk:
    def walk(frame: memoryview, position: int) -> int:
        count, position = _varint(frame, position)
        for _ in range(count):
            tag, position = _varint(frame, position)
            size, position = _varint(frame, position)
            if tag in tags:
                tags[tag](frame, position)
            position += size
            if position > len(frame):
                raise IndexError
        return position

    return walk


def _compact_bytes(frame: memoryview, position: int) -> int:
    size, position = _varint(frame, position)
    return position + max(size - 1, 0)


def _short_string(frame: memoryview, position: int) -> int:
    return position + 2 + max(_int(frame, position, 2), 0)


def _long_bytes(frame: memoryview, position: int) -> int:
    return position + 4 + max(_int(frame, position, 4), 0)


def _int(frame: memoryview, position: int, size: int) -> int:
    if position + size > len(frame):
        raise IndexError
    return int.from_bytes(frame[position : position + size], "big", signed=True)


def _varint(frame: memoryview, position: int) -> tuple[int, int]:
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
