"""describe_cluster_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterBroker:
    broker_id: int
    host: str
    port: int
    rack: str | None = ...
    is_fenced: bool

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    error_message: str | None = ...
    endpoint_type: int = ...
    cluster_id: str
    controller_id: int = ...
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: int = ...
