"""The transaction coordinator, as the broker's core uses it: requests, timers, outcomes of appends and markers in, effects out.

Owns the requests about several transactional ids (DescribeTransactions, ListTransactions). Must not know the handlers of single
ids, sockets, clocks or logs. Invariants: every request is answered once; a description changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar

from ottla.coordinator.consumer.regex import check_regex, resolve_all
from ottla.coordinator.effects import ApiError, Append, Reply, RequestContext, ResolveRegexes, TimerKey
from ottla.coordinator.runtime import BackgroundTask, CoordinatorRuntime, Route, TimerFired
from ottla.coordinator.transactions.decision import DecisionEffect, TransactionContext, completion_timer
from ottla.coordinator.transactions.shard import ROUTES, PartitionState, TransactionShard
from ottla.coordinator.transactions.transaction import STATUS, Transaction
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_transactions_response, list_transactions_request, list_transactions_response
from ottla.protocol.transaction_records import TransactionLogValue
from ottla.types import Now

TransactionCoordinatorEffect = DecisionEffect | Append | Reply


class TransactionCoordinator:
    """Serves transactional ids.

    Load each partition of ``__transaction_state`` (``load``, with no records if it is new) before its ids are served. Report the
    outcome of an ``Append`` with ``on_appended`` or ``on_append_failed``, that of ``WriteMarkers`` with ``on_markers_written``, in
    any order, and a timer with ``on_timer``; the keys of its timers begin with ``decision.TRANSACTIONS``.
    """

    APIS: ClassVar[frozenset[Api]] = frozenset({*ROUTES, Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS})
    """The APIs that ``handle`` serves."""

    def __init__(self, coordinator: TransactionContext) -> None:
        self._context = coordinator
        self._runtime: CoordinatorRuntime[TransactionShard, DecisionEffect] = CoordinatorRuntime(
            "__transaction_state", coordinator.config.state_topic_partitions, coordinator.config.append_retry_backoff_ms
        )

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of ``__transaction_state`` with a transactional id."""
        return self._runtime.partition_for(transactional_id)

    def handle(self, context: RequestContext, request: Any, now: Now) -> list[TransactionCoordinatorEffect]:
        """Serve a request of one of ``APIS``; its ``Reply`` is among these effects or among those of a later call."""
        if context.api is Api.DESCRIBE_TRANSACTIONS:
            return [Reply(context.ticket, self._described(request.transactional_ids))]
        if context.api is Api.LIST_TRANSACTIONS:
            return [Reply(context.ticket, self._listed(request, now))]
        return self._runtime.handle(ROUTES[context.api], context, request, now)

    @property
    def partition_count(self) -> int:
        """The partition count of ``__transaction_state``."""
        return self._context.config.state_topic_partitions

    def refuse(self, context: RequestContext, request: Any, error: ErrorCode) -> Reply:
        """Return the response with an error to a request about transactional ids."""
        route = ROUTES[context.api]
        if isinstance(route, Route):
            return Reply(context.ticket, route.refuse(context, request, error))
        parts = tuple(route.part.refuse(context, part, error) for part in route.split(request))
        return Reply(context.ticket, route.join(parts))

    def on_timer(self, key: TimerKey, now: Now) -> list[TransactionCoordinatorEffect]:
        """Handle a timer that has fired; a stale one has no effect."""
        return self._runtime.submit(str(key[1]), TimerFired(key), now)

    def on_markers_written(self, transactional_id: str, now: Now) -> list[TransactionCoordinatorEffect]:
        """Complete a transaction: all of its partitions that still exist have their marker."""
        return self._runtime.submit(transactional_id, BackgroundTask(completion_timer(transactional_id)), now)

    def on_appended(self, partition: int, batch: int, now: Now) -> list[TransactionCoordinatorEffect]:
        """Apply and answer an operation whose records are in the log now."""
        return self._runtime.on_appended(partition, batch, now)

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[TransactionCoordinatorEffect]:
        """Answer an operation whose records could not be appended with a retriable error; the state does not change."""
        return self._runtime.on_append_failed(partition, batch, error, now)

    def start_loading(self, partition: int) -> None:
        """Answer requests for a partition's ids with COORDINATOR_LOAD_IN_PROGRESS while its log is read."""
        self._runtime.start_loading(partition)

    def unload(self, partition: int) -> list[TransactionCoordinatorEffect]:
        """Stop serving a partition's ids: answer waiting requests with NOT_COORDINATOR, and cancel timers."""
        return self._runtime.unload(partition)

    def load(self, partition: int, records: Iterable[tuple[bytes, bytes | None]], now: Now) -> list[TransactionCoordinatorEffect]:
        """Load a partition from the records of its log, oldest first, and serve its ids from now on.

        Prepared transactions are completed. Raises ``ProtocolError`` for a malformed record; the partition is not served then, and
        can be loaded again.
        """
        shard = TransactionShard(self._context)
        shard.state.load(records)
        return self._runtime.load(partition, shard, now)

    def transactions(self) -> dict[str, Transaction]:
        """Return all transactional ids with their current state."""
        return {name: transaction for state in self._states() for name, transaction in state.transactions().items()}

    def durable_state(self) -> dict[str, TransactionLogValue]:
        """Return the part of the state that the log holds: the last record of each transactional id."""
        return {name: value for state in self._states() for name, value in state.durable().items()}

    def armed_timers(self) -> dict[TimerKey, int]:
        """Return all timers that are set, with their deadlines (milliseconds on the monotonic clock)."""
        return self._runtime.armed_timers()

    def _states(self) -> list[PartitionState]:
        return [served.shard.state for served in self._runtime.all_served()]

    def _described(self, transactional_ids: Iterable[str]) -> describe_transactions_response.DescribeTransactionsResponse:
        described = []
        for transactional_id in transactional_ids:
            served = self._runtime.served(self.partition_for(transactional_id))
            error = self._runtime.unavailable_error(transactional_id) if transactional_id else ErrorCode.invalid_request
            transaction = served.shard.state.transactions().get(transactional_id) if served is not None else None
            described.append(describe_transaction(transactional_id, transaction if error is None else None, error))
        return describe_transactions_response.DescribeTransactionsResponse(
            throttle_time=NO_THROTTLE, transaction_states=tuple(described)
        )

    def _listed(self, request: Any, now: Now) -> Any:
        if self._runtime.is_loading:
            return list_refused(ErrorCode.coordinator_load_in_progress)
        return list_transactions(request, self.transactions().values(), now)


_NAMES = {state.value for state in STATUS}


def describe_transaction(
    transactional_id: str, transaction: Transaction | None, error: ErrorCode | None
) -> describe_transactions_response.TransactionState:
    """Return the description of one transactional id, or the error if there is none."""
    if transaction is None:
        return describe_transactions_response.TransactionState(
            error_code=error or ErrorCode.transactional_id_not_found,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout=timedelta(0),
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=(),
        )
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return describe_transactions_response.TransactionState(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout=timedelta(milliseconds=transaction.timeout_ms),
        transaction_start_time_ms=transaction.started_at,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=tuple(
            describe_transactions_response.TopicData(topic=topic, partitions=tuple(numbers)) for topic, numbers in by_topic.items()
        ),
    )


def list_transactions(
    request: list_transactions_request.ListTransactionsRequest, transactions: Iterable[Transaction], now: Now
) -> list_transactions_response.ListTransactionsResponse:
    """Return the transactional ids that pass all filters of the request; an empty filter passes everything."""
    unknown = tuple(name for name in request.state_filters if name not in _NAMES)
    candidates = list(transactions)
    try:
        matching = _matching_ids(request.transactional_id_pattern, tuple(one.transactional_id for one in candidates))
    except ApiError:
        return list_refused(ErrorCode.invalid_regular_expression)
    listed = tuple(
        list_transactions_response.TransactionState(
            transactional_id=one.transactional_id, producer_id=one.producer_id, transaction_state=one.state.value
        )
        for one in candidates
        if (not request.state_filters or one.state.value in request.state_filters)
        and (not request.producer_id_filters or one.producer_id in request.producer_id_filters)
        # As Kafka does, whether the transaction is open or not; without one, it counts as begun long ago.
        and (request.duration_filter < 0 or now.wall - one.started_at > request.duration_filter)
        and (matching is None or one.transactional_id in matching)
    )
    return list_transactions_response.ListTransactionsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, unknown_state_filters=unknown, transaction_states=listed
    )


def list_refused(error: ErrorCode) -> list_transactions_response.ListTransactionsResponse:
    """Return the response with an error to a ListTransactions."""
    return list_transactions_response.ListTransactionsResponse(
        throttle_time=NO_THROTTLE, error_code=error, unknown_state_filters=(), transaction_states=()
    )


def _matching_ids(pattern: str | None, transactional_ids: tuple[str, ...]) -> frozenset[str] | None:
    """Return the ids that a pattern matches as a whole; ``None`` if there is no pattern. Raises ``ApiError`` for an invalid one."""
    if not pattern:
        return None
    check_regex(pattern)
    matches = resolve_all(ResolveRegexes("", (pattern,), transactional_ids, 0))
    return frozenset(matches.topics[pattern] if matches is not None else ())
