"""ConsumerGroupHeartbeat response version 1, extended for client-side assignors."""

import uuid
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i16, i32, i32Timedelta

from ottla.protocol.own import of, wire


@of(68, 1, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID | None = field(metadata=wire("uuid"))
    partitions: tuple[i32, ...] = field(metadata=wire("int32"), default=())


@of(68, 1, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The partitions that are assigned to the member."""

    topic_partitions: tuple[TopicPartitions, ...]


@of(68, 1, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    """Kafka's message; the last six fields are Ottla's.

    ``should_compute_assignment``: the member is to prepare and install the group's next assignment. The other fields describe an
    assignment that a member computed: the assignor's name (empty: the coordinator computed it), its error (0: none) with a text,
    and metadata for this member. They are set together with an ``assignment`` and a new epoch.
    """

    throttle_time: i32Timedelta = field(metadata=wire("timedelta_i32"))
    error_code: ErrorCode = field(metadata=wire("error_code"))
    error_message: str | None = field(metadata=wire("string"), default=None)
    member_id: str | None = field(metadata=wire("string"), default=None)
    member_epoch: i32 = field(metadata=wire("int32"))
    heartbeat_interval: i32Timedelta = field(metadata=wire("timedelta_i32"))
    assignment: Assignment | None = field(default=None)
    should_compute_assignment: bool = field(metadata=wire("bool", 20_000), default=False)
    assignment_error: i8 = field(metadata=wire("int8", 20_001), default=i8(0))
    metadata_version: i16 = field(metadata=wire("int16", 20_002), default=i16(0))
    metadata: bytes = field(metadata=wire("bytes", 20_003), default=b"")
    assignment_error_message: str | None = field(metadata=wire("string", 20_004), default=None)
    assignor_name: str = field(metadata=wire("string", 20_005), default="")
