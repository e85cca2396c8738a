"""Ping request, which the coordinator sends to a member."""

from dataclasses import dataclass, field

from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_006, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest:
    """The epoch of the coordinator, and the generation of the group."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    generation: i32 = field(metadata=wire("int32"))
