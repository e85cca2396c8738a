"""DescribeGroups response version 6, extended for groups that Kafka's brokers do not have."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i32Timedelta

from ottla.protocol.own import of, wire


@of(15, 6, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember:
    """A member, as Kafka describes it."""

    member_id: str = field(metadata=wire("string"))
    group_instance_id: str | None = field(metadata=wire("string"), default=None)
    client_id: str = field(metadata=wire("string"))
    client_host: str = field(metadata=wire("string"))
    member_metadata: bytes = field(metadata=wire("bytes"))
    member_assignment: bytes = field(metadata=wire("bytes"))


@of(15, 6, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group; the last field is Ottla's. ``is_central``: it is one of the central coordinator, not a classic one."""

    error_code: ErrorCode = field(metadata=wire("error_code"))
    error_message: str | None = field(metadata=wire("string"), default=None)
    group_id: str = field(metadata=wire("string"))
    group_state: str = field(metadata=wire("string"))
    protocol_type: str = field(metadata=wire("string"))
    protocol_data: str = field(metadata=wire("string"))
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: i32 = field(metadata=wire("int32"), default=i32(-(2**31)))
    is_central: bool = field(metadata=wire("bool", 20_000), default=False)


@of(15, 6, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    """Kafka's message, and which groups are central."""

    throttle_time: i32Timedelta = field(metadata=wire("timedelta_i32"))
    groups: tuple[DescribedGroup, ...]
