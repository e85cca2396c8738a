"""api_versions_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    api_key: int
    min_version: int
    max_version: int

@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeatureKey:
    name: str
    min_version: int
    max_version: int

@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeatureKey:
    name: str
    max_version_level: int
    min_version_level: int

@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    error_code: ErrorCode
    api_keys: tuple[ApiVersion, ...]
    throttle_time: timedelta
    supported_features: tuple[SupportedFeatureKey, ...] = ...
    finalized_features_epoch: int = ...
    finalized_features: tuple[FinalizedFeatureKey, ...] = ...
    zk_migration_ready: bool = ...
