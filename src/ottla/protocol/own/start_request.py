"""Start request: the coordinator gives a member its share of the partitions."""

from dataclasses import dataclass, field

from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_008, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """A partition, and the thread of the member that reads it."""

    partition: i32 = field(metadata=wire("int32"))
    thread: i32 = field(metadata=wire("int32"))


@of_draft(20_008, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTopic:
    """Partitions of one topic."""

    topic: str = field(metadata=wire("string"))
    partitions: tuple[AssignedPartition, ...] = field(default=())


@of_draft(20_008, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """The generation that begins, and all partitions of the member in it."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    generation: i32 = field(metadata=wire("int32"))
    topics: tuple[AssignedTopic, ...] = field(default=())
