"""Topics that clients create, extend, alter and delete through any broker of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.topic_changes import TopicChange
from ottla.broker.topics import OFFSETS_TOPIC, Topic
from ottla.broker.zookeeper import topic_calls
from ottla.coordinator.effects import ApiError
from ottla.errors import KeeperCode, ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.simulation.zookeeper import Executed
from ottla.zookeeper import paths
from ottla.zookeeper.calls import WINDOW
from ottla.zookeeper.multis import MULTI_OPERATIONS
from ottla.zookeeper.operations import Create, Delete, Multi, Operation
from tests.simulation.zookeeper_cluster import BrokerInCluster, ZooKeeperCluster

SEEDS = range(6)
"""The orders in which messages and reports arrive."""

MOMENTS = range(0, 30, 3)
"""Milliseconds after a request: until all of it is done."""


@pytest.fixture(params=SEEDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[ZooKeeperCluster]:
    """Three brokers. After the test all agree with ZooKeeper."""
    cluster = ZooKeeperCluster(request.param)
    cluster.add(1, 2, 3)
    cluster.run()
    yield cluster
    cluster.run(3000)
    cluster.check()


def topic_of(broker: BrokerInCluster, name: str = "t") -> Topic:
    found = broker.catalog.topics.get(name)
    assert found is not None
    return found


def error_of(change: TopicChange) -> ErrorCode:
    assert change.is_done
    with pytest.raises(ApiError) as raised:
        change.result()
    return raised.value.code


def code_of(change: TopicChange) -> ErrorCode:
    try:
        change.result()
    except ApiError as error:
        return error.code
    return ErrorCode.none


def create(broker: BrokerInCluster, partitions: int = 3, name: str = "t") -> TopicChange:
    change = broker.catalog.changes.create(name, partitions, {"retention.ms": "1000"})
    broker.step()
    return change


def delete(broker: BrokerInCluster) -> TopicChange:
    change = broker.catalog.changes.delete(topic_of(broker))
    broker.step()
    return change


def test_a_topic_is_there_when_its_client_learns_of_it(cluster: ZooKeeperCluster) -> None:
    one, two, three = cluster.brokers
    change = create(two)
    assert not change.is_done
    while not change.is_done:
        cluster.run(1)
    assert change.result() is topic_of(two)
    assert sorted(topic_of(two).replicas) == [1, 2, 3], "a share for each broker"
    cluster.run()
    for other in (one, three):
        assert topic_of(other).topic_id == topic_of(two).topic_id
        assert topic_of(other).overrides == {"retention.ms": "1000"}
    assert cluster.states("t") == {0: 0, 1: 0, 2: 0}


def test_of_two_brokers_one_creates_a_topic(cluster: ZooKeeperCluster) -> None:
    one, two, _ = cluster.brokers
    changes = [create(one), create(two)]
    with pytest.raises(ApiError, match="is being created"):
        create(one)
    cluster.run()
    refused = [change for change in changes if code_of(change) is not ErrorCode.none]
    assert [code_of(change) for change in refused] == [ErrorCode.topic_already_exists]


def test_a_missing_topic_is_created_while_the_client_waits(cluster: ZooKeeperCluster) -> None:
    one, two, _ = cluster.brokers
    for broker in (one, two):
        for _ in range(2):
            with pytest.raises(ApiError, match="is being created") as raised:
                broker.catalog.get_or_create_topic(OFFSETS_TOPIC)
            assert raised.value.code is ErrorCode.leader_not_available
            broker.step()
    cluster.run()
    assert one.catalog.get_or_create_topic(OFFSETS_TOPIC) is topic_of(one, OFFSETS_TOPIC)
    assert topic_of(one, OFFSETS_TOPIC).replicas == topic_of(two, OFFSETS_TOPIC).replicas
    assert topic_of(one, OFFSETS_TOPIC).config.cleanup_policy == "compact"
    led = [broker.core.state.groups.coordinator_of("g") for broker in cluster.brokers]
    assert led[0] is not None
    assert led == [led[0]] * 3, "all name the same coordinator"


def test_a_topic_is_extended_and_altered(cluster: ZooKeeperCluster) -> None:
    one, two, three = cluster.brokers
    create(one)
    cluster.run()
    before = topic_of(two)
    wider = two.catalog.topics.with_partitions(before, 5)
    extended = two.catalog.changes.extend(wider, (3, 3))
    late = three.catalog.changes.extend(three.catalog.topics.with_partitions(topic_of(three), 4))
    two.step()
    three.step()
    cluster.run()
    if code_of(extended) is ErrorCode.none:
        assert extended.result().replicas == topic_of(one).replicas == (*before.replicas, 3, 3)
        assert error_of(late) is ErrorCode.invalid_partitions
    else:
        assert late.result().replicas[:3] == before.replicas
    altered = three.catalog.changes.alter(three.catalog.topics.altered(topic_of(three), {"retention.ms": "77"}))
    three.step()
    cluster.run()
    assert altered.result().config.retention_ms == topic_of(one).config.retention_ms == 77
    assert set(topic_of(one).partitions) == cluster.states("t").keys()


@pytest.mark.parametrize("by", [0, 2])
def test_a_deleted_topic_leaves_no_node_and_its_name_can_be_used(cluster: ZooKeeperCluster, by: int) -> None:
    one = cluster.brokers[0]
    create(one)
    cluster.run()
    old = topic_of(one)
    change = delete(cluster.brokers[by])
    while not change.is_done:
        cluster.run(1)
    assert change.result() == old
    assert cluster.model.data(paths.topic("t")) is None
    again = create(cluster.brokers[by])
    cluster.run()
    assert again.result().topic_id != old.topic_id
    assert all(topic_of(broker).topic_id == again.result().topic_id for broker in cluster.brokers)


def test_a_tool_asks_for_a_deletion(cluster: ZooKeeperCluster) -> None:
    create(cluster.brokers[0])
    cluster.run()
    cluster.put(paths.deleted_topic("t"))
    cluster.run()
    assert all(broker.catalog.topics.get("t") is None for broker in cluster.brokers)
    assert cluster.model.children(paths.DELETED_TOPICS) == cluster.model.children(paths.TOPICS) == ()


@pytest.mark.parametrize("after", MOMENTS)
def test_the_broker_that_removes_topics_dies(cluster: ZooKeeperCluster, after: int) -> None:
    """The next one goes on. The client learns of the removal, or that it takes longer."""
    one, _, three = cluster.brokers
    create(three)
    cluster.run()
    change = delete(three)
    cluster.run(after)
    one.kill()
    cluster.run(10_000)
    assert change.is_done
    assert cluster.model.data(paths.topic("t")) is None
    one.start()


@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("blow", ["disconnect", "expire_session"])
def test_a_connection_or_session_is_lost_in_the_middle_of_a_change(cluster: ZooKeeperCluster, after: int, blow: str) -> None:
    two = cluster.brokers[1]
    change = create(two)
    cluster.run(after)
    getattr(two, blow)()
    cluster.run(10_000)
    assert change.result() == topic_of(cluster.brokers[2])
    deleted = delete(two)
    cluster.run(after)
    getattr(two, blow)()
    cluster.run(10_000)
    assert code_of(deleted) is ErrorCode.none
    assert cluster.model.children(paths.TOPICS) == ()


def test_without_zookeeper_a_change_ends_with_an_error(cluster: ZooKeeperCluster) -> None:
    two = cluster.brokers[1]
    create(two)
    cluster.run()
    cluster.zookeeper.stop()
    cluster.run(100)
    changes = [two.catalog.changes.delete(topic_of(two)), two.catalog.changes.create("u", 1, {})]
    two.step()
    cluster.run(19_000)
    assert [error_of(change) for change in changes] == [ErrorCode.request_timed_out] * 2
    cluster.zookeeper.start()


def test_a_full_disk_fails_a_change_that_zookeeper_has_made(cluster: ZooKeeperCluster) -> None:
    """The topic is there, and this broker has it as soon as it can store it."""
    two = cluster.brokers[1]
    two.store.is_full = True
    change = create(two)
    cluster.run()
    assert error_of(change) is ErrorCode.kafka_storage_error
    two.store.is_full = False
    cluster.run(10_000)
    assert topic_of(two).topic_id == topic_of(cluster.brokers[0]).topic_id


def test_the_topics_of_one_request_are_shared_out(cluster: ZooKeeperCluster) -> None:
    two = cluster.brokers[1]
    changes = [two.catalog.changes.create(f"t{number}", 1, {}) for number in range(30)]
    two.step()
    cluster.run(2000)
    placed = [change.result().replicas[0] for change in changes]
    assert {broker: placed.count(broker) for broker in (1, 2, 3)} == {1: 10, 2: 10, 3: 10}


def test_names_that_collide_are_refused_while_one_is_being_created(cluster: ZooKeeperCluster) -> None:
    one, two, _ = cluster.brokers
    changes = [one.catalog.changes.create("a.b", 1, {}), two.catalog.changes.create("a_b", 1, {})]
    with pytest.raises(ApiError, match=r"collides with topic: a\.b"):
        one.catalog.changes.create("a_b", 1, {})
    one.step()
    two.step()
    cluster.run()
    assert [code_of(change) for change in changes] == [ErrorCode.none] * 2, "two brokers do not know of each other"


def test_the_partitions_of_several_topics_that_grow_are_shared_out(cluster: ZooKeeperCluster) -> None:
    one = cluster.brokers[0]
    created = [one.catalog.changes.create(f"t{number}", 1, {}) for number in range(6)]
    one.step()
    cluster.run()
    wider = [one.catalog.topics.with_partitions(change.result(), 2) for change in created]
    grown = [one.catalog.changes.extend(topic) for topic in wider]
    one.step()
    cluster.run()
    placed = [change.result().replicas[1] for change in grown]
    assert {broker: placed.count(broker) for broker in (1, 2, 3)} == {1: 2, 2: 2, 3: 2}


def test_a_broker_that_does_not_know_the_others_creates_no_topic() -> None:
    cluster = ZooKeeperCluster()
    cluster.add(1)
    cluster.run()
    (two,) = cluster.add(2)
    with pytest.raises(ApiError) as refused:
        two.catalog.changes.create("t", 6, {})
    assert refused.value.code is ErrorCode.not_controller
    with pytest.raises(ApiError) as early:
        two.core.state.transactions.check_alone()
    assert early.value.code is ErrorCode.coordinator_not_available
    cluster.run()
    change = two.catalog.changes.create("t", 6, {})
    two.step()
    cluster.run()
    assert change.result().replicas == (1, 2) * 3


@pytest.mark.parametrize("partitions", [497, 498, 499])
def test_a_marker_is_removed_together_with_its_topic(partitions: int) -> None:
    """Of more than a thousand nodes, the last ones are in one multi. Otherwise the marker alone would concern a new topic."""
    cluster = ZooKeeperCluster(1)
    (one,) = cluster.add(1)
    cluster.run()
    change = create(one, partitions)
    cluster.run(3000)
    assert change.result().partition_count == partitions
    cluster.put(paths.deleted_topic("t"))
    cluster.run(5000)
    last = [operation for operation in one.asked if isinstance(operation, Multi)][-1]
    assert {each.path for each in last.operations} >= {paths.topic("t"), paths.topic_config("t"), paths.deleted_topic("t")}
    assert cluster.model.children(paths.DELETED_TOPICS) == cluster.model.children(paths.TOPICS) == ()


def test_the_removal_of_a_large_topic_makes_progress_in_small_steps() -> None:
    """1. A broker reads the states of 10,000 partitions. 2. What renews its lease waits behind that, and its session ends.
    3. Another broker begins again."""
    cluster = ZooKeeperCluster(1)
    (one,) = cluster.add(1)
    cluster.run()
    change = create(one, 1200)
    cluster.run(5000)
    assert change.result().partition_count == 1200
    session = cluster.model.open(1 << 40, cluster.clock.now)

    def outcome(operation: Operation[Any]) -> Any:
        executed = cluster.model.execute(session, operation, cluster.clock.now)
        return executed.result if executed.error is None else executed.error

    assert outcome(Create(paths.deleted_topic("t"))) == paths.deleted_topic("t")
    counts = [1200]
    while counts[-1]:
        steps = topic_calls.remove_topic("t")
        operations = next(steps)
        while not isinstance(operations[0], Multi):
            assert len(operations) <= WINDOW
            operations = steps.send([outcome(operation) for operation in operations])
        outcome(operations[0])  # and then its broker dies
        counts.append(len(cluster.model.children(paths.partitions("t"))))
        assert counts[-1] < counts[-2]
    one.restart()
    cluster.run(5000)
    assert cluster.model.children(paths.DELETED_TOPICS) == cluster.model.children(paths.TOPICS) == ()


def test_a_topic_is_not_created_while_a_deletion_is_asked_for(cluster: ZooKeeperCluster) -> None:
    one = cluster.brokers[0]
    cluster.zookeeper.stop()  # so that the marker stays for a moment
    cluster.run(50)
    change = create(one)
    cluster.put(paths.deleted_topic("t"))
    cluster.zookeeper.start()
    cluster.run(4000)
    assert code_of(change) in (ErrorCode.topic_already_exists, ErrorCode.none)
    assert (one.catalog.topics.get("t") is None) is (code_of(change) is not ErrorCode.none)


# -- removals that are held up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        f"{paths.topic('t')}/note",
        f"{paths.topic('t')}/note/deep/deeper",
        f"{paths.topic_config('t')}/note",
        f"{paths.partitions('t')}/note",
        f"{paths.partition_state('t', 0)}/note",
    ],
)
def test_nodes_of_another_client_are_removed_with_the_topic(path: str) -> None:
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.run()
    change = create(one)
    cluster.run()
    assert change.is_done
    cluster.put(path, b"of an operator")
    before = len(one.asked)
    cluster.put(paths.deleted_topic("t"))
    cluster.run(1000)
    assert [cluster.model.children(each) for each in (paths.TOPICS, paths.TOPIC_CONFIGS, paths.DELETED_TOPICS)] == [()] * 3
    assert len(one.asked) - before < 40
    again = create(one)
    cluster.run()
    assert code_of(again) is ErrorCode.none


def test_more_nodes_of_another_client_than_one_multi_removes() -> None:
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.run()
    create(one)
    cluster.run()
    for number in range(1200):
        cluster.put(f"{paths.topic('t')}/note/{number}")
    cluster.put(paths.deleted_topic("t"))
    cluster.run(2000)
    assert cluster.model.children(paths.DELETED_TOPICS) == cluster.model.children(paths.TOPICS) == ()
    sizes = [len(operation.operations) for operation in one.asked if isinstance(operation, Multi)]
    assert max(sizes) <= MULTI_OPERATIONS + 1


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING and "is not removed" in one.getMessage()]


@pytest.mark.parametrize("code", [KeeperCode.NOTEMPTY, KeeperCode.NOAUTH])
def test_a_removal_that_is_refused_is_tried_again_with_a_back_off_and_logged_once(
    code: KeeperCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another client creates nodes as fast as they are removed, or the broker may not delete them."""
    cluster = ZooKeeperCluster()
    one, _ = cluster.add(1, 2)
    cluster.run()
    for name in "tuv":
        create(one, name=name)
    cluster.run()
    execute = cluster.zookeeper.execute

    def refuse(session_id: int, operation: Operation[Any]) -> Executed | None:
        if isinstance(operation, Multi) and Delete(paths.topic("t")) in operation.operations:
            return Executed(None, ZooKeeperError(code, paths.topic("t")))
        return execute(session_id, operation)

    monkeypatch.setattr(cluster.zookeeper, "execute", refuse)
    before = len(one.asked)
    cluster.put(paths.deleted_topic("t"))
    cluster.run(10_000)
    cluster.put(paths.deleted_topic("u"))
    cluster.run(10_000)
    assert cluster.model.children(paths.TOPICS) == ("t", "v"), "the others do not wait for it"
    assert len(one.asked) - before < 300
    assert len(warnings(caplog)) == 1
    assert f"topic t is not removed from ZooKeeper yet: ZooKeeper: {code.name} at {paths.topic('t')}" in warnings(caplog)[0]
    monkeypatch.undo()
    cluster.run(30_000)
    assert cluster.model.children(paths.TOPICS) == ("v",)
    cluster.check()


def test_no_removal_is_begun_without_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    (one,) = cluster.add(1)
    cluster.run()
    for number in range(60):
        create(one, name=f"t{number}")
    cluster.run(2000)
    for number in range(60):
        cluster.execute(Create(paths.deleted_topic(f"t{number}")))
    cluster.run(3)  # the removals have begun
    cluster.zookeeper.stop()
    cluster.run(600_000)
    assert warnings(caplog) == []
    cluster.zookeeper.start()
    cluster.run(40_000)
    assert cluster.model.children(paths.DELETED_TOPICS) == cluster.model.children(paths.TOPICS) == ()
