"""Transactions on a whole core: what is seen when, who is fenced, what a restart finds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import AddFault, FailAppends, RemoveFaults, Rule
from ottla.broker.markers import TxnMarkerEntry
from ottla.coordinator.runtime import partition_for
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, encode_response
from ottla.protocol.messages import (
    describe_producers_request,
    describe_transactions_request,
    list_offsets_request,
    list_transactions_request,
    write_txn_markers_request,
)
from tests.simulation.broker import CoreUnderTest
from tests.simulation.files import content
from tests.unit.broker.transactional import (
    Producer,
    committed_offset,
    fetch,
    make_topic,
    read,
    state_of,
)

NONE = ErrorCode.none
DAY = 86_400_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    broker = CoreUnderTest(tmp_path)
    make_topic(broker)
    yield broker
    broker.close()


def started(broker: CoreUnderTest, *, newest: bool = True, transactional_id: str = "tx", timeout_ms: int = 60_000) -> Producer:
    producer = Producer(broker, transactional_id, newest=newest, timeout_ms=timeout_ms)
    assert producer.init() is NONE
    return producer


def wrote(producer: Producer, partition: int = 0, count: int = 1) -> None:
    if not producer.newest:
        assert producer.add("t", partition) is NONE
    assert producer.write(partition, count) is NONE


@pytest.mark.parametrize("newest", [True, False])
def test_what_is_committed_is_seen_at_the_commit_and_not_before(broker: CoreUnderTest, newest: bool) -> None:
    producer = started(broker, newest=newest)
    wrote(producer, 0, 2)
    wrote(producer, 1)
    assert (read(broker), fetch(broker).last_stable_offset, fetch(broker).high_watermark) == ([], 0, 2)
    assert producer.end() is NONE
    assert (read(broker), read(broker, 1)) == ([0, 1], [0])
    assert fetch(broker).last_stable_offset == 3
    wrote(producer)
    assert producer.end() is NONE
    assert read(broker) == [0, 1, 3]


@pytest.mark.parametrize("newest", [True, False])
def test_what_is_aborted_is_never_seen(broker: CoreUnderTest, newest: bool) -> None:
    producer = started(broker, newest=newest)
    wrote(producer, 0, 2)
    assert producer.end(commit=False) is NONE
    wrote(producer)
    assert producer.end() is NONE
    assert read(broker) == [3]
    assert [one.first_offset for one in fetch(broker).aborted_transactions] == [0]
    assert fetch(broker, committed=False).aborted_transactions is None
    assert fetch(broker, offset=3).aborted_transactions == ()


def test_transactions_are_served_at_once_when_their_topic_was_created_by_a_client(broker: CoreUnderTest) -> None:
    make_topic(broker, "__transaction_state", 1)
    for number in range(20):
        producer = started(broker, transactional_id=f"tx-{number}")
        wrote(producer)
        assert producer.end() is NONE


def test_the_end_of_committed_records_is_the_last_stable_offset(broker: CoreUnderTest) -> None:
    producer = started(broker)
    wrote(producer, 0, 3)

    def latest(isolation: int) -> int:
        wanted = list_offsets_request.ListOffsetsPartition(partition_index=0, timestamp=-1)
        message = list_offsets_request.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            timeout=timedelta(seconds=1),
            topics=(list_offsets_request.ListOffsetsTopic(name="t", partitions=(wanted,)),),
        )
        return int(broker.ask(Api.LIST_OFFSETS, message).topics[0].partitions[0].offset)

    assert (latest(0), latest(1)) == (3, 0)


def test_each_transaction_of_version_2_ends_with_an_epoch_of_its_own(broker: CoreUnderTest) -> None:
    producer = started(broker)
    epochs = []
    for _ in range(3):
        wrote(producer)
        assert producer.end() is NONE
        epochs.append(producer.epoch)
    assert epochs == [1, 2, 3]


def test_a_producer_that_did_not_add_a_partition_cannot_write_there(broker: CoreUnderTest) -> None:
    producer = started(broker, newest=False)
    assert producer.write() is ErrorCode.transaction_abortable
    assert producer.write(version=10) is ErrorCode.invalid_txn_state
    assert fetch(broker).high_watermark == 0


@pytest.mark.parametrize("newest", [True, False])
def test_a_second_producer_fences_the_first_and_aborts_its_transaction(broker: CoreUnderTest, newest: bool) -> None:
    first = started(broker, newest=newest)
    wrote(first)
    second = Producer(broker, newest=newest)
    assert second.init() is ErrorCode.concurrent_transactions
    assert second.init() is NONE
    assert first.write() is ErrorCode.invalid_producer_epoch
    assert first.write(1) is ErrorCode.invalid_producer_epoch
    assert first.commit_offset(1) is ErrorCode.invalid_producer_epoch
    assert first.end() is ErrorCode.producer_fenced
    assert first.init(as_known=True) is ErrorCode.producer_fenced
    wrote(second)
    assert second.end() is NONE
    assert read(broker) == [2]


def test_a_transaction_that_takes_too_long_is_aborted(broker: CoreUnderTest) -> None:
    producer = started(broker, timeout_ms=5_000)
    wrote(producer)
    broker.pass_time(4_999)
    assert state_of(broker) == ("Ongoing", 0)
    broker.pass_time(1)
    assert state_of(broker) == ("CompleteAbort", 1)
    assert fetch(broker).last_stable_offset == 2
    assert producer.write() is ErrorCode.invalid_producer_epoch
    assert producer.init(as_known=True) is NONE, "a producer that was only slow may go on (KIP-588)"
    wrote(producer)
    assert producer.end() is NONE
    assert read(broker) == [2]


@pytest.mark.parametrize("newest", [True, False])
def test_offsets_of_a_transaction_count_when_it_is_committed(broker: CoreUnderTest, newest: bool) -> None:
    producer = started(broker, newest=newest)
    if not newest:
        assert producer.add_offsets() is NONE
    assert producer.commit_offset(7) is NONE
    assert committed_offset(broker) == -1
    assert committed_offset(broker, require_stable=True) is ErrorCode.unstable_offset_commit
    assert committed_offset(broker, 1, require_stable=True) == -1
    assert producer.end() is NONE
    assert committed_offset(broker, require_stable=True) == 7


def test_offsets_of_an_aborted_transaction_are_forgotten(broker: CoreUnderTest) -> None:
    producer = started(broker)
    assert producer.commit_offset(7) is NONE
    assert producer.end() is NONE
    assert producer.commit_offset(8) is NONE
    assert producer.end(commit=False) is NONE
    assert committed_offset(broker, require_stable=True) == 7


def test_a_member_that_is_not_in_the_group_cannot_commit_in_a_transaction(broker: CoreUnderTest) -> None:
    producer = started(broker)
    assert producer.commit_offset(7, generation=3, member="x") is ErrorCode.illegal_generation
    assert producer.commit_offset(7) is NONE
    assert producer.end() is NONE
    assert producer.commit_offset(7, generation=3, member="x") is ErrorCode.unknown_member_id
    assert producer.commit_offset(7, partition=9) is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_open_transactions_as_they_were(tmp_path: Path, clean: bool) -> None:
    broker = CoreUnderTest(tmp_path)
    make_topic(broker)
    producer = started(broker)
    wrote(producer)
    assert producer.commit_offset(7) is NONE
    broker.close() if clean else broker.kill()
    again = CoreUnderTest(tmp_path, broker.now)
    producer.broker = again
    assert (state_of(again), fetch(again).last_stable_offset) == (("Ongoing", 0), 0)
    assert committed_offset(again, require_stable=True) is ErrorCode.unstable_offset_commit
    wrote(producer)
    assert producer.end() is NONE
    assert (read(again), committed_offset(again)) == ([0, 1], 7)
    again.close()


@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_completes_what_was_prepared(tmp_path: Path, commit: bool) -> None:
    broker = CoreUnderTest(tmp_path, **{"log.flush.interval.messages": 1})
    make_topic(broker)
    producer = started(broker)
    wrote(producer)
    assert producer.commit_offset(7) is NONE
    broker.send(Api.END_TXN, producer.end_message(commit=commit))  # in the log, and killed before the disk has said so
    broker.kill()
    again = CoreUnderTest(tmp_path, broker.now)
    again.pass_time(1_000)  # until the groups are loaded, markers wait
    assert state_of(again) == ("CompleteCommit" if commit else "CompleteAbort", 1)
    assert (read(again), committed_offset(again)) == (([0], 7) if commit else ([], -1))
    again.close()


def test_markers_wait_for_a_disk_that_fails(broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = started(broker)
    wrote(producer)
    wrote(producer, 1)
    log = broker.core.catalog.log("t", 1)
    append = log.append

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(log, "append", full)
    assert producer.end() is NONE, "the outcome is fixed"
    assert state_of(broker)[0] == "PrepareCommit"
    assert (read(broker), read(broker, 1)) == ([0], [])
    assert producer.end() is ErrorCode.concurrent_transactions
    monkeypatch.setattr(log, "append", append)
    broker.pass_time(1_000)
    assert (state_of(broker)[0], read(broker, 1)) == ("CompleteCommit", [0])
    markers = [header for segment in broker.core.catalog.log("t", 0).segments for _, header in segment.walk(0) if header.is_control]
    assert len(markers) == 1, "where the marker was written it is not written again"


def test_a_deleted_topic_does_not_keep_a_transaction_from_its_end(broker: CoreUnderTest) -> None:
    producer = started(broker)
    wrote(producer)
    broker.core.catalog.delete_topic(broker.core.catalog.topic("t"))
    broker.take([])
    assert producer.end() is NONE
    assert state_of(broker)[0] == "CompleteCommit"


def test_an_unused_id_is_deleted(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path, **{"transactional.id.expiration.ms": DAY})
    make_topic(broker)
    used, idle = started(broker), started(broker, transactional_id="idle")
    broker.pass_time(DAY // 2)
    wrote(used)
    assert used.end() is NONE
    broker.pass_time(DAY // 2)
    assert (state_of(broker)[0], state_of(broker, "idle")[0]) == ("CompleteCommit", "")
    assert idle.write() is ErrorCode.invalid_producer_id_mapping
    broker.kill()
    assert state_of(CoreUnderTest(tmp_path, broker.now), "idle")[0] == ""


def test_transactions_are_listed_by_state_producer_and_age(broker: CoreUnderTest) -> None:
    first, second = started(broker), started(broker, transactional_id="other")
    wrote(first)
    broker.pass_time(1_000)

    def listed(**filters: Any) -> list[str]:
        wanted = {
            "state_filters": (),
            "producer_id_filters": (),
            "duration_filter": -1,
            "transactional_id_pattern": None,
            **filters,
        }
        message = list_transactions_request.ListTransactionsRequest(**wanted)
        return sorted(one.transactional_id for one in broker.ask(Api.LIST_TRANSACTIONS, message).transaction_states)

    assert listed() == ["other", "tx"]
    assert listed(state_filters=("Ongoing",)) == ["tx"]
    assert listed(producer_id_filters=(second.producer_id,)) == ["other"]
    assert (listed(duration_filter=999), listed(duration_filter=1_000)) == (["other", "tx"], ["other"])
    assert (listed(transactional_id_pattern="t."), listed(transactional_id_pattern="t")) == (["tx"], [])
    bad = list_transactions_request.ListTransactionsRequest(
        state_filters=(), producer_id_filters=(), duration_filter=-1, transactional_id_pattern="("
    )
    assert broker.ask(Api.LIST_TRANSACTIONS, bad).error_code is ErrorCode.invalid_regular_expression


def test_a_hanging_transaction_is_found_and_ended_by_hand(broker: CoreUnderTest) -> None:
    producer = started(broker)
    assert producer.init() is NONE
    wrote(producer)
    topic = describe_producers_request.TopicRequest(name="t", partition_indexes=(0, 9))
    message = describe_producers_request.DescribeProducersRequest(topics=(topic,))
    found, missing = broker.ask(Api.DESCRIBE_PRODUCERS, message).topics[0].partitions
    assert missing.error_code is ErrorCode.unknown_topic_or_partition
    (active,) = found.active_producers
    assert (active.producer_id, active.producer_epoch, active.current_txn_start_offset) == (producer.producer_id, 1, 0)

    aborted = aborting(active.producer_id, active.producer_epoch, coordinator_epoch=active.coordinator_epoch)
    assert marked(broker, aborting(active.producer_id, 0)) == {(active.producer_id, 0): ErrorCode.invalid_producer_epoch}
    assert marked(broker, aborted) == {(active.producer_id, 0): NONE}
    assert fetch(broker).last_stable_offset == 2


def aborting(
    producer_id: int, epoch: int, *partitions: int, coordinator_epoch: int = 0
) -> write_txn_markers_request.WritableTxnMarker:
    return write_txn_markers_request.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        topics=(write_txn_markers_request.WritableTxnMarkerTopic(name="t", partition_indexes=partitions or (0,)),),
        coordinator_epoch=coordinator_epoch,
        transaction_version=0,
    )


def marked(broker: CoreUnderTest, *markers: write_txn_markers_request.WritableTxnMarker) -> dict[tuple[int, int], ErrorCode]:
    """What is said of each producer and partition."""
    answer = broker.ask(Api.WRITE_TXN_MARKERS, write_txn_markers_request.WriteTxnMarkersRequest(markers=markers))
    codes = [
        ((one.producer_id, partition.partition_index), ErrorCode(partition.error_code))
        for one in answer.markers
        for topic in one.topics
        for partition in topic.partitions
    ]
    assert len(codes) == len(dict(codes)), "a producer and partition was answered twice"
    return dict(codes)


def test_markers_of_several_producers_are_answered_for_each(broker: CoreUnderTest) -> None:
    first, second = started(broker), started(broker, transactional_id="other")
    wrote(first)
    wrote(second, 1)
    a, b = first.producer_id, second.producer_id
    assert marked(broker, aborting(a, 0, 0, 9), aborting(b, 0, 1), aborting(a, 0, 1)) == {
        (a, 0): NONE,
        (a, 9): ErrorCode.unknown_topic_or_partition,
        (a, 1): NONE,
        (b, 1): NONE,
    }
    assert fetch(broker).last_stable_offset == 2


def test_a_marker_of_no_producer_fails_the_request_and_writes_nothing(broker: CoreUnderTest) -> None:
    producer = started(broker)
    wrote(producer)
    before = fetch(broker).high_watermark
    failed = ErrorCode.unknown_server_error
    assert marked(broker, aborting(producer.producer_id, 0), aborting(-1, 0)) == {
        (producer.producer_id, 0): failed,
        (-1, 0): failed,
    }
    assert marked(broker, aborting(producer.producer_id, -1)) == {(producer.producer_id, 0): failed}
    assert fetch(broker).high_watermark == before


def test_a_client_cannot_add_the_broker_s_own_topics(broker: CoreUnderTest) -> None:
    producer = started(broker, newest=False)
    assert producer.commit_offset(1) is ErrorCode.invalid_txn_state  # and the topic of offsets is there
    assert producer.add("__consumer_offsets") is ErrorCode.topic_authorization_failed
    assert producer.add_offsets() is NONE
    assert producer.commit_offset(1) is NONE


def test_what_does_not_exist_is_said_before_who_may_commit(broker: CoreUnderTest) -> None:
    producer = started(broker)
    producer.producer_id += 7
    assert producer.commit_offset(1) is ErrorCode.invalid_producer_id_mapping
    assert producer.commit_offset(1, partition=99) is ErrorCode.unknown_topic_or_partition
    assert producer.commit_offset(1, group="") is ErrorCode.invalid_group_id


def test_an_open_transaction_speaks_for_its_own_epoch_only(broker: CoreUnderTest) -> None:
    producer = started(broker)
    wrote(producer)
    assert producer.commit_offset(1) is NONE
    producer.epoch += 5
    assert producer.commit_offset(2) is ErrorCode.invalid_producer_epoch
    assert producer.write() is ErrorCode.invalid_producer_epoch


def test_a_marker_in_the_offsets_topic_decides_about_the_offsets(broker: CoreUnderTest) -> None:
    producer = started(broker)
    assert producer.commit_offset(7) is NONE
    place = broker.core.state.groups.offsets_partition_of("readers")
    marker = TxnMarkerEntry(commit=True, producer_id=producer.producer_id, producer_epoch=producer.epoch, coordinator_epoch=0)
    broker.core.state.transactions.write_marker(broker.core.catalog.log(*place), marker, broker.now)
    broker.take([])
    assert committed_offset(broker, require_stable=True) == 7


def test_a_full_disk_fails_what_the_coordinator_would_have_to_write_and_nothing_else(broker: CoreUnderTest) -> None:
    producer, other = started(broker), started(broker, transactional_id="other")
    wrote(producer)
    place = partition_for("tx", broker.core.catalog.topics.partition_count("__transaction_state"))
    full = Rule(1, FailAppends("__transaction_state", place), times=None)
    before = broker.core.state.transactions._coordinator.durable_state()
    broker.take(broker.core.on_command(AddFault(full), broker.now)[1])
    refused = ErrorCode.coordinator_not_available
    assert (producer.init(), producer.add("t", 1), producer.add_offsets(), producer.end()) == (refused,) * 4
    assert producer.write(1) is ErrorCode.not_enough_replicas
    broker.pass_time(60_000)  # its time is over, and that cannot be written down either
    assert broker.core.state.transactions._coordinator.durable_state() == before
    assert (state_of(broker), read(broker), fetch(broker, committed=False).high_watermark) == (("Ongoing", 0), [], 1)
    assert (other.write(1), other.end(), read(broker, 1)) == (NONE, NONE, [0])
    broker.take(broker.core.on_command(RemoveFaults(1), broker.now)[1])
    broker.pass_time(1_000)
    assert (state_of(broker)[0], fetch(broker).last_stable_offset, read(broker)) == ("CompleteAbort", 2, [])
    assert (producer.init(), producer.write(), producer.end(), read(broker)) == (NONE, NONE, NONE, [2])


def test_an_id_that_has_begun_nothing_began_it_at_minus_one(broker: CoreUnderTest) -> None:
    started(broker)
    message = describe_transactions_request.DescribeTransactionsRequest(transactional_ids=("tx",))
    answer = broker.ask(Api.DESCRIBE_TRANSACTIONS, message)
    pieces = encode_response(RequestHeader(Api.DESCRIBE_TRANSACTIONS, 0, 1, "test"), answer)
    # Byte by byte what Apache Kafka sends: Java's clients take it for none; no codec of datetimes can read it.
    assert b"\x06Empty\x00\x00\xea\x60" + b"\xff" * 8 in b"".join(map(content, pieces))
