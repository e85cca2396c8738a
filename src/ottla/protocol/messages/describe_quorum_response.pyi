"""describe_quorum_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    replica_id: int
    replica_directory_id: uuid.UUID | None
    log_end_offset: int
    last_fetch_timestamp: int = ...
    last_caught_up_timestamp: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int
    error_code: ErrorCode
    error_message: str | None
    leader_id: int
    leader_epoch: int
    high_watermark: int
    current_voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic_name: str
    partitions: tuple[PartitionData, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    name: str
    host: str
    port: int

@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    node_id: int
    listeners: tuple[Listener, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponse:
    error_code: ErrorCode
    error_message: str | None
    topics: tuple[TopicData, ...]
    nodes: tuple[Node, ...]
