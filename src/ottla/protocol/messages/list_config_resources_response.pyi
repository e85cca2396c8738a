"""list_config_resources_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResource:
    resource_name: str
    resource_type: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    config_resources: tuple[ConfigResource, ...]
