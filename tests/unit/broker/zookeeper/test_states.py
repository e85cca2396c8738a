"""Brokers that write the states of their partitions into ZooKeeper, and read the leader epochs of others."""

from __future__ import annotations

import json
import uuid

import pytest

from ottla.errors import ZooKeeperError
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import encode_partition_state, encode_topic
from ottla.zookeeper.operations import Create, Multi, SetData
from tests.simulation.zookeeper_cluster import BrokerInCluster, FailingStore, ZooKeeperCluster

ID, OTHER_ID = uuid.UUID(int=1 << 100), uuid.UUID(int=2 << 100)
SEEDS = range(8)


def written(broker: BrokerInCluster) -> list[str]:
    """The paths of the states that a broker has written, or tried to."""
    multis = [operation for operation in broker.asked if isinstance(operation, Multi)]
    writes = [one for multi in multis for one in multi.operations if isinstance(one, Create | SetData)]
    return sorted(one.path for one in writes if one.path.endswith("/state"))


def set_epoch(broker: BrokerInCluster, topic: str, partition: int, epoch: int) -> None:
    """Give a log another leader epoch, as its load does if records are lost."""
    for _ in range(epoch):
        broker.catalog.log(topic, partition).leader_epochs.start_next_epoch(0)


def restart_at_epoch_3(cluster: ZooKeeperCluster, broker: BrokerInCluster) -> None:
    """Restart a broker, whose leader epoch for partition 0 of ``t`` is 3 then, until the others know it."""
    broker.restart()
    set_epoch(broker, "t", 0, 3)
    cluster.run(9000)


def test_a_state_is_written_as_kafka_writes_it() -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (7,), ID)
    cluster.add(7)
    cluster.run()
    data = cluster.model.data(paths.partition_state("t", 0))
    assert data is not None
    assert json.loads(data) == {"controller_epoch": 1, "leader": 7, "version": 1, "leader_epoch": 0, "isr": [7]}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_broker_writes_the_states_of_its_partitions_once(seed: int) -> None:
    cluster = ZooKeeperCluster(seed)
    cluster.create_topic("t", (1, 2, 1), ID)
    one, two = cluster.add(1, 2)
    cluster.run()
    cluster.put(paths.topic("t"), encode_topic((1, 2, 1, 2), ID))
    cluster.run()
    for broker in (one, two):
        broker.disconnect()
    cluster.run()
    cluster.check()
    assert written(one) == [paths.partition_state("t", partition) for partition in (0, 2)]
    assert written(two) == [paths.partition_state("t", partition) for partition in (1, 3)]


def test_another_process_writes_only_the_leader_epochs_that_have_changed() -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1, 1, 2), ID)
    cluster.put(paths.partition_state("t", 1), encode_partition_state(1, 5))
    one, two = cluster.add(1, 2)
    cluster.run()
    assert cluster.states("t") == {0: 0, 1: 0, 2: 0}
    one.restart()
    set_epoch(one, "t", 0, 3)
    cluster.run(8000)
    cluster.check()
    assert written(one) == [paths.partition_state("t", 0)]
    assert cluster.states("t") == {0: 3, 1: 0, 2: 0}
    assert two.catalog.leader_epoch(two.catalog.topic("t"), 0) == 3
    assert two.catalog.leader_epoch(two.catalog.topic("t"), 1) == 0


@pytest.mark.parametrize("after", range(20))
def test_a_connection_that_breaks_loses_no_leader_epoch(after: int) -> None:
    cluster = ZooKeeperCluster(after)
    cluster.create_topic("t", (1, 2), ID)
    one, two = cluster.add(1, 2)
    cluster.run()
    two.restart()
    set_epoch(two, "t", 1, 3)
    while not two.zookeeper.is_registered:
        cluster.run(1)
    cluster.run(after)
    one.disconnect()
    cluster.run()
    assert one.catalog.leader_epoch(one.catalog.topic("t"), 1) == 3
    cluster.check()


def test_the_leader_epochs_are_known_of_topics_that_were_unknown_at_the_start() -> None:
    """The brokers are read long before the last of many topics."""
    cluster = ZooKeeperCluster()
    for number in range(600):
        cluster.create_topic(f"t{number:03}", (2,), uuid.UUID(int=1000 + number))
    (two,) = cluster.add(2)
    set_epoch(two, "t599", 0, 3)
    cluster.run()
    one = BrokerInCluster(cluster, 1)
    one.start(registered=[])
    cluster.run()
    assert one.catalog.leader_epoch(one.catalog.topic("t599"), 0) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_the_leader_epochs_are_known_of_a_topic_that_becomes_readable_later(seed: int) -> None:
    """Its broker may not register again for months."""
    cluster = ZooKeeperCluster(seed)
    cluster.create_topic("t", (2, 1), ID)
    one, two = cluster.add(1, 2)
    cluster.run()
    restart_at_epoch_3(cluster, two)
    node = cluster.model.data(paths.topic("t"))
    assert node is not None
    cluster.put(paths.topic("t"), b"{")
    one.kill()
    one.store = FailingStore(lambda: cluster.clock.now.wall)  # otherwise its start would be refused
    one.start()
    cluster.run(9000)
    assert one.catalog.topics.get("t") is None
    cluster.put(paths.topic("t"), node)
    cluster.run()
    cluster.check()
    assert one.catalog.leader_epoch(one.catalog.topic("t"), 0) == 3


def test_the_leader_epochs_are_known_of_a_topic_that_could_not_be_stored_before() -> None:
    cluster = ZooKeeperCluster()
    one, two = cluster.add(1, 2)
    cluster.run()
    one.store.is_full = True
    cluster.create_topic("t", (2,), ID)
    cluster.run()
    restart_at_epoch_3(cluster, two)
    one.store.is_full = False
    cluster.run(31_000)
    cluster.check()
    assert one.catalog.leader_epoch(one.catalog.topic("t"), 0) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_that_a_tool_moves_has_the_leader_epoch_of_its_new_broker(seed: int) -> None:
    """The others may read its state before that broker has written it."""
    cluster = ZooKeeperCluster(seed)
    cluster.create_topic("t", (2,), ID)
    one, two, three = cluster.add(1, 2, 3)
    cluster.run()
    restart_at_epoch_3(cluster, two)
    assert one.catalog.leader_epoch(one.catalog.topic("t"), 0) == 3
    three.hold(300)
    cluster.put(paths.topic("t"), encode_topic((3,), ID))
    cluster.run(2000)
    cluster.check()
    assert one.catalog.leader_epoch(one.catalog.topic("t"), 0) == three.catalog.leader_epoch(three.catalog.topic("t"), 0) == 0
    before = one.counts()
    cluster.run(60_000)
    assert (one.counts() - before).total() == 0, "nothing is left to read"


@pytest.mark.parametrize("data", [b"", b"{", b'{"leader_epoch":"x"}', None])
def test_what_is_missing_or_malformed_counts_as_epoch_0(data: bytes | None) -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1, 2, 2), ID)
    (one,) = cluster.add(1)
    cluster.run()
    cluster.put(paths.partition_state("t", 2), encode_partition_state(2, 9))
    if data is not None:
        cluster.put(paths.partition_state("t", 1), data)
    one.catalog.cluster.set_leader_epoch(TopicPartition("t", 1), 4)
    cluster.put(paths.broker(2), b'{"host":"h","port":1}')
    cluster.run()
    topic = one.catalog.topic("t")
    assert [one.catalog.leader_epoch(topic, partition) for partition in topic.partitions] == [0, 0, 9]


@pytest.mark.parametrize("left", ["partitions", "partition", "state"])
def test_what_another_tool_has_left_is_completed(left: str) -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1, 1), ID)
    state = paths.partition_state("t", 1)
    cluster.put({"partitions": paths.partitions("t"), "partition": state.rpartition("/")[0], "state": state}[left])
    cluster.add(1)
    cluster.run()
    cluster.check()
    assert cluster.states("t") == {0: 0, 1: 0}


@pytest.mark.parametrize("after", range(25))
def test_another_client_writes_the_same_nodes_meanwhile(after: int) -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1, 1), ID)
    cluster.create_topic("u", (1,), OTHER_ID)
    (one,) = cluster.add(1)
    cluster.run(after)
    cluster.put(paths.partition_state("t", 1), b"")
    cluster.delete_topic("u")
    cluster.run(2000)
    one.disconnect()
    cluster.run(2000)
    cluster.check()
    assert cluster.states("t") == {0: 0, 1: 0}


@pytest.mark.parametrize("after", range(25))
@pytest.mark.parametrize("seed", range(3))
def test_a_topic_that_is_created_again_gets_its_states_again(seed: int, after: int) -> None:
    cluster = ZooKeeperCluster(seed)
    cluster.create_topic("t", (1, 2), ID)
    cluster.add(1, 2)
    cluster.run(after)
    cluster.delete_topic("t")
    cluster.run(after % 5)
    cluster.create_topic("t", (2, 1, 1), OTHER_ID)
    cluster.run(2000)
    cluster.check()
    assert cluster.states("t") == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize("seed", range(20))
def test_a_topic_that_is_created_again_on_another_broker_while_one_is_away(seed: int) -> None:
    """The broker that had the partition before must not overwrite the state of its new leader when it comes back."""
    cluster = ZooKeeperCluster(seed)
    cluster.create_topic("t", (1, 2), ID)
    one, _ = cluster.add(1, 2)
    cluster.run()
    one.disconnect()
    cluster.delete_topic("t")
    cluster.create_topic("t", (2, 2), OTHER_ID)
    for partition in range(2):
        cluster.put(paths.partition_state("t", partition), encode_partition_state(2))
    cluster.run(3000)
    assert written(one) == [paths.partition_state("t", 0)], "only that of its own, before"
    assert cluster.model.data(paths.partition_state("t", 0)) == encode_partition_state(2)
    cluster.check()


def test_a_topic_of_many_partitions_is_written_in_few_multis() -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", [1 + number % 2 for number in range(4000)], ID)
    one, two = cluster.add(1, 2)
    cluster.run(3000)
    cluster.check()
    assert len(written(one)) == len(written(two)) == 2000
    assert one.counts()["Multi"] <= 6
    assert one.counts()["GetChildren"] + one.counts()["Create"] < 20


def test_no_answer_delays_the_registration() -> None:
    cluster = ZooKeeperCluster()
    cluster.create_topic("t", (1,), ID)
    (one,) = cluster.add(1)
    cluster.run(5)
    one.hold(1000)
    cluster.run(900)
    assert not one.zookeeper.is_registered
    cluster.run(1000)
    cluster.check()


def test_the_helper_fails_for_a_node_that_does_not_exist() -> None:
    with pytest.raises(ZooKeeperError):
        ZooKeeperCluster().execute(SetData("/none", b""))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_second_broker_with_an_id_writes_no_states(seed: int) -> None:
    cluster = ZooKeeperCluster(seed)
    cluster.create_topic("t", (2, 1), ID)
    _, two = cluster.add(1, 2)
    cluster.run()
    restart_at_epoch_3(cluster, two)
    assert cluster.states("t") == {0: 3, 1: 0}
    second = BrokerInCluster(cluster, 2, port=9999)
    second.start()
    cluster.run(100_000)
    two.kill()
    cluster.run(100_000)
    assert cluster.states("t") == {0: 3, 1: 0}
    assert written(second) == []


@pytest.mark.parametrize("after", range(30))
def test_the_states_are_right_again_when_another_broker_with_the_id_has_ended(after: int) -> None:
    """The same session goes on: an operator has deleted the node, and another broker was faster."""
    cluster = ZooKeeperCluster(after)
    cluster.create_topic("t", (1,), ID)
    (one,) = cluster.add(1)
    cluster.run()
    second = BrokerInCluster(cluster, 1, port=9999)
    one.hold(after)
    cluster.remove(paths.broker(1))
    second.start()
    cluster.run()
    if one.zookeeper.is_registered:
        return
    set_epoch(second, "t", 0, 3)
    cluster.put(paths.partition_state("t", 0), encode_partition_state(1, 3))
    second.kill()
    cluster.run(10_000)
    cluster.brokers = [one]
    cluster.check()
    assert cluster.states("t") == {0: 0}
