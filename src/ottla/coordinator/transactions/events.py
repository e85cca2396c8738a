"""The events of a transactional id, as values.

*Durable* events are the records of ``__transaction_state``; *volatile* ones are never written. Owns the vocabulary and the mapping
between durable events and records; must not know who decides on an event or what it changes. Invariant:
``event_of(*record_of(event)) == event``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.errors import ProtocolError
from ottla.protocol.transaction_records import TransactionLogValue, decode_record, encode_record

# Durable.


@dataclass(frozen=True, slots=True)
class TransactionMetadataUpdated:
    """The transactional id stands where the record says."""

    transactional_id: str
    value: TransactionLogValue


@dataclass(frozen=True, slots=True)
class TransactionDeleted:
    """The transactional id is gone."""

    transactional_id: str


# Volatile.


@dataclass(frozen=True, slots=True)
class ProducerFenced:
    """The coordinator takes the transaction out of its producer's hands."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class LastProducerEpochUpdated:
    """The previous epoch, to recognise repeated requests."""

    transactional_id: str
    epoch: int


DurableEvent = TransactionMetadataUpdated | TransactionDeleted
Event = DurableEvent | ProducerFenced | LastProducerEpochUpdated


def record_of(event: DurableEvent) -> tuple[bytes, bytes | None]:
    """The record of a durable event. Raises ``ProtocolError`` if the record cannot hold what the event says."""
    return encode_record(event.transactional_id, event.value if isinstance(event, TransactionMetadataUpdated) else None)


def event_of(key: bytes, value: bytes | None) -> DurableEvent | None:
    """The event of a record; ``None`` for a type of record that is unknown. Raises ``ProtocolError`` for bad bytes."""
    decoded = decode_record(key, value)
    if decoded is None:
        return None
    transactional_id, stored = decoded
    if stored is None:
        return TransactionDeleted(transactional_id)
    if not 0 <= stored.transaction_status <= 7:
        raise ProtocolError(f"the record of {transactional_id!r} has status {stored.transaction_status}, known are 0 to 7")
    return TransactionMetadataUpdated(transactional_id, stored)
