"""Behaviours that tests of Apache Kafka's producer check, and no other test of this folder: see docs/acceptance-producer.md."""

from __future__ import annotations

import pytest

from ottla.client.effects import AnySend
from ottla.client.produce.outcome import Outcome
from ottla.client.produce.transactions.commands import Begin
from ottla.client.produce.transactions.states import TransactionState as State
from ottla.errors import (
    CommitFailedError,
    DisconnectedError,
    OttlaTimeoutError,
    ProducerFencedError,
    TransactionAbortedError,
    UnsupportedApiError,
    error_class,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import ConsumerGroupMetadata
from tests.unit.client.managers import LEADERS, T0, T1, T2
from tests.unit.client.producing import Batch, batches, error, is_done, result
from tests.unit.client.transacting import Transacts, failed, found_coordinator, succeeded

OF_COORDINATOR = [
    (1, Api.ADD_PARTITIONS_TO_TXN),
    (1, Api.ADD_OFFSETS_TO_TXN),
    (1, Api.TXN_OFFSET_COMMIT),
    (1, Api.END_TXN),
    (2, Api.TXN_OFFSET_COMMIT),
    (2, Api.END_TXN),
]
"""The versions of transactions, and the requests to coordinators within one."""

both_versions = pytest.mark.parametrize("version", [1, 2])
each_request = pytest.mark.parametrize(
    ("version", "api"), OF_COORDINATOR, ids=[f"{api.name}-{version}" for version, api in OF_COORDINATOR]
)


def reached(version: int, api: Api) -> tuple[Transacts, Begin, Outcome, AnySend]:
    """A transaction with a record and offsets that is being committed, up to one of its requests."""
    tx = Transacts(version)
    begin = tx.begun()
    tx.write("a")
    tx.commit_offsets(begin)
    committed = tx.commit(begin)
    return tx, begin, committed, tx.next(api)


def ends(tx: Transacts) -> list[bool]:
    return [send.message.committed for send in tx.sent if send.api is Api.END_TXN]


def recovers(tx: Transacts, begin: Begin) -> bool:
    """Whether the producer works after an abort, or after initialize()."""
    tx.go_on(tx.abort(begin) if tx.state is State.ABORTABLE_ERROR else tx.initialize())
    return tx.works()


# -- error codes ----------------------------------------------------------------------------------------------------------


@each_request
@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_either_code_of_fencing_is_one_error(version: int, api: Api, code: int) -> None:
    tx, begin, committed, send = reached(version, api)
    tx.refuse(send, code)
    assert isinstance(failed(committed), ProducerFencedError)
    assert tx.state is State.FATAL_ERROR
    assert recovers(tx, begin)


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_initialize_may_be_fenced(code: int) -> None:
    tx = Transacts()
    initialized = tx.initialize()
    tx.refuse(tx.one(Api.INIT_PRODUCER_ID), code)
    assert isinstance(failed(initialized), ProducerFencedError)
    tx.go_on(tx.initialize())
    assert tx.works()


@both_versions
@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_the_leader_of_a_partition_may_fence(version: int, code: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    tx.refuse(tx.next(Api.PRODUCE), code)
    assert type(error(delivery)) is error_class(code)
    assert isinstance(failed(tx.commit(begin)), ProducerFencedError)
    assert recovers(tx, begin)


@each_request
@pytest.mark.parametrize("code", [ErrorCode.transactional_id_authorization_failed, ErrorCode.unsupported_for_message_format])
def test_what_only_an_operator_can_fix_is_fatal(version: int, api: Api, code: int) -> None:
    tx, begin, committed, send = reached(version, api)
    tx.refuse(send, code)
    assert type(failed(committed).__cause__ or failed(committed)) is error_class(code)
    assert tx.state is State.FATAL_ERROR
    assert recovers(tx, begin)


@pytest.mark.parametrize("code", [ErrorCode.transactional_id_authorization_failed, ErrorCode.cluster_authorization_failed])
@pytest.mark.parametrize("api", [Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID])
def test_initialize_without_authorization_can_be_repeated(api: Api, code: int) -> None:
    tx = Transacts()
    tx.lookup = code if api is Api.FIND_COORDINATOR else 0
    initialized = tx.initialize()
    for send in tx.poll():
        tx.refuse(send, code)
    assert type(failed(initialized)) is error_class(code)
    tx.lookup = 0
    again = tx.initialize()
    tx.go_on(again)
    assert succeeded(again)
    assert tx.works()


@both_versions
def test_a_group_without_authorization_lets_the_transaction_fail(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    offsets = tx.commit_offsets(begin)
    tx.refuse(tx.next(Api.TXN_OFFSET_COMMIT), ErrorCode.group_authorization_failed)
    with pytest.raises(TransactionAbortedError, match="group 'g'") as raised:
        raise failed(offsets)
    assert isinstance(raised.value.cause, error_class(ErrorCode.group_authorization_failed))
    assert tx.state is State.ABORTABLE_ERROR
    assert recovers(tx, begin)


@both_versions
@pytest.mark.parametrize("code", [ErrorCode.fenced_instance_id, ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
def test_the_member_is_named_and_may_be_refused(version: int, code: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    offsets = tx.commit_offsets(begin, ConsumerGroupMetadata("g", 5, "m", "instance"))
    send = tx.next(Api.TXN_OFFSET_COMMIT)
    assert (send.message.generation_id, send.message.member_id, send.message.group_instance_id) == (5, "m", "instance")
    tx.refuse(send, code)
    with pytest.raises(CommitFailedError) as raised:
        raise failed(offsets)
    assert isinstance(raised.value.cause, error_class(code))
    assert recovers(tx, begin)


@each_request
def test_a_coordinator_may_ask_for_an_abort(version: int, api: Api) -> None:
    tx, begin, committed, send = reached(version, api)
    tx.refuse(send, ErrorCode.transaction_abortable)
    with pytest.raises(TransactionAbortedError) as raised:
        raise failed(committed)
    assert isinstance(raised.value.cause, error_class(ErrorCode.transaction_abortable))
    assert tx.state is State.ABORTING_TRANSACTION
    assert recovers(tx, begin)


@pytest.mark.parametrize("api", [Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID])
def test_that_also_ends_initialize(api: Api) -> None:
    tx = Transacts()
    tx.lookup = ErrorCode.transaction_abortable if api is Api.FIND_COORDINATOR else 0
    initialized = tx.initialize()
    for send in tx.poll():
        tx.refuse(send, ErrorCode.transaction_abortable)
    failed(initialized)
    tx.lookup = 0
    tx.go_on(tx.initialize())
    assert tx.works()


@both_versions
@pytest.mark.parametrize("code", [ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable])
def test_the_leader_of_a_partition_may_ask_for_an_abort(version: int, code: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    tx.refuse(tx.next(Api.PRODUCE), code)
    assert type(error(delivery)) is error_class(code)
    assert tx.state is State.ABORTABLE_ERROR
    assert recovers(tx, begin)


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("api", [Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN])
def test_a_coordinator_that_refuses_the_state_is_fatal_before_the_commit(api: Api, commits: bool) -> None:
    tx = Transacts(1)
    begin = tx.begun()
    tx.write("a")
    tx.commit_offsets(begin)
    committed = tx.commit(begin) if commits else None
    tx.refuse(tx.next(api), ErrorCode.invalid_txn_state)
    assert tx.state is (State.ABORTING_TRANSACTION if commits else State.FATAL_ERROR)
    reason = failed(tx.commit(begin) if committed is None else committed)
    assert type(reason) is (TransactionAbortedError if commits else error_class(ErrorCode.invalid_txn_state))
    assert recovers(tx, begin)


@pytest.mark.parametrize("api", [Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN])
def test_a_coordinator_that_has_forgotten_the_producer_gives_it_another_epoch(api: Api) -> None:
    tx, begin, committed, send = reached(1, api)
    tx.refuse(send, ErrorCode.invalid_producer_id_mapping)
    assert isinstance(failed(committed), TransactionAbortedError)
    tx.go_on(tx.abort(begin))
    assert ends(tx) == [], "there is nothing to end"
    tx.begun()
    tx.write("b")
    assert batches(tx.next(Api.PRODUCE)) == {T0: Batch(5, 0, ["b"])}


@each_request
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    ],
)
def test_what_passes_is_repeated(version: int, api: Api, code: int) -> None:
    tx, _, committed, send = reached(version, api)
    tx.refuse(send, code)
    again = tx.next(api)
    assert again.message == send.message
    tx.succeed(again)
    tx.go_on(committed)
    assert succeeded(committed)


def test_brokers_without_look_ups_of_transactions() -> None:
    tx = Transacts()
    tx.lookup = None
    initialized = tx.initialize()
    tx.poll()
    tx.fail(tx.lookups.pop(), UnsupportedApiError("the broker is too old"))
    assert isinstance(failed(initialized), UnsupportedApiError)


@pytest.mark.parametrize("code", [None, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress])
def test_a_look_up_is_repeated(code: int | None) -> None:
    tx = Transacts()
    tx.lookup = None
    initialized = tx.initialize()
    tx.poll()
    (send,) = tx.lookups
    if code is None:
        tx.fail(send, DisconnectedError("the connection broke"))
    else:
        tx.answer(send, found_coordinator(send, code))
    tx.lookup = 0
    tx.go_on(initialized)
    assert succeeded(initialized)
    assert len(tx.lookups) == 2


# -- what is sent, and when -----------------------------------------------------------------------------------------------


@both_versions
def test_a_commit_sends_what_lingers_and_the_next_transaction_lingers_again(version: int) -> None:
    tx = Transacts(version, linger_ms=100)
    for _ in range(2):
        begin = tx.begun()
        tx.write("a")
        tx.go_on(lambda: not tx.poll())
        lingered = tx.mono + 50
        while tx.mono < lingered:
            assert Api.PRODUCE not in [send.api for send in tx.poll()]
            tx.mono += 10
        committed = tx.commit(begin)
        started = tx.mono
        tx.succeed(tx.next(Api.PRODUCE))
        assert tx.mono - started < 20
        tx.go_on(committed)


@both_versions
def test_a_commit_waits_for_records_in_flight_and_for_those_behind_them(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written("first")
    (sent,) = tx.write("sent")
    first = tx.next(Api.PRODUCE)
    (queued,) = tx.write("queued")
    committed = tx.commit(begin)
    second = tx.next(Api.PRODUCE)
    tx.succeed(second)
    assert tx.poll() == []
    assert (is_done(sent), is_done(queued)) == (False, True)
    tx.succeed(first)
    tx.succeed(tx.one(Api.END_TXN))
    assert succeeded(committed)


@both_versions
def test_an_abort_before_anything_was_sent_sends_nothing(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    tx.commit_offsets(begin)
    before = len(tx.sent)
    aborted = tx.abort(begin)
    assert tx.poll() == []
    assert succeeded(aborted)
    assert len(tx.sent) == before
    assert isinstance(error(delivery), TransactionAbortedError)


@pytest.mark.parametrize("api", [Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN])
def test_an_abort_succeeds_if_all_that_was_asked_was_refused(api: Api) -> None:
    tx = Transacts(1)
    begin = tx.begun()
    if api is Api.ADD_PARTITIONS_TO_TXN:
        tx.write("a")
    else:
        tx.commit_offsets(begin)
    tx.refuse(tx.next(api), ErrorCode.topic_authorization_failed)
    aborted = tx.abort(begin)
    tx.refuse(tx.next(Api.END_TXN), ErrorCode.invalid_txn_state)
    assert succeeded(aborted)
    assert tx.works()


def test_an_abort_while_partitions_are_being_added() -> None:
    tx = Transacts(1)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    tx.refuse(tx.next(Api.ADD_PARTITIONS_TO_TXN), ErrorCode.coordinator_load_in_progress)
    aborted = tx.abort(begin)
    tx.go_on(aborted)
    assert succeeded(aborted)
    assert ends(tx) == [False], "the coordinator may have added them"
    assert isinstance(error(delivery), TransactionAbortedError)
    assert tx.works()


@both_versions
def test_a_failure_while_the_transaction_is_aborted_changes_nothing(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    produce = tx.next(Api.PRODUCE)
    aborted = tx.abort(begin)
    tx.refuse(produce, ErrorCode.out_of_order_sequence_number)
    assert is_done(delivery)
    assert tx.state is State.ABORTING_TRANSACTION
    tx.go_on(aborted)
    assert succeeded(aborted)
    assert tx.works()


@both_versions
def test_a_transaction_that_has_to_be_aborted_sends_no_more_records(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written("first", to=T1)
    tx.write("refused")
    refused = tx.next(Api.PRODUCE)
    (queued,) = tx.write("queued", to=T1)
    tx.refuse(refused, ErrorCode.invalid_record)
    assert isinstance(error(queued), TransactionAbortedError)
    assert tx.poll() == []
    tx.go_on(tx.abort(begin))
    assert tx.works()


# -- records without an outcome -------------------------------------------------------------------------------------------


@both_versions
@pytest.mark.parametrize("commits", [False, True])
def test_records_that_expire_let_the_transaction_fail(version: int, commits: bool) -> None:
    tx = Transacts(version, delivery_timeout_ms=5_000, request_timeout_ms=3_000)
    begin, _ = tx.written("first")
    tx.cluster.tell(tx.mono, leaders={T1: 2})
    deliveries = [*tx.write("a", "b"), *tx.write("c", to=T2)]
    committed = tx.commit(begin) if commits else None
    tx.go_on(lambda: all(map(is_done, deliveries)))
    assert isinstance(error(deliveries[0]), OttlaTimeoutError)
    assert tx.state is (State.READY if commits else State.ABORTABLE_ERROR), "a commit that fails aborts"
    with pytest.raises(TransactionAbortedError):
        raise failed(tx.commit(begin) if committed is None else committed)
    assert True not in ends(tx)
    tx.cluster.tell(tx.mono, leaders=LEADERS)
    assert recovers(tx, begin)


@both_versions
def test_a_refusal_of_a_record_that_has_expired_changes_nothing(version: int) -> None:
    tx = Transacts(version, delivery_timeout_ms=5_000, request_timeout_ms=5_000)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    produce = tx.next(Api.PRODUCE)
    tx.mono += 5_000
    tx.poll()
    assert isinstance(error(delivery), OttlaTimeoutError)
    tx.refuse(produce, ErrorCode.invalid_txn_state)
    assert tx.state is State.ABORTABLE_ERROR
    tx.go_on(tx.abort(begin))
    tx.go_on(lambda: tx.state is State.READY)
    assert tx.works()


@both_versions
def test_a_batch_too_large_is_divided_within_the_transaction(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    deliveries = tx.write("a", "b")
    tx.refuse(tx.next(Api.PRODUCE), ErrorCode.message_too_large)
    committed = tx.commit(begin)
    found: list[Batch] = []

    def answer(send: AnySend) -> None:
        if send.api is Api.PRODUCE:
            found.extend(batches(send).values())
        tx.succeed(send)

    tx.go_on(committed, answer=answer)
    assert succeeded(committed)
    assert sorted(found) == [Batch(4, 0, ["a"]), Batch(4, 1, ["b"])]
    assert all(result(delivery).offset >= 0 for delivery in deliveries)
