"""What another epoch needs: initialize(), fencing, forgotten transactions, another version of transactions, and prepare()."""

from __future__ import annotations

import pytest

from ottla import Prepared
from ottla.client.effects import AnySend, ToCoordinator
from ottla.client.produce.sequences import ProducerIdAndEpoch
from ottla.client.produce.transactions.states import TransactionState as State
from ottla.errors import (
    DisconnectedError,
    IllegalStateError,
    OttlaTimeoutError,
    ProducerFencedError,
    TransactionAbortedError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule
from tests.unit.client.managers import T2
from tests.unit.client.producing import PRODUCER_ID, is_done
from tests.unit.client.transacting import ID, Transacts, failed, succeeded

LOST = DisconnectedError("the connection broke")

both_versions = pytest.mark.parametrize("version", [1, 2])


def apis(tx: Transacts) -> list[Api]:
    return [send.api for send in tx.sent if send.api is not Api.FIND_COORDINATOR]


def fields(send: AnySend) -> tuple[str, int, int]:
    return send.message.transactional_id, send.message.producer_id, send.message.producer_epoch


# -- initialize -----------------------------------------------------------------------------------------------------------


def test_initialize_ends_what_a_predecessor_has_left() -> None:
    tx = Transacts()
    outcome = tx.initialize()
    send = tx.one(Api.INIT_PRODUCER_ID)
    assert (send.target, fields(send)) == (ToCoordinator(1), (ID, -1, -1))
    assert send.message.transaction_timeout.total_seconds() == 60
    tx.refuse(send, ErrorCode.concurrent_transactions)
    again = tx.one(Api.INIT_PRODUCER_ID, tx.mono + 20)
    tx.succeed(again)
    assert succeeded(outcome)
    assert tx.sequences is not None
    assert tx.sequences.current == ProducerIdAndEpoch(PRODUCER_ID, 4)


def test_several_calls_of_initialize_share_a_request() -> None:
    tx = Transacts()
    first, second, begin = tx.initialize(), tx.initialize(), tx.begin()
    tx.succeed(tx.one(Api.INIT_PRODUCER_ID))
    assert all(map(succeeded, (first, second, begin.outcome)))


def test_a_producer_that_is_fenced_is_usable_again_after_initialize() -> None:
    tx = Transacts()
    begin = tx.begun()
    (delivery,) = tx.write("a")
    tx.commit_offsets(begin)
    produce, offsets = tx.poll()
    tx.refuse(offsets, ErrorCode.producer_fenced)
    assert tx.state is State.FATAL_ERROR
    with pytest.raises(ProducerFencedError, match="transactional id 'tx' has a newer epoch") as raised:
        raise failed(tx.begin().outcome)
    assert raised.value.fatal
    assert "the transaction took more than 60 s" in str(raised.value.hint)
    initialized = tx.initialize()
    assert tx.poll() == [], "its request could come back in the middle of another transaction"
    tx.fail(produce, LOST)
    assert is_done(delivery)
    tx.succeed(tx.one(Api.INIT_PRODUCER_ID))
    assert succeeded(initialized)
    assert tx.works()


def test_a_transaction_time_out_beyond_the_brokers_limit_is_explained() -> None:
    tx = Transacts(transaction_timeout_ms=3_600_000)
    outcome = tx.initialize()
    tx.refuse(tx.one(Api.INIT_PRODUCER_ID), ErrorCode.invalid_transaction_timeout)
    assert "transaction.timeout.ms is 3600000, and the brokers' transaction.max.timeout.ms" in str(failed(outcome).hint)
    assert tx.state is State.FATAL_ERROR


@pytest.mark.parametrize("api", [Api.TXN_OFFSET_COMMIT, Api.END_TXN])
@both_versions
def test_a_transaction_that_the_coordinator_has_forgotten(version: int, api: Api) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    tx.commit_offsets(begin)
    committed = tx.commit(begin)
    tx.refuse(tx.next(api), ErrorCode.invalid_producer_id_mapping)
    assert isinstance(failed(committed), TransactionAbortedError)
    ends = apis(tx).count(Api.END_TXN)
    aborted = tx.abort(begin)
    tx.go_on(aborted)
    assert apis(tx).count(Api.END_TXN) == ends, "there is nothing to end"
    assert tx.works()
    assert apis(tx).count(Api.INIT_PRODUCER_ID) == 2


def test_an_abort_of_a_transaction_that_the_coordinator_has_forgotten() -> None:
    tx = Transacts()
    _, aborted, end = tx.ending(commit=False)
    tx.refuse(end, ErrorCode.invalid_producer_id_mapping)
    assert succeeded(aborted)
    assert tx.works()


def test_initialize_and_begin_end_at_their_deadlines_with_the_reason() -> None:
    tx = Transacts()
    tx.lookup = ErrorCode.coordinator_not_available
    initialized, begin = tx.initialize(within=1_000), tx.begin(within=2_000)
    tx.go_on(begin.outcome)
    assert tx.mono == 2_000
    with pytest.raises(OttlaTimeoutError, match=r"the producer was not initialized within 60 s: .*COORDINATOR_NOT_AVAILABLE"):
        raise failed(initialized)
    with pytest.raises(OttlaTimeoutError, match=r"no transaction could be begun within 60 s: .*COORDINATOR_NOT_AVAILABLE"):
        raise failed(begin.outcome)
    tx.lookup = 0
    tx.go_on(lambda: tx.state is State.READY)
    assert not tx.accumulator.accepts, "the transaction whose begin() has raised is not begun"
    assert tx.works()


@both_versions
@pytest.mark.parametrize("commit", [False, True])
def test_begin_and_initialize_wait_for_the_end_of_the_transaction_before_up_to_their_deadlines(version: int, commit: bool) -> None:
    tx = Transacts(version)
    _, ended, end = tx.ending(commit=commit)
    started, initialized, begin = tx.mono, tx.initialize(within=1_000), tx.begin(within=1_000)
    tx.go_on(begin.outcome)
    assert tx.mono == started + 1_000
    assert isinstance(failed(initialized), OttlaTimeoutError)
    assert isinstance(failed(begin.outcome), OttlaTimeoutError)
    assert not ended.done
    tx.succeed(end)
    assert succeeded(ended)
    assert tx.works()


# -- versions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_the_version_changes_between_transactions(before: int, after: int) -> None:
    tx = Transacts(before)
    begin, _ = tx.written()
    tx.features = {"transaction.version": after}
    tx.write("b", to=T2)
    tx.go_on(tx.commit(begin))
    ends = [send for send in tx.sent if send.api is Api.END_TXN]
    assert [send.requires for send in ends] == [None if before == 1 else VersionRule.TRANSACTION_V2], "not within one"
    begin = tx.begin()
    send = tx.one(Api.INIT_PRODUCER_ID)
    assert send.message.producer_id == PRODUCER_ID
    tx.succeed(send)
    assert tx.transactions.version == after
    tx.write("c")
    tx.go_on(tx.commit(begin))
    assert apis(tx).count(Api.ADD_PARTITIONS_TO_TXN) == (2 if before == 1 else 1)


def test_without_a_connection_the_version_stays() -> None:
    tx = Transacts(2)
    tx.begun()
    begin = tx.transactions._transaction
    assert begin is not None
    tx.go_on(tx.commit(begin))
    tx.features = None
    tx.begun()
    assert tx.transactions.version == 2
    assert apis(tx) == [Api.INIT_PRODUCER_ID]


@pytest.mark.parametrize("features", [None, {}, {"transaction.version": 0}, {"transaction.version": 1}])
def test_any_other_cluster_has_version_1(features: dict[str, int] | None) -> None:
    tx = Transacts(None)
    tx.features = features
    tx.begun()
    assert tx.transactions.version == 1


# -- prepare --------------------------------------------------------------------------------------------------------------


@both_versions
def test_prepare_ends_nothing_and_the_producer_then_needs_initialize(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    tx.write("a")
    offsets = tx.commit_offsets(begin)
    outcome = tx.prepare(begin)
    produce = tx.next(Api.PRODUCE)
    tx.go_on(offsets)
    tx.poll()
    assert not outcome.done
    tx.succeed(produce)
    tx.poll()
    assert outcome.value == Prepared(ID, PRODUCER_ID, 4, version)
    for refused in (tx.commit(begin), tx.abort(begin), tx.commit_offsets(begin), tx.begin().outcome, tx.prepare(begin)):
        with pytest.raises(IllegalStateError, match="the transaction is prepared"):
            raise failed(refused)
    assert tx.accumulator.append("t", "b", partition=0) is None
    assert tx.close().done
    assert tx.poll() == []
    assert Api.END_TXN not in apis(tx)
    initialized = tx.initialize()
    send = tx.one(Api.INIT_PRODUCER_ID)
    assert fields(send) == (ID, -1, -1), "the transaction is aborted unless it was finished"
    tx.succeed(send)
    assert succeeded(initialized)
    assert tx.works()


def test_prepare_of_nothing() -> None:
    tx = Transacts()
    outcome = tx.prepare(tx.begun())
    tx.poll()
    assert outcome.value == Prepared(ID, PRODUCER_ID, 4, 2, is_empty=True)


@both_versions
def test_prepare_of_a_transaction_that_fails(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    tx.write("a")
    outcome = tx.prepare(begin)
    tx.refuse(tx.next(Api.PRODUCE), ErrorCode.invalid_record)
    assert isinstance(failed(outcome), TransactionAbortedError)
    tx.go_on(tx.abort(begin))
    assert tx.works()
