"""consumer_group_install_assignment_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic_id: uuid.UUID | None
    partitions: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    member_id: str
    topic_partitions: tuple[TopicPartitions, ...] = ...
    metadata_version: int = ...
    metadata: bytes = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupInstallAssignmentRequest:
    group_id: str
    member_id: str
    member_epoch: int
    group_epoch: int
    error: int = ...
    members: tuple[Member, ...] = ...
    error_message: str | None = ...
