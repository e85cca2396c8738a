"""DescribeTransactions and ListTransactions.

Owns the descriptions of transactional ids. Invariant: a description changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ottla.coordinator.consumer.regex import check_regex, resolve_all
from ottla.coordinator.effects import ApiError, ResolveRegexes
from ottla.coordinator.transactions.transaction import STATUS, Transaction, TransactionState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import describe_transactions_response, list_transactions_request, list_transactions_response
from ottla.types import Now

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
        and (request.duration_filter < 0 or _runs_longer(one, request.duration_filter, now))
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


def _runs_longer(transaction: Transaction, duration: int, now: Now) -> bool:
    is_open = transaction.state is TransactionState.ONGOING
    return is_open and now.wall - transaction.started_at > duration
