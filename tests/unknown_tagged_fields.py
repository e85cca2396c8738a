"""Messages with unknown tagged fields in every section of every structure, as a newer or a vendor's program may send them.

Owns a writer that follows kio's and Ottla's classes field by field, and a proxy that adds such fields to a broker's responses. Must
not use Ottla's own readers or writers, which are tested with it. Invariant: without the unknown fields the bytes are those that kio
writes.
"""

from __future__ import annotations

import dataclasses
import io
import random
import struct
from collections.abc import Callable
from typing import Any

from kio.serial import entity_reader
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._serialize import get_writer
from kio.serial.writers import write_compact_array_length, write_legacy_array_length, write_unsigned_varint

from ottla.protocol.apis import Api
from ottla.protocol.conversion import wire_class
from ottla.protocol.schema import is_nullable, is_tuple, nested_class
from tests.answer_proxy import AnswerProxy

Tagging = Callable[[frozenset[int]], list[tuple[int, bytes]]]
"""The unknown fields of one section, of which these tags are known: tags and contents."""


def some_tags(chance: random.Random) -> Tagging:
    """Up to three unknown fields a section, of any size."""

    def tagging(known: frozenset[int]) -> list[tuple[int, bytes]]:
        numbers = [
            chance.choice((0, 1, 2, 3, 5, 127, 128, 300, 19_999, 20_002, 2**31, 2**32 - 1)) for _ in range(chance.randrange(4))
        ]
        return [(tag, chance.randbytes(chance.choice((0, 1, 5, 130)))) for tag in {*numbers} - known]

    return tagging


def one_tag(known: frozenset[int]) -> list[tuple[int, bytes]]:
    """One unknown field, the first that a newer version might add."""
    return [(max(known | {-1}) + 1, b"from the future")]


def encode(message: Any, tagging: Tagging, *, version: int | None = None, flexible: bool | None = None) -> bytes:
    """The bytes of an instance of kio's class, or of a record's class of ours in a ``version``."""
    target = io.BytesIO()
    _Writer(tagging, message.__flexible__ if flexible is None else flexible, version).entity(target, message)
    return target.getvalue()


def tagged_answer(frame: bytes, api: Api, version: int) -> bytes:
    """An answer with an unknown field in each section of its header and its body; the frames are without their lengths."""
    cls = wire_class(api, version, "response")
    return _tagged(frame, cls, one_tag)


def tagged_request(frame: bytes, tagging: Tagging = one_tag) -> bytes:
    """The same for a request."""
    key, version = struct.unpack_from(">hh", frame)
    return _tagged(frame, wire_class(Api(key), version, "request"), tagging)


def _tagged(frame: bytes, cls: type[Any], tagging: Tagging) -> bytes:
    head, start = entity_reader(cls.__header_schema__)(frame, 0)
    body, _ = entity_reader(cls)(frame, start)
    return encode(head, tagging) + encode(body, tagging)


class _Writer:
    def __init__(self, tagging: Tagging, flexible: bool, version: int | None) -> None:
        self._tagging = tagging
        self._flexible = flexible
        self._version = version

    def entity(self, target: io.BytesIO, message: Any) -> None:
        fields = [field for field in dataclasses.fields(message) if self._has(field)]
        for field in fields:
            if "tag" not in field.metadata:
                self._field(target, type(message).__name__, field, getattr(message, field.name), optional=is_nullable(field.type))
        if self._flexible:
            self._tags(target, message, {field.metadata["tag"]: field for field in fields if "tag" in field.metadata})

    def _has(self, field: dataclasses.Field[Any]) -> bool:
        return self._version is None or field.metadata.get("since", 0) <= self._version <= field.metadata.get("until", 99)

    def _field(self, target: io.BytesIO, owner: str, field: dataclasses.Field[Any], value: Any, *, optional: bool) -> None:
        kind, inner = field.metadata.get("kafka_type", ""), nested_class(field.type)
        if is_tuple(field.type):
            self._array(target, kind, inner, value)
        elif inner is None:
            flexible = self._flexible and not (owner == "RequestHeader" and field.name == "client_id")
            get_writer(kind, flexible, optional)(target, value)
        elif "tag" in field.metadata and is_nullable(field.type):
            target.write(b"\0" if value is None else b"\1")
            if value is not None:
                self.entity(target, value)
        else:
            if optional:
                target.write(b"\xff" if value is None else b"\1")
            if value is not None:
                self.entity(target, value)

    def _array(self, target: io.BytesIO, kind: str, inner: type | None, items: Any) -> None:
        count = -1 if items is None else len(items)
        if self._flexible:
            write_compact_array_length(target, None if items is None else count)
        else:
            write_legacy_array_length(target, count)  # type: ignore[arg-type]
        for item in items or ():
            if inner is None:
                get_writer(kind, self._flexible, False)(target, item)
            else:
                self.entity(target, item)

    def _tags(self, target: io.BytesIO, message: Any, known: dict[int, dataclasses.Field[Any]]) -> None:
        section = self._tagging(frozenset(known))
        for tag, field in known.items():
            value = getattr(message, field.name)
            if self._version is not None and field.metadata["kafka_type"] == "struct":
                default = nested_class(field.type)()
            else:
                default = field.default if self._version is not None else get_tagged_field_default(field)
            if value != default:
                content = io.BytesIO()
                self._field(content, "", field, value, optional=False)
                section.append((tag, content.getvalue()))
        write_unsigned_varint(target, len(section))  # type: ignore[arg-type]
        for tag, body in sorted(section):
            write_unsigned_varint(target, tag)  # type: ignore[arg-type]
            write_unsigned_varint(target, len(body))  # type: ignore[arg-type]
            target.write(body)


class TaggingProxy(AnswerProxy):
    """A proxy in front of a broker: every answer of a flexible version gets an unknown field in each section.

    ``tagged``: the APIs and versions of which such an answer went out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tagged: set[tuple[Api, int]] = set()

    def changed(self, api: Api, version: int, answer: bytes) -> bytes:
        """Return the answer with unknown fields."""
        tagged = tagged_answer(answer, api, version)
        if tagged != answer:
            self.tagged.add((api, version))
        return tagged
