"""describe_transactions_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic: str
    partitions: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    error_code: ErrorCode
    transactional_id: str
    transaction_state: str
    transaction_timeout: timedelta
    transaction_start_time_ms: int
    producer_id: int
    producer_epoch: int
    topics: tuple[TopicData, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    throttle_time: timedelta
    transaction_states: tuple[TransactionState, ...]
