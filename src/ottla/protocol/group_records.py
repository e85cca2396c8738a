"""The records of ``__consumer_offsets``, as values and as the bytes that Apache Kafka 4.3 writes.

Owns the schemas that kio does not have, in kio's vocabulary, and their versions. Must not know what a group is or when a record is
written. Invariant: ``decode_record(*encode_record(key, value)) == (key, value)``; a record of a type that is not in the table is
``Unknown`` (a newer Kafka may have written it), bytes that are not what their type says are a ``ProtocolError``.

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
    """Metadata of a field: its type on the wire, the versions that have it, and its tag where it is a tagged field."""
    return {"kafka_type": kafka_type, "since": since, "until": until, **tag}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """Which offset: one a group and partition."""

    group: str = field(metadata=wire("string"))
    topic: str = field(metadata=wire("string"))
    partition: int = field(metadata=wire("int32"))


@light_dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """A committed offset: the next one to read. Timestamps are wall-clock milliseconds; ``-1`` stands for "not given"."""

    offset: int = field(metadata=wire("int64"))
    leader_epoch: int = field(metadata=wire("int32", since=3), default=-1)
    metadata: str = field(metadata=wire("string"))
    commit_timestamp: int = field(metadata=wire("int64"))
    expire_timestamp: int = field(metadata=wire("int64", since=1, until=1), default=-1)
    topic_id: uuid.UUID | None = field(metadata=wire("uuid", since=4, tag=0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey:
    """Which classic group."""

    group: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataMember:
    """One member of a classic group, with what it subscribed to and what it was given. Timeouts are milliseconds."""

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
    """A classic group after a finished round, or without members. ``current_state_timestamp``: when it came to that."""

    protocol_type: str = field(metadata=wire("string"))
    generation: int = field(metadata=wire("int32"))
    protocol: str | None = field(metadata=wire("string"))
    leader: str | None = field(metadata=wire("string"))
    current_state_timestamp: int = field(metadata=wire("int64", since=2), default=-1)
    members: tuple[GroupMetadataMember, ...] = field(metadata=wire("entity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataKey:
    """Which consumer group (KIP-848)."""

    group_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue:
    """The epoch of a consumer group; ``metadata_hash`` stands for the topics that it was made for, 0: there were none."""

    epoch: int = field(metadata=wire("int32"))
    metadata_hash: int = field(metadata=wire("int64", tag=0), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupPartitionMetadataKey:
    """What Kafka kept of a group's topics before 4.1: only its tombstones are written now, and its values are passed over."""

    group_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataKey:
    """Which member of a consumer group, by what it asked for."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocol:
    """An assignor that a member of the classic protocol knows, with its metadata for it."""

    name: str = field(metadata=wire("string"))
    metadata: bytes = field(metadata=wire("bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata:
    """What a consumer group knows beyond the rest of a member that speaks the classic protocol."""

    session_timeout_ms: int = field(metadata=wire("int32"), default=0)
    supported_protocols: tuple[ClassicProtocol, ...] = field(metadata=wire("entity"), default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue:
    """A member's subscription, with its topic names sorted. ``classic_member_metadata`` is ``None`` for a member that sends
    heartbeats.

    ``client_assignors`` is Ottla's own, in a tagged field that Kafka skips: the assignors that the member can run.
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
    """Which consumer group, by its target assignment."""

    group_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The group epoch that the target assignment was made for, and when (wall-clock milliseconds; 0: by no assignor)."""

    assignment_epoch: int = field(metadata=wire("int32"))
    assignment_timestamp: int = field(metadata=wire("int64", tag=0), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey:
    """Which member of a consumer group, by what it shall have."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = field(metadata=wire("uuid"))
    partitions: tuple[int, ...] = field(metadata=wire("int32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """What a member shall have."""

    topic_partitions: tuple[TargetTopicPartitions, ...] = field(metadata=wire("entity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    """Which member of a consumer group, by what it has."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTopicPartitions:
    """Partitions of one topic, and the epoch in which the member got each of them (KIP-1251), where that is known."""

    topic_id: uuid.UUID = field(metadata=wire("uuid"))
    partitions: tuple[int, ...] = field(metadata=wire("int32"))
    assignment_epochs: tuple[int, ...] | None = field(metadata=wire("int32", tag=0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """What a member has, and what it was asked to give back."""

    member_epoch: int = field(metadata=wire("int32"))
    previous_member_epoch: int = field(metadata=wire("int32"))
    state: int = field(metadata=wire("int8"))
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = field(metadata=wire("entity"))
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = field(metadata=wire("entity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionKey:
    """Which regular expression of a consumer group."""

    group_id: str = field(metadata=wire("string"))
    regular_expression: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue:
    """The topics, sorted, that a regular expression matched in the ``version`` that the cluster's topics had then.

    ``timestamp``: wall-clock milliseconds.
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
    """The class of the key; ``value`` is that of the value, ``None`` where values are passed over."""
    value: Any
    newest: int = 0
    """The newest value version that is read; 0 is the oldest."""
    written: int = 0
    """The version that is written, but for the values of which ``encode_value`` knows better."""
    flexible: int = 0
    """From this value version on the encoding is the flexible one."""


_OFFSET_COMMIT = _RecordType(OffsetCommitKey, OffsetCommitValue, newest=4, written=4, flexible=4)

RECORD_TYPES: Mapping[int, _RecordType] = types.MappingProxyType(
    {
        0: _OFFSET_COMMIT,  # of the first releases; never written
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
"""Key type -> the schemas. Where two types share a key class the higher one is written."""

_TYPE_OF_KEY: Mapping[type[Any], int] = {record.key: key_type for key_type, record in RECORD_TYPES.items()}
_TYPE_OF_VALUE: Mapping[type[Any], _RecordType] = {record.value: record for record in RECORD_TYPES.values()}


def encode_record(key: Key, value: Value | None) -> tuple[bytes, bytes | None]:
    """The bytes of a record; without a value it is a tombstone.

    Raises ``ProtocolError`` for a value that does not fit its fields or the version that is written.
    """
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: Key) -> bytes:
    """The bytes of a record's key. Raises ``ProtocolError`` for one that does not fit its fields."""
    return _key_codec(_TYPE_OF_KEY[type(key)]).encode(key)


def encode_value(value: Value) -> bytes:
    """The bytes of a record's value, in the version that is written; raises ``ProtocolError`` as above."""
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
        return _value_codec(OffsetCommitValue, 1).encode(value)  # version 1 alone can say how long an offset is to be kept
    return _codec_of_written(type(value)).encode(value)


def decode_record(key: bytes, value: bytes | None) -> tuple[Key | Unknown, Value | None]:
    """The key and the value of a record; the value is ``None`` for a tombstone and where it is not read.

    Raises ``ProtocolError`` for bytes that are not what their type says.
    """
    reading = _reading(key[: _INT16.size])
    if isinstance(reading, Unknown):
        return reading, None
    read_key, neutral = reading
    decoded: Key = read_key(key)
    if value is None or neutral is None:
        return decoded, None
    return decoded, _value_reader(neutral, value[: _INT16.size])(value)


def encode_versioned(value: Any, version: int, *, flexible: bool) -> bytes:
    """A version and the fields of ``value`` in that version. Raises ``ProtocolError`` for a value that does not fit them."""
    return _codec(type(value), version, version, flexible).encode(value)


def decode_versioned(content: bytes, neutral: Any, *, newest: int, flexible: int) -> Any:
    """The value of class ``neutral`` in bytes that begin with a version. Raises ``ProtocolError`` for anything else."""
    version = _number(content, neutral.__name__)
    if not 0 <= version <= newest:
        raise ProtocolError(f"{neutral.__name__} has version {version}, known are 0 to {newest}")
    return _codec(neutral, version, version, version >= flexible).decode(content)


@cache
def _schema(neutral: Any, version: int, flexible: bool) -> type[Any]:
    """kio's kind of class for one version of one of our classes."""
    fields = []
    for one in dataclasses.fields(neutral):
        if one.metadata.get("since", 0) <= version <= one.metadata.get("until", _NEWEST):
            fields.append((one.name, _annotation(one, version, flexible), _like(one, version)))
    head = {"__type__": EntityType.data, "__version__": version, "__flexible__": flexible}
    return dataclasses.make_dataclass(neutral.__name__, fields, namespace=head, frozen=True, slots=True, kw_only=True)


def _annotation(one: "dataclasses.Field[Any]", version: int, flexible: bool) -> Any:
    inner = nested_class(one.type)
    if inner is None:
        return one.type
    nested: Any = _schema(inner, version, flexible)
    if is_tuple(one.type):
        nested = types.GenericAlias(tuple, (nested, ...))
    return nested | None if is_nullable(one.type) else nested


def _like(one: "dataclasses.Field[Any]", version: int) -> Any:
    metadata = {name: one.metadata[name] for name in ("kafka_type", "tag") if name in one.metadata}
    if one.default is dataclasses.MISSING or "tag" not in metadata:
        return field(metadata=metadata)
    inner = None if is_tuple(one.type) else nested_class(one.type)
    if inner is None:
        return field(metadata=metadata, default=one.default)
    # If a tagged structure is missing, Kafka uses its fields' defaults, and writes null like that.
    return field(metadata=metadata, default=adopter(inner, _schema(inner, version, True))(inner()))


class _Codec:
    """One version of one class, behind the ``number`` in front of it."""

    def __init__(self, neutral: Any, number: int, version: int, flexible: bool) -> None:
        schema = _schema(neutral, version, flexible)
        self._number = _INT16.pack(number)
        self._name = neutral.__name__
        self._version = version
        self._write = writer(neutral, schema)
        self._read = reader(schema)
        self._adopt = adopter(schema, neutral)
        wanted = {one.name for one in dataclasses.fields(schema)}
        self._lacking = [(one.name, one.default) for one in dataclasses.fields(neutral) if one.name not in wanted]

    def encode(self, value: Any) -> bytes:
        """The bytes of a value. Raises ``ProtocolError`` where a field says anything that this version lacks: nothing is lost."""
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
        """The value in these bytes. Raises ``ProtocolError``."""
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
def _reading(front: bytes) -> tuple[Callable[[bytes], Any], Any] | Unknown:
    """What the first bytes of a key announce: what reads it, and the class of the value where that is read."""
    key_type = _number(front, "a record's key")
    record = RECORD_TYPES.get(key_type)
    return Unknown(key_type) if record is None else (_key_codec(key_type).decode, record.value)


@cache
def _value_reader(neutral: Any, front: bytes) -> Callable[[bytes], Any]:
    """The same for a value of this class, which begins with its version."""
    version, newest = _number(front, neutral.__name__), _TYPE_OF_VALUE[neutral].newest
    if not 0 <= version <= newest:
        raise ProtocolError(f"{neutral.__name__} has version {version}, known are 0 to {newest}")
    return _value_codec(neutral, version).decode


def _number(content: bytes, what: str) -> int:
    if len(content) < _INT16.size:
        raise ProtocolError(f"{what} has {len(content)} bytes, too few for a version")
    (number,) = _INT16.unpack_from(content)
    return int(number)
