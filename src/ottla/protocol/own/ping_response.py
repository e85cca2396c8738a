"""Ping response, which a member sends to the coordinator."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_006, "answer", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class PingResponse:
    """What the member knows."""

    error_code: ErrorCode = field(metadata=wire("error_code"))
    """STALE_MEMBER_EPOCH: the epoch or the generation is lower than the member's own."""
    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    generation: i32 = field(metadata=wire("int32"))
