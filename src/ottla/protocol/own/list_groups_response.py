"""ListGroups response version 5, extended for groups that Kafka's brokers do not have."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from ottla.protocol.own import of, wire


@of(16, 5, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group; the last field is Ottla's.

    ``is_central``: the group is one of the central coordinator. Kafka's clients do not know this type, and would not list the group
    or say that it is unknown; so ``group_type`` is that of the groups that they describe with the same request: classic.
    """

    group_id: str = field(metadata=wire("string"))
    protocol_type: str = field(metadata=wire("string"))
    group_state: str = field(metadata=wire("string"))
    group_type: str = field(metadata=wire("string"))
    is_central: bool = field(metadata=wire("bool", 20_000), default=False)


@of(16, 5, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """Kafka's message, and which groups are central."""

    throttle_time: i32Timedelta = field(metadata=wire("timedelta_i32"))
    error_code: ErrorCode = field(metadata=wire("error_code"))
    groups: tuple[ListedGroup, ...]
