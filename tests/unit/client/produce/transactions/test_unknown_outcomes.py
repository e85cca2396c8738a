"""What commit() says of a transaction when EndTxn gets no clear answer: never more than is certain."""

from __future__ import annotations

import pytest

from ottla.client.produce.transactions.requests import NOT_ENDED, TransactionReaction, reaction_to
from ottla.client.produce.transactions.states import TransactionState as State
from ottla.errors import (
    DisconnectedError,
    OttlaError,
    OttlaTimeoutError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    UnsupportedApiError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.unit.client.transacting import MAX_BLOCK, Transacts, failed, succeeded

LOST = DisconnectedError("the connection broke")
RETRIED = frozenset(
    code
    for code in map(int, ErrorCode)
    if code and reaction_to(code) in (TransactionReaction.RETRY, TransactionReaction.FIND_COORDINATOR)
)
FINAL = sorted({int(code) for code in ErrorCode if code} - RETRIED)
"""The codes after which EndTxn is not repeated."""

both_versions = pytest.mark.parametrize("version", [1, 2])


def ends(tx: Transacts) -> list[bool]:
    return [send.message.committed for send in tx.sent if send.api is Api.END_TXN]


@both_versions
def test_a_lost_response_is_resolved_by_a_repetition(version: int) -> None:
    tx = Transacts(version)
    _, committed, end = tx.ending()
    tx.fail(end, LOST)
    again = tx.next(Api.END_TXN)
    assert (again.message, again.requires, again.excludes) == (end.message, end.requires, end.excludes)
    tx.succeed(again)
    assert succeeded(committed)
    assert tx.works()


@both_versions
def test_after_a_lost_response_no_error_says_more_than_it_knows(version: int) -> None:
    for code in FINAL:
        tx = Transacts(version)
        _, committed, end = tx.ending()
        tx.fail(end, LOST)
        tx.refuse(tx.next(Api.END_TXN), code)
        error = failed(committed)
        if code == ErrorCode.invalid_txn_state:
            assert isinstance(error, TransactionAbortedError), "the coordinator has aborted it"
            continue
        assert tx.state is State.FATAL_ERROR
        assert isinstance(error, TransactionOutcomeUnknownError), code
        assert "whether the transaction was committed is not known: " in str(error)
        tx.go_on(tx.initialize())
        assert tx.works()


@both_versions
def test_without_a_lost_response_only_some_errors_say_that_it_was_not_committed(version: int) -> None:
    for code in FINAL:
        tx = Transacts(version)
        begin, committed, end = tx.ending()
        tx.refuse(end, code)
        error = failed(committed)
        assert isinstance(error, TransactionOutcomeUnknownError) is (code not in NOT_ENDED), code
        if isinstance(error, TransactionAbortedError):
            tx.go_on(tx.abort(begin))
        else:
            assert tx.state is State.FATAL_ERROR
            tx.go_on(tx.initialize())
        assert tx.works()


@both_versions
def test_a_request_that_was_not_sent_leaves_no_doubt(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    committed, tx.leaves = tx.commit(begin), False
    tx.fail(tx.one(Api.END_TXN), LOST)
    tx.leaves = True
    tx.refuse(tx.next(Api.END_TXN), ErrorCode.producer_fenced)
    assert isinstance(failed(committed), ProducerFencedError)


@both_versions
@pytest.mark.parametrize("code", [ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.request_timed_out])
def test_a_coordinator_that_has_not_heard_from_its_replicas_may_have_committed(code: int, version: int) -> None:
    tx = Transacts(version)
    begin, committed, end = tx.ending()
    tx.refuse(end, code)
    tx.refuse(tx.next(Api.END_TXN), ErrorCode.producer_fenced)
    assert isinstance(failed(committed), TransactionOutcomeUnknownError)

    tx = Transacts(version)
    begin, committed, end = tx.ending()
    while not committed.done:
        tx.refuse(end, code)
        end = tx.next(Api.END_TXN) if not committed.done else end
        if tx.mono > MAX_BLOCK:
            break
    tx.refuse(end, code)
    assert isinstance(failed(committed), TransactionOutcomeUnknownError)
    committed = tx.commit(begin)
    tx.succeed(tx.next(Api.END_TXN))
    assert succeeded(committed)


@both_versions
def test_a_response_that_is_late(version: int) -> None:
    """The deadline passes while EndTxn is in flight: commit() may be called again, and the next transaction waits."""
    tx = Transacts(version)
    begin, committed, end = tx.ending()
    tx.mono += MAX_BLOCK
    tx.poll()
    with pytest.raises(TransactionOutcomeUnknownError, match=r"whether the transaction is committed was not known within 60 s"):
        raise failed(committed)
    assert "commit() waits for the outcome again, and so does the next transaction" in str(failed(committed).hint)
    assert tx.state is State.COMMITTING_TRANSACTION
    again, following = tx.commit(begin), tx.begin()
    tx.poll()
    assert not again.done
    assert not following.outcome.done
    tx.succeed(end)
    assert succeeded(again)
    assert succeeded(following.outcome)
    assert ends(tx) == [True]


@both_versions
def test_commit_again_after_the_outcome_has_come(version: int, caplog: pytest.LogCaptureFixture) -> None:
    tx = Transacts(version)
    begin, _, end = tx.ending()
    tx.mono += MAX_BLOCK
    tx.poll()
    with caplog.at_level("INFO", "ottla"):
        tx.succeed(end)
    assert "the latest transaction of 'tx' was committed" in caplog.text
    assert succeeded(tx.commit(begin))
    assert succeeded(tx.commit(begin))
    failed(tx.abort(begin))


@both_versions
def test_a_request_that_waits_for_a_connection_may_still_be_executed(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    committed, tx.leaves = tx.commit(begin), False
    end = tx.one(Api.END_TXN)
    tx.mono += MAX_BLOCK
    tx.poll()
    assert isinstance(failed(committed), TransactionOutcomeUnknownError)
    failed(tx.abort(begin))
    tx.succeed(end)
    assert succeeded(tx.commit(begin))


@both_versions
def test_without_a_coordinator_the_transaction_is_surely_not_committed(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    tx.leaves = False
    committed = tx.commit(begin)
    tx.fail(tx.one(Api.END_TXN), LOST)
    tx.lookup = ErrorCode.coordinator_not_available
    tx.go_on(committed)
    with pytest.raises(TransactionAbortedError, match="the transaction was not committed within 60 s"):
        raise failed(committed)
    aborted = tx.abort(begin)
    tx.lookup, tx.leaves = 0, True
    tx.go_on(aborted)
    assert ends(tx) == [True, False]
    assert tx.works()


@both_versions
def test_a_coordinator_that_never_lets_it_end_has_not_committed(version: int) -> None:
    tx = Transacts(version)
    begin, committed, end = tx.ending()
    tx.refuse(end, ErrorCode.concurrent_transactions)
    count = tx.go_on(committed, answer=lambda send: tx.refuse(send, ErrorCode.concurrent_transactions))
    assert isinstance(failed(committed), TransactionAbortedError)
    assert count <= MAX_BLOCK // 600 + 5
    tx.go_on(tx.abort(begin))
    assert tx.works()


@both_versions
def test_an_old_broker_that_was_asked_after_a_lost_response(version: int) -> None:
    tx = Transacts(version)
    _, committed, end = tx.ending()
    tx.fail(end, LOST)
    tx.leaves = False
    tx.fail(tx.next(Api.END_TXN), UnsupportedApiError("the broker is too old"))
    assert isinstance(failed(committed), TransactionOutcomeUnknownError)


@both_versions
def test_a_look_up_that_is_refused_after_a_lost_response(version: int) -> None:
    tx = Transacts(version)
    _, committed, end = tx.ending()
    tx.lookup = ErrorCode.transactional_id_authorization_failed
    tx.fail(end, LOST)
    tx.go_on(committed)
    assert isinstance(failed(committed), TransactionOutcomeUnknownError)


@both_versions
def test_a_lost_response_of_an_abort(version: int) -> None:
    tx = Transacts(version)
    _, aborted, end = tx.ending(commit=False)
    tx.fail(end, LOST)
    tx.succeed(tx.next(Api.END_TXN))
    assert succeeded(aborted)
    assert ends(tx) == [False, False]
    assert tx.works()


@both_versions
def test_an_abort_that_is_late_goes_on(version: int) -> None:
    tx = Transacts(version)
    begin, aborted, end = tx.ending(commit=False)
    tx.mono += MAX_BLOCK
    tx.poll()
    with pytest.raises(OttlaTimeoutError, match="the transaction is being aborted, but not ended within 60 s"):
        raise failed(aborted)
    again, following = tx.abort(begin), tx.begin()
    tx.succeed(end)
    assert succeeded(again)
    assert succeeded(following.outcome)


@both_versions
def test_a_doubt_is_not_one_of_the_next_transaction(version: int) -> None:
    tx = Transacts(version)
    _, committed, end = tx.ending()
    tx.fail(end, LOST)
    tx.succeed(tx.next(Api.END_TXN))
    assert succeeded(committed)
    _, committed, end = tx.ending()
    tx.refuse(end, ErrorCode.producer_fenced)
    error: OttlaError = failed(committed)
    assert isinstance(error, ProducerFencedError)
