"""add_partitions_to_txn_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int
    partition_error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTopicResult:
    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResult:
    transactional_id: str
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...]
