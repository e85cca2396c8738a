"""Consumers of central groups on two brokers in a real ZooKeeper: what an application can do, and what is refused."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, AsyncConsumer, Broker, Consumer, Producer, Stream
from ottla.errors import (
    AllKnownBrokersNotAvailableError,
    ConsumerRebalanceFailedError,
    IllegalStateError,
    InconsistentGroupProtocolError,
    OttlaError,
    UnsupportedApiError,
)
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.end_to_end.broker_cluster import PATIENCE, BrokerCluster, cluster_of, until
from tests.end_to_end.central_consumers import Member
from tests.end_to_end.polling_members import members

pytestmark = pytest.mark.long

PARTITIONS = 5
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Two brokers for all tests, which use fresh names."""
    folder = tmp_path_factory.mktemp("central")
    with cluster_of(2, server.connect_string, folder, group_min_session_timeout_ms=500) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: BrokerCluster) -> str:
    """A topic with five partitions, whose name is also that of the test's group."""
    name = f"orders-{next(_numbers)}"
    cluster.create_topic(name, PARTITIONS)
    return name


def addresses(cluster: BrokerCluster) -> list[str]:
    return [broker.bootstrap_servers for broker in cluster.brokers]


def settings_of(cluster: BrokerCluster, group: str, **more: Any) -> dict[str, Any]:
    defaults = {"group_protocol": "central", "auto_offset_reset": "earliest", "session_timeout": 6}
    return {"bootstrap_servers": addresses(cluster), "group_id": group, **defaults, **more}


def member(cluster: BrokerCluster, group: str, name: str, *topics: str, **more: Any) -> Member:
    read = topics or (() if "pattern" in more else (group,))
    return Member(addresses(cluster), *read, group_id=group, consumer_id=name, **more)


def produce(cluster: BrokerCluster, topic: str, count: int, partitions: int = PARTITIONS) -> None:
    with Producer(bootstrap_servers=addresses(cluster)) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def data(cluster: BrokerCluster, *names: object) -> str:
    found: bytes = cluster.zookeeper.get("/".join([cluster.chroot, "consumers", *map(str, names)]))[0]
    return found.decode()


def owners(cluster: BrokerCluster, group: str, topic: str) -> dict[int, str]:
    names = cluster.children("consumers", group, "owners", topic)
    return {int(name): data(cluster, group, "owners", topic, name) for name in names}


def offsets(cluster: BrokerCluster, group: str, topic: str) -> dict[int, int]:
    names = cluster.children("consumers", group, "offsets", topic)
    return {int(name): int(data(cluster, group, "offsets", topic, name)) for name in names}


def join(consumer: Consumer[Any, Any], count: int = PARTITIONS) -> None:
    until(lambda: not consumer.poll(0.1) and len(consumer.assignment()) == count)


def error_of(consumer: Consumer[Any, Any]) -> OttlaError:
    """Poll until that raises."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            consumer.poll(0.1)
        except OttlaError as error:
            return error
    raise AssertionError(f"no error within {PATIENCE} s")


def test_two_members_share_the_partitions_and_a_leaving_one_gives_them_back(cluster: BrokerCluster, topic: str) -> None:
    produce(cluster, topic, 100)
    with members(member(cluster, topic, "a")) as (first,):
        until(lambda: first.owned == [0, 1, 2, 3, 4])
        with members(member(cluster, topic, "b")) as (second,):
            until(lambda: second.owned == [3, 4] and first.owned == [0, 1, 2])
            assert owners(cluster, topic, topic) == {number: f"{topic}_{'a' if number < 3 else 'b'}-0" for number in range(5)}
            until(lambda: first.consumer.health().healthy and second.consumer.health().healthy)
            for one, name, partitions in ((first, "a", {0, 1, 2}), (second, "b", {3, 4})):
                health = one.consumer.health()
                assert (health.live, health.ready, health.healthy, health.reasons) == (True, True, True, ())
                assert (health.protocol, health.state, health.joined, health.rebalancing) == ("central", "STABLE", True, False)
                assert (health.group_id, health.member_id) == (topic, f"{topic}_{name}")
                assert health.epoch == json.loads(data(cluster, topic, "generation"))["generation"]
                assert {tp.partition for tp in health.partitions} == partitions
            with Admin(bootstrap_servers=addresses(cluster)) as admin:
                described = admin.describe_groups([topic])[topic]
                assert described.state == "Stable"
                assert sorted(len(one.partitions) for one in described.members) == [2, 3]
                assert {one.group_type for one in admin.list_groups() if one.group_id == topic} == {"central"}
        until(lambda: first.owned == [0, 1, 2, 3, 4])
        until(lambda: len(set(first.handled + second.handled)) == 100)
        rebalance = first.consumer.rebalances[-1]
        assert (rebalance.protocol, rebalance.completed) == ("central", True)
        joined, gone = f"member '{topic}_b' has joined; ", f"member '{topic}_b' is gone; "
        until(lambda: all(any(text in one.reason for one in first.consumer.rebalances) for text in (joined, gone)))
    closed = first.consumer.health()
    assert (closed.live, closed.ready, closed.healthy, closed.reasons) == (False, False, False, ("the consumer is closed",))
    assert first.errors == second.errors == []
    assert first.calls[:3] == [("assign", [0, 1, 2, 3, 4]), ("revoke", [0, 1, 2, 3, 4]), ("assign", [0, 1, 2])]
    assert len(first.handled + second.handled) == 100
    assert offsets(cluster, topic, topic) == dict.fromkeys(range(5), 20)
    assert owners(cluster, topic, topic) == {}
    assert json.loads(data(cluster, topic, "generation"))["members"] == 0


def test_the_next_member_continues_at_the_committed_offsets(cluster: BrokerCluster, topic: str) -> None:
    produce(cluster, topic, 10)
    with Consumer(settings_of(cluster, topic, enable_auto_commit=False)) as one:
        one.subscribe([topic])
        until(lambda: [one.poll(0.1)] and len(one.assignment()) == PARTITIONS)
        one.commit({TopicPartition(topic, number): OffsetAndMetadata(number % 3) for number in range(PARTITIONS)})
        found = one.committed(*one.assignment())
        assert {tp.partition: offset.offset for tp, offset in found.items() if offset} == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1}
    got: list[tuple[int, int]] = []
    with Consumer(settings_of(cluster, topic, auto_offset_reset="latest")) as other:
        other.subscribe([topic])
        until(lambda: [got.extend((r.partition, r.offset) for r in other.poll(0.1))] and len(got) == 6)
        other.seek(TopicPartition(topic, 4), 0)
        other.commit({TopicPartition(topic, 3): OffsetAndMetadata(1)})
        until(lambda: [got.extend((r.partition, r.offset) for r in other.poll(0.1))] and len(got) == 8)
    assert sorted(got) == [(0, 0), (0, 1), (1, 1), (3, 0), (3, 1), (4, 0), (4, 1), (4, 1)]


def test_topics_are_found_as_they_come_grow_and_go(cluster: BrokerCluster, topic: str) -> None:
    pattern = f"({topic}|.*-{topic})"
    both = [member(cluster, topic, name, pattern=pattern) for name in "ab"]
    with members(*both) as (one, two), Admin(bootstrap_servers=addresses(cluster)) as admin:
        until(lambda: (len(one.owned), len(two.owned)) == (3, 2))
        admin.create_partitions({topic: 7})
        until(lambda: (len(one.owned), len(two.owned)) == (4, 3))
        new = f"new-{topic}"
        cluster.create_topic(new, 2)
        until(lambda: (len(one.owned), len(two.owned)) == (5, 4))
        assert one.consumer.subscription() == {topic, new}
        produce(cluster, new, 10, partitions=2)
        until(lambda: len(one.handled + two.handled) == 10)
        admin.delete_topics([new])
        until(lambda: (len(one.owned), len(two.owned)) == (4, 3))
        until(lambda: owners(cluster, topic, new) == {})
    assert one.errors == two.errors == []


def test_partitions_that_are_assigned_by_hand_need_no_membership(cluster: BrokerCluster, topic: str) -> None:
    produce(cluster, topic, 10)
    with Consumer(settings_of(cluster, topic, enable_auto_commit=False)) as consumer:
        consumer.assign([TopicPartition(topic, 1), TopicPartition(topic, 2)])
        got: list[int] = []
        until(lambda: [got.extend(record.partition for record in consumer.poll(0.1))] and len(got) == 4)
        consumer.commit()
        assert offsets(cluster, topic, topic) == {1: 2, 2: 2}
        assert json.loads(data(cluster, topic, "generation"))["members"] == 0
        # With a member, only the owners commit.
        with members(member(cluster, topic, "a", enable_auto_commit=False)) as (one,):
            until(lambda: len(one.handled) == 6)
            with pytest.raises(OttlaError, match="UNKNOWN_MEMBER_ID"):
                consumer.commit({TopicPartition(topic, 1): OffsetAndMetadata(1)})
            assert offsets(cluster, topic, topic) == {1: 2, 2: 2}
        consumer.commit({TopicPartition(topic, 1): OffsetAndMetadata(1)})
        assert offsets(cluster, topic, topic) == {1: 1, 2: 2}


def test_an_application_that_does_not_poll_leaves_and_comes_back(cluster: BrokerCluster, topic: str) -> None:
    sleeper = member(cluster, topic, "a", max_poll_interval=1.0)
    with members(sleeper, member(cluster, topic, "b")) as (slow, other):
        until(lambda: slow.owned == [0, 1, 2] and other.owned == [3, 4])
        slow.asleep.set()
        until(lambda: len(other.owned) == 5)
        slow.asleep.clear()
        until(lambda: slow.owned == [0, 1, 2] and other.owned == [3, 4])
        assert ("lost", [0, 1, 2]) in slow.calls


def test_a_member_that_is_slow_to_give_up_its_partitions_is_waited_for(cluster: BrokerCluster, topic: str) -> None:
    ready = threading.Event()
    slow = member(cluster, topic, "a", listeners={"revoke": lambda consumer, partitions: ready.wait(60)})
    with members(slow) as (one,):
        until(lambda: len(one.owned) == 5)
        with members(member(cluster, topic, "b")) as (two,):
            until(lambda: ("revoke", [0, 1, 2, 3, 4]) in one.calls)
            time.sleep(1)
            assert two.owned == []
            for waiting in (one, two):
                health = waiting.consumer.health()
                assert (health.live, health.ready, health.healthy, health.rebalancing) == (True, False, False, True)
                assert health.reasons[0].startswith(f"group '{topic}' is rebalancing: ")
            ready.set()
            until(lambda: two.owned == [3, 4] and one.owned == [0, 1, 2])


def test_a_listener_that_raises_holds_no_one_up(cluster: BrokerCluster, topic: str) -> None:
    def fail(consumer: object, partitions: object) -> None:
        raise ZeroDivisionError("my listener")

    with members(member(cluster, topic, "a", listeners={"revoke": fail, "assign": fail})) as (one,):
        until(lambda: len(one.owned) == 5 and one.errors)
        with members(member(cluster, topic, "b")) as (two,):
            until(lambda: two.owned == [3, 4] and one.owned == [0, 1, 2])
        produce(cluster, topic, 10)
        until(lambda: len(one.owned) == 5 and len({*one.handled}) == 10)
        assert all("my listener" in str(error) for error in one.errors), one.errors
        one.listeners.clear()


def test_a_consumer_is_closed_in_its_listener(cluster: BrokerCluster, topic: str) -> None:
    closed = Consumer(settings_of(cluster, topic, consumer_id="a"))
    errors: list[BaseException] = []

    def run() -> None:
        closed.subscribe([topic], on_revoke=lambda consumer, partitions: consumer.close())
        try:
            while True:
                closed.poll(0.1)
        except (IllegalStateError, OttlaError) as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: len(owners(cluster, topic, topic)) == 5)
    with members(member(cluster, topic, "b")) as (other,):
        until(lambda: len(other.owned) == 5)
    thread.join(60)
    assert not thread.is_alive()
    closed.close()
    assert "closed" in str(errors[0])


def test_two_groups_read_the_same_topic(cluster: BrokerCluster, topic: str) -> None:
    produce(cluster, topic, 50)
    both = member(cluster, f"{topic}-1", "a", topic), member(cluster, f"{topic}-2", "a", topic)
    with members(*both) as (one, two):
        until(lambda: len(one.owned) == len(two.owned) == 5)
        until(lambda: len(one.handled) == len(two.handled) == 50)
    assert offsets(cluster, f"{topic}-1", topic) == offsets(cluster, f"{topic}-2", topic) == dict.fromkeys(range(5), 10)


def test_another_subscription_and_another_assignor(cluster: BrokerCluster, topic: str) -> None:
    other = f"other-{topic}"
    cluster.create_topic(other, 2)
    with members(member(cluster, topic, "b")) as (second,):
        until(lambda: len(second.owned) == 5)
        with Consumer(settings_of(cluster, topic, consumer_id="a")) as consumer:
            consumer.subscribe([topic])
            join(consumer, 3)
            consumer.subscribe([other])
            until(lambda: not consumer.poll(0.1) and {tp.topic for tp in consumer.assignment()} == {other})
            until(lambda: len(second.owned) == 5)
        with Consumer(settings_of(cluster, topic, partition_assignment_strategy="roundrobin")) as consumer:
            consumer.subscribe([topic])
            assert "INCONSISTENT_GROUP_PROTOCOL" in str(error_of(consumer))


def test_an_async_consumer(cluster: BrokerCluster, topic: str) -> None:
    produce(cluster, topic, 20)

    async def handle_all() -> int:
        handled = 0
        async with AsyncConsumer(settings_of(cluster, topic)) as consumer:
            await consumer.subscribe([topic])
            async for _ in consumer:
                handled += 1
                if handled == 20:
                    break
        return handled

    assert asyncio.run(handle_all()) == 20
    assert sum(offsets(cluster, topic, topic).values()) >= 19


def test_two_consumers_with_two_streams_each_share_five_partitions(cluster: BrokerCluster, topic: str) -> None:
    seen: dict[str, set[int]] = {}

    def read(name: str, stream: Stream[bytes, bytes]) -> None:
        for record in stream:
            seen.setdefault(name, set()).add(record.partition)

    with (
        Consumer(settings_of(cluster, topic, consumer_id="a")) as one,
        Consumer(settings_of(cluster, topic, consumer_id="b")) as two,
    ):
        streams = [
            (f"{name}-{number}", stream)
            for name, consumer in (("a", one), ("b", two))
            for number, stream in enumerate(consumer.streams({topic: 2})[topic])
        ]
        threads = [threading.Thread(target=read, args=each) for each in streams]
        for thread in threads:
            thread.start()
        expected = ["a-0", "a-0", "a-1", "b-0", "b-1"]
        until(lambda: owners(cluster, topic, topic) == {number: f"{topic}_{name}" for number, name in enumerate(expected)})
        produce(cluster, topic, 50)
        until(lambda: seen == {"a-0": {0, 1}, "a-1": {2}, "b-0": {3}, "b-1": {4}})
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sum(offsets(cluster, topic, topic).values()) >= 46  # the last record of each stream may be unfinished


def test_a_member_of_0_8_and_a_central_one_never_share_a_group(cluster: BrokerCluster, topic: str) -> None:
    old_settings: dict[str, Any] = {
        "zookeeper_connect": cluster.connect,
        "group_id": topic,
        "group_protocol": "zookeeper",
        "rebalance_max_retries": 1,
        "rebalance_backoff": 0.2,
    }
    with Consumer(old_settings) as old:
        old.subscribe([topic])
        join(old)
        with Consumer(settings_of(cluster, topic)) as new:
            new.subscribe([topic])
            refused = error_of(new)
            assert isinstance(refused, InconsistentGroupProtocolError)
            assert "members of Kafka 0.8" in str(refused)
            assert len(old.assignment()) == 5
            old.close()
            join(new)
            with Consumer(old_settings) as again:
                again.subscribe([topic])
                waits = error_of(again)
                assert isinstance(waits, ConsumerRebalanceFailedError)
                assert "the central coordinator coordinates group" in str(waits)
                assert again.assignment() == set()
                assert len(new.assignment()) == 5


def test_brokers_without_zookeeper_have_no_central_coordinator(tmp_path: Path) -> None:
    with Broker(tmp_path / "alone") as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({"t": 1})
        with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g", group_protocol="central") as consumer:
            consumer.subscribe(["t"])
            refused = error_of(consumer)
            assert isinstance(refused, UnsupportedApiError)
            assert "CONSULT" in str(refused)
            assert "start the brokers with zookeeper=" in (refused.hint or "")


def test_without_any_broker_each_address_is_named_with_the_reason(server: ZooKeeperServer, tmp_path: Path) -> None:
    """Until then any broker that the member has ever heard of is enough, and it goes on as soon as one is back."""
    with cluster_of(2, server.connect_string, tmp_path) as cluster:
        cluster.create_topic("t", 2)
        known = addresses(cluster)
        elected = cluster.json("consumers", "coordinator") - 1001
        # Only the coordinator is in the settings: the consultation teaches the other one.
        settings = settings_of(cluster, "g", bootstrap_servers=known[elected], request_timeout=1, default_api_timeout=2)
        with Consumer(settings) as consumer:
            consumer.subscribe(["t"])
            join(consumer, 2)
            cluster.brokers[elected].close()
            until(lambda: consumer.poll(0.1) or consumer.commit({TopicPartition("t", 0): 0}))
            assert cluster.json("consumers", "coordinator") - 1001 == 1 - elected
            cluster.brokers[1 - elected].close()
            gone = error_of(consumer)
            assert isinstance(gone, AllKnownBrokersNotAvailableError)
            assert all(f"{address}: Connection refused" in str(gone) for address in known), gone
            cluster.brokers[1 - elected].start()
            until(lambda: not consumer.poll(0.1) and consumer.assignment() and consumer.commit({TopicPartition("t", 0): 0}))
            assert len(consumer.assignment()) == 2
