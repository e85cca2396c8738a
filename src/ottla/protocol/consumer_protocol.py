"""The blobs that members of a ``consumer`` group exchange through the coordinator: Subscription and Assignment.

Owns their versions. Must not know their users. Invariant: a blob of any version is decoded to the same class, and an invalid blob
raises ``ProtocolError``.

Source: the message schemas ConsumerProtocolSubscription and ConsumerProtocolAssignment of Apache Kafka (KIP-429 owned partitions,
KIP-792 generation, KIP-881 rack). As in Kafka, a blob of an unknown version is read as the newest known version, and bytes after
the last known field are ignored.
"""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ottla.errors import ProtocolError
from ottla.protocol.reading import reader
from ottla.types import TopicPartition

NEWEST = 3
"""The newest version of both blobs. It is always written: a reader of an older version ignores the fields that it does not know."""

_VERSION = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's topics, and its data for the assignor.

    ``owned`` are its partitions of ``generation``, the last in which it was a member (``-1``: none); ``rack`` is where it runs.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """A member's partitions and the assignor's data for it."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """The blob for a protocol of JoinGroup, of the type ``consumer``."""
    schema = _schema("subscription", NEWEST)
    return _encode(
        schema.ConsumerProtocolSubscription(
            topics=subscription.topics,
            user_data=subscription.user_data,
            owned_partitions=_by_topic(schema.TopicPartition, subscription.owned),
            generation_id=subscription.generation,
            rack_id=subscription.rack,
        )
    )


def decode_subscription(blob: bytes) -> Subscription:
    """A member's subscription; fields that its version lacks have their defaults.

    Raises ``ProtocolError`` for bytes that are not a subscription.
    """
    message = _decode("subscription", "ConsumerProtocolSubscription", blob)
    return Subscription(
        topics=_not_null(message.topics),
        user_data=message.user_data,
        owned=_flat(getattr(message, "owned_partitions", ())),
        generation=getattr(message, "generation_id", -1),
        rack=getattr(message, "rack_id", None),
    )


def version_of(blob: bytes) -> int:
    """The version as which a blob is read. Raises ``ProtocolError`` if the blob is too short or the version negative."""
    if len(blob) < _VERSION.size:
        raise ProtocolError(f"a ConsumerProtocol blob of {len(blob)} bytes is too short to have a version")
    (version,) = _VERSION.unpack_from(blob)
    if version < 0:
        raise ProtocolError(f"a ConsumerProtocol blob has the negative version {version}")
    return min(int(version), NEWEST)


def encode_assignment(assignment: Assignment, version: int = NEWEST) -> bytes:
    """The blob for one member in the leader's SyncGroup."""
    schema = _schema("assignment", version)
    return _encode(
        schema.ConsumerProtocolAssignment(
            assigned_partitions=_by_topic(schema.TopicPartition, assignment.partitions), user_data=assignment.user_data
        ),
        version,
    )


def decode_assignment(blob: bytes) -> Assignment:
    """A member's assignment; empty for an empty blob, which the coordinator sends to a member that the leader left out.

    Raises ``ProtocolError`` for bytes that are not an assignment.
    """
    if not blob:
        return Assignment(())
    message = _decode("assignment", "ConsumerProtocolAssignment", blob)
    return Assignment(_flat(message.assigned_partitions), message.user_data)


def _schema(kind: str, version: int) -> Any:
    return importlib.import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")


def _encode(message: Any, version: int = NEWEST) -> bytes:
    from kio.serial import entity_writer

    target = io.BytesIO()
    target.write(_VERSION.pack(version))
    try:
        entity_writer(type(message))(target, message)
    except Exception as error:
        raise ProtocolError(f"{type(message).__name__} cannot be encoded: {error}", cause=error) from error
    return target.getvalue()


def _decode(kind: str, name: str, blob: bytes) -> Any:
    version = version_of(blob)
    try:
        message, _ = reader(getattr(_schema(kind, version), name))(blob, _VERSION.size)
    except Exception as error:
        raise ProtocolError(f"{name} version {version} cannot be decoded: {type(error).__name__}: {error}", cause=error) from error
    return message


def _by_topic(cls: Any, partitions: Iterable[TopicPartition]) -> tuple[Any, ...]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return tuple(cls(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())


def _flat(topics: tuple[Any, ...] | None) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(item.topic, number) for item in _not_null(topics) for number in _not_null(item.partitions))


def _not_null(items: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Check that an array is not null: kio reads the length -1 as null also where the schema does not allow it."""
    if items is None:
        raise ProtocolError("an array of a ConsumerProtocol blob is null")
    return items
