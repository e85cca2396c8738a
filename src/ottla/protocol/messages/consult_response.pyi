"""consult_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    broker_id: int
    creator_id: str
    host: str
    port: int

@dataclass(frozen=True, slots=True, kw_only=True)
class ConsultResponse:
    error_code: ErrorCode
    error_message: str | None = ...
    coordinator_id: int
    coordinator_epoch: int
    brokers: tuple[Broker, ...] = ...
