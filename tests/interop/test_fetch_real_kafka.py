"""The fetch path on Apache Kafka: sessions, the closest replica, open transactions, recreated topics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla import Broker, Consumer, OffsetAndMetadata, TopicPartition
from ottla.client.fetch.manager import FetchManager
from ottla.client.fetch.session import SessionPhase
from ottla.errors import LogTruncationError, RecordDeserializationError
from tests.interop.other_clients import create_topic
from tests.interop.real_kafka import KafkaCluster, KafkaTool

PATIENCE = 60.0
"""Seconds that a busy machine may need for what takes one."""

_numbers = count()


@pytest.fixture(scope="module", params=["apache-kafka", "embedded"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("real_kafka")
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


def consumer(servers: str, **settings: Any) -> Consumer:
    return Consumer(bootstrap_servers=servers, **{"auto_offset_reset": "earliest", **settings})


def produce(servers: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE) == 0


def read(reader: Consumer, number: int) -> list[bytes]:
    """So many values, or the test fails."""
    found: list[bytes] = []
    until = time.monotonic() + PATIENCE
    while len(found) < number:
        assert time.monotonic() < until, f"{len(found)} of {number}"
        found += [record.value for record in reader.poll(1.0)]
    return found


def fetches(reader: Consumer) -> FetchManager:
    assert reader._network is not None
    return next(manager for manager in reader._network._core._managers if isinstance(manager, FetchManager))


def test_reading_goes_on_in_one_session(servers: str) -> None:
    topic = f"sessions-{next(_numbers)}"
    create_topic(servers, topic, 5)
    tps = [TopicPartition(topic, number) for number in range(5)]
    with consumer(servers) as reader:
        reader.assign(tps)
        for number in range(5):
            produce(servers, topic, [b"%d" % number], number)
            assert read(reader, 1) == [b"%d" % number]
        reader.pause(tps[0])
        produce(servers, topic, [b"paused"], 0)
        produce(servers, topic, [b"more"], 1)
        assert read(reader, 1) == [b"more"]
        reader.resume(tps[0])
        assert read(reader, 1) == [b"paused"]
        (node,) = fetches(reader)._nodes.values()
        assert node.session.phase is SessionPhase.OPEN
        assert node.session._epoch > 5


def test_lag_ends_where_a_transaction_is_open(servers: str) -> None:
    topic = f"open-{next(_numbers)}"
    create_topic(servers, topic, 1)
    tp = TopicPartition(topic, 0)
    produce(servers, topic, [b"plain"] * 4)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b"open", partition=0)
    producer.flush(PATIENCE)
    with consumer(servers, isolation_level="read_committed") as reader, consumer(servers) as bold:
        for each in (reader, bold):
            each.assign([tp])
            read(each, 2)
            each.seek(tp, 2)
            read(each, 1)
        assert reader.end_offsets([tp]) == {tp: 4}
        assert bold.end_offsets([tp]) == {tp: 7}
        assert reader.lag(tp) + reader.position(tp) == 4
        assert bold.lag(tp) + bold.position(tp) == 7
        producer.commit_transaction(PATIENCE)
        reader.seek(tp, 4)
        assert read(reader, 3) == [b"open"] * 3


def test_a_position_is_checked_against_the_log(servers: str) -> None:
    topic = f"epochs-{next(_numbers)}"
    create_topic(servers, topic, 1)
    tp = TopicPartition(topic, 0)
    produce(servers, topic, [b"%d" % number for number in range(10)])
    with consumer(servers, auto_offset_reset="none") as reader:
        reader.assign([tp])
        reader.seek(tp, OffsetAndMetadata(4, leader_epoch=0))
        assert read(reader, 6) == [b"%d" % number for number in range(4, 10)]
        reader.seek(tp, OffsetAndMetadata(14, leader_epoch=0))
        with pytest.raises(LogTruncationError, match="before offset 14, only records before 10 are left in it") as caught:
            read(reader, 1)
        assert (caught.value.topic, caught.value.partition, caught.value.divergent_offset) == (topic, 0, 10)
        reader.seek(tp, OffsetAndMetadata(9, leader_epoch=9))  # an epoch that the leader does not know is dropped
        assert read(reader, 1) == [b"9"]
    with consumer(servers) as reader:
        reader.assign([tp])
        reader.seek(tp, OffsetAndMetadata(14, leader_epoch=0))
        while reader.position(tp) != 10:  # a record that is there before the log is asked would be skipped
            assert not reader.poll(0.1)
        produce(servers, topic, [b"10"])
        assert read(reader, 1) == [b"10"]


def test_for_record_in_consumer_goes_past_what_cannot_be_deserialized(servers: str) -> None:
    topic = f"picky-{next(_numbers)}"
    create_topic(servers, topic, 1)
    produce(servers, topic, [b"1", b"two", b"3"])
    values: list[int] = []
    with consumer(servers, value_deserializer=int) as reader:
        reader.assign([TopicPartition(topic, 0)])
        with pytest.raises(RecordDeserializationError) as caught:
            values.extend(record.value for record in reader)
        assert (caught.value.offset, caught.value.record.value) == (1, b"two")
        assert next(iter(reader)).value == 3
    assert values == [1]


@pytest.mark.interop
def test_a_consumer_reads_a_recreated_topic_from_its_first_record(real_kafka: str, kafka_tool: KafkaTool) -> None:
    topic = f"recreated-{next(_numbers)}"
    create_topic(real_kafka, topic, 1)
    produce(real_kafka, topic, [b"old"] * 20)
    admin = AdminClient({"bootstrap.servers": real_kafka})
    with consumer(real_kafka, auto_offset_reset="latest", allow_auto_create_topics=False, metadata_max_age_ms=500) as reader:
        reader.assign([TopicPartition(topic, 0)])
        reader.seek_to_beginning()
        assert read(reader, 20) == [b"old"] * 20
        admin.delete_topics([topic])[topic].result(PATIENCE)
        until = time.monotonic() + PATIENCE
        while topic in admin.list_topics(timeout=60).topics:
            assert time.monotonic() < until
            time.sleep(0.1)
        create_topic(real_kafka, topic, 1)
        produce(real_kafka, topic, [b"new %d" % number for number in range(30)])
        assert read(reader, 30) == [b"new %d" % number for number in range(30)]


@pytest.mark.interop
def test_records_come_from_the_replica_in_the_same_rack(kafka_tool: KafkaTool) -> None:
    selector = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
    cluster = KafkaCluster(3, selector, racks=("a", "b", "c"))
    try:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("near", 1, 3)])["near"].result(PATIENCE)
        produce(cluster.bootstrap_servers, "near", [b"%d" % number for number in range(50)])
        leader = admin.list_topics("near", timeout=60).topics["near"].partitions[0].leader
        follower = leader % 3 + 1
        with consumer(cluster.bootstrap_servers, client_rack="abc"[follower - 1]) as reader:
            reader.assign([TopicPartition("near", 0)])
            assert read(reader, 50) == [b"%d" % number for number in range(50)]
            until = time.monotonic() + PATIENCE
            # A follower that is not in sync yet is not named: the leader is asked again once a lease is over, or an error comes.
            while TopicPartition("near", 0) not in _wanted_of(reader, follower):
                assert time.monotonic() < until
                reader.poll(0.1)
            cluster.kill(follower)
            produce(cluster.bootstrap_servers, "near", [b"after %d" % number for number in range(50)])
            assert read(reader, 50) == [b"after %d" % number for number in range(50)]
    finally:
        cluster.stop()


def _wanted_of(reader: Consumer, node_id: int) -> set[TopicPartition]:
    node = fetches(reader)._nodes.get(node_id)
    return set(node.session.wanted) if node is not None else set()
