"""ConsumerGroupInstallAssignment response."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from ottla.protocol.own import of, wire


@of(20_002, 0, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupInstallAssignmentResponse:
    """Whether the group has taken over the assignment."""

    throttle_time: i32Timedelta = field(metadata=wire("timedelta_i32"))
    error_code: ErrorCode = field(metadata=wire("error_code"))
    error_message: str | None = field(metadata=wire("string"), default=None)
