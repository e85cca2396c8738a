"""Leave response, after which the broker closes the channel."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from ottla.protocol.own import of_draft, wire


@of_draft(20_005, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    """Whether the member has left."""

    error_code: ErrorCode = field(metadata=wire("error_code"))
    error_message: str | None = field(metadata=wire("string"), default=None)
