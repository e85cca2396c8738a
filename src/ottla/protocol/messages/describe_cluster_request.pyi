"""describe_cluster_request: made by tools/make_message_stubs.py; do not edit."""

from dataclasses import dataclass

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int = ...
    include_fenced_brokers: bool
