"""ConsumerGroupHeartbeat request version 1, extended by the member's own assignors (KIP-848's ``ClientAssignors``)."""

import datetime
import uuid
from dataclasses import dataclass, field

from kio.static.primitive import i8, i16, i32, i32Timedelta

from ottla.protocol.own import of, wire


@of(68, 1, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions that the member owns."""

    topic_id: uuid.UUID | None = field(metadata=wire("uuid"))
    partitions: tuple[i32, ...] = field(metadata=wire("int32"), default=())


@of(68, 1, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAssignor:
    """An assignor that the member can run: the versions of its metadata that it reads, and its metadata."""

    name: str = field(metadata=wire("string"))
    minimum_version: i16 = field(metadata=wire("int16"), default=i16(0))
    maximum_version: i16 = field(metadata=wire("int16"), default=i16(0))
    reason: i8 = field(metadata=wire("int8"), default=i8(0))
    metadata_version: i16 = field(metadata=wire("int16"), default=i16(0))
    metadata: bytes = field(metadata=wire("bytes"), default=b"")


@of(68, 1, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest:
    """Kafka's message and ``client_assignors``: the member's assignors, the preferred one first, or ``None`` if unchanged."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    member_epoch: i32 = field(metadata=wire("int32"))
    instance_id: str | None = field(metadata=wire("string"), default=None)
    rack_id: str | None = field(metadata=wire("string"), default=None)
    rebalance_timeout: i32Timedelta = field(
        metadata=wire("timedelta_i32"), default=i32Timedelta.parse(datetime.timedelta(milliseconds=-1))
    )
    subscribed_topic_names: tuple[str, ...] | None = field(metadata=wire("string"), default=None)
    subscribed_topic_regex: str | None = field(metadata=wire("string"), default=None)
    server_assignor: str | None = field(metadata=wire("string"), default=None)
    topic_partitions: tuple[TopicPartitions, ...] | None
    client_assignors: tuple[ClientAssignor, ...] | None = field(metadata=wire("", 20_000), default=None)
