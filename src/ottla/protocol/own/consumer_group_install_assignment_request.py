"""ConsumerGroupInstallAssignment request: a member sends the assignment that it computed."""

import uuid
from dataclasses import dataclass, field

from kio.static.primitive import i8, i16, i32

from ottla.protocol.own import of, wire


@of(20_002, 0, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID | None = field(metadata=wire("uuid"))
    partitions: tuple[i32, ...] = field(metadata=wire("int32"), default=())


@of(20_002, 0, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member's new partitions, and the assignor's metadata for it."""

    member_id: str = field(metadata=wire("string"))
    topic_partitions: tuple[TopicPartitions, ...] = field(default=())
    metadata_version: i16 = field(metadata=wire("int16"), default=i16(0))
    metadata: bytes = field(metadata=wire("bytes"), default=b"")


@of(20_002, 0, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupInstallAssignmentRequest:
    """The assignment for ``group_epoch``.

    With an ``error`` of the assignor (0: none) each member keeps its partitions, and gets the error and ``error_message``.
    """

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    member_epoch: i32 = field(metadata=wire("int32"))
    group_epoch: i32 = field(metadata=wire("int32"))
    error: i8 = field(metadata=wire("int8"), default=i8(0))
    members: tuple[Member, ...] = field(default=())
    error_message: str | None = field(metadata=wire("string", 0), default=None)
