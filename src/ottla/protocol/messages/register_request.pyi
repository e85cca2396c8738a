"""register_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    topic: str
    streams: int

@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPartition:
    partition: int
    thread: int

@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTopic:
    topic: str
    partitions: tuple[OwnedPartition, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    group_id: str
    member_id: str
    incarnation: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignor: str
    topics: tuple[Subscription, ...] = ...
    pattern: str | None = ...
    streams: int = ...
    coordinator_epoch: int = ...
    generation: int = ...
    owned_topics: tuple[OwnedTopic, ...] = ...
    own_generation: int = ...
