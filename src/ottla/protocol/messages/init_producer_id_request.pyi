"""init_producer_id_request: made by tools/make_message_stubs.py; do not edit."""

from dataclasses import dataclass
from datetime import timedelta

@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: str | None
    transaction_timeout: timedelta
    producer_id: int = ...
    producer_epoch: int = ...
