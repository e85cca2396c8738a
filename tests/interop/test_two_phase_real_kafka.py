"""Transactions that a killed process has prepared, finished on Apache Kafka, and what an operator sees of them.

The tested versions are 2.8, the oldest that describes producers, 3.9, the last with transactions of version 1 only, and 4.3 with
version 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import pytest

import ottla
from ottla import Admin, Prepared, Producer, TopicPartition
from ottla.admin import ProducerState
from ottla.errors import InvalidTxnStateError, OttlaError, TransactionOutcomeUnknownError, UnsupportedApiError
from tests.end_to_end.preparing import committed, prepared_by_killed_processes
from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, OwnKafka, free_port_pair, run_tool

pytestmark = pytest.mark.interop

NEWEST = "4.3.1"
SOON = 60.0
QUICK = "transaction.abort.timed.out.transaction.cleanup.interval.ms=500"
_numbers = count()


class Cluster(NamedTuple):
    """A node of Apache Kafka."""

    address: str
    version: str
    admin: Admin

    @property
    def transaction_version(self) -> int:
        return 2 if self.version == NEWEST else 1


@pytest.fixture(scope="module", params=["2.8.2", "3.9.1", NEWEST])
def cluster(request: pytest.FixtureRequest, kafka_tool: KafkaTool) -> Iterator[Cluster]:
    version = "" if request.param == NEWEST else request.param
    run_tool("fetch", version=version, timeout=FETCH_TIMEOUT)
    node = OwnKafka(free_port_pair(), QUICK, version=version)
    try:
        with Admin(bootstrap_servers=node.address) as admin:
            yield Cluster(node.address, request.param, admin)
    finally:
        node.stop()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"two-phase-{next(_numbers)}"
    cluster.admin.create_topics({name: 1})
    return name


def refused(call: Callable[[], None]) -> type[OttlaError] | None:
    """The class of the error of a call."""
    try:
        call()
    except OttlaError as error:
        return type(error)
    return None


def open_transaction(cluster: Cluster, topic: str) -> ProducerState | None:
    """The producer of the open transaction in partition 0."""
    tp = TopicPartition(topic, 0)
    states = cluster.admin.describe_producers([tp])[tp]
    return next((state for state in states if state.current_transaction_start_offset is not None), None)


def test_what_killed_processes_have_prepared_is_finished(cluster: Cluster, topic: str) -> None:
    prepared = prepared_by_killed_processes(cluster.address, topic, *(f"{topic}-{name}" for name in "abcd"))
    assert {one.transaction_version for one in prepared} == {cluster.transaction_version}
    to_commit, to_abort, taken, also = prepared
    assert committed(cluster.address, topic) == []

    def end(one: Prepared, commit: bool) -> type[OttlaError] | None:
        return refused(lambda: ottla.finish(one, commit=commit, bootstrap_servers=cluster.address))

    assert [end(to_commit, True), end(to_commit, True), end(to_commit, False)] == [None, None, InvalidTxnStateError]
    assert [end(to_abort, False), end(to_abort, False), end(to_abort, True)] == [None, None, InvalidTxnStateError]
    with Producer(bootstrap_servers=cluster.address, transactional_id=taken.transactional_id) as producer:
        producer.initialize()
    assert [end(taken, True), end(taken, False)] == [TransactionOutcomeUnknownError] * 2
    with pytest.raises(TransactionOutcomeUnknownError, match=taken.transactional_id):
        cluster.admin.end_transactions([taken, also, to_commit], commit=True)
    assert sorted(committed(cluster.address, topic)) == sorted([to_commit.transactional_id, also.transactional_id])
    assert cluster.admin.group_offsets(f"group-of-{topic}")[TopicPartition(topic, 0)].offset == 42
    with Producer(bootstrap_servers=cluster.address, transactional_id=to_commit.transactional_id) as producer:
        producer.initialize()
    assert end(to_commit, True) is TransactionOutcomeUnknownError


def test_a_transaction_that_timed_out_cannot_be_committed(cluster: Cluster, topic: str) -> None:
    (one,) = prepared_by_killed_processes(cluster.address, topic, f"{topic}-a", timeout=5)
    until = time.monotonic() + SOON
    while open_transaction(cluster, topic) is not None:
        assert time.monotonic() < until
        time.sleep(0.2)
    # The coordinator of version 2 knows the epoch before its own, and how that ended.
    kind = InvalidTxnStateError if cluster.transaction_version == 2 else TransactionOutcomeUnknownError
    assert refused(lambda: cluster.admin.end_transactions(one, commit=True)) is kind
    assert committed(cluster.address, topic) == []


def test_an_operator_describes_and_fences(cluster: Cluster, topic: str) -> None:
    (one,) = prepared_by_killed_processes(cluster.address, topic, f"{topic}-a")
    who, tp, admin = one.transactional_id, TopicPartition(topic, 0), cluster.admin
    state = open_transaction(cluster, topic)
    assert state is not None
    assert (state.producer_id, state.producer_epoch) == (one.producer_id, one.producer_epoch)
    if cluster.version == "2.8.2":
        for call in (lambda: admin.describe_transactions([who]), admin.list_transactions):
            with pytest.raises(UnsupportedApiError):
                call()
    else:
        (listed,) = [item for item in admin.list_transactions(states=["Ongoing"]) if item.transactional_id == who]
        assert listed.producer_id == one.producer_id
        assert listed in admin.list_transactions(states=["Ongoing"], producer_ids=[one.producer_id], duration=0)
        found = admin.describe_transactions([who])[who]
        assert (found.state, found.producer_id, found.producer_epoch) == ("Ongoing", one.producer_id, one.producer_epoch)
        assert tp in found.partitions
        assert found.transaction_timeout_ms == 60_000
    if cluster.version == NEWEST:
        assert [item.transactional_id for item in admin.list_transactions(transactional_id_pattern=f"{topic}.*")] == [who]
    admin.fence_producers([who])
    assert open_transaction(cluster, topic) is None
    if cluster.version != "2.8.2":
        assert who in [item.transactional_id for item in admin.list_transactions(duration=0)]
        assert who not in [item.transactional_id for item in admin.list_transactions(states=["Ongoing"])]
    assert refused(lambda: admin.end_transactions(one, commit=True)) is TransactionOutcomeUnknownError
    assert committed(cluster.address, topic) == []


def test_an_operator_aborts_a_transaction_in_one_partition(cluster: Cluster, topic: str) -> None:
    prepared_by_killed_processes(cluster.address, topic, f"{topic}-a")
    state = open_transaction(cluster, topic)
    assert state is not None
    cluster.admin.abort_transaction(TopicPartition(topic, 0), state)
    assert open_transaction(cluster, topic) is None
    assert committed(cluster.address, topic) == []
