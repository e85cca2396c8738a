"""Consult response."""

from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_003, "response")
@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker of the cluster."""

    broker_id: i32 = field(metadata=wire("int32"))
    creator_id: str = field(metadata=wire("string"))
    """The host and the time of its registration, as in 0.7."""
    host: str = field(metadata=wire("string"))
    port: i32 = field(metadata=wire("int32"))


@of_draft(20_003, "response", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsultResponse:
    """The central coordinator, and the brokers of the cluster."""

    error_code: ErrorCode = field(metadata=wire("error_code"))
    """COORDINATOR_NOT_AVAILABLE while no broker is elected."""
    error_message: str | None = field(metadata=wire("string"), default=None)
    coordinator_id: i32 = field(metadata=wire("int32"))
    """The broker that is elected; -1: none."""
    coordinator_epoch: i32 = field(metadata=wire("int32"))
    """The number of elections so far, as this broker knows it; -1: unknown."""
    brokers: tuple[Broker, ...] = field(default=())
