"""Transactions that one process prepares and another one finishes, on the embedded broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import ottla
from ottla import Admin, Broker, Prepared, Producer, TopicPartition
from ottla.errors import (
    ConfigError,
    ConnectionFailedError,
    InvalidTxnStateError,
    OttlaTimeoutError,
    TransactionalIdNotFoundError,
    TransactionOutcomeUnknownError,
)
from tests.closed_ports import closed_port
from tests.end_to_end.preparing import committed, prepared_by_a_killed_process
from tests.end_to_end.producing import new_topic, started

SOON = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with started() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    with new_topic(broker) as name:
        yield name


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        yield admin


def prepared(broker: Broker, topic: str, who: str, *, timeout: float = 60) -> Prepared:
    """A transaction with a record, whose producer is closed."""
    servers = broker.bootstrap_servers
    producer = Producer(bootstrap_servers=servers, transactional_id=who, transaction_timeout=timeout)
    with producer, producer.transaction() as transaction:
        producer.send(topic, who, partition=0)
        return transaction.prepare()


def test_another_process_commits_what_a_killed_one_has_prepared(broker: Broker, admin: Admin, topic: str) -> None:
    servers, group = broker.bootstrap_servers, f"group-of-{topic}"
    one = prepared_by_a_killed_process(servers, topic, f"{topic}-a")
    assert committed(servers, topic) == []
    assert not admin.group_offsets(group)
    ottla.finish(one, commit=True, bootstrap_servers=servers)
    assert committed(servers, topic) == [f"{topic}-a"]
    assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 42
    ottla.finish(one, {"bootstrap.servers": servers}, commit=True, timeout=timedelta(seconds=SOON))
    assert committed(servers, topic) == [f"{topic}-a"]
    with pytest.raises(InvalidTxnStateError, match="cannot be aborted: it was committed"):
        ottla.finish(one, commit=False, bootstrap_servers=servers)


def test_what_is_aborted_is_not_read(broker: Broker, admin: Admin, topic: str) -> None:
    one = prepared(broker, topic, f"{topic}-a")
    for _ in range(2):
        admin.end_transactions(one, commit=False)
    with pytest.raises(InvalidTxnStateError, match="cannot be committed: it was aborted"):
        admin.end_transactions(one, commit=True)
    assert committed(broker.bootstrap_servers, topic) == []


@pytest.mark.parametrize("first", [True, False])
def test_a_producer_that_is_initialized_later_leaves_the_outcome_unknown(
    broker: Broker, admin: Admin, topic: str, first: bool
) -> None:
    one = prepared(broker, topic, f"{topic}-a")
    if first:
        admin.end_transactions(one, commit=True)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=one.transactional_id) as producer:
        producer.initialize()
    for commit in (True, False):
        with pytest.raises(TransactionOutcomeUnknownError, match="only something that the transaction wrote itself"):
            admin.end_transactions(one, commit=commit)
    assert committed(broker.bootstrap_servers, topic) == ([one.transactional_id] if first else [])


def test_a_transaction_that_timed_out_is_not_committed(broker: Broker, admin: Admin, topic: str) -> None:
    one = prepared(broker, topic, f"{topic}-a", timeout=2)
    until = time.monotonic() + SOON
    while admin.describe_transactions([one.transactional_id])[one.transactional_id].state != "CompleteAbort":
        assert time.monotonic() < until
        time.sleep(0.1)
    with pytest.raises((InvalidTxnStateError, TransactionOutcomeUnknownError), match=r"transaction\.timeout\.ms"):
        admin.end_transactions(one, commit=True)
    assert committed(broker.bootstrap_servers, topic) == []


def test_many_are_finished_and_the_error_names_the_others(broker: Broker, admin: Admin, topic: str) -> None:
    good = [prepared(broker, topic, f"{topic}-{number}") for number in range(3)]
    lost = Prepared(f"{topic}-lost", 10**6, 0, 2)
    with pytest.raises(TransactionOutcomeUnknownError) as raised:
        ottla.finish([good[0], lost, *good[1:], good[0]], commit=True, bootstrap_servers=broker.bootstrap_servers)
    assert lost.transactional_id in str(raised.value)
    assert not any(one.transactional_id in str(raised.value) for one in good)
    assert sorted(committed(broker.bootstrap_servers, topic)) == [one.transactional_id for one in good]


def test_where_nothing_was_sent_nothing_is_asked() -> None:
    empty = Prepared("a", 1, 0, 2, is_empty=True)
    with closed_port() as port:
        nowhere = f"127.0.0.1:{port}"
        ottla.finish(empty, commit=True, bootstrap_servers=nowhere)
        ottla.finish([empty, empty], commit=False, bootstrap_servers=nowhere)
        ottla.finish(iter(()), commit=True, bootstrap_servers=nowhere)
        with pytest.raises(ConnectionFailedError, match=nowhere):
            ottla.finish(Prepared("a", 1, 0, 2), commit=True, timeout=0.5, bootstrap_servers=nowhere)
    with pytest.raises(ConfigError, match="linger"):
        ottla.finish(empty, {"linger.ms": 5}, commit=True)


def test_a_lost_response_is_asked_for_again(broker: Broker, topic: str) -> None:
    one = prepared(broker, topic, f"{topic}-a")
    with broker.faults.lose_reply("EndTxn", times=1) as fault:
        ottla.finish(one, commit=True, bootstrap_servers=broker.bootstrap_servers, request_timeout=1)
        fault.wait()
    assert committed(broker.bootstrap_servers, topic) == [one.transactional_id]


def test_a_time_out_says_that_it_may_be_committed(broker: Broker, admin: Admin, topic: str) -> None:
    one = prepared(broker, topic, f"{topic}-a")
    lost = broker.faults.lose_reply("EndTxn")
    with lost, pytest.raises(OttlaTimeoutError, match=r"so that it may be committed .*may be repeated"):
        admin.end_transactions(one, commit=True, timeout=1)
    admin.end_transactions(one, commit=True)
    assert committed(broker.bootstrap_servers, topic) == [one.transactional_id]


def test_a_prepared_transaction_outlives_its_broker(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"t": 1})
        one = prepared(broker, "t", "a")
    with Broker(tmp_path) as broker:
        ottla.finish(one, commit=True, bootstrap_servers=broker.bootstrap_servers)
        assert committed(broker.bootstrap_servers, "t") == ["a"]


def test_two_processes_that_commit_at_once_both_succeed(broker: Broker, topic: str) -> None:
    one = prepared(broker, topic, f"{topic}-a")
    threads = [
        threading.Thread(target=ottla.finish, args=(one,), kwargs={"commit": True, "bootstrap_servers": broker.bootstrap_servers})
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert committed(broker.bootstrap_servers, topic) == [one.transactional_id]


# -- operators --------------------------------------------------------------------------------------------------------------


def test_an_operator_finds_and_fences_a_transaction(broker: Broker, admin: Admin, topic: str) -> None:
    one = prepared(broker, topic, f"{topic}-a")
    tp = TopicPartition(topic, 0)
    (listed,) = admin.list_transactions(states=["Ongoing"], transactional_id_pattern=f"{topic}.*", duration=0)
    assert (listed.transactional_id, listed.producer_id) == (one.transactional_id, one.producer_id)
    assert listed in admin.list_transactions(producer_ids=[one.producer_id])
    assert admin.list_transactions(states=["Ongoing"], duration=3600) == ()
    found = admin.describe_transactions([one.transactional_id])[one.transactional_id]
    assert (found.state, found.producer_id, found.producer_epoch) == ("Ongoing", one.producer_id, one.producer_epoch)
    assert (found.transaction_timeout_ms, found.partitions) == (60_000, (tp,))
    assert found.transaction_start_time_ms is not None
    assert abs(found.transaction_start_time_ms / 1000 - time.time()) < SOON
    admin.fence_producers([one.transactional_id])
    assert admin.describe_transactions([one.transactional_id])[one.transactional_id].state == "Empty"
    with pytest.raises(TransactionOutcomeUnknownError):
        admin.end_transactions(one, commit=True)
    assert committed(broker.bootstrap_servers, topic) == []


def test_an_operator_aborts_a_transaction_in_one_partition(broker: Broker, admin: Admin, topic: str) -> None:
    one, tp = prepared(broker, topic, f"{topic}-a"), TopicPartition(topic, 0)
    (state,) = admin.describe_producers([tp])[tp]
    assert (state.producer_id, state.current_transaction_start_offset) == (one.producer_id, 0)
    admin.abort_transaction(tp, state)
    (state,) = admin.describe_producers([tp])[tp]
    assert state.current_transaction_start_offset is None
    admin.fence_producers([one.transactional_id])


def test_an_unknown_transactional_id_cannot_be_described(admin: Admin) -> None:
    with pytest.raises(TransactionalIdNotFoundError, match="'unknown'"):
        admin.describe_transactions(["unknown"])
    assert admin.describe_transactions([]) == {}
