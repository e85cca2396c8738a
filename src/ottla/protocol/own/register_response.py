"""Register response. From here on the broker sends requests on this connection."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_004, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterResponse:
    """The epoch of the coordinator, and the generation of the group."""

    error_code: ErrorCode = field(metadata=wire("error_code"))
    error_message: str | None = field(metadata=wire("string"), default=None)
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    generation: i32 = field(metadata=wire("int32"))
    ping_interval_ms: i32 = field(metadata=wire("int32"))
    """How often the coordinator pings the member."""
