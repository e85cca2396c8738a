"""alter_configs_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str

@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    throttle_time: timedelta
    responses: tuple[AlterConfigsResourceResponse, ...]
