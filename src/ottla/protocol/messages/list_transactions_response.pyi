"""list_transactions_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    transactional_id: str
    producer_id: int
    transaction_state: str

@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    unknown_state_filters: tuple[str, ...] = ...
    transaction_states: tuple[TransactionState, ...]
