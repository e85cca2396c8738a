"""Whether the lengths inside a message fit into its frame, checked before the message is decoded.

kio's parser reserves memory for as many items as an array announces before it reads the first one; an array that announces two
thousand million items would end the process. So the arrays of a message are walked first, and one that announces more items than
bytes are left is refused.

kio's parser also refuses a message for one error code that it does not know, such as the first that a newer broker sends;
``with_known_codes`` goes the same way through the message and puts a known code in its place.

And it would copy the records of a message, which are nearly all of it: a walk tells where they lie, for ``cutting``.

Owns those walks, functions whose source is derived from kio's own classes; must not make values of what they walk. Invariant: when
a walk returns, every array of the message announces no more items than the bytes behind it could hold, and is null only where it
may be.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, NamedTuple, Protocol

from ottla.errors import ProtocolError
from ottla.protocol.schema import cache, is_nullable, is_tuple, nested_class


class Walk(Protocol):
    """Goes over one item that starts at a position and returns the position behind it; notes where records lie, if asked to."""

    def __call__(self, frame: memoryview | bytes, position: int, records: list[Place] | None = None, /) -> int: ...


class Place(NamedTuple):
    """Where the records of one partition lie: their length from ``start`` on, they themselves from ``begin`` to ``end``."""

    start: int
    begin: int
    end: int


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


def with_known_codes(cls: type[Any], frame: memoryview, position: int) -> memoryview | None:
    """A copy of a message that a walk has passed, with UNKNOWN_SERVER_ERROR for each error code that kio does not know.

    ``None`` where there is no such code, or where the message is cut off.
    """
    from kio.schema.errors import ErrorCode

    copy = bytearray(frame)
    found = False

    def mend(view: memoryview | bytes, at: int, _: object = None) -> int:
        nonlocal found
        if _int16(view, at)[0] not in known:
            copy[at : at + 2] = unknown
            found = True
        return at + 2

    known = frozenset(map(int, ErrorCode))
    unknown = int(ErrorCode.unknown_server_error).to_bytes(2, "big", signed=True)
    try:
        _Source(cls, mend).function()(frame, position)
    except (IndexError, struct.error):
        return None
    return memoryview(copy).toreadonly() if found else None


@cache
def walk_of(cls: type[Any]) -> Walk | None:
    """The walk over the arrays of kio's class ``cls``; ``None`` if nothing in it is an array.

    It raises ``ProtocolError`` where a length does not fit.
    """
    if not _has_array(cls):
        return None
    walk = _entity_walk(cls)

    def checked(frame: memoryview | bytes, position: int, records: list[Place] | None = None) -> int:
        try:
            return walk(frame, position, records)
        except (IndexError, struct.error):
            raise ProtocolError(f"{cls.__name__} is cut off at byte {len(frame)}") from None

    return checked


@cache
def _has_array(cls: type[Any]) -> bool:
    return any(
        is_tuple(field.type) or ((inner := nested_class(field.type)) is not None and _has_array(inner))
        for field in dataclasses.fields(cls)
    )


@cache
def _entity_walk(cls: type[Any]) -> Walk:
    return _Source(cls, None).function()


class _Source:
    """The source of one walk over all fields of a class, line by line. ``at_codes`` is called at each error code."""

    def __init__(self, cls: type[Any], at_codes: Walk | None) -> None:
        self._class = cls
        self._flexible = bool(cls.__flexible__)
        self._at_codes = at_codes
        self._lines: list[str] = []
        self._depth = 1
        self._fixed = 0
        self._globals: dict[str, Any] = {
            "int16": _int16,
            "int32": _int32,
            "varint": _varint,
            "tags_walk": _tags_walk,
            "too_many": _too_many,
            "null": _null,
            "place": Place,
            "at_codes": at_codes,
        }

    def function(self) -> Walk:
        """The walk."""
        fields = dataclasses.fields(self._class)
        for field in fields:
            if "tag" not in field.metadata:
                self._field(field, tagged=False)
        if self._flexible:
            self._pass()
            tags = {field.metadata["tag"]: self._tag_walk(field) for field in fields if "tag" in field.metadata}
            self._line(f"position = tags_walk(frame, position, {self._constant(tags)}) if frame[position] else position + 1")
        return self._compiled()

    def _compiled(self) -> Walk:
        self._pass()
        end = ["    if position > len(frame): raise IndexError", "    return position"]
        text = "\n".join(["def walk(frame, position, records=None):", *self._lines, *end])
        exec(compile(text, f"<walk of {self._class.__qualname__} {self._class.__version__}>", "exec"), self._globals)
        made: Walk = self._globals["walk"]
        return made

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _constant(self, value: Any) -> str:
        name = f"constant_{len(self._globals)}"
        self._globals[name] = value
        return name

    def _pass(self) -> None:
        """Go on over the neighbours of fixed size."""
        if self._fixed:
            self._line(f"position += {self._fixed}")
            self._fixed = 0

    def _tag_walk(self, field: dataclasses.Field[Any]) -> Walk:
        source = _Source(self._class, self._at_codes)
        source._field(field, tagged=True)
        return source._compiled()

    def _field(self, field: dataclasses.Field[Any], *, tagged: bool) -> None:
        inner = nested_class(field.type)
        kind = field.metadata.get("kafka_type", "")
        if is_tuple(field.type):
            self._array(inner, kind, "" if is_nullable(field.type) else field.name)
        elif inner is None:
            self._primitive(kind)
        elif is_nullable(field.type) and not tagged:
            self._pass()
            self._line(f"position = {self._nested(inner)}(frame, position + 1, records) if frame[position] < 128 else position + 1")
        else:
            self._pass()
            self._line(f"position = {self._nested(inner)}(frame, position, records)")

    def _primitive(self, kind: str) -> None:
        if kind == "error_code" and self._at_codes is not None:
            self._pass()
            self._line("position = at_codes(frame, position)")
        elif kind in _FIXED:
            self._fixed += _FIXED[kind]
        elif kind == "records":
            self._pass()
            self._line("start = position")
            self._length("i")
            self._line("if size >= 0:")
            self._line("    if records is not None: records.append(place(start, position, position + size))")
            self._line("    position += size")
        else:
            self._length("h" if kind == "string" else "i")
            self._line("if size > 0: position += size")

    def _length(self, code: str) -> None:
        """The length of bytes or of an array, -1 for null, as ``size``."""
        self._pass()
        if self._flexible:
            self._line("size = frame[position] - 1; position += 1")
            self._line("if size > 126: size, position = varint(frame, position - 1); size -= 1")
        else:
            self._line(f"(size,) = {'int16' if code == 'h' else 'int32'}(frame, position); position += {2 if code == 'h' else 4}")

    def _array(self, inner: type[Any] | None, kind: str, not_null: str) -> None:
        """An array; ``not_null`` is the name of one that must not be null, which kio lets pass."""
        self._length("i")
        if not_null:
            self._line(f"if size < 0: raise null({not_null!r})")
        self._line("if size > 0:")
        self._depth += 1
        self._line("if size > len(frame) - position: raise too_many(size, len(frame) - position)")
        if inner is None and kind in _FIXED and self._at_codes is None:
            self._line(f"position += size * {_FIXED[kind]}")
        else:
            self._line("for _ in range(size):")
            self._depth += 1
            if inner is not None:
                self._line(f"position = {self._nested(inner)}(frame, position, records)")
            else:
                self._primitive(kind)
                self._pass()
            self._depth -= 1
        self._depth -= 1

    def _nested(self, inner: type[Any]) -> str:
        return self._constant(_entity_walk(inner) if self._at_codes is None else _Source(inner, self._at_codes).function())


def _too_many(count: int, left: int) -> ProtocolError:
    return ProtocolError(f"an array announces {count} items, {left} bytes are left in the message")


def _null(name: str) -> ProtocolError:
    return ProtocolError(f"{name} is null and must not be")


def _tags_walk(frame: memoryview, position: int, known: dict[int, Walk]) -> int:
    count, position = _varint(frame, position)
    for _ in range(count):
        tag, position = _varint(frame, position)
        size, position = _varint(frame, position)
        if tag in known:
            known[tag](frame, position)
        position += size
        if position > len(frame):
            raise IndexError
    return position


_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from


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
