"""The records of ``__consumer_offsets``, as values and as the bytes that Apache Kafka 4.3 writes.

Owns the schemas that kio does not have, in kio's vocabulary, and their versions. Must not know what a group is or when a record is
written. Invariant: ``decode_record(*encode_record(key, value)) == (key, value)``; a record of a type that is not in the table is
``Unknown`` (a newer Kafka may have written it), bytes that are not what their type says are a ``ProtocolError``.

Source: the record schemas of Kafka's group coordinator. A key is an int16 type and the key's fields, never flexible; a value is an
int16 version and the value's fields; a missing value is a tombstone.
"""

import dataclasses
import io
import struct
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kio.static.constants import EntityType

from ottla.errors import ProtocolError

# No ``from __future__ import annotations`` here: kio reads the types of the fields.

_INT16 = struct.Struct(">h")
_NEWEST = 2**15 - 1


def _wire(kafka_type: str, *, since: int = 0, until: int = _NEWEST, **tag: int) -> dict[str, object]:
    """Metadata of a field: its type on the wire, the versions that have it, and its tag where it is a tagged field."""
    return {"kafka_type": kafka_type, "since": since, "until": until, **tag}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """Which offset: one a group and partition."""

    group: str = field(metadata=_wire("string"))
    topic: str = field(metadata=_wire("string"))
    partition: int = field(metadata=_wire("int32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset: the next one to read. Timestamps are wall-clock milliseconds; ``-1`` stands for "not given"."""

    offset: int = field(metadata=_wire("int64"))
    leader_epoch: int = field(metadata=_wire("int32", since=3), default=-1)
    metadata: str = field(metadata=_wire("string"))
    commit_timestamp: int = field(metadata=_wire("int64"))
    expire_timestamp: int = field(metadata=_wire("int64", since=1, until=1), default=-1)
    topic_id: uuid.UUID | None = field(metadata=_wire("uuid", since=4, tag=0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey:
    """Which classic group."""

    group: str = field(metadata=_wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataMember:
    """One member of a classic group, with what it subscribed to and what it was given. Timeouts are milliseconds."""

    member_id: str = field(metadata=_wire("string"))
    group_instance_id: str | None = field(metadata=_wire("string", since=3), default=None)
    client_id: str = field(metadata=_wire("string"))
    client_host: str = field(metadata=_wire("string"))
    rebalance_timeout: int = field(metadata=_wire("int32", since=1), default=0)
    session_timeout: int = field(metadata=_wire("int32"))
    subscription: bytes = field(metadata=_wire("bytes"))
    assignment: bytes = field(metadata=_wire("bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    """A classic group after a finished round, or without members. ``current_state_timestamp``: when it came to that."""

    protocol_type: str = field(metadata=_wire("string"))
    generation: int = field(metadata=_wire("int32"))
    protocol: str | None = field(metadata=_wire("string"))
    leader: str | None = field(metadata=_wire("string"))
    current_state_timestamp: int = field(metadata=_wire("int64", since=2), default=-1)
    members: tuple[GroupMetadataMember, ...] = field(metadata=_wire("entity"))


@dataclass(frozen=True, slots=True)
class Unknown:
    """The key of a record whose type is not known here."""

    key_type: int


Key = OffsetCommitKey | GroupMetadataKey
Value = OffsetCommitValue | GroupMetadataValue


@dataclass(frozen=True, slots=True)
class _RecordType:
    key: Any
    """The class of the key; ``value`` is that of the value."""
    value: Any
    newest: int
    """The newest value version that is read; 0 is the oldest."""
    written: int
    flexible: int
    """From this value version on the encoding is the flexible one."""


_OFFSET_COMMIT = _RecordType(OffsetCommitKey, OffsetCommitValue, newest=4, written=4, flexible=4)

RECORD_TYPES: Mapping[int, _RecordType] = types.MappingProxyType(
    {
        0: _OFFSET_COMMIT,  # of the first releases; never written
        1: _OFFSET_COMMIT,
        2: _RecordType(GroupMetadataKey, GroupMetadataValue, newest=4, written=3, flexible=4),
    }
)
"""Key type -> the schemas. Where two types share a key class the higher one is written."""

_TYPE_OF_KEY: Mapping[type[Any], int] = {record.key: key_type for key_type, record in RECORD_TYPES.items()}


def encode_record(key: Key, value: Value | None) -> tuple[bytes, bytes | None]:
    """The bytes of a record; without a value it is a tombstone.

    Raises ``ProtocolError`` for a value that does not fit its fields or the version that is written.
    """
    key_type = _TYPE_OF_KEY[type(key)]
    record = RECORD_TYPES[key_type]
    key_bytes = _encode(key, key_type, _schema(record.key, 0, False))
    if value is None:
        return key_bytes, None
    return key_bytes, _encode(value, record.written, _schema(record.value, record.written, record.written >= record.flexible))


def decode_record(key: bytes, value: bytes | None) -> tuple[Key | Unknown, Value | None]:
    """The key and the value of a record; the value is ``None`` for a tombstone and for a record of unknown type.

    Raises ``ProtocolError`` for bytes that are not what their type says.
    """
    key_type = _number(key, "a record's key")
    record = RECORD_TYPES.get(key_type)
    if record is None:
        return Unknown(key_type), None
    decoded: Key = _decode(key, record.key, _schema(record.key, 0, False))
    if value is None:
        return decoded, None
    version = _number(value, f"the value of {decoded}")
    if not 0 <= version <= record.newest:
        raise ProtocolError(f"the value of {decoded} has version {version}, known are 0 to {record.newest}")
    return decoded, _decode(value, record.value, _schema(record.value, version, version >= record.flexible))


@cache
def _schema(neutral: Any, version: int, flexible: bool) -> type[Any]:
    """kio's kind of class for one version of one of our classes."""
    fields = []
    for one in dataclasses.fields(neutral):
        if one.metadata["since"] <= version <= one.metadata["until"]:
            nested = _element(one)
            annotation: Any = one.type if nested is None else types.GenericAlias(tuple, (_schema(nested, version, flexible), ...))
            fields.append((one.name, annotation, _like(one)))
    head = {"__type__": EntityType.data, "__version__": version, "__flexible__": flexible}
    return dataclasses.make_dataclass(neutral.__name__, fields, namespace=head, frozen=True, kw_only=True)


def _element(one: "dataclasses.Field[Any]") -> Any:
    """The class of the elements where a field is an array of structures."""
    arguments = typing.get_args(one.type)
    return arguments[0] if arguments and dataclasses.is_dataclass(arguments[0]) else None


def _like(one: "dataclasses.Field[Any]") -> Any:
    metadata = {name: one.metadata[name] for name in ("kafka_type", "tag") if name in one.metadata}
    if one.default is dataclasses.MISSING:
        return field(metadata=metadata)
    return field(metadata=metadata, default=one.default)


@cache
def _converter(source: Any, target: Any) -> Callable[[Any], Any]:
    """A function from one class to another with the same fields, except those that the target's version lacks.

    Raises ``ValueError`` where such a field says anything, so that nothing is lost silently.
    """
    wanted = {one.name: _element(one) for one in dataclasses.fields(target)}
    given = {one.name: _element(one) for one in dataclasses.fields(source)}
    plain = [name for name, nested in wanted.items() if name in given and nested is None]
    nested = [(name, _converter(given[name], inner)) for name, inner in wanted.items() if inner is not None]
    lacking = [(one.name, one.default) for one in dataclasses.fields(source) if one.name not in wanted]

    def convert(value: Any) -> Any:
        for name, default in lacking:
            if getattr(value, name) != default:
                raise ValueError(f"version {target.__version__} has no {name}")
        values = {name: getattr(value, name) for name in plain}
        for name, one in nested:
            values[name] = tuple([one(item) for item in getattr(value, name)])
        return target(**values)

    return convert


def _encode(value: Any, number: int, schema: Any) -> bytes:
    from kio.serial import entity_writer

    ours: Any = type(value)
    target = io.BytesIO()
    target.write(_INT16.pack(number))
    try:
        entity_writer(schema)(target, _converter(ours, schema)(value))
    except Exception as error:
        raise ProtocolError(f"{value} can not be encoded: {type(error).__name__}: {error}", cause=error) from error
    return target.getvalue()


def _decode(content: bytes, neutral: Any, schema: Any) -> Any:
    from kio.serial import entity_reader

    try:
        message, size = entity_reader(schema)(content, _INT16.size)
        decoded = _converter(schema, neutral)(message)
    except Exception as error:
        raise ProtocolError(f"{neutral.__name__} can not be decoded: {type(error).__name__}: {error}", cause=error) from error
    if size + _INT16.size != len(content):
        raise ProtocolError(f"{neutral.__name__} ends at byte {size + _INT16.size} of {len(content)}")
    return decoded


def _number(content: bytes, what: str) -> int:
    if len(content) < _INT16.size:
        raise ProtocolError(f"{what} has {len(content)} bytes, too few for a version")
    (number,) = _INT16.unpack_from(content)
    return int(number)
