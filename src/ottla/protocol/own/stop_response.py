"""Stop response: the member has given up its partitions."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64

from ottla.protocol.own import of_draft, wire


@of_draft(20_007, "answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a partition: the offset of the next record."""

    partition: i32 = field(metadata=wire("int32"))
    offset: i64 = field(metadata=wire("int64"))


@of_draft(20_007, "answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPositions:
    """Positions in one topic."""

    topic: str = field(metadata=wire("string"))
    partitions: tuple[Position, ...] = field(default=())


@of_draft(20_007, "answer", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class StopResponse:
    """What the member had, and how far it has read."""

    error_code: ErrorCode = field(metadata=wire("error_code"))
    """STALE_MEMBER_EPOCH: the epoch or the generation is lower than the member's own."""
    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    generation: i32 = field(metadata=wire("int32"))
    topics: tuple[TopicPositions, ...] = field(default=())
