"""list_transactions_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsRequest:
    state_filters: tuple[str, ...] = ...
    producer_id_filters: tuple[int, ...] = ...
    duration_filter: int = ...
    transactional_id_pattern: str | None = ...
