"""DescribeTransactions and ListTransactions: what the coordinator knows, for operators.

Owns the descriptions of transactional ids. Reads state, writes none.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ottla.coordinator.api_error import ApiError
from ottla.coordinator.consumer.regex import check_regex, resolve_all
from ottla.coordinator.effects import ResolveRegexes
from ottla.coordinator.transactions.transaction import STATUS, Transaction, TransactionState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import describe_transactions_response, list_transactions_request, list_transactions_response
from ottla.types import Now

_NAMES = {state.value for state in STATUS}


def describe_transaction(
    transactional_id: str, transaction: Transaction | None, refused: ErrorCode | None
) -> describe_transactions_response.TransactionState:
    """One transactional id, or why it cannot be described."""
    if transaction is None:
        return describe_transactions_response.TransactionState(
            error_code=refused or ErrorCode.transactional_id_not_found,
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
    """The transactional ids that pass all filters of the request; an empty filter lets everything pass."""
    unknown = tuple(name for name in request.state_filters if name not in _NAMES)
    known = list(transactions)
    try:
        fitting = _fitting(request.transactional_id_pattern, tuple(one.transactional_id for one in known))
    except ApiError:
        return list_refused(ErrorCode.invalid_regular_expression)
    found = tuple(
        list_transactions_response.TransactionState(
            transactional_id=one.transactional_id, producer_id=one.producer_id, transaction_state=one.state.value
        )
        for one in known
        if (not request.state_filters or one.state.value in request.state_filters)
        and (not request.producer_id_filters or one.producer_id in request.producer_id_filters)
        and (request.duration_filter < 0 or _runs_longer(one, request.duration_filter, now))
        and (fitting is None or one.transactional_id in fitting)
    )
    return list_transactions_response.ListTransactionsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, unknown_state_filters=unknown, transaction_states=found
    )


def list_refused(error: ErrorCode) -> list_transactions_response.ListTransactionsResponse:
    """The answer where nothing can be listed."""
    return list_transactions_response.ListTransactionsResponse(
        throttle_time=NO_THROTTLE, error_code=error, unknown_state_filters=(), transaction_states=()
    )


def _fitting(pattern: str | None, transactional_ids: tuple[str, ...]) -> frozenset[str] | None:
    """The ids that a pattern matches as a whole; ``None`` where there is no pattern. Raises ``ApiError`` for a bad one."""
    if not pattern:
        return None
    check_regex(pattern)
    matches = resolve_all(ResolveRegexes("", (pattern,), transactional_ids, 0))
    return frozenset(matches.topics[pattern] if matches is not None else ())


def _runs_longer(transaction: Transaction, duration: int, now: Now) -> bool:
    is_open = transaction.state is TransactionState.ONGOING
    return is_open and now.wall - transaction.started_at > duration
