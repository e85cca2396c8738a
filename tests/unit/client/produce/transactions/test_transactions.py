"""The transactions of a producer: which requests each version sends, in which order, and what the next transaction needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.effects import AnySend, ToCoordinator, ToNode
from ottla.client.produce.outcome import Outcome
from ottla.client.produce.transactions.states import TransactionState as State
from ottla.errors import (
    CommitFailedError,
    DisconnectedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    MessageTooLargeError,
    OttlaError,
    OttlaTimeoutError,
    TransactionAbortedError,
    UnsupportedApiError,
    error_class,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.messages import end_txn_request, find_coordinator_request, txn_offset_commit_request
from ottla.records.header import read_header
from ottla.types import ConsumerGroupMetadata, TopicPartition
from tests.unit.client.managers import T0, T1, T2, unmade
from tests.unit.client.producing import PRODUCER_ID, Batch, batches, error, is_done, result
from tests.unit.client.transacting import ID, Transacts, failed, offsets_answer, partitions_answer, succeeded

LOST = DisconnectedError("the connection broke")

both_versions = pytest.mark.parametrize("version", [1, 2])


def apis(tx: Transacts) -> list[Api]:
    return [send.api for send in tx.sent if send.api is not Api.FIND_COORDINATOR]


def fields(send: AnySend) -> tuple[str, int, int]:
    return fields_of(send.message)


# -- the order of requests ------------------------------------------------------------------------------------------------


def test_version_1_registers_partitions_and_groups_before_it_writes() -> None:
    tx = Transacts(1)
    begin = tx.begun()
    deliveries = [*tx.write("a"), *tx.write("b", to=T1)]
    offsets = tx.commit_offsets(begin)
    committed = tx.commit(begin)
    add = tx.one(Api.ADD_PARTITIONS_TO_TXN)
    (transaction,) = add.message.transactions
    assert fields_of(transaction) == (ID, PRODUCER_ID, 4)
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", (0, 1))]
    assert add.excludes is VersionRule.FROM_BROKER
    tx.succeed(add)
    *writes, group = tx.poll()
    assert [send.target for send in (*writes, group)] == [ToNode(1), ToNode(2), ToCoordinator(1)]
    assert fields(group) == (ID, PRODUCER_ID, 4)
    assert group.message.group_id == "g"
    tx.succeed(group)
    commit = tx.one(Api.TXN_OFFSET_COMMIT)
    assert (commit.target, commit.requires, commit.excludes) == (
        ToCoordinator(2),
        VersionRule.NAMES_MEMBER,
        VersionRule.TRANSACTION_V2,
    )
    assert (commit.message.generation_id, commit.message.member_id) == (7, "member")
    tx.succeed(commit)
    assert succeeded(offsets)
    assert tx.poll() == [], "EndTxn waits for the records"
    for send in writes:
        assert (send.requires, send.excludes, send.message.transactional_id) == (None, VersionRule.TRANSACTION_V2, ID)
        assert all(read_header(part.records).is_transactional for topic in send.message.topic_data for part in topic.partition_data)
        tx.succeed(send)
    end = tx.one(Api.END_TXN)
    assert (fields(end), end.message.committed) == ((ID, PRODUCER_ID, 4), True)
    assert (end.requires, end.excludes) == (None, VersionRule.TRANSACTION_V2)
    tx.succeed(end)
    assert succeeded(committed)
    assert all(map(is_done, deliveries))


def fields_of(message: Any) -> tuple[str, int, int]:
    return message.transactional_id, message.producer_id, message.producer_epoch


def test_version_2_writes_at_once_and_each_transaction_has_another_epoch() -> None:
    tx = Transacts(2)
    for epoch in (4, 5, 6):
        begin = tx.begun()
        tx.write("a")
        send = tx.one(Api.PRODUCE)
        assert send.requires is VersionRule.TRANSACTION_V2
        assert batches(send) == {T0: Batch(epoch, 0, ["a"])}
        tx.succeed(send)
        offsets = tx.commit_offsets(begin)
        commit = tx.one(Api.TXN_OFFSET_COMMIT)
        assert (commit.message.producer_epoch, commit.requires) == (epoch, VersionRule.TRANSACTION_V2)
        tx.succeed(commit)
        assert succeeded(offsets)
        ended = tx.end(begin, commit=epoch != 5)
        end = tx.one(Api.END_TXN)
        assert (end.message.producer_epoch, end.message.committed, end.requires) == (epoch, epoch != 5, VersionRule.TRANSACTION_V2)
        tx.succeed(end)
        assert succeeded(ended)
    assert apis(tx).count(Api.INIT_PRODUCER_ID) == 1


def test_version_1_keeps_its_epoch_and_numbers_and_registers_anew() -> None:
    tx = Transacts(1)
    for sequence in range(3):
        begin = tx.begun()
        tx.write("a")
        send = tx.next(Api.PRODUCE)
        assert batches(send) == {T0: Batch(4, sequence, ["a"])}
        tx.succeed(send)
        tx.go_on(tx.end(begin, commit=sequence != 1))
    assert apis(tx).count(Api.ADD_PARTITIONS_TO_TXN) == 3
    assert apis(tx).count(Api.INIT_PRODUCER_ID) == 1


def test_version_1_adds_later_partitions_and_a_group_once() -> None:
    tx = Transacts(1)
    begin, _ = tx.written(to=T0)
    tx.write("b", to=T2)
    (transaction,) = tx.one(Api.ADD_PARTITIONS_TO_TXN).message.transactions
    assert transaction.topics[0].partitions == (2,)
    tx.succeed(tx.sent[-1])
    tx.go_on(lambda: not tx.accumulator.incomplete)
    for _ in range(2):
        tx.go_on(tx.commit_offsets(begin))
    assert apis(tx).count(Api.ADD_OFFSETS_TO_TXN) == 1
    assert apis(tx).count(Api.TXN_OFFSET_COMMIT) == 2


@both_versions
def test_offsets_of_two_groups(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    outcomes = [tx.commit_offsets(begin), tx.commit_offsets(begin, ConsumerGroupMetadata("other"))]
    committed = tx.commit(begin)
    tx.go_on(committed)
    assert all(map(succeeded, (*outcomes, committed)))
    sent = [send for send in tx.sent if send.api is Api.TXN_OFFSET_COMMIT]
    assert [send.message.group_id for send in sent] == ["g", "other"]
    assert sent[1].requires is (None if version == 1 else VersionRule.TRANSACTION_V2), "old brokers know no members there"
    (topic,) = sent[0].message.topics
    (part,) = topic.partitions
    assert (topic.name, part.partition_index, part.committed_offset, part.committed_leader_epoch) == ("t", 1, 5, -1)


@both_versions
@pytest.mark.parametrize("commit", [False, True])
def test_a_transaction_without_content_sends_nothing(version: int, commit: bool) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    outcome = tx.end(begin, commit=commit)
    tx.poll()
    assert succeeded(outcome)
    assert apis(tx) == [Api.INIT_PRODUCER_ID]


@both_versions
def test_the_next_transaction_begins_while_this_one_ends(version: int) -> None:
    tx = Transacts(version)
    _, committed, end = tx.ending()
    following = tx.begin()
    tx.poll()
    assert not following.outcome.done
    assert not tx.accumulator.accepts
    tx.succeed(end)
    assert succeeded(committed)
    assert succeeded(following.outcome)
    assert tx.accumulator.accepts


def test_only_one_transaction_may_wait_to_begin() -> None:
    tx = Transacts()
    tx.ending()
    tx.begin()
    with pytest.raises(IllegalStateError, match="the transaction is being committed"):
        raise failed(tx.begin().outcome)


# -- the end ---------------------------------------------------------------------------------------------------------------


@both_versions
def test_an_abort_fails_what_is_not_sent_and_waits_for_what_is(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (sent,) = tx.write("sent")
    produce = tx.next(Api.PRODUCE)
    (unsent,) = tx.write("unsent", to=T2)
    aborted = tx.abort(begin)
    assert isinstance(error(unsent), TransactionAbortedError)
    assert [send.api for send in tx.poll() if send.api is Api.END_TXN] == []
    assert not aborted.done
    tx.succeed(produce)
    assert result(sent).offset == 100
    tx.succeed(tx.next(Api.END_TXN))
    assert succeeded(aborted)


@both_versions
def test_an_abort_waits_for_a_request_whose_records_have_expired(version: int) -> None:
    tx = Transacts(version, request_timeout_ms=50_000, delivery_timeout_ms=50_000)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    produce = tx.next(Api.PRODUCE)
    tx.mono += 50_000
    tx.poll()
    assert isinstance(error(delivery), OttlaTimeoutError)
    assert tx.state is State.ABORTABLE_ERROR
    aborted = tx.abort(begin)
    assert tx.poll() == []
    tx.fail(produce, LOST)
    tx.succeed(tx.one(Api.END_TXN))
    assert succeeded(aborted) is (version == 2 or tx.state is State.INITIALIZING)


@both_versions
@pytest.mark.parametrize("lost", [False, True])
def test_a_batch_is_not_sent_again_once_the_transaction_is_aborted(version: int, lost: bool) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    produce = tx.next(Api.PRODUCE)
    aborted = tx.abort(begin)
    if lost:
        tx.fail(produce, LOST)
    else:
        tx.refuse(produce, ErrorCode.not_leader_or_follower)
    assert isinstance(error(delivery), OttlaError)
    tx.go_on(aborted)
    assert apis(tx).count(Api.PRODUCE) == 1


@both_versions
@pytest.mark.parametrize("closes", [False, True])
def test_a_batch_too_large_is_not_divided_once_the_transaction_is_aborted(version: int, closes: bool) -> None:
    """The halves would never be sent, and the end of the transaction would wait for them."""
    tx = Transacts(version)
    begin = tx.begun()
    deliveries = tx.write("a", "b")
    produce = tx.next(Api.PRODUCE)
    aborted = tx.close() if closes else tx.abort(begin)
    tx.refuse(produce, ErrorCode.message_too_large)
    assert all(isinstance(error(delivery), MessageTooLargeError) for delivery in deliveries)
    tx.go_on(aborted, limit=10_000)
    assert succeeded(aborted)
    assert apis(tx).count(Api.PRODUCE) == 1


@both_versions
def test_a_fenced_producer_can_be_initialized_after_a_batch_was_too_large(version: int) -> None:
    tx = Transacts(version)
    tx.begun()
    deliveries = [*tx.write("a", "b"), *tx.write("c", to=T1)]
    writes: list[AnySend] = []
    tx.go_on(lambda: len(writes) == 2, answer=lambda send: writes.append(send) if send.api is Api.PRODUCE else tx.succeed(send))
    (large, fenced) = sorted(writes, key=lambda send: str(send.target))
    tx.refuse(fenced, ErrorCode.producer_fenced)
    initialized = tx.initialize()
    tx.refuse(large, ErrorCode.message_too_large)
    assert all(isinstance(error(delivery), OttlaError) for delivery in deliveries)
    tx.go_on(initialized, limit=10_000)
    assert succeeded(initialized)


@both_versions
def test_after_an_abort_with_records_that_were_not_acknowledged_the_next_epoch_begins(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    tx.write("a")
    produce = tx.next(Api.PRODUCE)
    tx.abort(begin)
    tx.fail(produce, LOST)
    tx.succeed(tx.next(Api.END_TXN))
    if version == 1:
        bump = tx.one(Api.INIT_PRODUCER_ID)
        assert fields(bump) == (ID, PRODUCER_ID, 4)
        assert bump.requires is VersionRule.KEEPS_PRODUCER_ID, "it must not fence a producer that came later"
        tx.succeed(bump)
    tx.begun()
    tx.write("b")
    assert batches(tx.next(Api.PRODUCE)) == {T0: Batch(5, 0, ["b"])}
    assert apis(tx).count(Api.INIT_PRODUCER_ID) == (2 if version == 1 else 1)


def test_after_an_abort_with_acknowledged_records_version_1_goes_on_with_its_numbers() -> None:
    tx = Transacts(1)
    begin, _ = tx.written()
    tx.go_on(tx.abort(begin))
    assert tx.works()
    assert apis(tx).count(Api.INIT_PRODUCER_ID) == 1


def test_brokers_that_cannot_raise_an_epoch_leave_a_producer_that_has_to_be_initialized() -> None:
    tx = Transacts(1)
    begin = tx.begun()
    tx.write("a")
    tx.refuse(tx.next(Api.PRODUCE), ErrorCode.invalid_record)
    tx.abort(begin)
    tx.succeed(tx.next(Api.END_TXN))
    tx.fail(tx.next(Api.INIT_PRODUCER_ID), UnsupportedApiError("the broker is too old"))
    assert tx.state is State.FATAL_ERROR
    initialized = tx.initialize()
    send = tx.one(Api.INIT_PRODUCER_ID)
    assert (fields(send), send.requires) == ((ID, -1, -1), None)
    tx.succeed(send)
    assert succeeded(initialized)
    assert tx.works()


@both_versions
def test_a_failed_record_lets_the_commit_fail(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    tx.write("a")
    committed = tx.commit(begin)
    tx.refuse(tx.next(Api.PRODUCE), ErrorCode.invalid_record)
    with pytest.raises(TransactionAbortedError, match=r"the transaction has to be aborted: writing 1 record to t-0"):
        raise failed(committed)
    assert tx.state is State.ABORTING_TRANSACTION, "the call to commit may have been interrupted: no other one would abort"
    tx.go_on(tx.abort(begin))
    assert [send.message.committed for send in tx.sent if send.api is Api.END_TXN] == [False]
    assert tx.works()


@both_versions
def test_refused_partitions_let_the_transaction_fail_and_its_records(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (first,), (second,) = tx.write("a"), tx.write("b", to=T2)
    if version == 1:
        answer = partitions_answer([(T0, ErrorCode.operation_not_attempted), (T2, ErrorCode.topic_authorization_failed)])
        tx.answer(tx.one(Api.ADD_PARTITIONS_TO_TXN), answer)
        for delivery in (first, second):
            assert isinstance(error(delivery), TransactionAbortedError)
            assert "adding t-2 to the transaction" in str(error(delivery))
    else:
        tx.refuse(tx.one(Api.PRODUCE), ErrorCode.topic_authorization_failed)
    assert tx.state is State.ABORTABLE_ERROR
    aborted = tx.abort(begin)
    # Version 1: the coordinator knows no transaction, and says so.
    tx.refuse(tx.next(Api.END_TXN), ErrorCode.invalid_txn_state if version == 1 else 0)
    assert succeeded(aborted)
    assert tx.works()


def test_an_abort_that_is_refused_although_the_coordinator_knew_the_transaction_is_fatal() -> None:
    tx = Transacts(1)
    _, aborted, end = tx.ending(commit=False)
    tx.refuse(end, ErrorCode.invalid_txn_state)
    failed(aborted)
    assert tx.state is State.FATAL_ERROR


@pytest.mark.parametrize("codes", [[], [(T0, ErrorCode.operation_not_attempted)]], ids=["missing", "not attempted"])
def test_partitions_of_which_an_answer_says_nothing_are_not_added(codes: list[tuple[TopicPartition, int]]) -> None:
    tx = Transacts(1)
    tx.begun()
    tx.write("a")
    tx.answer(tx.one(Api.ADD_PARTITIONS_TO_TXN), partitions_answer(codes))
    assert Api.PRODUCE not in [send.api for send in tx.poll()]


# -- offsets ---------------------------------------------------------------------------------------------------------------


@both_versions
def test_a_rebalance_lets_the_commit_of_offsets_fail(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    offsets = tx.commit_offsets(begin)
    tx.refuse(tx.next(Api.TXN_OFFSET_COMMIT), ErrorCode.illegal_generation)
    with pytest.raises(CommitFailedError, match=r"committing t-1 for group 'g'.*the group has rebalanced"):
        raise failed(offsets)
    with pytest.raises(TransactionAbortedError, match="the group has rebalanced"):
        raise failed(tx.commit(begin))
    tx.go_on(tx.abort(begin))
    assert tx.works()


def test_offsets_that_an_answer_does_not_name_are_not_committed() -> None:
    tx = Transacts()
    begin = tx.begun()
    offsets = tx.commit_offsets(begin)
    tx.answer(tx.one(Api.TXN_OFFSET_COMMIT), offsets_answer([]))
    failed(offsets)
    assert tx.state is State.ABORTABLE_ERROR


@both_versions
def test_a_commit_waits_for_offsets(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    offsets, committed = tx.commit_offsets(begin), tx.commit(begin)
    send = tx.next(Api.TXN_OFFSET_COMMIT)
    assert tx.poll() == []
    tx.succeed(send)
    assert succeeded(offsets)
    tx.succeed(tx.one(Api.END_TXN))
    assert succeeded(committed)


@both_versions
def test_offsets_that_are_late_abort_the_transaction(version: int) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    offsets = tx.commit_offsets(begin, within=1_000)
    send = tx.next(Api.TXN_OFFSET_COMMIT)
    tx.mono += 1_000
    tx.poll()
    with pytest.raises(TransactionAbortedError, match=r"the offsets of group 'g' were not committed within 60 s"):
        raise failed(offsets)
    aborted = tx.abort(begin)
    assert tx.poll() == [], "it may still be executed"
    tx.succeed(send)
    tx.go_on(aborted)
    assert tx.works()


def test_a_look_up_that_goes_on_does_no_harm_to_later_transactions() -> None:
    tx = Transacts()
    begin, _ = tx.written()
    offsets = tx.commit_offsets(begin)
    tx.lookup = ErrorCode.group_authorization_failed
    tx.poll()
    assert isinstance(failed(offsets).__cause__ or failed(offsets), GroupAuthorizationFailedError | OttlaError)
    assert tx.state is State.ABORTABLE_ERROR
    for _ in range(2):
        tx.go_on(tx.abort(begin))
        begin, _ = tx.written()
        looked_up = len(tx.lookups)
        tx.go_on(lambda: len(tx.lookups) > looked_up)  # noqa: B023 - called at once
        assert tx.state is State.IN_TRANSACTION


@pytest.mark.parametrize(
    ("version", "api"),
    [
        (1, Api.ADD_PARTITIONS_TO_TXN),
        (1, Api.ADD_OFFSETS_TO_TXN),
        (1, Api.TXN_OFFSET_COMMIT),
        (1, Api.END_TXN),
        (2, Api.TXN_OFFSET_COMMIT),
        (2, Api.END_TXN),
    ],
)
def test_a_new_coordinator_gets_the_request(api: Api, version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    tx.write("a")
    tx.commit_offsets(begin)
    committed = tx.commit(begin)
    send = tx.next(api)
    key = "g" if api is Api.TXN_OFFSET_COMMIT else ID
    tx.refuse(send, ErrorCode.not_coordinator)
    tx.go_on(committed)
    assert succeeded(committed)
    assert [one.message.coordinator_keys for one in tx.lookups].count((key,)) == 2
    assert apis(tx).count(api) == 2


@both_versions
def test_the_end_of_the_transaction_before_is_waited_for_briefly(version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    tx.commit_offsets(begin)
    api = Api.ADD_OFFSETS_TO_TXN if version == 1 else Api.TXN_OFFSET_COMMIT
    send = tx.next(api)
    for wait in (20, 40, 80):
        tx.refuse(send, ErrorCode.concurrent_transactions)
        assert tx.poll() == []
        assert tx.wake_at == tx.mono + wait
        send = tx.one(api, tx.mono + wait)
    tx.succeed(send)
    tx.go_on(tx.commit(begin))
    assert tx.state is State.READY


@both_versions
def test_any_other_refusal_is_repeated_after_the_usual_back_off(version: int) -> None:
    tx = Transacts(version)
    _, committed, end = tx.ending()
    for wait in (100, 200, 400):
        tx.refuse(end, ErrorCode.coordinator_load_in_progress)
        assert tx.poll() == []
        assert tx.wake_at == tx.mono + wait
        end = tx.one(Api.END_TXN, tx.mono + wait)
    tx.succeed(end)
    assert succeeded(committed)


@both_versions
@pytest.mark.parametrize("code", [ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id])
def test_a_gap_in_the_sequence_numbers_ends_the_transaction_at_once(code: int, version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    (delivery,) = tx.write("a")
    tx.refuse(tx.next(Api.PRODUCE), code)
    assert type(error(delivery)) is error_class(code)
    assert tx.state is State.ABORTABLE_ERROR
    tx.go_on(tx.abort(begin))
    tx.go_on(lambda: tx.state is State.READY)
    tx.begun()
    tx.write("b")
    assert batches(tx.next(Api.PRODUCE)) == {T0: Batch(5, 0, ["b"])}, "the numbers start again in another epoch"


# -- other threads, and bad luck ------------------------------------------------------------------------------------------


@both_versions
@pytest.mark.parametrize("commit", [False, True])
def test_a_record_that_another_thread_sends_while_the_transaction_ends(version: int, commit: bool) -> None:
    tx = Transacts(version)
    begin, _ = tx.written()
    outcomes: list[Outcome] = []

    class Headers(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            if not outcomes:
                outcomes.append(tx.end(begin, commit=commit))
                tx.poll()
            return iter([("name", b"value")])

    assert tx.accumulator.append("t", "late", partition=0, headers=Headers([1])) is None
    (outcome,) = outcomes
    tx.succeed(tx.sent[-1])
    assert succeeded(outcome)
    assert apis(tx).count(Api.PRODUCE) == 1
    assert tx.works()


@both_versions
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (end_txn_request, "EndTxnRequest"),
        (txn_offset_commit_request, "TxnOffsetCommitRequest"),
        (find_coordinator_request, "FindCoordinatorRequest"),
    ],
)
def test_a_poll_that_raises_loses_nothing(module: object, name: str, number: int, version: int) -> None:
    tx = Transacts(version)
    begin = tx.begun()
    tx.write("a")
    offsets, committed = tx.commit_offsets(begin), tx.commit(begin)
    raised = 0
    with unmade(module, name, number):
        while not committed.done and tx.mono < 10_000:
            tx.mono += 25
            try:
                sends = tx.poll()
            except OSError:
                raised += 1
                continue
            for send in sends:
                tx.succeed(send)
    assert succeeded(offsets)
    assert succeeded(committed)
    assert raised <= 1
    assert tx.works()
