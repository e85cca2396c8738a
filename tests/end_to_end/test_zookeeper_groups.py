"""Members of ZooKeeper groups on a real ZooKeeper and the embedded broker: sharing, commits, conflicts, lost sessions."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla import AsyncConsumer, Broker, Consumer, Stream
from ottla.errors import CommitFailedError, ConfigError, ConnectionFailedError, ConsumerRebalanceFailedError
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.end_to_end.polling_members import PollingMember, members
from tests.end_to_end.zookeeper_cluster import ZooKeeperCluster, registered
from tests.end_to_end.zookeeper_processes import SESSION, process
from tests.end_to_end.zookeeper_proxy import Lose, lossy_proxy

pytestmark = pytest.mark.long

LIMIT = 30.0


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, kafka_broker: Broker) -> Iterator[ZooKeeperCluster]:
    zookeeper.start()
    with registered(kafka_broker, zookeeper.connect_string) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: ZooKeeperCluster) -> str:
    """A topic with five partitions."""
    return cluster.create_topic(f"orders{cluster.chroot.removeprefix('/')}", 5)


def produce(cluster: ZooKeeperCluster, topic: str, count: int, partitions: int = 5) -> None:
    producer = Producer({"bootstrap.servers": cluster.broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, value=str(number), partition=number % partitions)
    assert producer.flush(60) == 0


class Member(PollingMember):
    """A member of a ZooKeeper group, in a thread of its own."""

    def __init__(self, cluster: ZooKeeperCluster, *topics: str, pattern: str | None = None, **settings: Any) -> None:
        defaults = {"group_id": "billing", "auto_offset_reset": "earliest", "zookeeper_session_timeout": SESSION}
        super().__init__({"zookeeper_connect": cluster.connect, **defaults, **settings}, *topics, pattern=pattern)


def until(condition: Callable[[], Any], limit: float = LIMIT) -> Any:
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)
    return found


def test_two_members_share_the_partitions_and_a_leaving_one_gives_them_back(cluster: ZooKeeperCluster, topic: str) -> None:
    produce(cluster, topic, 100)
    with members(Member(cluster, topic, consumer_id="a")) as (first,):
        until(lambda: first.owned == [0, 1, 2, 3, 4])
        with members(Member(cluster, topic, consumer_id="b")) as (second,):
            until(lambda: second.owned == [3, 4] and first.owned == [0, 1, 2])
            assert cluster.owners("billing", topic) == {number: f"billing_{'a' if number < 3 else 'b'}-0" for number in range(5)}
            assert cluster.children("billing", "ids") == ["billing_a", "billing_b"]
            registration = json.loads(cluster.data("billing", "ids", "billing_a") or "")
            assert (registration["subscription"], registration["pattern"], registration["version"]) == ({topic: 1}, "static", 1)
        until(lambda: first.owned == [0, 1, 2, 3, 4])
        until(lambda: len(set(first.handled + second.handled)) == 100)
        rebalance = first.consumer.rebalances[-1]
        assert (rebalance.protocol, rebalance.assignor, rebalance.completed) == ("zookeeper", "range", True)
        assert rebalance.reason == "a member has joined or left the group"
    assert first.errors == second.errors == []
    assert cluster.offsets("billing", topic) == {TopicPartition(topic, number): 20 for number in range(5)}
    assert cluster.owners("billing", topic) == {}
    assert cluster.children("billing", "ids") == []


def test_the_next_member_continues_at_the_committed_offsets(cluster: ZooKeeperCluster, topic: str) -> None:
    produce(cluster, topic, 10)
    with Consumer(zookeeper_connect=cluster.connect, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as one:
        one.subscribe([topic])
        until(lambda: [one.poll(0.1)] and len(one.assignment()) == 5)
        one.commit({TopicPartition(topic, number): OffsetAndMetadata(number % 3) for number in range(5)})
        assert {tp.partition: offset.offset for tp, offset in one.committed(*one.assignment()).items() if offset} == {
            0: 0,
            1: 1,
            2: 2,
            3: 0,
            4: 1,
        }
    with Consumer(zookeeper_connect=cluster.connect, group_id="g", auto_offset_reset="latest") as other:
        other.subscribe([topic])
        got: list[tuple[int, int]] = []
        until(lambda: [got.extend((r.partition, r.offset) for r in other.poll(0.1))] and len(got) == 6)
    assert sorted(got) == [(0, 0), (0, 1), (1, 1), (3, 0), (3, 1), (4, 1)]


def test_only_owned_partitions_are_committed(cluster: ZooKeeperCluster, topic: str) -> None:
    with members(Member(cluster, topic, consumer_id="a")) as (first,):
        until(lambda: len(first.owned) == 5)
        with Consumer(zookeeper_connect=cluster.connect, group_id="billing", consumer_id="b") as second:
            second.subscribe([topic])
            until(lambda: [second.poll(0.1)] and len(second.assignment()) == 2)
            with pytest.raises(CommitFailedError, match=f"does not own {topic}-0"):
                second.commit({TopicPartition(topic, 0): OffsetAndMetadata(7)})
            cluster.zookeeper.delete(cluster.path("billing", "ids", "billing_b"))
            with pytest.raises(CommitFailedError, match="billing_b is gone"):
                second.commit({TopicPartition(topic, 4): OffsetAndMetadata(7)})
            until(lambda: [second.poll(0.1)] and cluster.children("billing", "ids") == ["billing_a", "billing_b"])
    assert cluster.data("billing", "offsets", topic, 0) is None or cluster.offsets("billing", topic)[TopicPartition(topic, 0)] != 7


def test_a_member_waits_for_a_foreign_owner_and_says_who_it_is(cluster: ZooKeeperCluster, topic: str) -> None:
    cluster.zookeeper.create(cluster.path("billing", "owners", topic, 2), b"java_1-3", ephemeral=True, makepath=True)
    with members(Member(cluster, topic, consumer_id="a", rebalance_backoff=0.2, rebalance_max_retries=2)) as (member,):
        error = until(lambda: member.errors)[0]
        assert isinstance(error, ConsumerRebalanceFailedError)
        assert "member billing_a of group 'billing'" in str(error)
        assert f"{topic}-2 is owned by java_1-3" in str(error)
        assert member.owned == []
        assert cluster.owners("billing", topic) == {2: "java_1-3"}
        cluster.zookeeper.delete(cluster.path("billing", "owners", topic, 2))
        until(lambda: len(member.owned) == 5)


def test_topics_are_found_as_they_come_and_grow(cluster: ZooKeeperCluster, topic: str) -> None:
    with members(Member(cluster, pattern="orders.*,new-.*", consumer_id="a")) as (member,):
        until(lambda: len(member.owned) == 5)
        assert json.loads(cluster.data("billing", "ids", "billing_a") or "")["pattern"] == "white_list"
        cluster.grow_topic(topic, 7)
        until(lambda: len(member.owned) == 7)
        new = cluster.create_topic(f"new-{topic}", 2)
        until(lambda: len(member.owned) == 9)
        assert member.consumer.subscription() == {topic, new}


def test_a_black_list(cluster: ZooKeeperCluster, topic: str) -> None:
    cluster.create_topic(f"internal-{topic}", 2)
    cluster.zookeeper.create(f"{cluster.chroot}/brokers/topics/__consumer_offsets", b'{"partitions": {"0": [1]}}')
    with Consumer(zookeeper_connect=cluster.connect, group_id="g", consumer_id="a") as consumer:
        consumer.subscribe(blacklist="internal-.*")
        until(lambda: [consumer.poll(0.1)] and consumer.assignment())
        assert {tp.topic for tp in consumer.assignment()} == {topic}
        assert json.loads(cluster.data("g", "ids", "g_a") or "")["pattern"] == "black_list"
    with Consumer(zookeeper_connect=cluster.connect, group_id="g") as consumer, pytest.raises(ConfigError, match=r"\\p\{Lu\}"):
        consumer.subscribe(pattern=r"\p{Lu}+")


def test_another_subscription_is_registered(cluster: ZooKeeperCluster, topic: str) -> None:
    other = cluster.create_topic(f"other-{topic}", 2)
    with members(Member(cluster, topic, consumer_id="b")) as (second,):
        until(lambda: len(second.owned) == 5)
        with Consumer(zookeeper_connect=cluster.connect, group_id="billing", consumer_id="a") as consumer:
            consumer.subscribe([topic])
            until(lambda: [consumer.poll(0.1)] and len(consumer.assignment()) == 3 and len(second.owned) == 2)
            consumer.subscribe([other])
            until(lambda: [consumer.poll(0.1)] and {tp.topic for tp in consumer.assignment()} == {other} and len(second.owned) == 5)


def test_a_member_without_brokers_waits_for_one(cluster: ZooKeeperCluster, topic: str) -> None:
    cluster.unregister()
    with Consumer(zookeeper_connect=cluster.connect, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        with pytest.raises(ConnectionFailedError, match="no broker is registered in ZooKeeper"):
            consumer.poll(2)
        with pytest.raises(ConnectionFailedError, match="no broker is registered in ZooKeeper"):
            consumer.partitions_for(topic, timeout=0.2)
        cluster.register()
        until(lambda: [poll_quietly(consumer)] and len(consumer.assignment()) == 5)


def poll_quietly(consumer: Consumer) -> None:
    with suppress(ConnectionFailedError):
        consumer.poll(0.1)


def test_a_member_without_zookeeper_says_so(zookeeper: ZooKeeperServer) -> None:
    consumer = Consumer(zookeeper_connect="127.0.0.1:1", group_id="g", zookeeper_connection_timeout=0.5)
    with consumer:
        consumer.subscribe(["orders"])
        with pytest.raises(ConnectionFailedError, match=r"ZooKeeper could not be reached: 127\.0\.0\.1:1"):
            consumer.poll(3)
        for call in (
            lambda: consumer.partitions_for("orders", timeout=0.2),
            lambda: consumer.end_offsets([TopicPartition("orders", 0)], timeout=0.2),
        ):
            with pytest.raises(ConnectionFailedError, match=r"ZooKeeper could not be reached: 127\.0\.0\.1:1: no session yet"):
                call()


def test_an_application_that_does_not_poll_leaves_and_comes_back(cluster: ZooKeeperCluster, topic: str) -> None:
    sleeper = Member(cluster, topic, consumer_id="a", max_poll_interval=1.0)
    with members(sleeper, Member(cluster, topic, consumer_id="b")) as (slow, other):
        until(lambda: slow.owned == [0, 1, 2] and other.owned == [3, 4])
        slow.asleep.set()
        until(lambda: len(other.owned) == 5)
        assert cluster.children("billing", "ids") == ["billing_b"]
        slow.asleep.clear()
        until(lambda: slow.owned == [0, 1, 2] and other.owned == [3, 4])
        assert ("lost", [0, 1, 2]) in slow.calls


def test_a_restarted_zookeeper_changes_nothing(zookeeper: ZooKeeperServer, cluster: ZooKeeperCluster, topic: str) -> None:
    both = [Member(cluster, topic, consumer_id=name, zookeeper_session_timeout=10.0) for name in "ab"]
    with members(*both) as (one, two):
        until(lambda: one.owned == [0, 1, 2] and two.owned == [3, 4])
        calls = len(one.calls), len(two.calls)
        zookeeper.restart()
        produce(cluster, topic, 50)
        until(lambda: len(set(one.handled + two.handled)) == 50)
        until(lambda: one.owned == [0, 1, 2] and two.owned == [3, 4])
        # On a busy machine the restart may take longer than the session.
        expired = any("expired" in record.reason for member in both for record in member.consumer.rebalances)
        assert expired or (len(one.calls), len(two.calls)) == calls
        cluster.grow_topic(topic, 6)
        until(lambda: len(one.owned) == len(two.owned) == 3)
    assert [error for error in one.errors + two.errors if not isinstance(error, ConnectionFailedError)] == []


def test_without_a_lease_no_records_are_returned(zookeeper: ZooKeeperServer, cluster: ZooKeeperCluster, topic: str) -> None:
    with members(Member(cluster, topic, consumer_id="a")) as (member,):
        until(lambda: len(member.owned) == 5)
        zookeeper.stop()
        until(lambda: "ZooKeeper has not confirmed the session" in str(member.consumer.health()))
        produce(cluster, topic, 50)
        time.sleep(1)
        assert member.handled == []
        zookeeper.start()
        until(lambda: len(member.handled) == 50)


def test_malformed_nodes_are_logged_once_with_their_path(
    cluster: ZooKeeperCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.zookeeper.create(cluster.path("billing", "ids", "broken"), b"{", makepath=True)
    cluster.zookeeper.create(f"{cluster.chroot}/brokers/ids/7", b"not json")
    cluster.zookeeper.create(cluster.path("billing", "offsets", topic, 3), b"many", makepath=True)
    produce(cluster, topic, 10)
    with caplog.at_level(logging.WARNING), members(Member(cluster, topic, consumer_id="a")) as (member,):
        until(lambda: len(member.handled) == 8)
        cluster.grow_topic(topic, 6)
        until(lambda: len(member.owned) == 6)
        assert {partition for partition, _ in member.handled} == {0, 1, 2, 4}
        assert "offset" in str(member.consumer.health())
    lines = [record.getMessage() for record in caplog.records if "malformed" in record.getMessage()]
    ids, brokers = cluster.path("billing", "ids", "broken").removeprefix(cluster.chroot), "/brokers/ids/7"
    for path, text in ((ids, "it is skipped"), (brokers, "it is skipped"), ("/offsets/", "the partition is not read")):
        assert len([line for line in lines if path in line and text in line]) == 1, lines


def test_nodes_that_vanish_between_the_list_and_the_reading(cluster: ZooKeeperCluster, topic: str) -> None:
    other = cluster.path("billing", "ids", "billing_x"), f'{{"subscription": {{"{topic}": 1}}, "pattern": "static"}}'.encode()
    vanishing = [other, (f"{cluster.chroot}/brokers/topics/{topic}-x", b'{"partitions": {}}')]
    with members(Member(cluster, pattern=f"{topic}.*", consumer_id="a")) as (member,):
        until(lambda: len(member.owned) == 5)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for path, data in vanishing:
                cluster.zookeeper.create(path, data)
            for path, _ in vanishing:
                cluster.zookeeper.delete(path)
        until(lambda: len(member.owned) == 5 and len(cluster.owners("billing", topic)) == 5)
        assert [name for name, _ in member.calls].count("assign") > 1
    # A topic that vanishes in MOST_SURPRISES reads in a row is reported, and the group is read again later.
    assert all(f"/brokers/topics/{topic}-x" in str(error) for error in member.errors), member.errors


def test_offsets_in_kafka_and_in_both(cluster: ZooKeeperCluster, topic: str) -> None:
    produce(cluster, topic, 50)
    with members(Member(cluster, topic, offsets_storage="kafka")) as (member,):
        until(lambda: len(member.handled) == 50)
    assert {TopicPartition(topic, number): 10 for number in range(5)} == cluster.offsets("billing", topic)
    with Consumer(bootstrap_servers=cluster.broker.bootstrap_servers, group_id="billing") as consumer:
        committed = consumer.committed(*(TopicPartition(topic, number) for number in range(5)))
        assert {offset.offset for offset in committed.values() if offset is not None} == {10}
    produce(cluster, topic, 50)
    with members(Member(cluster, topic, offsets_storage="kafka", dual_commit_enabled=False)) as (member,):
        until(lambda: len(member.handled) == 50)
    assert set(cluster.offsets("billing", topic).values()) == {10}
    # A look-up takes the larger of the two.
    with members(Member(cluster, topic, offsets_storage="kafka")) as (member,):
        until(lambda: len(member.owned) == 5)
        produce(cluster, topic, 5)
        until(lambda: len(member.handled) == 5)
    assert set(cluster.offsets("billing", topic).values()) == {21}


def test_an_async_consumer(cluster: ZooKeeperCluster, topic: str) -> None:
    produce(cluster, topic, 20)

    async def handle_all() -> int:
        handled = 0
        async with AsyncConsumer(zookeeper_connect=cluster.connect, group_id="g", auto_offset_reset="earliest") as consumer:
            await consumer.subscribe([topic])
            async for _ in consumer:
                handled += 1
                if handled == 20:
                    break
        return handled

    assert asyncio.run(handle_all()) == 20
    assert sum(cluster.offsets("g", topic).values()) >= 19


def test_two_consumers_with_two_streams_each_share_five_partitions(cluster: ZooKeeperCluster, topic: str) -> None:
    """The example of 0.8's design: 2, 1, 1 and 1 partitions; each record comes from the stream of the thread that owns it."""
    settings = {"zookeeper_connect": cluster.connect, "group_id": "billing", "auto_offset_reset": "earliest"}
    seen: dict[str, set[int]] = {}

    def read(name: str, stream: Stream[bytes, bytes]) -> None:
        for record in stream:
            seen.setdefault(name, set()).add(record.partition)

    with Consumer(settings, consumer_id="a") as one, Consumer(settings, consumer_id="b") as two:
        streams = [
            (f"{name}-{number}", stream)
            for name, consumer in (("a", one), ("b", two))
            for number, stream in enumerate(consumer.streams({topic: 2})[topic])
        ]
        threads = [threading.Thread(target=read, args=each) for each in streams]
        for thread in threads:
            thread.start()
        expected = ["a-0", "a-0", "a-1", "b-0", "b-1"]
        until(lambda: cluster.owners("billing", topic) == {number: f"billing_{name}" for number, name in enumerate(expected)})
        produce(cluster, topic, 50)
        until(lambda: seen == {"a-0": {0, 1}, "a-1": {2}, "b-0": {3}, "b-1": {4}})
    for thread in threads:
        thread.join(LIMIT)
    assert sum(cluster.offsets("billing", topic).values()) >= 46  # the last record of each stream may be unfinished


def test_the_streams_of_a_pattern_read_the_topics_that_match_also_later_ones(cluster: ZooKeeperCluster, topic: str) -> None:
    produce(cluster, topic, 10)
    settings = {"zookeeper_connect": cluster.connect, "group_id": "streams", "auto_offset_reset": "earliest"}
    with Consumer(settings, consumer_id="a", zookeeper_session_timeout=SESSION) as consumer:
        streams = consumer.streams(pattern=f"{topic}.*", n=2)
        handled: list[set[tuple[str, int]]] = [set(), set()]

        def read(number: int, stream: Stream) -> None:
            for record in stream:
                handled[number].add((record.topic, record.partition))

        threads = [threading.Thread(target=read, args=each) for each in enumerate(streams)]
        for thread in threads:
            thread.start()
        until(lambda: handled == [{(topic, 0), (topic, 1), (topic, 2)}, {(topic, 3), (topic, 4)}])
        registration = json.loads(cluster.data("streams", "ids", "streams_a") or "")
        assert (registration["subscription"], registration["pattern"]) == ({f"{topic}.*": 2}, "white_list")
        later = cluster.create_topic(f"{topic}-later", 2)
        produce(cluster, later, 2, partitions=2)
        until(lambda: [(later, number) in handled[number] for number in range(2)] == [True, True])
        assert cluster.owners("streams", later) == {0: "streams_a-0", 1: "streams_a-1"}
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    committed = [offset for name in (topic, later) for offset in cluster.offsets("streams", name).values()]
    assert sum(committed) >= 10  # of 12: the last record of each stream may be unfinished


def test_after_sigkill_the_others_take_over_with_the_end_of_the_session(
    cluster: ZooKeeperCluster, topic: str, tmp_path: Path
) -> None:
    with members(Member(cluster, topic, consumer_id="a")) as (survivor,), process(cluster, topic, "b", tmp_path / "b") as killed:
        until(lambda: survivor.owned == [0, 1, 2] and killed.owned == [3, 4])
        killed.process.kill()
        began = time.monotonic()
        produce(cluster, topic, 50)
        until(lambda: len(set(survivor.handled) | set(killed.handled())) == 50)
        assert time.monotonic() - began < SESSION + 1


def test_a_stopped_process_neither_handles_nor_commits_what_others_took(
    cluster: ZooKeeperCluster, topic: str, tmp_path: Path
) -> None:
    with members(Member(cluster, topic, consumer_id="a")) as (survivor,), process(cluster, topic, "b", tmp_path / "b") as stopped:
        until(lambda: survivor.owned == [0, 1, 2] and stopped.owned == [3, 4])
        produce(cluster, topic, 5_000)
        until(lambda: len(stopped.handled()) > 20)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        until(lambda: len(survivor.owned) == 5)
        until(lambda: len(set(survivor.handled) | set(stopped.handled())) == 5_000)
        before = cluster.offsets("billing", topic)
        handled, awake = len(stopped.handled()), time.time()
        os.kill(stopped.process.pid, signal.SIGCONT)
        until(lambda: stopped.owned == [3, 4] and any("lost" in item for item in stopped.said()))
        lost_at = next(item["at"] for item in stopped.said() if "lost" in item)
        # The record that it had in hand when it was stopped may be said after it woke up; none is returned after that.
        between = [item for item in stopped.said() if "offset" in item and awake <= item["at"] <= lost_at]
        assert len(between) <= 1, between
        after = cluster.offsets("billing", topic)
        assert all(after[tp] >= offset for tp, offset in before.items())
        assert len(stopped.handled()) <= handled + 1


def test_assigned_partitions_need_no_membership(cluster: ZooKeeperCluster, topic: str) -> None:
    produce(cluster, topic, 10)
    with Consumer(zookeeper_connect=cluster.connect, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 1), TopicPartition(topic, 2)])
        got: list[int] = []
        until(lambda: [got.extend(record.partition for record in consumer.poll(0.1))] and len(got) == 4)
        consumer.commit()
        assert cluster.offsets("g", topic) == {TopicPartition(topic, 1): 2, TopicPartition(topic, 2): 2}
        assert cluster.children("g", "ids") == []


@pytest.mark.parametrize("loss", list(Lose), ids=lambda loss: loss.name)
def test_a_connection_lost_in_the_middle_of_a_multi(
    zookeeper: ZooKeeperServer, cluster: ZooKeeperCluster, topic: str, loss: Lose
) -> None:
    """Claims, commits and releases are multis: whatever became of one, the group goes on, and nothing is lost."""
    with lossy_proxy(zookeeper.connect_string) as proxy:
        connect = f"{proxy.connect_string}{cluster.chroot}"
        proxy.losses.append(loss)
        with members(Member(cluster, topic, consumer_id="a", zookeeper_connect=connect)) as (one,):
            until(lambda: len(one.owned) == 5)
            proxy.losses += [loss, None, loss]
            with members(Member(cluster, topic, consumer_id="b")) as (two,):
                until(lambda: one.owned == [0, 1, 2] and two.owned == [3, 4])
                proxy.losses.append(loss)
                produce(cluster, topic, 50)
                until(lambda: len(set(one.handled + two.handled)) == 50)
            until(lambda: len(one.owned) == 5)
        assert proxy.losses == []
    assert cluster.owners("billing", topic) == {}
    assert sum(cluster.offsets("billing", topic).values()) == 50


def test_the_leader_of_three_is_killed(kafka_broker: Broker) -> None:
    with (
        ZooKeeperServer(nodes=3, settings={"tickTime": 500}) as ensemble,
        registered(kafka_broker, ensemble.connect_string) as cluster,
    ):
        topic = cluster.create_topic(f"ensemble{cluster.chroot.removeprefix('/')}", 5)
        with members(Member(cluster, topic, consumer_id="a"), Member(cluster, topic, consumer_id="b")) as (one, two):
            until(lambda: one.owned == [0, 1, 2] and two.owned == [3, 4])
            calls = len(one.calls), len(two.calls)
            ensemble.kill(ensemble.leader())
            produce(cluster, topic, 50)
            until(lambda: len(set(one.handled + two.handled)) == 50)
            expired = any("expired" in record.reason for member in (one, two) for record in member.consumer.rebalances)
            assert expired or (len(one.calls), len(two.calls)) == calls
            cluster.grow_topic(topic, 6)
            until(lambda: len(one.owned) == len(two.owned) == 3)
        assert [error for error in one.errors + two.errors if not isinstance(error, ConnectionFailedError)] == []
