"""Stop request: the coordinator asks a member to give up its partitions."""

from dataclasses import dataclass, field

from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_007, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """The generation that ends, and why."""

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    generation: i32 = field(metadata=wire("int32"))
    reason: str = field(metadata=wire("string"))
