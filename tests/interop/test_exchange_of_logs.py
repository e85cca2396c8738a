"""Groups move between Apache Kafka and Ottla's broker with a copy of the directories of ``__consumer_offsets``.

In both directions, for classic and for consumer groups, with and without members: descriptions and committed offsets are the same
on both sides, and a new member continues at the committed offsets.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla import Broker
from tests.interop.other_clients import (
    PRODUCE,
    ConfluentMember,
    ConsumerGroupMember,
    Member,
    closing_all,
    create_topic,
    poll_all,
    poll_until,
)
from tests.interop.real_kafka import QUICK_HEARTBEATS, OwnKafka

pytestmark = pytest.mark.interop

TOPIC, PARTITIONS, EACH = "exchanged", 4, 25
OFFSETS = "__consumer_offsets"
SETTINGS = {"offsets.topic.num.partitions": 5, **QUICK_HEARTBEATS}
"""As many as ``tools/kafka`` gives a real one: a group's partition is the hash of its id modulo this number."""
LOADING = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)


MEMBERS: dict[str, Callable[[str, str, str], Member]] = {"classic": ConfluentMember, "consumer": ConsumerGroupMember}
"""Group protocol -> its members."""
GROUPS = [f"{protocol}-{state}" for protocol in MEMBERS for state in ("idle", "live")]


@contextmanager
def groups(servers: str) -> Iterator[None]:
    """Of each kind a ``live`` group with two members as long as this lasts, and an ``idle`` one; offsets of both."""
    rows = [(number % PARTITIONS, None, b"%d" % number, 1_700_000_000_000, ()) for number in range(PARTITIONS * EACH)]
    with ExitStack() as stack:
        living: list[list[Member]] = []
        for protocol, member in MEMBERS.items():
            with closing_all(once := member(servers, TOPIC, f"{protocol}-idle")):
                poll_until([once], lambda: len(once.assignment()) == PARTITIONS)
            commit_with_notes(servers, f"{protocol}-idle")
            both = [member(servers, TOPIC, f"{protocol}-live") for _ in range(2)]
            stack.enter_context(closing_all(*both))
            poll_until(both, partial(halved, both))
            living.append(both)
        PRODUCE["confluent"](servers, TOPIC, rows)
        for both in living:
            found = 0
            while found < PARTITIONS * EACH:
                found += len(poll_all(both, 0.2))
            for one in both:
                one.commit()
        yield


def halved(members: list[Member]) -> bool:
    return [len(one.assignment()) for one in members] == [2, 2]


def commit_with_notes(servers: str, group: str) -> None:
    committer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    notes = [TopicPartition(TOPIC, number, 10 + number, f"note {number}") for number in range(PARTITIONS)]
    committer.commit(offsets=notes, asynchronous=False)
    committer.close()


def seen(servers: str, seconds: float = 20.0) -> dict[str, Any]:
    """The admin client's descriptions of the groups, as soon as the coordinator has loaded them."""
    end = time.monotonic() + seconds
    while True:
        try:
            return _seen(servers)
        except KafkaException as error:
            if error.args[0].code() not in LOADING or time.monotonic() > end:
                raise


def _seen(servers: str) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": servers})
    described = admin.describe_consumer_groups(GROUPS)
    found: dict[str, Any] = {}
    for group in GROUPS:
        one = described[group].result(60)
        members = {
            member.member_id: (
                member.client_id,
                member.host,
                member.group_instance_id,
                sorted(tp.partition for tp in member.assignment.topic_partitions),
            )
            for member in one.members
        }
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
        offsets = {tp.partition: (tp.offset, tp.metadata) for tp in answer.topic_partitions}
        found[group] = (one.state.name, one.type.name, one.partition_assignor, members, offsets)
    return found


def go_on(servers: str) -> None:
    """A new member of each idle group begins where the group had stopped."""
    for protocol, make in MEMBERS.items():
        first: dict[int, int] = {}
        member = make(servers, TOPIC, f"{protocol}-idle")
        with closing_all(member):
            end = time.monotonic() + 60
            while len(first) < PARTITIONS and time.monotonic() < end:
                for message in member.poll(0.2):
                    first.setdefault(message.partition, message.offset)
        assert first == {number: 10 + number for number in range(PARTITIONS)}, protocol


def sound(found: dict[str, Any]) -> None:
    """Whether the groups are what ``groups`` made them: nothing is compared with nothing."""
    for protocol in MEMBERS:
        idle, live = found[f"{protocol}-idle"], found[f"{protocol}-live"]
        assert (idle[0], live[0]) == ("EMPTY", "STABLE")
        assert live[1] == protocol.upper()
        assert sorted(number for member in live[3].values() for number in member[3]) == list(range(PARTITIONS))
        assert live[4] == dict.fromkeys(range(PARTITIONS), (EACH, None))
        assert idle[4] == {number: (10 + number, f"note {number}") for number in range(PARTITIONS)}


def partition_folders(data: Path) -> list[Path]:
    return sorted(folder for folder in data.iterdir() if folder.name.startswith((f"{OFFSETS}-", f"{TOPIC}-")))


def copy(source: Path, target: Path) -> None:
    """Put the folders of one broker in place of another's: the same topics, with the same ids (``partition.metadata``)."""
    for folder in partition_folders(source):
        shutil.rmtree(target / folder.name, ignore_errors=True)
        shutil.copytree(folder, target / folder.name)


@pytest.mark.timeout(180)
def test_our_broker_takes_over_the_groups_of_a_real_kafka(own_kafka: OwnKafka, tmp_path: Path) -> None:
    create_topic(own_kafka.address, TOPIC, PARTITIONS)
    with groups(own_kafka.address):
        before = seen(own_kafka.address)
        sound(before)
        own_kafka.end()
    copy(own_kafka.data, tmp_path)
    with Broker(tmp_path, settings=SETTINGS) as broker:
        assert seen(broker.bootstrap_servers) == before
        go_on(broker.bootstrap_servers)


@pytest.mark.timeout(180)
def test_a_real_kafka_takes_over_the_groups_of_our_broker(own_kafka: OwnKafka, tmp_path: Path) -> None:
    # Kafka keeps the ids of topics in metadata of its own: so it makes the topics, and our broker begins with them.
    create_topic(own_kafka.address, TOPIC, PARTITIONS)
    with closing_all(member := ConfluentMember(own_kafka.address, TOPIC, "first")):
        poll_until([member], lambda: len(member.assignment()) == PARTITIONS)
    own_kafka.end()
    copy(own_kafka.data, tmp_path)
    with Broker(tmp_path, settings=SETTINGS) as broker, groups(broker.bootstrap_servers):
        before = seen(broker.bootstrap_servers)
        sound(before)
        broker.close()
    copy(tmp_path, own_kafka.data)
    own_kafka.again()
    assert seen(own_kafka.address) == before
    go_on(own_kafka.address)
