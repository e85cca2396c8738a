"""A broker that is not its whole cluster: what its clients see of the others, without a ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from ottla.broker.cluster import NO_LEADER, Cluster, TopicRegistration
from ottla.broker.config import BrokerConfig
from ottla.broker.effects import NodeEndpoint
from ottla.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic
from ottla.errors import ConfigError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    describe_cluster_request,
    describe_groups_request,
    describe_log_dirs_request,
    elect_leaders_request,
    find_coordinator_request,
    init_producer_id_request,
)
from ottla.types import TopicPartition
from tests.simulation.broker import CoreUnderTest
from tests.simulation.requests import fetch_message
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import ask_metadata, fetched, produce
from tests.unit.broker.setting_requests import change

ME, OTHER, GONE = 1, 2, 3
TOPIC = TopicRegistration("orders", uuid.UUID(int=1), (ME, OTHER, GONE), {})


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path, **{"zookeeper.connect": "zookeeper:2181"})
    cluster = core.core.catalog.cluster
    cluster.set_brokers([cluster.me, NodeEndpoint(OTHER, "other", 9092)])
    core.core.catalog.apply_registration(TOPIC)
    yield core
    with suppress(OSError):  # a test that starts another one on the directory has closed it
        core.close()


def join(broker: CoreUnderTest, topic: TopicRegistration) -> None:
    """Let a topic appear, as at the end of a step."""
    broker.core.catalog.apply_registration(topic)
    broker.take(broker.core.on_job(("nothing",), None, broker.now))


def find(broker: CoreUnderTest, key: str, kind: int = 0) -> Any:
    message = find_coordinator_request.FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
    (found,) = broker.ask(Api.FIND_COORDINATOR, message).coordinators
    return found


def test_metadata_names_each_broker_and_the_leader_of_each_partition(broker: CoreUnderTest) -> None:
    broker.core.catalog.cluster.set_leader_epoch(TopicPartition("orders", 1), 4)
    response = ask_metadata(broker, "orders")
    assert [(one.node_id, one.host, one.port) for one in response.brokers][1] == (OTHER, "other", 9092)
    assert response.controller_id == ME
    partitions = [
        (one.error_code, one.leader_id, one.leader_epoch, one.replica_nodes, one.offline_replicas)
        for one in response.topics[0].partitions
    ]
    assert partitions == [
        (ErrorCode.none, ME, 0, (ME,), ()),
        (ErrorCode.none, OTHER, 4, (OTHER,), ()),
        (ErrorCode.leader_not_available, NO_LEADER, 0, (GONE,), (GONE,)),
    ]
    described = broker.ask(
        Api.DESCRIBE_CLUSTER,
        describe_cluster_request.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=False
        ),
    )
    assert [one.broker_id for one in described.brokers] == [ME, OTHER]


def test_a_partition_of_another_broker_is_neither_written_nor_read_here(broker: CoreUnderTest) -> None:
    assert produce(broker, batch(), topic="orders", partition=0).error_code is ErrorCode.none
    for partition in (1, 2):
        assert produce(broker, batch(), topic="orders", partition=partition).error_code is ErrorCode.not_leader_or_follower
    response = broker.ask(Api.FETCH, fetch_message(topic_id=TOPIC.topic_id, partition=1))
    assert fetched(response).error_code is ErrorCode.not_leader_or_follower
    assert not list(broker.store.path.glob("orders-1")), "nothing of it is stored here"
    dirs = broker.ask(Api.DESCRIBE_LOG_DIRS, describe_log_dirs_request.DescribeLogDirsRequest(topics=None))
    assert [one.partition_index for topic in dirs.results[0].topics for one in topic.partitions] == [0]


def test_leaders_are_not_elected(broker: CoreUnderTest) -> None:
    message = elect_leaders_request.ElectLeadersRequest(
        election_type=0,
        topic_partitions=(elect_leaders_request.TopicPartitions(topic="orders", partitions=(0, 1, 2, 3)),),
        timeout=timedelta(seconds=1),
    )
    (results,) = broker.ask(Api.ELECT_LEADERS, message).replica_election_results
    assert [one.error_code for one in results.partition_result] == [
        ErrorCode.election_not_needed,
        ErrorCode.election_not_needed,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.unknown_topic_or_partition,
    ]


def test_groups_are_served_by_the_leaders_of_their_partitions(broker: CoreUnderTest) -> None:
    assert find(broker, "g").error_code is ErrorCode.coordinator_not_available, "the topic does not exist yet"
    join(broker, TopicRegistration(OFFSETS_TOPIC, uuid.UUID(int=5), (ME, OTHER, GONE) * 2, {}))
    partitions = {name: broker.core.state.groups.offsets_partition_of(name).partition for name in map(str, range(40))}
    assert set(partitions.values()) == set(range(6)), "as many as the topic has, whatever the setting says"
    by_broker = {ME: "here", OTHER: "there", GONE: "nowhere"}
    places = {name: by_broker[(ME, OTHER, GONE)[number % 3]] for name, number in partitions.items()}
    for name, place in places.items():
        found = find(broker, name)
        assert (found.node_id, found.error_code) == {
            "here": (ME, ErrorCode.none),
            "there": (OTHER, ErrorCode.none),
            "nowhere": (-1, ErrorCode.coordinator_not_available),
        }[place]
        message = describe_groups_request.DescribeGroupsRequest(groups=(name,), include_authorized_operations=False)
        (group,) = broker.ask(Api.DESCRIBE_GROUPS, message).groups
        served = group.error_code is not ErrorCode.not_coordinator
        assert served is (place == "here")


def test_groups_move_with_a_new_topic_of_offsets(broker: CoreUnderTest) -> None:
    join(broker, TopicRegistration(OFFSETS_TOPIC, uuid.UUID(int=5), (ME,), {}))
    assert find(broker, "g").node_id == ME
    join(broker, TopicRegistration(OFFSETS_TOPIC, uuid.UUID(int=6), (OTHER, OTHER), {}))
    assert find(broker, "g").node_id == OTHER


def test_transactional_ids_are_refused_with_the_reason(broker: CoreUnderTest) -> None:
    found = find(broker, "t", 1)
    assert found.error_code is ErrorCode.invalid_request
    assert "Transactional ids are not served where several of Ottla's brokers share a ZooKeeper" in found.error_message
    begin = init_producer_id_request.InitProducerIdRequest(
        transactional_id="t", transaction_timeout=timedelta(seconds=10), producer_id=-1, producer_epoch=-1
    )
    assert broker.ask(Api.INIT_PRODUCER_ID, begin).error_code is ErrorCode.not_coordinator, "the client looks for it again"
    offsets = add_offsets_to_txn_request.AddOffsetsToTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, group_id="g")
    assert broker.ask(Api.ADD_OFFSETS_TO_TXN, offsets).error_code is ErrorCode.not_coordinator
    transaction = add_partitions_to_txn_request.AddPartitionsToTxnTopic(name="orders", partitions=(0,))
    partitions = add_partitions_to_txn_request.AddPartitionsToTxnRequest(
        transactions=(
            add_partitions_to_txn_request.AddPartitionsToTxnTransaction(
                transactional_id="t", producer_id=1, producer_epoch=0, verify_only=False, topics=(transaction,)
            ),
        )
    )
    (result,) = broker.ask(Api.ADD_PARTITIONS_TO_TXN, partitions, version=3).results_by_transaction
    codes = {one.partition_error_code for topic in result.topic_results for one in topic.results_by_partition}
    assert codes == {ErrorCode.not_coordinator}


def test_producer_ids_are_those_that_zookeeper_leaves_to_the_process(tmp_path: Path, broker: CoreUnderTest) -> None:
    """What the data directory says does not count: it may be new, and the logs of other brokers have the ids of an earlier one."""
    begin = init_producer_id_request.InitProducerIdRequest(
        transactional_id=None, transaction_timeout=timedelta(0), producer_id=-1, producer_epoch=-1
    )
    produce(broker, batch(producer_id=5 << 40, producer_epoch=0, base_sequence=0), topic="orders", partition=0)
    broker.close()
    for first in (7 << 40, 3 << 40):
        again = CoreUnderTest(tmp_path, registered=[TOPIC], first_producer_id=first, **{"zookeeper.connect": "zookeeper:2181"})
        assert [again.ask(Api.INIT_PRODUCER_ID, begin).producer_id for _ in range(1001)] == [*range(first, first + 1001)]
        again.close()


def test_settings_that_others_would_not_learn_are_refused(broker: CoreUnderTest) -> None:
    for kind, name, setting in ((4, "", "log.retention.ms"), (32, "g", "consumer.session.timeout.ms")):
        refused = change(broker, kind, name, (setting, 0, "60000"))
        assert refused.error_code is ErrorCode.invalid_request
        assert "are not shared by brokers with ZooKeeper" in refused.error_message
    assert change(broker, 4, "1", ("log.retention.ms", 0, "60000")).error_code is ErrorCode.none


def test_a_topic_that_was_deleted_while_the_broker_was_down_leaves_nothing(tmp_path: Path, broker: CoreUnderTest) -> None:
    produce(broker, batch(), topic="orders", partition=0)
    broker.close()
    other = TopicRegistration("orders", uuid.UUID(int=9), (OTHER, ME), {"retention.ms": "5000"})
    again = CoreUnderTest(tmp_path, registered=[other], **{"zookeeper.connect": "zookeeper:2181"})
    topic = again.core.catalog.topics.get("orders")
    assert topic is not None
    assert (topic.topic_id, topic.replicas, topic.config.retention_ms) == (other.topic_id, (OTHER, ME), 5000)
    assert produce(again, batch(), topic="orders", partition=1).base_offset == 0
    assert [path.name for path in again.store.path.glob("orders-*") if "delete" not in path.name] == ["orders-1"]
    again.close()


def _topic(name: str, replicas: tuple[int, ...]) -> Topic:
    from ottla.broker.ports import StoredTopic
    from ottla.broker.topics import Topics

    return Topics(BrokerConfig()).of_stored(StoredTopic(name, uuid.UUID(int=1), len(replicas), {}), replicas)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(1, 5))
def test_each_broker_gets_its_share(topics: list[int], brokers: int) -> None:
    cluster = Cluster(NodeEndpoint(1, "a", 1), is_alone=False)
    cluster.set_brokers([NodeEndpoint(number, "a", 1) for number in range(1, brokers + 1)])
    counts = dict.fromkeys(range(1, brokers + 1), 0)
    for number, partitions in enumerate(topics):
        replicas = cluster.place(partitions)
        assert max(map(replicas.count, counts)) - min(map(replicas.count, counts)) <= 1
        cluster.note_change(None, _topic(f"t{number}", replicas))
        for broker in replicas:
            counts[broker] += 1
    assert max(counts.values()) - min(counts.values()) <= 1, "over all topics"


def test_a_broker_that_is_gone_still_shares_the_cluster() -> None:
    cluster = Cluster(NodeEndpoint(1, "a", 1), is_alone=False)
    assert not cluster.is_shared
    mine, its = _topic("mine", (1, 1)), _topic("its", (1, 2))
    cluster.note_change(None, mine)
    assert not cluster.is_shared
    cluster.note_change(None, its)
    assert cluster.is_shared
    assert (cluster.leader(its, 0), cluster.leader(its, 1)) == (1, NO_LEADER)
    cluster.note_change(its, None)
    assert not cluster.is_shared


def killed(broker: CoreUnderTest) -> None:
    broker.run_jobs()
    broker.kill()


def in_zookeeper(path: Path, *topics: TopicRegistration) -> CoreUnderTest:
    return CoreUnderTest(path, registered=topics, **{"zookeeper.connect": "zookeeper:2181"})


def stored(broker: CoreUnderTest, partition: int = 0) -> tuple[int, int]:
    log = broker.core.catalog.log("orders", partition)
    return log.start_offset, log.end_offset


def test_the_checkpoints_of_a_deleted_topic_do_not_concern_the_next_one(tmp_path: Path) -> None:
    """1. A topic is deleted and created again while the broker is down. 2. It is written to. 3. The broker is killed."""
    old, new = TOPIC._replace(replicas=(ME,)), TOPIC._replace(replicas=(ME,), topic_id=uuid.UUID(int=9))
    first = in_zookeeper(tmp_path, old)
    for _ in range(100):
        produce(first, batch(), topic="orders", partition=0)
    first.close()
    second = in_zookeeper(tmp_path, new)
    produce(second, batch(10), topic="orders", partition=0)
    killed(second)
    third = in_zookeeper(tmp_path, new)
    assert third.warnings == []
    assert stored(third) == (0, 10)
    third.close()


def test_the_log_of_a_partition_that_another_broker_has_meanwhile_is_kept(tmp_path: Path) -> None:
    """An operator may write the nodes by hand, and take that back."""
    mine, its = TOPIC._replace(replicas=(ME, ME)), TOPIC._replace(replicas=(ME, OTHER))
    first = in_zookeeper(tmp_path, mine)
    produce(first, batch(5), topic="orders", partition=1)
    first.close()
    second = in_zookeeper(tmp_path, its)
    assert produce(second, batch(), topic="orders", partition=1).error_code is ErrorCode.not_leader_or_follower
    second.core.catalog.apply_registration(mine)
    produce(second, batch(), topic="orders", partition=1)
    assert stored(second, 1) == (0, 6)
    second.close()


def test_a_start_with_fewer_partitions_than_before_is_refused(tmp_path: Path) -> None:
    in_zookeeper(tmp_path, TOPIC).close()
    with pytest.raises(ConfigError, match="orders has 3 partitions in the data directory, and 1 in ZooKeeper"):
        in_zookeeper(tmp_path, TOPIC._replace(replicas=(ME,)))


def test_a_transaction_does_not_grow_once_there_are_others(tmp_path: Path) -> None:
    alone = in_zookeeper(tmp_path, TOPIC._replace(replicas=(ME,)))
    cluster = alone.core.catalog.cluster
    cluster.set_brokers([cluster.me])
    join(alone, TopicRegistration(TRANSACTIONS_TOPIC, uuid.UUID(int=6), (ME,), {}))
    begin = init_producer_id_request.InitProducerIdRequest(
        transactional_id="t", transaction_timeout=timedelta(seconds=10), producer_id=-1, producer_epoch=-1
    )
    producer = alone.ask(Api.INIT_PRODUCER_ID, begin)
    assert producer.error_code is ErrorCode.none
    data = batch(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0, transactional=True)
    cluster.set_brokers([cluster.me, NodeEndpoint(OTHER, "other", 9092)])
    refused = produce(alone, data, topic="orders", partition=0, transactional_id="t", acks=-1)
    assert refused.error_code is ErrorCode.transaction_abortable
    assert stored(alone) == (0, 0)
    alone.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_start_that_is_interrupted_leaves_no_offsets_of_a_deleted_topic(tmp_path: Path, known: bool) -> None:
    """1. A topic is deleted, also by this broker, which is killed before its next checkpoint. 2. It is created again. 3. A start is
    interrupted after it has stored that."""
    old, new = TOPIC._replace(replicas=(ME,)), TOPIC._replace(replicas=(ME,), topic_id=uuid.UUID(int=9))
    first = in_zookeeper(tmp_path, old)
    for _ in range(5):
        produce(first, batch(), topic="orders", partition=0)
    first.close()
    second = in_zookeeper(tmp_path, old)
    if not known:
        second.core.catalog.delete_topic(second.core.catalog.topic("orders"))
    killed(second)
    interrupted = mock.patch("ottla.broker.log_manager.LogManager.load", side_effect=OSError("interrupted"))
    with interrupted, pytest.raises(OSError, match="interrupted"):
        in_zookeeper(tmp_path, new)
    third = in_zookeeper(tmp_path, new)
    assert third.warnings == []
    assert stored(third) == (0, 0)
    third.close()


def test_a_start_that_is_refused_has_deleted_nothing(tmp_path: Path) -> None:
    newer = TopicRegistration("newer", uuid.UUID(int=7), (ME,), {})
    first = in_zookeeper(tmp_path, TOPIC, newer)
    produce(first, batch(5), topic="newer", partition=0)
    first.close()
    with pytest.raises(ConfigError, match="ZooKeeper has an older state"):
        in_zookeeper(tmp_path, TOPIC._replace(replicas=(ME,)))
    again = in_zookeeper(tmp_path, TOPIC, newer)
    assert again.warnings == []
    assert again.core.catalog.log("newer", 0).end_offset == 5
    again.close()
