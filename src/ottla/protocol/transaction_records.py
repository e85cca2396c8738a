"""The records of ``__transaction_state``, as values and as the bytes that Apache Kafka 4.3 writes.

Owns the two schemas, which kio does not have, declared as kio's are. Must not know the state machine of transactions, or when a
record is written. Invariant: ``decode_record(*encode_record(transactional_id, value)) == (transactional_id, value)``; a record of
another type is ``None`` (a newer Kafka may have written it), invalid bytes raise ``ProtocolError``.

Source: ``TransactionLogKey`` and ``TransactionLogValue`` of Apache Kafka 4.3. A key is an int16 type and the id; a value is an
int16 version and its fields, flexible from version 1 on; a missing value is a tombstone.
"""

import struct
from dataclasses import dataclass, field

from ottla.errors import ProtocolError
from ottla.protocol.group_records import decode_versioned, encode_versioned, wire

# No ``from __future__ import annotations`` here: kio reads the types of the fields.

_TRANSACTION_KEY = 0
_NEWEST = _WRITTEN = _FLEXIBLE = 1
_INT16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogKey:
    """The key of a transactional id."""

    transactional_id: str = field(metadata=wire("string"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of one topic that a transaction has written to."""

    topic: str = field(metadata=wire("string"))
    partition_ids: tuple[int, ...] = field(metadata=wire("int32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    """The state of a transactional id. Timestamps are wall-clock milliseconds; ``-1`` means "none"."""

    producer_id: int = field(metadata=wire("int64"))
    previous_producer_id: int = field(metadata=wire("int64", since=1, tag=0), default=-1)
    next_producer_id: int = field(metadata=wire("int64", since=1, tag=1), default=-1)
    producer_epoch: int = field(metadata=wire("int16"))
    next_producer_epoch: int = field(metadata=wire("int16", since=1, tag=3), default=-1)
    transaction_timeout_ms: int = field(metadata=wire("int32"))
    transaction_status: int = field(metadata=wire("int8"))
    transaction_partitions: tuple[TopicPartitions, ...] | None = field(metadata=wire("entity"))
    transaction_last_update_timestamp_ms: int = field(metadata=wire("int64"))
    transaction_start_timestamp_ms: int = field(metadata=wire("int64"))
    client_transaction_version: int = field(metadata=wire("int16", since=1, tag=2), default=0)


def encode_record(transactional_id: str, value: TransactionLogValue | None) -> tuple[bytes, bytes | None]:
    """The bytes of a record; without a value, of a tombstone. Raises ``ProtocolError`` for an id that is too long."""
    key = encode_versioned(TransactionLogKey(transactional_id=transactional_id), _TRANSACTION_KEY, flexible=False)
    return key, None if value is None else encode_versioned(value, _WRITTEN, flexible=True)


def decode_record(key: bytes, value: bytes | None) -> tuple[str, TransactionLogValue | None] | None:
    """The id and the value of a record; the value of a tombstone is ``None``. ``None`` for a record of another type.

    Raises ``ProtocolError`` for invalid bytes.
    """
    if len(key) < _INT16.size:
        raise ProtocolError(f"the key of a transaction's record has {len(key)} bytes, too few for a type")
    if _INT16.unpack_from(key)[0] != _TRANSACTION_KEY:
        return None
    decoded = decode_versioned(key, TransactionLogKey, newest=_TRANSACTION_KEY, flexible=_FLEXIBLE)
    if value is None:
        return decoded.transactional_id, None
    return decoded.transactional_id, decode_versioned(value, TransactionLogValue, newest=_NEWEST, flexible=_FLEXIBLE)
