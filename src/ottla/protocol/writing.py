"""Writes messages as bytes, with one generated function per message class and kio's class of the version to write.

kio's writer looks up the type of each field of each message. A generated function has the types in its source, as the functions of
``dataclasses`` have. It packs adjacent fields of fixed size with one ``struct``, and reads the fields from the neutral message, so
that no message of the older version is created first.

Owns that source, derived from kio's classes, which define the layout. Must not know the meaning of a message. Invariant: the bytes
are those that kio writes for the same message downgraded (a property test compares them for every version).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ottla.protocol.schema import SMALL, STRUCT_CODES, cache, implicit_default, is_nullable, is_tuple, nested_class, varint

_NULL, _TAGGED_NULL, _PRESENT = b"\xff", b"\0", b"\x01"
"""The first byte of a nullable structure (KIP-893): signed, but unsigned in a tagged field."""

Put = Callable[[Any], None]
Writer = Callable[[Put, Any], None]
"""``write(put, message)`` calls ``put`` with one piece after the other: bytes, or a file range with records."""

_VALUES = {
    "timedelta_i32": "(milliseconds({0}) if {0} else 0)",
    "uuid": "(no_uuid if {0} is None else {0}.bytes)",
}
"""Types whose values ``struct`` does not accept -> the expression that converts one."""


@cache
def writer(source: type[Any], target: type[Any]) -> Writer:
    """The function that writes messages of the class ``source`` in the version of kio's class ``target``."""
    return _Source(source, target).function()


def _milliseconds(value: timedelta) -> int:
    return round(value.total_seconds() * 1000)


class _Source:
    """The source of one function."""

    def __init__(self, source: type[Any], target: type[Any]) -> None:
        self._flexible = bool(target.__flexible__)
        self._target = target
        self._source_fields = {field.name: field for field in dataclasses.fields(source)}
        self._lines: list[str] = []
        self._depth = 1
        self._names = 0
        self._put = "put"
        self._run: list[tuple[str, str]] = []
        self._globals: dict[str, Any] = {
            "small": SMALL,
            "varint": varint,
            "milliseconds": _milliseconds,
            "no_uuid": bytes(16),
            "pack": struct.pack,
            "join": b"".join,
        }

    def function(self) -> Writer:
        """The function that writes all fields."""
        fields = dataclasses.fields(self._target)
        tagged = sorted((field for field in fields if "tag" in field.metadata), key=lambda field: int(field.metadata["tag"]))
        for field in fields:
            if "tag" not in field.metadata:
                self._field(field, self._value(field), nullable=is_nullable(field.type))
        if self._flexible:
            self._tags(tagged)
        self._flush()
        text = "\n".join(["def write(put, message):", *self._lines, "    return None"])
        exec(compile(text, f"<writer of {self._target.__qualname__} {self._target.__version__}>", "exec"), self._globals)
        write: Writer = self._globals["write"]
        return write

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _name(self, value: str) -> str:
        """A local variable with this value."""
        self._names += 1
        name = f"value_{self._names}"
        self._line(f"{name} = {value}")
        return name

    def _constant(self, value: Any) -> str:
        self._names += 1
        name = f"constant_{self._names}"
        self._globals[name] = value
        return name

    def _flush(self) -> None:
        """Write the adjacent fields of fixed size that were collected."""
        if self._run:
            self._line(f"{self._put}({self._packed()})")
            self._run.clear()

    def _packed(self, *more: tuple[str, str]) -> str:
        """The expression for the bytes of the collected fields and of ``more`` after them."""
        run = [*self._run, *more]
        packed = struct.Struct(">" + "".join(code for code, _ in run))
        return f"{self._constant(packed.pack)}({', '.join(value for _, value in run)})"

    def _value(self, field: dataclasses.Field[Any]) -> str:
        """The expression for a field's value: from the message, or a default if the message's class lacks the field."""
        source = self._source_fields.get(field.name)
        if source is None:
            missing = field.default is dataclasses.MISSING
            return self._constant(implicit_default(field) if missing else field.default)
        if not is_nullable(source.type) or is_nullable(field.type):
            return f"message.{field.name}"
        name = self._name(f"message.{field.name}")
        self._line(f"if {name} is None: {name} = {self._constant(implicit_default(field))}")
        return name

    def _field(self, field: dataclasses.Field[Any], value: str, *, nullable: bool) -> None:
        inner = nested_class(field.type)
        if is_tuple(field.type):
            self._array(field, self._name(value), inner)
        elif inner is not None:
            self._entity(field, self._name(value), inner, _NULL if nullable else None)
        else:
            # The client id is never compact, so that brokers can read the header of a version that they do not know (KIP-482).
            is_client_id = self._target.__name__ == "RequestHeader" and field.name == "client_id"
            self._primitive(field.metadata["kafka_type"], value, self._flexible and not is_client_id, nullable=nullable)

    def _primitive(self, kind: str, value: str, flexible: bool, *, nullable: bool) -> None:
        if kind in STRUCT_CODES:
            shape = _VALUES.get(kind, "{0}")
            self._run.append((STRUCT_CODES[kind], shape.format(self._name(value) if shape.count("{0}") > 1 else value)))
            return
        name = self._name(value)
        content = f"{name}.encode()" if kind == "string" else name
        if nullable:
            self._line(f"{name} = None if {name} is None else {content}")
        elif content != name:
            self._line(f"{name} = {content}")
        self._length(name, "h" if kind == "string" else "i", flexible, nullable=nullable)
        self._flush()
        self._line(f"if {name}: {self._put}({name})")

    def _length(self, name: str, code: str, flexible: bool, *, nullable: bool) -> None:
        if not flexible:
            self._run.append((code, f"-1 if {name} is None else len({name})" if nullable else f"len({name})"))
            return
        count = self._name(f"0 if {name} is None else len({name}) + 1" if nullable else f"len({name}) + 1")
        if not self._run:
            self._line(f"{self._put}(small[{count}] if {count} < 128 else varint({count}))")
            return
        self._line(f"if {count} < 128: {self._put}({self._packed(('B', count))})")
        self._line(f"else: {self._put}({self._packed()}); {self._put}(varint({count}))")
        self._run.clear()

    def _array(self, field: dataclasses.Field[Any], name: str, inner: type[Any] | None) -> None:
        self._length(name, "i", self._flexible, nullable=True)
        self._flush()
        kind = field.metadata.get("kafka_type", "")
        self._line(f"if {name}:")
        self._depth += 1
        if inner is None and kind in STRUCT_CODES and kind not in _VALUES:
            self._line(f"{self._put}(pack('>%d{STRUCT_CODES[kind]}' % len({name}), *{name}))")
        else:
            self._line(f"for item in {name}:")
            self._depth += 1
            if inner is None:
                self._primitive(kind, "item", self._flexible, nullable=False)
                self._flush()
            else:
                self._line(f"{self._nested(field, inner)}({self._put}, item)")
            self._depth -= 1
        self._depth -= 1

    def _entity(self, field: dataclasses.Field[Any], name: str, inner: type[Any], null: bytes | None) -> None:
        """A structure in a structure. In front of a nullable one is a byte (KIP-893), ``null`` if there is no structure."""
        self._flush()
        write = self._nested(field, inner)
        if null is not None:
            self._line(f"{self._put}({null!r} if {name} is None else {_PRESENT!r})")
            self._line(f"if {name} is not None: {write}({self._put}, {name})")
        else:
            self._line(f"{write}({self._put}, {name})")

    def _nested(self, field: dataclasses.Field[Any], inner: type[Any]) -> str:
        source = self._source_fields.get(field.name)
        source_class = nested_class(source.type) if source is not None else inner
        assert source_class is not None
        return self._constant(writer(source_class, inner))

    def _tags(self, fields: list[dataclasses.Field[Any]]) -> None:
        """The tagged fields, which are written only if they differ from their defaults."""
        if not fields:
            self._run.append(("B", "0"))
            return
        if len(fields) == 1 and self._is_fixed(fields[0]):
            self._only_tag(fields[0])
            return
        self._flush()
        self._line("tags = []")
        self._put = "put_tagged"
        for field in fields:
            name, default = self._name(self._value(field)), self._default(field)
            self._line(self._unless(name, default))
            self._depth += 1
            if self._is_fixed(field):
                (_, front), (code, value) = self._fixed_tag(field, name)
                self._line(f"tags.append({front} + {self._constant(struct.Struct('>' + code).pack)}({value}))")
            else:
                self._tag(field, name, default)
            self._depth -= 1
        self._line("put(varint(len(tags)))")
        self._line("if tags: put(join(tags))")

    def _only_tag(self, field: dataclasses.Field[Any]) -> None:
        """The only tagged field of a structure, of fixed size: packed together with the fields before it."""
        name = self._name(self._value(field))
        self._line(f"{self._unless(name, self._default(field))} put({self._packed(('B', '1'), *self._fixed_tag(field, name))})")
        self._line(f"else: put({self._packed(('B', '0'))})")
        self._run.clear()

    def _default(self, field: dataclasses.Field[Any]) -> Any:
        return implicit_default(field) if field.default is dataclasses.MISSING else field.default

    def _unless(self, name: str, default: Any) -> str:
        return f"if {name} is not None:" if default is None else f"if {name} != {self._constant(default)}:"

    def _is_fixed(self, field: dataclasses.Field[Any]) -> bool:
        return field.metadata.get("kafka_type", "") in STRUCT_CODES and not is_tuple(field.type)

    def _fixed_tag(self, field: dataclasses.Field[Any], name: str) -> tuple[tuple[str, str], tuple[str, str]]:
        """The tag and size of a tagged field of fixed size, and its value, with their ``struct`` codes."""
        kind = field.metadata["kafka_type"]
        front = varint(field.metadata["tag"]) + varint(struct.calcsize(">" + STRUCT_CODES[kind]))
        return (f"{len(front)}s", repr(front)), (STRUCT_CODES[kind], _VALUES.get(kind, "{0}").format(name))

    def _tag(self, field: dataclasses.Field[Any], name: str, default: Any) -> None:
        self._line("pieces = []; put_tagged = pieces.append")
        inner = None if is_tuple(field.type) else nested_class(field.type)
        front = None
        if inner is not None and is_nullable(field.type):
            front = _PRESENT
            self._entity(field, name, inner, _TAGGED_NULL)
        else:
            self._field(field, name, nullable=False)
        self._flush()
        self._line("content = join(pieces)")
        omitted = (front or b"") + _bytes_of(default) if dataclasses.is_dataclass(default) else None
        self._line(f"if content != {omitted!r}: tags.append({varint(field.metadata['tag'])!r} + varint(len(content)) + content)")


def _bytes_of(message: Any) -> bytes:
    pieces: list[bytes] = []
    writer(type(message), type(message))(pieces.append, message)
    return b"".join(pieces)
