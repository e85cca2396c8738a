"""metadata_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseBroker:
    node_id: int
    host: str
    port: int
    rack: str | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponsePartition:
    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int = ...
    replica_nodes: tuple[int, ...] = ...
    isr_nodes: tuple[int, ...] = ...
    offline_replicas: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseTopic:
    error_code: ErrorCode
    name: str | None = ...
    topic_id: uuid.UUID | None = ...
    is_internal: bool = ...
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    throttle_time: timedelta
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None = ...
    controller_id: int = ...
    topics: tuple[MetadataResponseTopic, ...]
    error_code: ErrorCode
    cluster_authorized_operations: int = ...
