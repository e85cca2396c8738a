"""The table of the APIs that concern one transactional id: the handler, the response with an error, the id.

Owns the mapping; must not know partitions or appends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ottla.coordinator.effects import RequestContext
from ottla.coordinator.runtime import Route, SplitRoute
from ottla.coordinator.transactions.add_partitions import add_offsets, add_partitions
from ottla.coordinator.transactions.answers import added_answer, end_answer, offsets_added_answer, producer_id_answer
from ottla.coordinator.transactions.decision import Decision, TransactionContext
from ottla.coordinator.transactions.end import end_transaction
from ottla.coordinator.transactions.producer_id import init_producer_id
from ottla.coordinator.transactions.transaction import Transaction
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import add_partitions_to_txn_response
from ottla.types import Now

Decide = Callable[[TransactionContext, Transaction, RequestContext, Any, Now], Decision]


def _route(decide: Decide, refuse: Callable[[Any, ErrorCode], Any]) -> Route:
    return Route(decide, lambda context, request, error: refuse(request, error), lambda request: str(request.transactional_id))


def _join_added(results: tuple[Any, ...]) -> Any:
    return add_partitions_to_txn_response.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=results
    )


ROUTES: Mapping[Api, Route | SplitRoute] = {
    Api.INIT_PRODUCER_ID: _route(init_producer_id, lambda request, error: producer_id_answer(error)),
    Api.ADD_PARTITIONS_TO_TXN: SplitRoute(
        _route(add_partitions, added_answer), split=lambda request: tuple(request.transactions), join=_join_added
    ),
    Api.ADD_OFFSETS_TO_TXN: _route(add_offsets, lambda request, error: offsets_added_answer(error)),
    Api.END_TXN: _route(end_transaction, lambda request, error: end_answer(error)),
}
"""API -> its handler, for one transactional id at a time."""
