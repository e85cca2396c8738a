"""Leave request: a member leaves its group. It is sent on the channel."""

from dataclasses import dataclass, field

from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_005, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """The member."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    generation: i32 = field(metadata=wire("int32"))
    reason: str | None = field(metadata=wire("string"), default=None)
