"""describe_cluster_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int = ...
    include_fenced_brokers: bool
