"""The events of a transactional id, as values.

*Durable* events are the records of ``__transaction_state``; *volatile* ones are never written. Owns the events and the mapping
between durable events and records; must not know which handler decides on an event or how it changes the state. Invariant:
``event_of(*record_of(event)) == event``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.errors import ProtocolError
from ottla.protocol.transaction_records import TransactionLogValue, decode_record, encode_record

# Durable.


@dataclass(frozen=True, slots=True)
class TransactionMetadataUpdated:
    """The transactional id has the state of this record."""

    transactional_id: str
    value: TransactionLogValue


@dataclass(frozen=True, slots=True)
class TransactionDeleted:
    """The transactional id was deleted."""

    transactional_id: str


# Volatile.


@dataclass(frozen=True, slots=True)
class ProducerFenced:
    """The coordinator is about to abort the transaction and fence its producer."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class LastProducerEpochUpdated:
    """The producer's previous epoch, by which repeated requests are recognized."""

    transactional_id: str
    epoch: int


DurableEvent = TransactionMetadataUpdated | TransactionDeleted
Event = DurableEvent | ProducerFenced | LastProducerEpochUpdated


def record_of(event: DurableEvent) -> tuple[bytes, bytes | None]:
    """Return the record of a durable event. Raises ``ProtocolError`` if a field is too long for the record."""
    return encode_record(event.transactional_id, event.value if isinstance(event, TransactionMetadataUpdated) else None)


def event_of(key: bytes, value: bytes | None) -> DurableEvent | None:
    """Return the event of a record; ``None`` for an unknown type of record. Raises ``ProtocolError`` for malformed bytes."""
    decoded = decode_record(key, value)
    if decoded is None:
        return None
    transactional_id, stored = decoded
    if stored is None:
        return TransactionDeleted(transactional_id)
    if not 0 <= stored.transaction_status <= 7:
        raise ProtocolError(
            f"the record of transactional id {transactional_id!r} has status {stored.transaction_status}; 0 to 7 are valid"
        )
    return TransactionMetadataUpdated(transactional_id, stored)
