"""sasl_authenticate_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    error_code: ErrorCode
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int = ...
