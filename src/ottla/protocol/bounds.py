"""Whether the lengths inside a message fit into its frame, checked before the message is decoded.

kio's parser reserves memory for as many items as an array announces before it reads the first one; an array that announces two
thousand million items would end the process. So the arrays of a message are walked first, and one that announces more items than
bytes are left is refused.

And it would copy the records of a message, which are nearly all of it: a walk tells where they lie, for ``cutting``.

A lenient walk does the same and rewrites what Kafka accepts and kio does not (``leniency``). It is used for messages that kio or
the other walk has refused.

Owns those walks, functions whose source is derived from kio's own classes; must not make values of what they walk. Invariant: when
a walk returns, every array of the message announces no more items than the bytes behind it could hold, and is null only where it
may be; and kio, unless it raises, reads every field where the walk has seen it.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ottla.errors import ProtocolError
from ottla.protocol import leniency
from ottla.protocol.schema import cache, is_nullable, is_tuple, nested_class
from ottla.protocol.varints import read_varint


class Walk(Protocol):
    """Walks over one item that starts at a position and returns the position after it; records the positions of records, if asked
    to.

    A lenient walk needs a ``rewrite``. Other walks raise ``ValueError`` where a lenient one is needed to go on.
    """

    def __call__(
        self,
        frame: memoryview | bytes,
        position: int,
        records: list[RecordsSpan] | None = None,
        rewrite: leniency.Rewrite | None = None,
        /,
    ) -> int: ...


class RecordsSpan(NamedTuple):
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
    "uuid": 16,
}
"""Types of a fixed size -> their bytes."""


EMPTY_RECORDS = {True: b"\x01", False: b"\0\0\0\0"}
"""The replacement of records that are cut out, in a flexible version and in others."""


@cache
def walk_of(cls: type[Any]) -> Walk | None:
    """The walk over the arrays of kio's class ``cls``; ``None`` if kio alone is safe with it.

    It raises ``ProtocolError`` where a length does not fit.
    """
    return _checked(cls, _entity_walk(cls, lenient=False)) if _needs_walk(cls) else None


@cache
def lenient_walk_of(cls: type[Any]) -> Walk:
    """The lenient walk over ``cls``. It raises ``ProtocolError`` where a length does not fit."""
    return _checked(cls, _entity_walk(cls, lenient=True))


def _checked(cls: type[Any], walk: Walk) -> Walk:
    def checked(
        frame: memoryview | bytes,
        position: int,
        records: list[RecordsSpan] | None = None,
        rewrite: leniency.Rewrite | None = None,
    ) -> int:
        try:
            return walk(frame, position, records, rewrite)
        except (IndexError, struct.error):
            raise ProtocolError(f"{cls.__name__} is truncated at byte {len(frame)}") from None

    return checked


@cache
def _needs_walk(cls: type[Any]) -> bool:
    """Whether a message has arrays, or nullable structures."""
    return any(
        is_tuple(field.type)
        or ((inner := nested_class(field.type)) is not None and (is_nullable(field.type) or _needs_walk(inner)))
        for field in dataclasses.fields(cls)
    )


@cache
def _entity_walk(cls: type[Any], *, lenient: bool) -> Walk:
    return _Source(cls, lenient=lenient).function()


class _Source:
    """The source of one walk over all fields of a class, line by line."""

    def __init__(self, cls: type[Any], *, lenient: bool) -> None:
        self._class = cls
        self._flexible = bool(cls.__flexible__)
        self._lenient = lenient
        self._lines: list[str] = []
        self._depth = 1
        self._fixed = 0
        self._globals: dict[str, Any] = {
            "int16": _int16,
            "int32": _int32,
            "varint": read_varint,
            "tags": leniency.tags if lenient else _tags,
            "struct_or_null": leniency.struct_or_null if lenient else _struct_or_null,
            "tagged_struct_or_null": leniency.tagged_struct_or_null if lenient else _tagged_struct_or_null,
            "too_many": _too_many,
            "null": _null,
            "place": RecordsSpan,
        }

    def function(self) -> Walk:
        """The walk."""
        fields = dataclasses.fields(self._class)
        for field in fields:
            if "tag" not in field.metadata:
                self._field(field, tagged=False)
        if self._flexible:
            self._pass()
            known = self._constant({field.metadata["tag"]: self._tag_walk(field) for field in fields if "tag" in field.metadata})
            self._line(f"position = tags(frame, position, {known}, records, rewrite) if frame[position] else position + 1")
        return self._compiled()

    def _compiled(self) -> Walk:
        self._pass()
        end = ["    if position > len(frame): raise IndexError", "    return position"]
        text = "\n".join(["def walk(frame, position, records=None, rewrite=None):", *self._lines, *end])
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
        source = _Source(self._class, lenient=self._lenient)
        source._field(field, tagged=True)
        return source._compiled()

    def _field(self, field: dataclasses.Field[Any], *, tagged: bool) -> None:
        inner = nested_class(field.type)
        kind = field.metadata.get("kafka_type", "")
        if is_tuple(field.type):
            self._array(inner, kind, "" if is_nullable(field.type) else field.name)
        elif inner is None:
            # never compact, KIP-482
            is_client_id = self._class.__name__ == "RequestHeader" and field.name == "client_id"
            self._primitive(kind, self._flexible and not is_client_id)
        elif is_nullable(field.type):
            self._pass()
            follows = f"{'tagged_struct' if tagged else 'struct'}_or_null(frame, position, rewrite)"
            self._line(f"position = {self._nested(inner)}(frame, position + 1, records, rewrite) if {follows} else position + 1")
        else:
            self._pass()
            self._line(f"position = {self._nested(inner)}(frame, position, records, rewrite)")

    def _primitive(self, kind: str, flexible: bool) -> None:
        lenient = self._lenient_walk_of(kind, flexible) if self._lenient else None
        if lenient is not None:
            self._pass()
            self._line(f"position = {self._constant(lenient)}(frame, position, rewrite)")
        elif kind in _FIXED:
            self._fixed += _FIXED[kind]
        elif kind == "records":
            self._pass()
            self._line("start = position")
            self._length("i", flexible)
            self._line("if size >= 0:")
            self._line("    if records is not None:")
            self._line("        records.append(place(start, position, position + size))")
            if self._lenient:
                self._line(f"        rewrite.cut(start, position + size, {EMPTY_RECORDS[flexible]!r})")
            self._line("    position += size")
        else:
            self._length("h" if kind == "string" else "i", flexible)
            self._line("if size > 0: position += size")

    def _lenient_walk_of(self, kind: str, flexible: bool) -> Callable[[memoryview, int, leniency.Rewrite], int] | None:
        if kind == "string":
            return leniency.compact_string if flexible else leniency.legacy_string
        return {"bool": leniency.boolean, "error_code": leniency.error_code}.get(kind)

    def _length(self, code: str, flexible: bool) -> None:
        """The length of bytes or of an array, negative for null, as ``size``."""
        self._pass()
        if flexible:
            self._line("size = frame[position] - 1; position += 1")
            self._line("if size > 126: size, position = varint(frame, position - 1); size -= 1")
        else:
            self._line(f"(size,) = {'int16' if code == 'h' else 'int32'}(frame, position); position += {2 if code == 'h' else 4}")
            if self._lenient:
                self._line(f"if size < -1: {self._constant(leniency.negative_length)}(position, rewrite)")

    def _array(self, inner: type[Any] | None, kind: str, not_null: str) -> None:
        """An array; ``not_null`` is the name of one that must not be null, which kio lets pass."""
        self._length("i", self._flexible)
        if not_null:
            self._line(f"if size < 0: raise null({not_null!r})")
        self._line("if size > 0:")
        self._depth += 1
        self._line("if size > len(frame) - position: raise too_many(size, len(frame) - position)")
        if inner is None and kind in _FIXED and not self._lenient:
            self._line(f"position += size * {_FIXED[kind]}")
        else:
            self._line("for _ in range(size):")
            self._depth += 1
            if inner is not None:
                self._line(f"position = {self._nested(inner)}(frame, position, records, rewrite)")
            else:
                self._primitive(kind, self._flexible)
                self._pass()
            self._depth -= 1
        self._depth -= 1

    def _nested(self, inner: type[Any]) -> str:
        return self._constant(_entity_walk(inner, lenient=self._lenient))


def _too_many(count: int, left: int) -> ProtocolError:
    return ProtocolError(f"an array announces {count} items, {left} bytes are left in the message")


def _null(name: str) -> ProtocolError:
    return ProtocolError(f"{name} is null and must not be")


def _tags(
    frame: memoryview, position: int, known: dict[int, Walk], records: list[RecordsSpan] | None, rewrite: leniency.Rewrite | None
) -> int:
    """A section of tagged fields, read as kio reads it: ignoring the size in front of each."""
    count, position = read_varint(frame, position)
    for _ in range(count):
        tag, position = read_varint(frame, position)
        _, position = read_varint(frame, position)
        if tag not in known:
            raise ValueError(f"the tagged field {tag} is unknown")
        position = known[tag](frame, position, records)
    return position


def _struct_or_null(frame: memoryview, position: int, rewrite: leniency.Rewrite | None) -> bool:
    byte = frame[position]
    if 0x80 <= byte < 0xFF:
        raise ValueError(f"a structure begins with the byte {byte}")
    return byte < 0x80


def _tagged_struct_or_null(frame: memoryview, position: int, rewrite: leniency.Rewrite | None) -> bool:
    if frame[position] != 1:
        raise ValueError(f"a tagged structure begins with the byte {frame[position]}")
    return True


_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
