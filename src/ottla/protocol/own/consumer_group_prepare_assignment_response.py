"""ConsumerGroupPrepareAssignment response: the state of the group, for the assignor."""

import uuid
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i16, i32, i32Timedelta

from ottla.protocol.own import of, wire


@of(20_001, 0, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of one topic that a member owns."""

    topic_id: uuid.UUID | None = field(metadata=wire("uuid"))
    partitions: tuple[i32, ...] = field(metadata=wire("int32"), default=())


@of(20_001, 0, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member: its subscription, its partitions, and the metadata of its assignor of this name (see the heartbeat)."""

    member_id: str = field(metadata=wire("string"))
    member_epoch: i32 = field(metadata=wire("int32"))
    instance_id: str | None = field(metadata=wire("string"), default=None)
    rack_id: str | None = field(metadata=wire("string"), default=None)
    subscribed_topic_ids: tuple[uuid.UUID | None, ...] = field(metadata=wire("uuid"), default=())
    reason: i8 = field(metadata=wire("int8"), default=i8(0))
    metadata_version: i16 = field(metadata=wire("int16"), default=i16(0))
    metadata: bytes = field(metadata=wire("bytes"), default=b"")
    topic_partitions: tuple[TopicPartitions, ...] = field(default=())


@of(20_001, 0, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic that a member subscribed to."""

    topic_id: uuid.UUID | None = field(metadata=wire("uuid"))
    topic_name: str = field(metadata=wire("string"))
    num_partitions: i32 = field(metadata=wire("int32"))


@of(20_001, 0, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupPrepareAssignmentResponse:
    """The epoch of the new assignment, the assignor to run, the members and their topics."""

    throttle_time: i32Timedelta = field(metadata=wire("timedelta_i32"))
    error_code: ErrorCode = field(metadata=wire("error_code"))
    error_message: str | None = field(metadata=wire("string"), default=None)
    group_epoch: i32 = field(metadata=wire("int32"), default=i32(-1))
    assignor_name: str = field(metadata=wire("string"), default="")
    members: tuple[Member, ...] = field(default=())
    topics: tuple[TopicMetadata, ...] = field(default=())
