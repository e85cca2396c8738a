"""metadata_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic:
    topic_id: uuid.UUID | None = ...
    name: str | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: bool = ...
    include_topic_authorized_operations: bool
    include_cluster_authorized_operations: bool = ...
