"""What a broker does in ZooKeeper before it loads its data, on the model of ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.cluster import TopicRegistration
from ottla.broker.ports import StoredTopic
from ottla.broker.zookeeper.start import PRODUCER_IDS_OF_START, FoundTopics, JoinedCluster, create_root, join, read_topics
from ottla.errors import KeeperCode, ProtocolError, StorageError, ZooKeeperError
from ottla.zookeeper import nodes, paths
from ottla.zookeeper.operations import Create, Operation, SetData
from tests.simulation.old_groups import Between, OldGroups

ID = uuid.UUID(int=7)


@pytest.fixture
def zookeeper() -> OldGroups:
    return OldGroups()


def add_topic(
    zookeeper: OldGroups, name: str, *replicas: int, topic_id: uuid.UUID | None = ID, configs: dict[str, str] | None = None
) -> None:
    zookeeper.put(paths.topic(name), nodes.encode_topic(replicas, topic_id))
    if configs is not None:
        zookeeper.put(paths.topic_config(name), nodes.encode_configs(configs))


def joined(
    zookeeper: OldGroups, node_id: int | None = 1, cluster_id: str | None = None, between: Between | None = None
) -> JoinedCluster:
    return zookeeper.run(join(node_id, cluster_id, "new-id"), between)


def found(zookeeper: OldGroups, node_id: int = 1, between: Between | None = None) -> FoundTopics:
    return zookeeper.run(read_topics(joined(zookeeper, node_id)), between)


def once(kind: type[Operation[Any]], path: str, result: Any) -> Between:
    """What happens before the first operation of this kind on this path."""
    done: list[bool] = []

    def between(operation: Operation[Any]) -> Any:
        if done or not isinstance(operation, kind) or operation.path != path:
            return None
        done.append(True)
        return result() if callable(result) else result

    return between


def test_the_first_broker_creates_the_nodes_of_a_cluster_and_gives_it_an_id(zookeeper: OldGroups) -> None:
    assert joined(zookeeper) == JoinedCluster("new-id", 1, 0)
    assert all(zookeeper.exists(root) for root in paths.CLUSTER_ROOTS)
    assert zookeeper.data(paths.CLUSTER_ID) == b'{"version":"1","id":"new-id"}'


def test_a_cluster_that_exists_keeps_its_nodes_and_its_id(zookeeper: OldGroups) -> None:
    joined(zookeeper)
    zookeeper.put(paths.CLUSTER_ID, nodes.encode_cluster_id("first"))
    zookeeper.put(paths.BROKER_IDS, b"as it was")
    zookeeper.remove(paths.TOPIC_CONFIGS)
    assert joined(zookeeper).cluster_id == joined(zookeeper, cluster_id="first").cluster_id == "first"
    assert zookeeper.data(paths.BROKER_IDS) == b"as it was"
    assert zookeeper.exists(paths.TOPIC_CONFIGS)


@pytest.mark.parametrize("cluster_id", [None, "first"])
def test_a_cluster_without_the_parent_of_its_topics_is_refused(zookeeper: OldGroups, cluster_id: str | None) -> None:
    """Otherwise a new broker would create it, and the next one find its topics deleted."""
    zookeeper.put(paths.CLUSTER_ID, nodes.encode_cluster_id("first"))
    with pytest.raises(StorageError, match=rf"ZooKeeper has cluster first, but not {paths.TOPICS}.*restore it"):
        joined(zookeeper, cluster_id=cluster_id)
    assert not zookeeper.exists("/brokers")


def test_another_broker_is_faster_with_the_cluster_id(zookeeper: OldGroups) -> None:
    between = once(Create, paths.CLUSTER_ID, lambda: zookeeper.put(paths.CLUSTER_ID, nodes.encode_cluster_id("first")))
    assert joined(zookeeper, between=between).cluster_id == "first"


def test_the_answer_to_the_creation_of_the_cluster_id_is_lost(zookeeper: OldGroups) -> None:
    assert joined(zookeeper, between=once(Create, paths.CLUSTER_ID, "after")).cluster_id == "new-id"


def test_a_directory_of_another_cluster_is_refused(zookeeper: OldGroups) -> None:
    zookeeper.put(paths.CLUSTER_ID, nodes.encode_cluster_id("theirs"))
    with pytest.raises(StorageError, match="the data directory belongs to cluster mine, and ZooKeeper to cluster theirs"):
        joined(zookeeper, cluster_id="mine")


def test_a_directory_that_has_a_cluster_is_refused_where_there_is_none(zookeeper: OldGroups) -> None:
    with pytest.raises(StorageError, match=r"belongs to cluster mine, and ZooKeeper knows no cluster.*zookeeper.connect"):
        joined(zookeeper, cluster_id="mine")
    assert not any(zookeeper.exists("/" + root.split("/")[1]) for root in paths.CLUSTER_ROOTS)


def test_a_chroot_that_does_not_exist_is_not_created_for_a_directory_of_a_cluster(zookeeper: OldGroups) -> None:
    with pytest.raises(StorageError, match=r"belongs to cluster mine, and ZooKeeper knows no cluster"):
        zookeeper.run(create_root("/clusters/first", "mine"))
    assert not zookeeper.exists("/clusters")
    zookeeper.put("/clusters/first")
    zookeeper.run(create_root("/clusters/first", "mine"))


def test_a_malformed_cluster_id_is_an_error(zookeeper: OldGroups) -> None:
    joined(zookeeper)
    zookeeper.put(paths.CLUSTER_ID, b"{}")
    with pytest.raises(ProtocolError, match=paths.CLUSTER_ID):
        joined(zookeeper)


def test_node_ids_are_generated_from_1001_on(zookeeper: OldGroups) -> None:
    assert [joined(zookeeper, None).node_id for _ in range(3)] == [1001, 1002, 1003]
    assert joined(zookeeper, 5).node_id == 5


def test_a_generated_id_is_that_of_no_registered_broker_and_of_none_that_has_partitions(zookeeper: OldGroups) -> None:
    zookeeper.put(paths.broker(1001))
    add_topic(zookeeper, "a", 1002, 1)
    add_topic(zookeeper, "b", 1003, topic_id=None)
    assert joined(zookeeper, None).node_id == 1004


@pytest.mark.parametrize(("lost", "node_id"), [("before", 1001), ("after", 1002)])
def test_the_connection_is_lost_while_an_id_is_generated(zookeeper: OldGroups, lost: str, node_id: int) -> None:
    assert joined(zookeeper, None, between=once(SetData, paths.BROKER_SEQUENCE, lost)).node_id == node_id


def test_each_start_takes_a_block_of_producer_ids_as_kafka_writes_them(zookeeper: OldGroups) -> None:
    assert [joined(zookeeper, node_id).first_producer_id for node_id in (1, 1, 2)] == [0, 1 << 40, 2 << 40]
    block = b'{"version":1,"broker":2,"block_start":"2199023255552","block_end":"3298534883327"}'
    assert zookeeper.data("/latest_producer_id_block") == block


@pytest.mark.parametrize("is_first", [True, False])
def test_another_broker_takes_producer_ids_at_the_same_time(zookeeper: OldGroups, is_first: bool) -> None:
    if not is_first:
        joined(zookeeper)
    others: list[int] = []
    write: type[Operation[Any]] = Create if is_first else SetData
    between = once(write, paths.PRODUCER_IDS, lambda: others.append(joined(zookeeper, 2).first_producer_id))
    assert joined(zookeeper, between=between).first_producer_id == others[0] + PRODUCER_IDS_OF_START


@pytest.mark.parametrize("lost", ["before", "after"])
def test_the_connection_is_lost_while_producer_ids_are_taken(zookeeper: OldGroups, lost: str) -> None:
    first = joined(zookeeper, between=once(Create, paths.PRODUCER_IDS, lost)).first_producer_id
    assert first == (0 if lost == "before" else PRODUCER_IDS_OF_START)
    assert joined(zookeeper).first_producer_id == first + PRODUCER_IDS_OF_START


def test_a_node_of_kafka_without_a_block_of_producer_ids(zookeeper: OldGroups) -> None:
    zookeeper.put(paths.PRODUCER_IDS, b"")
    assert [joined(zookeeper).first_producer_id for _ in range(2)] == [0, PRODUCER_IDS_OF_START]


@pytest.mark.parametrize("data", [b"{", b"{}", nodes.encode_producer_ids(1, 0, 2**63 - 1)])
def test_no_start_without_producer_ids_of_its_own(zookeeper: OldGroups, data: bytes) -> None:
    zookeeper.put(paths.PRODUCER_IDS, data)
    with pytest.raises(ProtocolError, match=paths.PRODUCER_IDS):
        joined(zookeeper)


def test_topics_are_read_with_their_settings(zookeeper: OldGroups) -> None:
    add_topic(zookeeper, "a", 1, 2, configs={"retention.ms": "5"})
    add_topic(zookeeper, "b", 3, topic_id=uuid.UUID(int=8))
    assert found(zookeeper).topics == (
        TopicRegistration("a", ID, (1, 2), {"retention.ms": "5"}),
        TopicRegistration("b", uuid.UUID(int=8), (3,), {}),
    )


def test_a_topic_that_is_to_be_deleted_is_none(zookeeper: OldGroups) -> None:
    add_topic(zookeeper, "a", 1)
    zookeeper.put(paths.deleted_topic("a"))
    assert found(zookeeper).topics == ()


def test_a_topic_that_is_to_be_deleted_stays_where_deletion_is_disabled(zookeeper: OldGroups) -> None:
    add_topic(zookeeper, "a", 1)
    zookeeper.put(paths.deleted_topic("a"))
    kept = zookeeper.run(read_topics(joined(zookeeper), delete_topic_enable=False)).topics
    assert kept == (TopicRegistration("a", ID, (1,), {}),)


def test_a_topic_that_disappears_while_it_is_read_is_none(zookeeper: OldGroups) -> None:
    add_topic(zookeeper, "a", 1)

    def between(operation: Operation[Any]) -> None:
        if operation.path == paths.DELETED_TOPICS and not isinstance(operation, Create):
            zookeeper.remove(paths.topic("a"))

    assert found(zookeeper, between=between) == FoundTopics(1, ())


@pytest.mark.parametrize("lost", [paths.CLUSTER_ID, paths.TOPICS])
def test_nodes_that_are_lost_after_the_broker_has_joined_refuse_the_start(zookeeper: OldGroups, lost: str) -> None:
    cluster = joined(zookeeper)
    zookeeper.remove(lost)
    with pytest.raises(StorageError):
        zookeeper.run(read_topics(cluster))
    assert not zookeeper.exists(lost)


@pytest.mark.parametrize(("data", "address"), [(None, None), (nodes.encode_broker("h", 9092, 0), ("h", 9092)), (b"{}", ("", 0))])
def test_where_a_broker_is_registered_with_the_id(
    zookeeper: OldGroups, data: bytes | None, address: tuple[str, int] | None
) -> None:
    cluster = joined(zookeeper)
    if data is not None:
        zookeeper.put(paths.broker(1), data)
    assert zookeeper.run(read_topics(cluster)).registered_at == address


def stored(name: str, topic_id: uuid.UUID = ID) -> StoredTopic:
    return StoredTopic(name, topic_id, 1, {})


def test_a_topic_whose_id_an_old_tool_has_removed_is_still_that_of_the_directory(zookeeper: OldGroups) -> None:
    add_topic(zookeeper, "mine", 1, 1, topic_id=None, configs={"retention.ms": "5"})
    add_topic(zookeeper, "unknown", 1, topic_id=None)
    cluster = found(zookeeper)
    assert cluster.topics == cluster.topics_with([]) == ()
    assert cluster.topics_with([stored("mine")]) == (TopicRegistration("mine", ID, (1, 1), {"retention.ms": "5"}),)


@pytest.mark.parametrize("node_id", [1, 2])
def test_a_broker_that_has_lost_its_records_says_so(zookeeper: OldGroups, node_id: int, caplog: pytest.LogCaptureFixture) -> None:
    add_topic(zookeeper, "a", 1)
    cluster = found(zookeeper, node_id)
    cluster.topics_with([stored("a")])
    assert caplog.text == ""
    cluster.topics_with([])
    assert ("broker 1 has partitions in ZooKeeper, but no topics in its data directory" in caplog.text) is (node_id == 1)


@pytest.mark.parametrize("damage", [paths.topic, paths.topic_config])
def test_a_malformed_topic_is_skipped_but_never_one_with_records(
    zookeeper: OldGroups, damage: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    add_topic(zookeeper, "a", 1, configs={})
    add_topic(zookeeper, "b", 1, topic_id=uuid.UUID(int=8))
    zookeeper.put(damage("a"), b"{")
    cluster = found(zookeeper)
    assert [topic.name for topic in cluster.topics_with([stored("b")])] == ["b"]
    assert damage("a") in caplog.text
    assert "is skipped" in caplog.text
    with pytest.raises(StorageError, match=f"topic a: .*{damage('a')} .*malformed"):
        cluster.topics_with([stored("a")])


@pytest.mark.parametrize(("known", "kept"), [([], "a"), (["a"], "a"), (["b"], "b")])
def test_of_topics_with_one_id_the_one_in_the_directory_or_the_first_has_it(
    zookeeper: OldGroups, known: list[str], kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    add_topic(zookeeper, "a", 1)
    add_topic(zookeeper, "b", 1)
    add_topic(zookeeper, "c", 1, topic_id=uuid.UUID(int=8))
    topics = found(zookeeper, 2).topics_with([stored(name) for name in known])
    assert [topic.name for topic in topics] == [kept, "c"]
    (other,) = {"a", "b"} - {kept}
    assert (
        f"{paths.topic(other)} of ZooKeeper is malformed: its topic id is that of topic {kept}; topic {other} is skipped"
        in caplog.text
    )


def test_a_topic_with_records_whose_node_gets_the_id_of_another_refuses_the_start(zookeeper: OldGroups) -> None:
    """It would count as deleted, and its records would be removed."""
    add_topic(zookeeper, "a", 1)
    add_topic(zookeeper, "b", 1)
    with pytest.raises(StorageError, match=r"topic b: .*its topic id is that of topic a"):
        found(zookeeper).topics_with([stored("a"), stored("b", uuid.UUID(int=8))])


def test_a_chroot_is_created_with_what_is_above_it(zookeeper: OldGroups) -> None:
    for _ in range(2):
        zookeeper.run(create_root("/clusters/first"))
    assert zookeeper.exists("/clusters/first")


def test_a_node_that_cannot_be_created_is_an_error(zookeeper: OldGroups) -> None:
    refused = ZooKeeperError(KeeperCode.NOAUTH, paths.TOPICS)
    with pytest.raises(ZooKeeperError) as raised:
        joined(zookeeper, between=once(Create, paths.TOPICS, lambda: refused))
    assert raised.value is refused


def test_a_zookeeper_of_kafka_is_refused() -> None:
    zookeeper = OldGroups()
    zookeeper.put("/controller_epoch", b"1")
    with pytest.raises(StorageError, match=r"a Kafka has run in this ZooKeeper \(/controller_epoch exists\)"):
        zookeeper.run(join(1, None, "new"))
