"""``Consumer`` on Apache Kafka and on Ottla's broker: it reads what other clients produce, with every compression."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import confluent_kafka
import pytest

from ottla import Admin, AsyncConsumer, Broker, Consumer, GroupMembershipOperation, OffsetAndMetadata, TopicPartition
from ottla.errors import (
    ConcurrentAccessError,
    ConnectionFailedError,
    ForkedError,
    IllegalStateError,
    NoOffsetForPartitionError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from tests.interop.other_clients import PRODUCE, Row, create_topic

NOW = 1_700_000_000_000
ROWS: list[Row] = [
    (index % 3, b"k%d" % index if index % 2 else None, b"v%d" % index, NOW + index, (("h", b"%d" % index), ("empty", b"")))
    for index in range(300)
]
_numbers = count()


@pytest.fixture(scope="module", params=["apache-kafka", "embedded"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("real_kafka")
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


def new_topic(servers: str, partitions: int = 3, rows: list[Row] = ROWS, codec: str = "none") -> str:
    name = f"consumer-{next(_numbers)}"
    create_topic(servers, name, partitions)
    PRODUCE["confluent"](servers, name, rows, compression_type=codec)
    return name


def consumer(servers: str, **settings: Any) -> Consumer:
    return Consumer(bootstrap_servers=servers, **{"auto_offset_reset": "earliest", **settings})


def partitions(topic: str, number: int = 3) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(number)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_as_they_were_sent(servers: str, codec: str) -> None:
    topic = new_topic(servers, codec=codec)
    with consumer(servers) as reader:
        reader.assign(partitions(topic))
        found: list[Any] = []
        while len(found) < len(ROWS):
            records = reader.poll(10)
            assert records
            found += list(records)
    rows = [(one.partition, one.key, one.value, one.timestamp, one.headers) for one in found]
    assert sorted(rows, key=lambda row: row[3]) == ROWS


def test_arrow_columns(servers: str) -> None:
    topic = new_topic(servers)
    with consumer(servers, max_poll_records=1_000) as reader:
        reader.assign(partitions(topic))
        values: list[bytes] = []
        while len(values) < len(ROWS):
            values += reader.poll(10).to_arrow(["value"]).column("value").to_pylist()
    assert sorted(values) == sorted(row[2] for row in ROWS if row[2] is not None)


def test_walking_records_for_ever_and_committing_in_the_body(servers: str) -> None:
    topic = new_topic(servers)
    seen = []
    with consumer(servers, group_id=f"g-{topic}", enable_auto_commit=False) as reader:
        reader.subscribe([topic])
        for record in reader:
            seen.append(record.value)
            if len(seen) == 100:
                reader.commit()
                break
    with consumer(servers, group_id=f"g-{topic}") as reader:
        reader.subscribe([topic])
        for record in reader:
            seen.append(record.value)
            if len(seen) == len(ROWS):
                break
    assert sorted(seen) == sorted(row[2] for row in ROWS)


def test_the_next_poll_begins_at_an_offset_that_another_client_commits_after_the_error(servers: str) -> None:
    topic = new_topic(servers, partitions=1, rows=[(0, *row[1:]) for row in ROWS])
    (tp,) = partitions(topic, 1)
    with (
        consumer(servers, group_id=f"g-{topic}") as operator,
        consumer(servers, group_id=f"g-{topic}", auto_offset_reset="none", enable_auto_commit=False) as reader,
    ):
        reader.assign([tp])
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError, match=topic):
                reader.poll(60)
        operator.commit({tp: 290})
        assert reader.poll(60)[0].offset == 290


def test_an_exception_in_the_body_is_not_committed_over(servers: str) -> None:
    topic = new_topic(servers, partitions=1, rows=[(0, None, b"%d" % number, NOW, ()) for number in range(10)])
    handled = []
    with pytest.raises(ZeroDivisionError), consumer(servers, group_id=f"g-{topic}") as reader:  # noqa: PT012
        reader.subscribe([topic])
        for record in reader:
            if record.offset == 7:
                raise ZeroDivisionError
            handled.append(record.offset)
    with consumer(servers, group_id=f"g-{topic}") as reader:
        reader.subscribe([topic])
        assert next(iter(reader)).offset == 7


def test_positions_and_questions(servers: str) -> None:
    topic = new_topic(servers)
    tps = partitions(topic)
    with consumer(servers) as reader:
        assert reader.beginning_offsets(tps) == dict.fromkeys(tps, 0)
        assert reader.end_offsets(tps) == dict.fromkeys(tps, 100)
        found = reader.offsets_for_times({tps[0]: NOW + 30, tps[1]: NOW + 10_000})
        assert found[tps[0]] == (10, NOW + 30, 0)
        assert found[tps[1]] is None
        assert [info.partition for info in reader.partitions_for(topic)] == [0, 1, 2]
        assert topic in reader.list_topics()
        reader.assign(tps)
        reader.seek(tps[0], 95)
        reader.pause(reader.assignment())
        reader.resume(tps[0])
        assert reader.paused() == {tps[1], tps[2]}
        assert [record.offset for record in reader.poll(10)] == [95, 96, 97, 98, 99]
        assert reader.position(tps[0]) == 100
        assert reader.lag(tps[0]) == 0
        assert reader.lag(tps[1]) == 100
        reader.seek_to_end(tps[0])
        reader.seek_to_beginning([tps[2]])
        assert reader.position(tps[0], timeout=10) == 100
        assert reader.position(tps[2], timeout=10) == 0
        with pytest.raises(UnknownTopicOrPartitionError):
            reader.partitions_for("no-such-topic")


def test_read_committed_sees_no_aborted_records(real_kafka: str) -> None:
    topic = f"half-done-{next(_numbers)}"
    create_topic(real_kafka, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": real_kafka, "transactional.id": topic})
    producer.init_transactions(20)
    for name, commit in (("first", True), ("second", False), ("third", True)):
        producer.begin_transaction()
        for number in range(5):
            producer.produce(topic, f"{name} {number}")
        producer.flush(60)
        producer.commit_transaction(20) if commit else producer.abort_transaction(20)
    with consumer(real_kafka, isolation_level="read_committed") as reader:
        reader.assign(partitions(topic, 1))
        found: list[bytes] = []
        while len(found) < 10:
            records = reader.poll(10)
            assert records
            found += [record.value for record in records]
        assert {value.split()[0] for value in found} == {b"first", b"third"}
        assert reader.end_offsets(partitions(topic, 1)) == {TopicPartition(topic, 0): 18}
        deadline = time.monotonic() + 60
        while reader.position(TopicPartition(topic, 0)) < 18 and time.monotonic() < deadline:
            reader.poll(0.1)
        assert reader.position(TopicPartition(topic, 0)) == 18


def test_two_members_share_and_hand_over(servers: str) -> None:
    topic = new_topic(servers)
    callbacks: list[tuple[str, str, int]] = []

    def listener(who: str, what: str) -> Any:
        return lambda _, tps: callbacks.append((who, what, len(tps)))

    def join(name: str) -> Consumer:
        quick = {"group_protocol": "classic", "heartbeat_interval_ms": 200}
        member = consumer(servers, group_id=f"g-{topic}", client_id=name, **quick)
        member.subscribe([topic], on_assign=listener(name, "assign"), on_revoke=listener(name, "revoke"))
        return member

    with join("first") as first:
        while len(first.assignment()) < 3:
            first.poll(0.1)
        with join("second") as second:
            deadline = time.monotonic() + 60
            while not (second.assignment() and len(first.assignment()) + len(second.assignment()) == 3):
                assert time.monotonic() < deadline
                first.poll(0.1)
                second.poll(0.1)
            assert first.group_metadata().generation_id == second.group_metadata().generation_id
        while len(first.assignment()) < 3:
            assert time.monotonic() < deadline
            first.poll(0.1)
    assert [item for item in callbacks if item[0] == "first"][:3] == [
        ("first", "assign", 3),
        ("first", "revoke", 3),
        ("first", "assign", 2),
    ]
    assert [item for item in callbacks if item[0] == "second"] == [("second", "assign", 1), ("second", "revoke", 1)]


def test_commits_of_all_kinds(servers: str) -> None:
    topic = new_topic(servers)
    tp = TopicPartition(topic, 0)
    heard = []
    with consumer(servers, group_id=f"g-{topic}", enable_auto_commit=False) as reader:
        reader.assign([tp])
        reader.poll(10)
        assert reader.committed(tp) == {tp: None}
        reader.commit_async({tp: 5}, callback=lambda offsets, error: heard.append((offsets[tp].offset, error)))
        assert reader.commit({tp: OffsetAndMetadata(7, "note")}) == {tp: OffsetAndMetadata(7, "note")}
        assert heard == [(5, None)]
        assert reader.committed(tp)[tp] == OffsetAndMetadata(7, "note", None)
        with pytest.raises(OffsetMetadataTooLargeError, match=r"offset\.metadata\.max\.bytes"):
            reader.commit({tp: OffsetAndMetadata(7, "x" * 10_000)})


def test_resets_and_ranges(servers: str) -> None:
    topic = new_topic(servers)
    tp = TopicPartition(topic, 0)
    with consumer(servers, auto_offset_reset="none") as reader:
        reader.assign([tp])
        with pytest.raises(NoOffsetForPartitionError, match="seek"):
            reader.poll(5)
        reader.seek(tp, 5_000)
        with pytest.raises(OffsetOutOfRangeError, match="5000"):
            reader.poll(5)
    with consumer(servers, auto_offset_reset="latest") as reader:
        reader.assign([tp])
        assert reader.position(tp) == 100


def test_deserializers_run_when_a_field_is_read(servers: str) -> None:
    topic = new_topic(servers, partitions=1, rows=[(0, b"1", b"2", NOW, ()), (0, b"x", b"3", NOW, ())])
    with consumer(servers, key_deserializer=int, value_deserializer=int) as reader:
        reader.assign(partitions(topic, 1))
        first, second = reader.poll(10)
        assert (first.key, first.value, second.value) == (1, 2, 3)
        with pytest.raises(RecordDeserializationError, match="offset 1"):
            _ = second.key


def test_wakeup_from_another_thread(servers: str) -> None:
    topic = new_topic(servers, rows=[])
    with consumer(servers) as reader:
        reader.assign(partitions(topic))
        threading.Timer(0.3, reader.wakeup).start()
        started = time.monotonic()
        with pytest.raises(WakeupError):
            reader.poll(100)
        assert time.monotonic() - started < 50


def test_one_thread_at_a_time(servers: str) -> None:
    topic = new_topic(servers, rows=[])
    with consumer(servers) as reader:
        reader.assign(partitions(topic))
        refused: list[str] = []

        def poll(timeout: float) -> None:
            try:
                reader.poll(timeout)
            except ConcurrentAccessError as error:
                refused.append(str(error))

        def poll_on() -> None:
            with suppress(WakeupError):
                while True:
                    poll(100)

        polling = threading.Thread(target=poll_on)
        polling.start()
        while not refused:  # one of the two, since the other was in it
            poll(0)
        assert "one Consumer per thread" in refused[0]
        reader.wakeup()
        polling.join()
        reader.poll(0)


def test_a_closed_consumer_says_so(servers: str) -> None:
    reader = consumer(servers)
    reader.close()
    reader.close()
    for call in (reader.poll, reader.assignment, reader.unsubscribe, reader.paused):
        with pytest.raises(IllegalStateError, match="closed"):
            call()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this platform")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(
    ("operation", "instance", "remains"),
    [("default", "one", True), ("leave_group", "one", False), ("remain_in_group", None, True), ("default", None, False)],
)
def test_close_leaves_the_group_or_remains_as_group_membership_says(
    servers: str, protocol: str, operation: str, instance: str | None, remains: bool
) -> None:
    topic = new_topic(servers, rows=[])
    group = f"g-{topic}"
    reader = consumer(servers, group_id=group, group_protocol=protocol, group_instance_id=instance)
    reader.subscribe([topic])
    while len(reader.assignment()) < 3:
        reader.poll(0.1)
    reader.close(group_membership=operation)
    with Admin(bootstrap_servers=servers) as admin:
        assert bool(admin.describe_groups([group])[group].members) is remains


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_closing_does_not_wait_for_a_topic_that_was_deleted(servers: str, protocol: str) -> None:
    gone, kept = new_topic(servers), new_topic(servers)
    group = f"group-of-{gone}"
    reader = consumer(servers, group_id=group, group_protocol=protocol, auto_commit_interval=3_600)
    reader.subscribe([gone, kept])
    read = 0
    while read < 2 * len(ROWS):
        read += len(reader.poll(1))
    with Admin(bootstrap_servers=servers) as admin:
        admin.delete_topics([gone])
    began = time.monotonic()
    reader.close(timeout=30)
    assert time.monotonic() - began < 5
    with consumer(servers, group_id=group) as other:
        found = other.committed(*partitions(kept))
    assert [None if one is None else one.offset for one in found.values()] == [100, 100, 100]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_assign_commits_the_progress_of_what_it_replaces(servers: str, protocol: str) -> None:
    topic = new_topic(servers)
    settings = {"group_id": f"group-of-{topic}", "group_protocol": protocol, "auto_commit_interval": 3_600}
    first, *others = partitions(topic)
    with consumer(servers, **settings) as reader:
        reader.assign([first])
        read = 0
        while read < 100:
            read += len(reader.poll(1))
        reader.assign(others)
        assert reader.commit({}) == {}, "which waits for earlier commits"
        assert reader.committed(first) == {first: OffsetAndMetadata(100, leader_epoch=0)}


def test_a_forked_child_gets_an_error(servers: str) -> None:
    topic = new_topic(servers, rows=[])
    with consumer(servers) as reader:
        reader.assign(partitions(topic))
        reader.poll(0.2)
        child = os.fork()
        if child == 0:
            try:
                reader.poll(0.1)
            except ForkedError:
                os._exit(7)
            except BaseException:
                os._exit(8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        reader.poll(0.2)


def test_on_an_event_loop(servers: str) -> None:
    topic = new_topic(servers)
    seen: list[bytes | None] = []

    async def read(most: int) -> None:
        settings = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest", "max_poll_records": 40}
        settings |= {"enable_auto_commit": False, "group_instance_id": "one"}
        async with asyncio.timeout(60), AsyncConsumer(bootstrap_servers=servers, **settings) as reader:
            await reader.subscribe([topic], on_revoke=lambda reader, _: reader.commit())  # type: ignore[return-value]
            while len(seen) < most:
                seen.extend(record.value for record in await reader.poll(10))
            await reader.close(group_membership=GroupMembershipOperation.LEAVE_GROUP)

    asyncio.run(read(100))
    asyncio.run(read(len(ROWS)))
    assert sorted(seen) == sorted(row[2] for row in ROWS)
    with Admin(bootstrap_servers=servers) as admin:
        assert admin.describe_groups([f"g-{topic}"])[f"g-{topic}"].members == ()


def test_the_error_names_an_address_without_a_listener_in_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with consumer(address, group_id="g") as reader:
            reader.subscribe(["t"])
            started = time.monotonic()
            with pytest.raises(ConnectionFailedError, match=address):
                reader.poll(1.5)
            assert time.monotonic() - started < 30
            with pytest.raises(ConnectionFailedError, match=address):
                reader.list_topics(timeout=1)


@pytest.mark.parametrize("protocol", ["classic", "consumer", "by hand"])
def test_a_committed_leader_epoch_that_is_none_of_the_clusters_is_dropped(
    servers: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(servers)
    group = f"g-{topic}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.alter_group_offsets(group, {tp: OffsetAndMetadata(10, leader_epoch=1_000) for tp in partitions(topic)})
    settings = {} if protocol == "by hand" else {"group_protocol": protocol}
    with consumer(servers, group_id=group, enable_auto_commit=False, **settings) as reader:
        if protocol == "by hand":
            reader.assign(partitions(topic))
        else:
            reader.subscribe([topic])
            while not reader.assignment():
                reader.poll(0.1)
        began, found = time.monotonic(), 0
        while found < len(ROWS) - 30:
            found += len(reader.poll(1))
        assert time.monotonic() - began < 5
        assert len([line for line in caplog.messages if "does not know leader epoch 1000" in line]) == 3
        reader.seek(partitions(topic)[0], OffsetAndMetadata(5, leader_epoch=2_000))
        assert min(record.offset for record in reader.poll(10)) == 5
        reader.commit()
    with Admin(bootstrap_servers=servers) as admin:
        committed = admin.group_offsets(group)
    assert {at.offset for at in committed.values()} == {100}
    assert all((at.leader_epoch or 0) < 1_000 for at in committed.values())


@pytest.mark.parametrize("grouped", [False, True])
def test_an_assigned_topic_that_is_deleted_is_an_error_of_poll(servers: str, grouped: bool) -> None:
    topic = new_topic(servers, partitions=2, rows=[(index % 2, *row[1:]) for index, row in enumerate(ROWS)])
    settings = {"group_id": f"g-{topic}"} if grouped else {}
    with consumer(servers, allow_auto_create_topics=False, **settings) as reader, Admin(bootstrap_servers=servers) as admin:
        reader.assign(partitions(topic, 2))
        found = 0
        while found < len(ROWS):
            found += len(reader.poll(10))
        assert reader.health().healthy
        admin.delete_topics([topic])
        began = time.monotonic()
        with pytest.raises(UnknownTopicOrPartitionError, match="the topic does not exist"):
            next(iter(reader))
        assert 2 < time.monotonic() - began < 15
        assert not reader.health().healthy
        create_topic(servers, topic, 2)
        PRODUCE["confluent"](servers, topic, [(0, None, b"new", NOW, ())])
        values: list[bytes | None] = []
        while not values:
            with suppress(UnknownTopicOrPartitionError):
                values += [record.value for record in reader.poll(1)]
        assert values == [b"new"]
