"""The transaction coordinator, as a broker's core sees it: requests, timers, appends and markers in, effects out.

Owns the requests that concern several transactional ids. Must not know what a request means, sockets, clocks or logs. Invariant:
every request is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ottla.coordinator.effects import Append, Reply, RequestContext, TimerKey
from ottla.coordinator.runtime import BackgroundTask, CoordinatorRuntime, TimerFired
from ottla.coordinator.transactions.decision import DecisionEffect, TransactionContext, completion_timer
from ottla.coordinator.transactions.describe import describe_transaction, list_refused, list_transactions
from ottla.coordinator.transactions.routes import ROUTES
from ottla.coordinator.transactions.shard import TransactionShard
from ottla.coordinator.transactions.state import PartitionState
from ottla.coordinator.transactions.transaction import Transaction
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_transactions_response
from ottla.protocol.transaction_records import TransactionLogValue
from ottla.types import Now

TransactionCoordinatorEffect = DecisionEffect | Append | Reply


class TransactionCoordinator:
    """Serves transactional ids.

    Each partition of ``__transaction_state`` must be loaded (``load``, with no records if it is new) before its ids are served. An
    ``Append`` is told done by ``on_appended`` or failed by ``on_append_failed``, ``WriteMarkers`` by ``on_markers_written``, in any
    order. A timer is told by ``on_timer``; its key begins with ``decision.TRANSACTIONS``.
    """

    APIS: ClassVar[frozenset[Api]] = frozenset({*ROUTES, Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS})
    """The APIs that ``handle`` serves."""

    def __init__(self, coordinator: TransactionContext) -> None:
        self._context = coordinator
        self._runtime: CoordinatorRuntime[TransactionShard, DecisionEffect] = CoordinatorRuntime(
            "__transaction_state", coordinator.config.state_topic_partitions, coordinator.config.append_retry_backoff_ms
        )

    def partition_for(self, transactional_id: str) -> int:
        """The partition of ``__transaction_state`` that a transactional id lives in."""
        return self._runtime.partition_for(transactional_id)

    def handle(self, context: RequestContext, request: Any, now: Now) -> list[TransactionCoordinatorEffect]:
        """Serve a request of one of ``APIS``; its ``Reply`` is among these effects or among those of a later call."""
        if context.api is Api.DESCRIBE_TRANSACTIONS:
            return [Reply(context.ticket, self._described(request.transactional_ids))]
        if context.api is Api.LIST_TRANSACTIONS:
            return [Reply(context.ticket, self._listed(request, now))]
        return self._runtime.handle(ROUTES[context.api], context, request, now)

    def on_timer(self, key: TimerKey, now: Now) -> list[TransactionCoordinatorEffect]:
        """A timer has fired. One that is not armed any more does nothing."""
        return self._runtime.submit(str(key[1]), TimerFired(key), now)

    def on_markers_written(self, transactional_id: str, now: Now) -> list[TransactionCoordinatorEffect]:
        """Every partition of a transaction that still exists has its marker."""
        return self._runtime.submit(transactional_id, BackgroundTask(completion_timer(transactional_id)), now)

    def on_appended(self, partition: int, batch: int, now: Now) -> list[TransactionCoordinatorEffect]:
        """The records of an ``Append`` are in the log."""
        return self._runtime.on_appended(partition, batch, now)

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[TransactionCoordinatorEffect]:
        """The records of an ``Append`` are not in the log: nothing of it has happened, and its client shall ask again."""
        return self._runtime.on_append_failed(partition, batch, error, now)

    def start_loading(self, partition: int) -> None:
        """The log of a partition is being read: requests for its ids are answered with "loading"."""
        self._runtime.start_loading(partition)

    def unload(self, partition: int) -> list[TransactionCoordinatorEffect]:
        """Stop serving a partition's ids: waiting requests are answered with NOT_COORDINATOR, and timers are removed."""
        return self._runtime.unload(partition)

    def load(self, partition: int, records: Iterable[tuple[bytes, bytes | None]], now: Now) -> list[TransactionCoordinatorEffect]:
        """Take a partition over with the records of its log, oldest first, and serve its ids from now on.

        Transactions that were prepared are completed. Raises ``ProtocolError`` for a damaged record; the partition is not served
        then, and can be loaded again.
        """
        shard = TransactionShard(self._context)
        shard.state.load(records)
        return self._runtime.load(partition, shard, now)

    def transactions(self) -> dict[str, Transaction]:
        """All transactional ids as they are now."""
        return {name: one for state in self._states() for name, one in state.transactions().items()}

    def durable_state(self) -> dict[str, TransactionLogValue]:
        """What the log holds of each transactional id."""
        return {name: value for state in self._states() for name, value in state.durable().items()}

    def armed_timers(self) -> dict[TimerKey, int]:
        """All timers that are set, and when they are due (milliseconds on the monotonic clock)."""
        return self._runtime.armed_timers()

    def _states(self) -> list[PartitionState]:
        return [served.shard.state for served in self._runtime.all_served()]

    def _described(self, transactional_ids: Iterable[str]) -> describe_transactions_response.DescribeTransactionsResponse:
        told = []
        for transactional_id in transactional_ids:
            served = self._runtime.served(self.partition_for(transactional_id))
            error = self._runtime.absence(transactional_id) if transactional_id else ErrorCode.invalid_request
            transaction = served.shard.state.transactions().get(transactional_id) if served is not None else None
            told.append(describe_transaction(transactional_id, transaction if error is None else None, error))
        return describe_transactions_response.DescribeTransactionsResponse(
            throttle_time=NO_THROTTLE, transaction_states=tuple(told)
        )

    def _listed(self, request: Any, now: Now) -> Any:
        if self._runtime.is_loading:
            return list_refused(ErrorCode.coordinator_load_in_progress)
        return list_transactions(request, self.transactions().values(), now)
