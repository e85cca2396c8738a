"""Groups of other clients on Ottla's broker: single clients and mixed groups, killed members, and restarts of the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from ottla import Broker
from tests.interop.one_or_three import BROKERS, brokers
from tests.interop.other_clients import MEMBER, PRODUCE, Member, Message, Row, closing_all, create_topic, poll_all, poll_until

PEERS = ["confluent", "kafka-python", "aiokafka"]
PARTITIONS = 6
NOW = time.time_ns() // 1_000_000
ROWS: list[Row] = [(index % PARTITIONS, None, b"%d" % index, NOW, ()) for index in range(600)]
_numbers = count()


@pytest.fixture(scope="module", params=BROKERS, ids="{}-brokers".format)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with brokers(request.param, tmp_path_factory.mktemp("brokers")) as servers:
        yield servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"group-topic-{next(_numbers)}"
    create_topic(servers, name, PARTITIONS)
    PRODUCE["confluent"](servers, name, ROWS)
    return name


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    """What a group has committed."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(asked, 10)}
    finally:
        consumer.close()


def read_one_more(servers: str, topic: str, members: list[Member]) -> list[Message]:
    """Produce one more record a partition, read on until all of them came, and commit."""
    PRODUCE["confluent"](servers, topic, ROWS[:PARTITIONS])
    found: list[Message] = []
    end = time.monotonic() + 60
    while len({one.partition for one in found if one.offset == 100}) < PARTITIONS and time.monotonic() < end:
        found += poll_all(members, 0.1)
    for member in members:
        member.commit()
    return found


@pytest.mark.parametrize("peer", PEERS)
def test_two_members_share_and_the_survivor_takes_over(servers: str, topic: str, peer: str) -> None:
    group = f"{topic}-{peer}"
    first = MEMBER[peer](servers, topic, group)
    found = []
    with closing_all(first):
        found += poll_until([first], lambda: len(first.assignment()) == PARTITIONS)
        second = MEMBER[peer](servers, topic, group)
        both = [first, second]
        with closing_all(second):
            found += poll_until(both, lambda: sorted(len(one.assignment()) for one in both) == [3, 3])
            assert first.assignment() | second.assignment() == set(range(PARTITIONS))
        found += poll_until([first], lambda: len(first.assignment()) == PARTITIONS)
        found += read_one_more(servers, topic, [first])
    assert {one.value for one in found} == {row[2] for row in ROWS}
    assert committed(servers, group, topic) == dict.fromkeys(range(PARTITIONS), 101)


def test_members_of_three_makes_share_one_group(servers: str, topic: str) -> None:
    # Each peer brings its own list of assignors; aiokafka's default is round-robin alone. It comes first, since its constructor
    # waits for its first assignment, and the others would only give it one while they are polled.
    members = [
        MEMBER["aiokafka"](servers, topic, f"mixed-{topic}"),
        MEMBER["kafka-python"](servers, topic, f"mixed-{topic}"),
        MEMBER["confluent"](servers, topic, f"mixed-{topic}", partition_assignment_strategy="roundrobin"),
    ]
    with closing_all(*members):
        found = poll_until(members, lambda: sorted(len(one.assignment()) for one in members) == [2, 2, 2], 40)
        assert set().union(*(one.assignment() for one in members)) == set(range(PARTITIONS))
        found += read_one_more(servers, topic, members)
    assert {one.value for one in found} == {row[2] for row in ROWS}
    assert committed(servers, f"mixed-{topic}", topic) == dict.fromkeys(range(PARTITIONS), 101)


@pytest.mark.parametrize("peer", PEERS)
def test_a_group_goes_on_where_it_stopped(servers: str, topic: str, peer: str) -> None:
    group = f"resume-{topic}"
    for expected in (len(ROWS), 0):
        member = MEMBER[peer](servers, topic, group)
        with closing_all(member):
            found = poll_until([member], lambda member=member: len(member.assignment()) == PARTITIONS)
            end = time.monotonic() + (60 if expected else 1)
            while (not expected or len(found) < expected) and time.monotonic() < end:
                found += member.poll(0.1)
            member.commit()
        assert len(found) == expected


def test_groups_and_offsets_outlast_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        port = int(broker.bootstrap_servers.split(":")[1])
        create_topic(broker.bootstrap_servers, "kept", PARTITIONS)
        PRODUCE["confluent"](broker.bootstrap_servers, "kept", ROWS)
        member = MEMBER["confluent"](broker.bootstrap_servers, "kept", "keeper")
        with closing_all(member):
            found = poll_until([member], lambda: len(member.assignment()) == PARTITIONS)
            while len(found) < len(ROWS):
                found += member.poll(0.5)
            member.commit()
            broker.close()
            broker = Broker(tmp_path, port=port)
            # The member is known: it goes on in the same generation, without a rebalance.
            PRODUCE["confluent"](broker.bootstrap_servers, "kept", ROWS[:6])
            more = poll_until([member], lambda: True)
            end = time.monotonic() + 60
            while len(more) < 6 and time.monotonic() < end:
                more += member.poll(0.2)
            assert sorted(one.offset for one in more) == [100] * 6
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        described = admin.describe_consumer_groups(["keeper"])["keeper"].result(60)
        assert described.state.name == "EMPTY"
        assert committed(broker.bootstrap_servers, "keeper", "kept") == dict.fromkeys(range(PARTITIONS), 100)
        broker.close()


def test_groups_through_the_admin_client(servers: str, topic: str) -> None:
    group = f"described-{topic}"
    admin = AdminClient({"bootstrap.servers": servers})
    member = MEMBER["confluent"](servers, topic, group)
    with closing_all(member):
        poll_until([member], lambda: len(member.assignment()) == PARTITIONS)
        described = admin.describe_consumer_groups([group])[group].result(60)
        (one,) = described.members
        assert described.state.name == "STABLE"
        assert described.partition_assignor == "range"
        assert {part.partition for part in one.assignment.topic_partitions} == set(range(PARTITIONS))
        assert one.host == "/127.0.0.1"
        listed = admin.list_consumer_groups().result(60)
        assert group in {found.group_id for found in listed.valid}
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([group])[group].result(60)
    admin.delete_consumer_groups([group])[group].result(60)
    assert group not in {found.group_id for found in admin.list_consumer_groups().result(60).valid}
