"""A group of confluent-kafka consumers migrates from the classic to the consumer protocol and back, on Ottla's broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

from ottla import Broker
from tests.interop.other_clients import (
    PRODUCE,
    ConfluentMember,
    ConsumerGroupMember,
    Member,
    Message,
    closing_all,
    create_topic,
    poll_all,
    poll_until,
)

PARTITIONS = 6
STRATEGIES = ["range", "roundrobin"]
"""librdkafka's cooperative-sticky leaves bytes of its own in assignments after a second round; Kafka then refuses to upgrade."""
_numbers = count()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker(settings={"group.consumer.heartbeat.interval.ms": 300}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"migration-{next(_numbers)}"
    create_topic(servers, name, PARTITIONS)
    return name


def produce(servers: str, topic: str, word: str) -> set[bytes]:
    values = {b"%s %d" % (word.encode(), number) for number in range(PARTITIONS)}
    rows = [(number, None, value, 0, ()) for number, value in enumerate(sorted(values))]
    PRODUCE["confluent"](servers, topic, rows)
    return values


def classic(servers: str, topic: str, strategy: str) -> Member:
    return ConfluentMember(servers, topic, f"of-{topic}", **{"partition.assignment.strategy": strategy})


def consumer(servers: str, topic: str) -> Member:
    return ConsumerGroupMember(servers, topic, f"of-{topic}")


def have_split(*members: Member) -> bool:
    owned = [member.assignment() for member in members]
    return all(owned) and sorted(number for numbers in owned for number in numbers) == list(range(PARTITIONS))


def type_of(servers: str, topic: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": servers})
    listed = admin.list_consumer_groups().result(60)
    return next(group.type for group in listed.valid if group.group_id == f"of-{topic}")


def committed(servers: str, topic: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": f"of-{topic}"})
    try:
        asked = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(asked, 10)}
    finally:
        consumer.close()


def read(members: list[Member], wanted: set[bytes], found: list[Message]) -> None:
    found += poll_until(members, lambda: have_split(*members))
    end = time.monotonic() + 60
    while not wanted <= {message.value for message in found}:
        assert time.monotonic() < end, f"missing: {wanted - {message.value for message in found}}"
        found += poll_all(members, 0.1)
    for member in members:
        member.commit()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_group_is_upgraded_member_by_member_and_downgraded_again(servers: str, topic: str, strategy: str) -> None:
    found: list[Message] = []
    old, older = classic(servers, topic, strategy), classic(servers, topic, strategy)
    with closing_all(old):
        with closing_all(older):
            wanted = produce(servers, topic, "classic")
            read([old, older], wanted, found)
            assert type_of(servers, topic) is ConsumerGroupType.CLASSIC
            new = consumer(servers, topic)
            read([old, older, new], produce(servers, topic, "mixed"), found)
            assert type_of(servers, topic) is ConsumerGroupType.CONSUMER
        with closing_all(new):
            newer = consumer(servers, topic)
            with closing_all(newer):
                read([old, new, newer], produce(servers, topic, "nearly all new"), found)
        read([old], produce(servers, topic, "classic again"), found)
        assert type_of(servers, topic) is ConsumerGroupType.CLASSIC
    assert committed(servers, topic) == dict.fromkeys(range(PARTITIONS), 4)
