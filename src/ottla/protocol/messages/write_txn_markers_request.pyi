"""write_txn_markers_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerTopic:
    name: str
    partition_indexes: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarker:
    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: int
    transaction_version: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    markers: tuple[WritableTxnMarker, ...]
