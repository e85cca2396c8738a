"""ConsumerGroupPrepareAssignment request: a member that is to compute the assignment requests the state of the group."""

from dataclasses import dataclass, field

from kio.static.primitive import i32

from ottla.protocol.own import of, wire


@of(20_001, 0, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupPrepareAssignmentRequest:
    """The member, and its epoch."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    member_epoch: i32 = field(metadata=wire("int32"))
