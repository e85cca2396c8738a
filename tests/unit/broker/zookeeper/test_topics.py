"""Brokers whose catalogs follow the topics in ZooKeeper."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest

from ottla.broker.cluster import TopicRegistration
from ottla.broker.topics import Topic
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import encode_configs, encode_topic
from ottla.zookeeper.operations import Create, Multi, SetData
from tests.simulation.zookeeper_cluster import BrokerInCluster, ZooKeeperCluster

SEEDS = range(5)
"""The orders in which messages and reports arrive."""

WHILE_READING = range(14)
"""Milliseconds after a connection: from before the first read until all is read."""

ID, OTHER_ID = uuid.UUID(int=1 << 100), uuid.UUID(int=2 << 100)


@pytest.fixture(params=SEEDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[ZooKeeperCluster]:
    """A ZooKeeper without brokers. After the test all brokers agree with it."""
    cluster = ZooKeeperCluster(request.param)
    yield cluster
    cluster.run(1000)
    cluster.check()


def topic_of(broker: BrokerInCluster, name: str = "t") -> Topic:
    found = broker.catalog.topics.get(name)
    assert found is not None
    return found


def test_a_topic_of_each_broker_is_known_to_all(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    cluster.run()
    cluster.create_topic("t", (1, 2, 1), ID, {"retention.ms": "1000"})
    cluster.run()
    for broker in (one, two):
        topic = topic_of(broker)
        assert (topic.topic_id, topic.replicas, topic.overrides) == (ID, (1, 2, 1), {"retention.ms": "1000"})
    assert cluster.states("t") == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize("between", [0, 3, 20])
def test_a_tool_creates_the_topic_first_and_its_settings_later(cluster: ZooKeeperCluster, between: int) -> None:
    (broker,) = cluster.add(1)
    cluster.run()
    cluster.put(paths.topic("t"), encode_topic((1,), ID))
    cluster.run(between)
    cluster.put(paths.topic_config("t"), encode_configs({"retention.ms": "1000"}))
    cluster.run()
    assert topic_of(broker).overrides == {"retention.ms": "1000"}


def test_the_broker_of_partition_0_gives_a_topic_its_id(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    cluster.run()
    cluster.create_topic("t", (2, 1))
    cluster.run()
    assert cluster.topic_id("t") == topic_of(one).topic_id == topic_of(two).topic_id
    assert one.counts()["SetData"] == 0
    assert two.counts()["SetData"] == 1


def test_a_topic_without_an_id_is_unknown_while_the_broker_of_partition_0_is_down(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    two.kill()
    cluster.run()
    cluster.create_topic("t", (2, 1))
    cluster.run(SESSION := 8000)
    assert one.catalog.topics.get("t") is None
    two.start()
    cluster.run(SESSION)
    assert topic_of(one).topic_id == topic_of(two).topic_id


def test_a_tool_that_adds_partitions_and_removes_the_id_does_not_change_the_topic(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    cluster.create_topic("t", (1, 2), ID)
    cluster.run()
    one.kill()  # that of partition 0, which does not know later that it is the same topic
    cluster.put(paths.topic("t"), encode_topic((1, 2, 2)))
    cluster.run()
    assert topic_of(two).topic_id == cluster.topic_id("t") == ID
    assert topic_of(two).partition_count == 3
    cluster.run(8000)
    one.start()
    cluster.run()


def test_a_topic_that_was_created_again_without_an_id_gets_another_one(cluster: ZooKeeperCluster) -> None:
    (broker,) = cluster.add(1)
    cluster.create_topic("t", (1,), ID)
    cluster.run()
    cluster.delete_topic("t")
    cluster.create_topic("t", (1,))
    cluster.run()
    assert topic_of(broker).topic_id == cluster.topic_id("t") != ID


def test_growth_and_other_settings(cluster: ZooKeeperCluster) -> None:
    one, two = cluster.add(1, 2)
    cluster.create_topic("t", (1,), ID)
    cluster.run()
    cluster.put(paths.topic("t"), encode_topic((1, 2, 1), ID))
    cluster.put(paths.topic_config("t"), encode_configs({"retention.ms": "5"}))
    cluster.run()
    for broker in (one, two):
        assert topic_of(broker).replicas == (1, 2, 1)
        assert topic_of(broker).overrides == {"retention.ms": "5"}
    assert cluster.states("t") == {0: 0, 1: 0, 2: 0}


def test_a_topic_that_is_marked_is_deleted_at_once(cluster: ZooKeeperCluster) -> None:
    (broker,) = cluster.add(1)
    cluster.create_topic("t", (1,), ID)
    cluster.run()
    cluster.put(paths.deleted_topic("t"))
    cluster.run()
    assert broker.catalog.topics.get("t") is None
    cluster.put(paths.topic_config("t"), encode_configs({"retention.ms": "5"}))
    cluster.run()
    assert broker.catalog.topics.get("t") is None


@pytest.mark.parametrize("between", [0, 2, 5, 100])
@pytest.mark.parametrize("marked", [False, True])
def test_a_topic_is_created_again_under_its_name(cluster: ZooKeeperCluster, between: int, marked: bool) -> None:
    one, two = cluster.add(1, 2)
    cluster.create_topic("t", (1, 2), ID, {"retention.ms": "5"})
    cluster.run()
    if marked:
        cluster.put(paths.deleted_topic("t"))
        cluster.run(between)
    cluster.delete_topic("t")
    cluster.run(between)
    cluster.create_topic("t", (2, 1, 1), OTHER_ID)
    cluster.run()
    for broker in (one, two):
        assert (topic_of(broker).topic_id, topic_of(broker).replicas) == (OTHER_ID, (2, 1, 1))


@pytest.mark.parametrize("after", WHILE_READING)
def test_a_change_during_the_first_reading_is_seen(cluster: ZooKeeperCluster, after: int) -> None:
    cluster.create_topic("gone", (1,), ID)
    cluster.create_topic("grown", (1,), OTHER_ID)
    (broker,) = cluster.add(1)
    cluster.run(after)
    cluster.delete_topic("gone")
    cluster.put(paths.topic("grown"), encode_topic((1, 1), OTHER_ID))
    cluster.create_topic("new", (1,))
    cluster.run()
    assert {topic.name: topic.partition_count for topic in broker.catalog.topics} == {"grown": 2, "new": 1}


@pytest.mark.parametrize("after", WHILE_READING)
def test_the_connection_breaks_during_the_first_reading(cluster: ZooKeeperCluster, after: int) -> None:
    for number in range(3):
        cluster.create_topic(f"t{number}", (1, 2))
    one, two = cluster.add(1, 2)
    cluster.run(after)
    one.disconnect()
    cluster.delete_topic("t0")
    cluster.run(after)
    two.disconnect()
    cluster.run(1000)
    assert {topic.name for topic in one.catalog.topics} == {"t1", "t2"}


def test_what_happened_while_a_broker_was_disconnected_is_read(cluster: ZooKeeperCluster) -> None:
    (broker,) = cluster.add(1)
    cluster.create_topic("gone", (1,), ID)
    cluster.run()
    broker.disconnect()
    cluster.run(20)
    cluster.delete_topic("gone")
    cluster.create_topic("t", (1,), OTHER_ID)
    cluster.run()
    assert [topic.name for topic in broker.catalog.topics] == ["t"]


@pytest.mark.parametrize("after", range(8))
def test_a_topic_that_another_manager_creates_survives_an_older_list(cluster: ZooKeeperCluster, after: int) -> None:
    """1. A list of topics is asked for. 2. A multi of the same session creates a topic. 3. The list arrives. 4. The multi succeeds,
    and the topic is applied at once."""
    (broker,) = cluster.add(1)
    cluster.run()
    deleted: list[str] = []
    broker.catalog.cluster.listeners.append(lambda before, now: deleted.append("yes") if now is None else None)
    cluster.create_topic("other", (1,), ID)
    cluster.run(after)
    registration = cluster.registrations()[0]._replace(name="t", topic_id=OTHER_ID)
    multi = Multi((Create(paths.topic_config("t"), encode_configs({})), Create(paths.topic("t"), encode_topic((1,), OTHER_ID))))
    broker.change(multi, registration)
    cluster.run()
    assert {topic.name for topic in broker.catalog.topics} == {"other", "t"}
    assert deleted == []


@pytest.mark.parametrize("after", range(8))
def test_partitions_that_another_manager_adds_survive_an_older_read(cluster: ZooKeeperCluster, after: int) -> None:
    """1. The settings have changed, and are read again with the topic. 2. A multi of the same session adds a partition, and that is
    applied at once. 3. The partition does not disappear with what was read."""
    (broker,) = cluster.add(1)
    cluster.create_topic("t", (1,), ID)
    cluster.run()
    counts: list[int] = []
    broker.catalog.cluster.listeners.append(lambda before, now: counts.append(now.partition_count if now is not None else 0))
    cluster.put(paths.topic_config("t"), encode_configs({"retention.ms": "5"}))
    cluster.run(after)
    registration = cluster.registrations()[0]._replace(replicas=(1, 1))
    broker.change(Multi((SetData(paths.topic("t"), encode_topic((1, 1), ID)),)), registration)
    cluster.run()
    assert counts == sorted(counts)
    assert counts[-1] == 2


@pytest.mark.parametrize("after", range(8))
def test_a_topic_that_another_manager_deletes_does_not_come_back(cluster: ZooKeeperCluster, after: int) -> None:
    """1. A multi of the same session marks a topic, which is removed from the catalog at once. 2. Its settings change, so it is
    read. 3. Its node still exists."""
    (broker,) = cluster.add(1)
    cluster.create_topic("t", (1,), ID)
    cluster.run()
    broker.change(Multi((Create(paths.deleted_topic("t")),)), None)
    created: list[str] = []
    broker.catalog.cluster.listeners.append(lambda before, now: created.append("yes") if before is None else None)
    for number in range(4):
        cluster.run(after)
        cluster.put(paths.topic_config("t"), encode_configs({"retention.ms": str(number + 1)}))
    cluster.run()
    assert created == []
    assert broker.catalog.topics.get("t") is None
    assert cluster.model.data(paths.topic("t")) is None


# -- what cannot be used --------------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"partitions":{"1":[1]}}', b'{"partitions":{"0":[]}}', b'{"partitions":{"0":["x"]}}']
)
def test_a_malformed_topic_is_logged_once_and_the_others_count(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    cluster.put(paths.topic("bad"), data)
    cluster.create_topic("t", (1,), ID)
    (broker,) = cluster.add(1)
    cluster.run()
    broker.disconnect()
    cluster.run()
    assert [topic.name for topic in broker.catalog.topics] == ["t"]
    assert logged(caplog, paths.topic("bad")) == 1
    cluster.put(paths.topic("bad"), encode_topic((1,), OTHER_ID))
    cluster.run()
    cluster.check()


def test_a_topic_whose_node_becomes_malformed_stays_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1, 1), ID)
    (broker,) = cluster.add(1)
    cluster.run()
    cluster.put(paths.topic("t"), b"{")
    cluster.run()
    assert topic_of(broker).partition_count == 2
    cluster.put(paths.topic("t"), encode_topic((1,), ID))  # fewer partitions
    cluster.run()
    assert topic_of(broker).partition_count == 2
    assert logged(caplog, "partitions cannot be removed") == 1


@pytest.mark.parametrize(
    "data", [b"{", b'{"config":{"retention.ms":5}}', encode_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})]
)
def test_settings_that_cannot_be_used_leave_the_topic_with_the_last_ones(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1,), ID, {"retention.ms": "7"})
    cluster.create_topic("new", (1,), OTHER_ID)
    cluster.put(paths.topic_config("new"), data)
    (broker,) = cluster.add(1)
    cluster.run()
    cluster.put(paths.topic_config("t"), data)
    cluster.put(paths.topic("t"), encode_topic((1, 1), ID))
    cluster.run()
    broker.disconnect()
    cluster.run()
    assert (topic_of(broker).overrides, topic_of(broker).partition_count) == ({"retention.ms": "7"}, 2)
    assert topic_of(broker, "new").overrides == {}
    assert logged(caplog, paths.topic_config("t")) == logged(caplog, paths.topic_config("new")) == 1
    broker.restart()  # on the files that it has written
    cluster.put(paths.topic_config("t"), encode_configs({"retention.ms": "8"}))
    cluster.run(10_000)
    assert topic_of(broker).overrides == {"retention.ms": "8"}


def test_illegal_names_and_several_replicas(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    cluster.put(f"{paths.TOPICS}/il:legal", encode_topic((1,), ID))
    cluster.put(paths.topic("t"), b'{"version":1,"partitions":{"0":[1,2],"1":[2,1]}}')
    (broker,) = cluster.add(1)
    cluster.run()
    broker.disconnect()
    cluster.run()
    assert [(topic.name, topic.replicas) for topic in broker.catalog.topics] == [("t", (1, 2))]
    assert logged(caplog, "il:legal") == 2  # at the start, and in the session
    assert logged(caplog, "several replicas") == 1
    assert broker.zookeeper.is_registered


def test_names_that_collide_are_accepted_if_they_are_there() -> None:
    """Only a creation is refused, as in Kafka."""
    cluster = ZooKeeperCluster()
    cluster.create_topic("a.b", (1,), ID)
    (broker,) = cluster.add(1)
    cluster.run()
    cluster.create_topic("a_b", (1,), OTHER_ID)
    cluster.run()
    cluster.check()
    broker.restart()
    cluster.run(10_000)  # until the old session has ended
    cluster.check()
    cluster.delete_topic("a.b")
    cluster.delete_topic("a_b")
    cluster.run()
    cluster.check()


@pytest.mark.parametrize("disconnects", [False, True])
def test_a_topic_whose_node_was_copied_does_not_share_an_id(disconnects: bool, caplog: pytest.LogCaptureFixture) -> None:
    """An operator copies the JSON of a node. For clients that use ids, it would be one topic."""
    cluster = ZooKeeperCluster()
    (broker,) = cluster.add(1)
    cluster.create_topic("a", (1,), ID)
    cluster.create_topic("b", (1,), OTHER_ID)
    cluster.run()
    cluster.create_topic("b", (1,), ID)
    cluster.create_topic("c", (1,), ID)
    cluster.run()
    if disconnects:
        broker.disconnect()
        cluster.run()
    assert {topic.name: topic.topic_id for topic in broker.catalog.topics} == {"a": ID, "b": OTHER_ID}
    assert broker.catalog.topic_by_id(ID).name == "a"
    assert logged(caplog, f"{paths.topic('c')} of ZooKeeper is malformed: its topic id is that of topic a") == 1
    cluster.delete_topic("b")
    cluster.delete_topic("a")
    cluster.run()
    assert [topic.name for topic in broker.catalog.topics] == ["c"], "its id is free now"
    log = broker.catalog.log("c", 0)
    cluster.delete_topic("c")
    cluster.run()
    assert list(broker.catalog.logs) == []
    cluster.create_topic("c", (1,), OTHER_ID)
    cluster.run()
    assert broker.catalog.log("c", 0) is not log
    cluster.check()


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_two_topics_with_one_id_of_an_older_directory_can_be_deleted(names: str) -> None:
    cluster = ZooKeeperCluster()
    (broker,) = cluster.add(1)
    cluster.run()
    for name in "ab":
        broker.catalog.apply_registration(TopicRegistration(name, ID, (1,), {}))
    for name in names:
        broker.catalog.delete_topic(broker.catalog.topic(name))
    assert list(broker.catalog.logs) == []
    assert broker.catalog.topics.by_id(ID) is None


@pytest.mark.parametrize("deletes", [False, True])
def test_a_full_disk_is_retried_with_a_backoff(deletes: bool) -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1,), ID)
    (broker,) = cluster.add(1)
    cluster.run()
    broker.store.is_full = True
    if deletes:
        cluster.delete_topic("t")
    else:
        cluster.put(paths.topic("t"), encode_topic((1, 1), ID))
    before = sum(broker.counts().values())
    cluster.run(60_000)
    assert topic_of(broker).partition_count == 1
    assert before < sum(broker.counts().values()) < before + 60
    broker.store.is_full = False
    cluster.run(31_000)
    cluster.check()


# -- many -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_topics_take_a_few_operations_each() -> None:
    cluster = ZooKeeperCluster()
    for number in range(1000):
        cluster.create_topic(f"t{number}", (1, 2))
    one, two = cluster.add(1, 2)
    cluster.run(2000)
    cluster.check()
    # A topic is read by both brokers, gets its id from one, and is read again by both; a read after a watch may come twice.
    assert one.counts()["SetData"] == 1000
    assert one.counts()["GetData"] + two.counts()["GetData"] < 1000 * 2 * (3 * 2 + 1) + 100
    before = one.counts()
    cluster.create_topic("t1000", (1, 2), ID)
    cluster.run()
    assert (one.counts() - before).total() < 20
    before = one.counts()
    one.disconnect()
    cluster.run(2000)
    cluster.check()
    assert (one.counts() - before).total() < 1000 * 3 + 50
    assert (one.counts() - before)["Multi"] == 0


def test_many_topics_are_read_a_part_at_a_time() -> None:
    cluster = ZooKeeperCluster()
    for number in range(1000):
        cluster.put(paths.topic(f"t{number}"), encode_topic((1,), uuid.UUID(int=1000 + number)))
    (broker,) = cluster.add(1)
    most = 0
    for _ in range(100):
        cluster.run(1)
        most = max(most, broker.in_flight)
    cluster.run(1000)
    cluster.check()
    # 500 reads of topics, 250 looks for their settings, 500 reads of states, and as much again for the parents of those.
    assert 400 < most <= 2000
    assert broker.counts()["Multi"] < 10


@pytest.mark.parametrize("delay", WHILE_READING)
def test_a_deletion_that_is_disabled_is_taken_back(delay: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = ZooKeeperCluster(delay)
    cluster.brokers = [BrokerInCluster(cluster, node_id, delete_topic_enable=False) for node_id in (1, 2)]
    one, two = cluster.brokers
    for broker in cluster.brokers:
        broker.start()
    cluster.create_topic("known", (1, 2), ID)
    cluster.run()
    known = [topic_of(broker, "known") for broker in cluster.brokers]
    one.disconnect()
    cluster.run(delay)
    cluster.create_topic("new", (1, 2), OTHER_ID)
    for name in ("known", "new", "missing"):
        cluster.put(paths.deleted_topic(name))
    cluster.run()
    assert [topic_of(broker, "known") for broker in (one, two)] == known
    assert not cluster.model.children(paths.DELETED_TOPICS)
    assert "topic known is not deleted" in caplog.text
    assert "delete.topic.enable=false" in caplog.text
    cluster.check()
