"""The records of ``__consumer_offsets``, as values and as the bytes that Apache Kafka 4.3 writes.

Owns the schemas, which kio does not have, declared as kio's are, and their versions. Must not know the state of a group, or when a
record is written. Invariant: ``decode_record(*encode_record(key, value)) == (key, value)``; a record of a type that is not in the
table is ``Unknown`` (a newer Kafka may have written it), invalid bytes raise ``ProtocolError``.

Source: the record schemas of Kafka's group coordinator. A key is an int16 type and the key's fields, never flexible; a value is an
int16 version and the value's fields; a missing value is a tombstone.
"""

import dataclasses
import struct
import types
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.static.constants import EntityType

from ottla.errors import ProtocolError
from ottla.protocol.conversion import adopter
from ottla.protocol.messages import consumer_group_heartbeat_request
from ottla.protocol.reading import reader
from ottla.protocol.schema import cache, is_nullable, is_tuple, nested_class
from ottla.protocol.writing import writer
from ottla.values import light_dataclass

# No ``from __future__ import annotations`` here: kio reads the types of the fields.

_INT16 = struct.Struct(">h")
_NEWEST = 2**15 - 1


def wire(kafka_type: str, *, since: int = 0, until: int = _NEWEST, **tag: int) -> dict[str, object]:
    """The metadata of a field: its type on the wire, the versions that have it, and its tag if it is a tagged field."""
    return {"kafka_type": kafka_type, "since": since, "until": until, **tag}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """The key of a committed offset."""

    group: str = field(metadata=wire("string"))
    topic: str = field(metadata=wire("string"))
    partition: int = field(metadata=wire("int32"))


@light_dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset: the next one to read. Timestamps are wall-clock milliseconds; ``-1`` means "none"."""

    offset: int = field(metadata=wire("int64"))
    leader_epoch: int = field(metadata=wire("int32", since=3), default=-1)
    metadata: str = field(metadata=wire("string"))
    commit_timestamp: int = field(metadata=wire("int64"))
    expire_timestamp: int = field(metadata=wire("int64", since=1, until=1), default=-1)
    topic_id: uuid.UUID | None = field(metadata=wire("uuid", since=4, tag=0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey:
    """The key of a classic group."""

    group: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataMember:
    """One member of a classic group, with its subscription and its assignment. Timeouts are milliseconds."""

    member_id: str = field(metadata=wire("string"))
    group_instance_id: str | None = field(metadata=wire("string", since=3), default=None)
    client_id: str = field(metadata=wire("string"))
    client_host: str = field(metadata=wire("string"))
    rebalance_timeout: int = field(metadata=wire("int32", since=1), default=0)
    session_timeout: int = field(metadata=wire("int32"))
    subscription: bytes = field(metadata=wire("bytes"))
    assignment: bytes = field(metadata=wire("bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    """A classic group after a rebalance, or without members. ``current_state_timestamp`` is the time of that."""

    protocol_type: str = field(metadata=wire("string"))
    generation: int = field(metadata=wire("int32"))
    protocol: str | None = field(metadata=wire("string"))
    leader: str | None = field(metadata=wire("string"))
    current_state_timestamp: int = field(metadata=wire("int64", since=2), default=-1)
    members: tuple[GroupMetadataMember, ...] = field(metadata=wire("entity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataKey:
    """The key of a consumer group (KIP-848)."""

    group_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue:
    """The epoch of a consumer group. ``metadata_hash`` is the hash of its topics' metadata in that epoch; 0: it had no topics."""

    epoch: int = field(metadata=wire("int32"))
    metadata_hash: int = field(metadata=wire("int64", tag=0), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupPartitionMetadataKey:
    """The key of a group's topic metadata, which Kafka wrote before 4.1. Now only tombstones are written; values are not read."""

    group_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataKey:
    """The key of a member's subscription."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocol:
    """An assignor that a member of the classic protocol supports, and the member's metadata for it."""

    name: str = field(metadata=wire("string"))
    metadata: bytes = field(metadata=wire("bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata:
    """Additional data of a consumer group's member that uses the classic protocol."""

    session_timeout_ms: int = field(metadata=wire("int32"), default=0)
    supported_protocols: tuple[ClassicProtocol, ...] = field(metadata=wire("entity"), default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue:
    """A member's subscription, with its topic names sorted.

    ``classic_member_metadata`` is ``None`` for a member that uses the consumer protocol. ``client_assignors``, the assignors that
    the member can run, is Ottla's, in a tagged field that Kafka skips.
    """

    instance_id: str | None = field(metadata=wire("string"), default=None)
    rack_id: str | None = field(metadata=wire("string"), default=None)
    client_id: str = field(metadata=wire("string"), default="")
    client_host: str = field(metadata=wire("string"), default="")
    subscribed_topic_names: tuple[str, ...] = field(metadata=wire("string"), default=())
    subscribed_topic_regex: str | None = field(metadata=wire("string"), default="")
    rebalance_timeout_ms: int = field(metadata=wire("int32"), default=-1)
    server_assignor: str | None = field(metadata=wire("string"), default=None)
    classic_member_metadata: ClassicMemberMetadata | None = field(metadata=wire("struct", tag=0), default=None)
    client_assignors: tuple[consumer_group_heartbeat_request.ClientAssignor, ...] = field(
        metadata=wire("entity", tag=20_000), default=()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    """The key of a group's target assignment."""

    group_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The group epoch of the target assignment, and its time (wall-clock milliseconds; 0: no assignor computed it)."""

    assignment_epoch: int = field(metadata=wire("int32"))
    assignment_timestamp: int = field(metadata=wire("int64", tag=0), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey:
    """The key of a member's target assignment."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = field(metadata=wire("uuid"))
    partitions: tuple[int, ...] = field(metadata=wire("int32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """A member's target assignment."""

    topic_partitions: tuple[TargetTopicPartitions, ...] = field(metadata=wire("entity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    """The key of a member's current assignment."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTopicPartitions:
    """Partitions of one topic, and the epoch in which each was assigned to the member (KIP-1251), if known."""

    topic_id: uuid.UUID = field(metadata=wire("uuid"))
    partitions: tuple[int, ...] = field(metadata=wire("int32"))
    assignment_epochs: tuple[int, ...] | None = field(metadata=wire("int32", tag=0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """A member's current assignment, and the partitions that it has to revoke."""

    member_epoch: int = field(metadata=wire("int32"))
    previous_member_epoch: int = field(metadata=wire("int32"))
    state: int = field(metadata=wire("int8"))
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = field(metadata=wire("entity"))
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = field(metadata=wire("entity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionKey:
    """The key of a regular expression of a consumer group."""

    group_id: str = field(metadata=wire("string"))
    regular_expression: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue:
    """The sorted topics that a regular expression matched in a ``version`` of the cluster's metadata.

    ``timestamp`` is in wall-clock milliseconds.
    """

    topics: tuple[str, ...] = field(metadata=wire("string"))
    version: int = field(metadata=wire("int64"))
    timestamp: int = field(metadata=wire("int64"))


@dataclass(frozen=True, slots=True)
class Unknown:
    """The key of a record whose type is unknown."""

    key_type: int


Key = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)


@dataclass(frozen=True, slots=True)
class _RecordType:
    key: Any
    """The class of the key."""
    value: Any
    """The class of the value; ``None`` if values are not read."""
    newest: int = 0
    """The newest version of the value that can be read; 0 is the oldest."""
    written: int = 0
    """The version that is written, except in the cases of ``encode_value``."""
    flexible: int = 0
    """The first flexible version of the value."""


_OFFSET_COMMIT = _RecordType(OffsetCommitKey, OffsetCommitValue, newest=4, written=4, flexible=4)

RECORD_TYPES: Mapping[int, _RecordType] = types.MappingProxyType(
    {
        0: _OFFSET_COMMIT,  # from the first releases of Kafka; never written
        1: _OFFSET_COMMIT,
        2: _RecordType(GroupMetadataKey, GroupMetadataValue, newest=4, written=3, flexible=4),
        3: _RecordType(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        4: _RecordType(ConsumerGroupPartitionMetadataKey, None),
        5: _RecordType(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        6: _RecordType(ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        7: _RecordType(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        8: _RecordType(ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        16: _RecordType(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    }
)
"""Key type -> the schemas. If two types share a key class, the higher one is written."""

_TYPE_OF_KEY: Mapping[type[Any], int] = {record.key: key_type for key_type, record in RECORD_TYPES.items()}
_TYPE_OF_VALUE: Mapping[type[Any], _RecordType] = {record.value: record for record in RECORD_TYPES.values()}


def encode_record(key: Key, value: Value | None) -> tuple[bytes, bytes | None]:
    """The bytes of a record; without a value, of a tombstone.

    Raises ``ProtocolError`` for a value that does not fit its fields or the version that is written.
    """
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: Key) -> bytes:
    """The bytes of a record's key. Raises ``ProtocolError`` for a key that does not fit its fields."""
    return _key_codec(_TYPE_OF_KEY[type(key)]).encode(key)


def encode_value(value: Value) -> bytes:
    """The bytes of a record's value. Raises ``ProtocolError`` like ``encode_record``."""
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
        return _value_codec(OffsetCommitValue, 1).encode(value)  # only version 1 has an expire timestamp
    return _codec_of_written(type(value)).encode(value)


def decode_record(key: bytes, value: bytes | None) -> tuple[Key | Unknown, Value | None]:
    """The key and the value of a record; the value is ``None`` for a tombstone, and for types whose values are not read.

    Raises ``ProtocolError`` for invalid bytes.
    """
    readers = _readers(key[: _INT16.size])
    if isinstance(readers, Unknown):
        return readers, None
    read_key, neutral = readers
    decoded: Key = read_key(key)
    if value is None or neutral is None:
        return decoded, None
    return decoded, _value_reader(neutral, value[: _INT16.size])(value)


def encode_versioned(value: Any, version: int, *, flexible: bool) -> bytes:
    """A version and the fields of ``value`` in that version. Raises ``ProtocolError`` for a value that does not fit its fields."""
    return _codec(type(value), version, version, flexible).encode(value)


def decode_versioned(content: bytes, neutral: Any, *, newest: int, flexible: int) -> Any:
    """The value of class ``neutral`` in bytes that begin with a version. Raises ``ProtocolError`` for invalid bytes."""
    version = _number(content, neutral.__name__)
    if not 0 <= version <= newest:
        raise ProtocolError(f"{neutral.__name__} has version {version}, known are 0 to {newest}")
    return _codec(neutral, version, version, version >= flexible).decode(content)


@cache
def _schema(neutral: Any, version: int, flexible: bool) -> type[Any]:
    """A class like kio's for one version of the class ``neutral``."""
    fields = []
    for declared in dataclasses.fields(neutral):
        if declared.metadata.get("since", 0) <= version <= declared.metadata.get("until", _NEWEST):
            fields.append((declared.name, _annotation(declared, version, flexible), _field(declared, version)))
    head = {"__type__": EntityType.data, "__version__": version, "__flexible__": flexible}
    return dataclasses.make_dataclass(neutral.__name__, fields, namespace=head, frozen=True, slots=True, kw_only=True)


def _annotation(declared: "dataclasses.Field[Any]", version: int, flexible: bool) -> Any:
    inner = nested_class(declared.type)
    if inner is None:
        return declared.type
    nested: Any = _schema(inner, version, flexible)
    if is_tuple(declared.type):
        nested = types.GenericAlias(tuple, (nested, ...))
    return nested | None if is_nullable(declared.type) else nested


def _field(declared: "dataclasses.Field[Any]", version: int) -> Any:
    metadata = {name: declared.metadata[name] for name in ("kafka_type", "tag") if name in declared.metadata}
    if declared.default is dataclasses.MISSING or "tag" not in metadata:
        return field(metadata=metadata)
    inner = None if is_tuple(declared.type) else nested_class(declared.type)
    if inner is None:
        return field(metadata=metadata, default=declared.default)
    # If a tagged structure is missing, Kafka reads one with default values; null is written explicitly.
    return field(metadata=metadata, default=adopter(inner, _schema(inner, version, True))(inner()))


class _Codec:
    """Encodes and decodes one version of one class, with a ``number`` in front."""

    def __init__(self, neutral: Any, number: int, version: int, flexible: bool) -> None:
        schema = _schema(neutral, version, flexible)
        self._number = _INT16.pack(number)
        self._name = neutral.__name__
        self._version = version
        self._write = writer(neutral, schema)
        self._read = reader(schema)
        self._adopt = adopter(schema, neutral)
        present = {field.name for field in dataclasses.fields(schema)}
        self._lacking = [(field.name, field.default) for field in dataclasses.fields(neutral) if field.name not in present]

    def encode(self, value: Any) -> bytes:
        """The bytes of a value. Raises ``ProtocolError`` if a field that this version lacks differs from its default."""
        pieces = [self._number]
        try:
            for name, default in self._lacking:
                if getattr(value, name) != default:
                    raise ValueError(f"version {self._version} has no {name}")
            self._write(pieces.append, value)
        except Exception as error:
            raise ProtocolError(f"{value} cannot be encoded: {type(error).__name__}: {error}", cause=error) from error
        return b"".join(pieces)

    def decode(self, content: bytes) -> Any:
        """The value in these bytes. Raises ``ProtocolError`` for invalid bytes."""
        try:
            message, size = self._read(content, _INT16.size)
            decoded = self._adopt(message)
        except Exception as error:
            raise ProtocolError(f"{self._name} cannot be decoded: {type(error).__name__}: {error}", cause=error) from error
        if size + _INT16.size != len(content):
            raise ProtocolError(f"{self._name} ends at byte {size + _INT16.size} of {len(content)}")
        return decoded


@cache
def _codec(neutral: Any, number: int, version: int, flexible: bool) -> _Codec:
    return _Codec(neutral, number, version, flexible)


@cache
def _key_codec(key_type: int) -> _Codec:
    return _codec(RECORD_TYPES[key_type].key, key_type, 0, False)


@cache
def _value_codec(neutral: Any, version: int) -> _Codec:
    return _codec(neutral, version, version, version >= _TYPE_OF_VALUE[neutral].flexible)


@cache
def _codec_of_written(neutral: Any) -> _Codec:
    return _value_codec(neutral, _TYPE_OF_VALUE[neutral].written)


@cache
def _readers(front: bytes) -> tuple[Callable[[bytes], Any], Any] | Unknown:
    """The function that decodes a key with these first bytes, and the class of its values, ``None`` if they are not read."""
    key_type = _number(front, "a record's key")
    record = RECORD_TYPES.get(key_type)
    return Unknown(key_type) if record is None else (_key_codec(key_type).decode, record.value)


@cache
def _value_reader(neutral: Any, front: bytes) -> Callable[[bytes], Any]:
    """The function that decodes a value of class ``neutral`` with these first bytes."""
    version, newest = _number(front, neutral.__name__), _TYPE_OF_VALUE[neutral].newest
    if not 0 <= version <= newest:
        raise ProtocolError(f"{neutral.__name__} has version {version}, known are 0 to {newest}")
    return _value_codec(neutral, version).decode


def _number(content: bytes, what: str) -> int:
    if len(content) < _INT16.size:
        raise ProtocolError(f"{what} has {len(content)} bytes, too few for a version")
    (number,) = _INT16.unpack_from(content)
    return int(number)
