"""The one table of the APIs that are decided for one transactional id: the handler, the form of a refusal, the id.

Owns the mapping; must not know partitions or appends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.coordinator.effects import RequestContext
from ottla.coordinator.transactions.answers import added_answer, end_answer, offsets_added_answer, producer_id_answer
from ottla.coordinator.transactions.decision import Decision, Surroundings
from ottla.coordinator.transactions.end import end_transaction
from ottla.coordinator.transactions.enlist import add_offsets, add_partitions
from ottla.coordinator.transactions.producer_id import init_producer_id
from ottla.coordinator.transactions.transaction import Transaction
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import Now


@dataclass(frozen=True, slots=True)
class TransactionRoute:
    """A request that concerns one transactional id; ``refuse`` makes the answer when the coordinator cannot serve it."""

    decide: Callable[[Surroundings, Transaction, RequestContext, Any, Now], Decision]
    refuse: Callable[[Any, ErrorCode], Any]


ROUTES: Mapping[Api, TransactionRoute] = {
    Api.INIT_PRODUCER_ID: TransactionRoute(init_producer_id, lambda request, error: producer_id_answer(error)),
    Api.ADD_PARTITIONS_TO_TXN: TransactionRoute(add_partitions, added_answer),
    Api.ADD_OFFSETS_TO_TXN: TransactionRoute(add_offsets, lambda request, error: offsets_added_answer(error)),
    Api.END_TXN: TransactionRoute(end_transaction, lambda request, error: end_answer(error)),
}
"""API -> how it is served, for one transactional id at a time."""
