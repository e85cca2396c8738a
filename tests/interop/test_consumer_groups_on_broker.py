"""The consumer group protocol (KIP-848) on Ottla's broker, with librdkafka's consumer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from ottla import Broker
from ottla.assignors import GroupSpec
from tests.interop.one_or_three import BROKERS, brokers
from tests.interop.other_clients import (
    PRODUCE,
    ConsumerGroupMember,
    Member,
    Message,
    closing_all,
    create_topic,
    poll_until,
)

PARTITIONS = 6
SETTINGS = {"group.consumer.heartbeat.interval.ms": 300}
_numbers = count()


@pytest.fixture(scope="module", params=BROKERS, ids="{}-brokers".format)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with brokers(request.param, tmp_path_factory.mktemp("brokers"), SETTINGS) as servers:
        yield servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"consumer-topic-{next(_numbers)}"
    create_topic(servers, name, PARTITIONS)
    PRODUCE["confluent"](servers, name, [(index % PARTITIONS, None, b"%d" % index, 0, ()) for index in range(600)])
    return name


def has_split(members: list[Member]) -> bool:
    assignments = [member.assignment() for member in members]
    return sum(map(len, assignments)) == PARTITIONS == len(set().union(*assignments)) and all(assignments)


def values(found: list[Message]) -> list[int]:
    return sorted(int(one.value or b"") for one in found)


def test_members_come_and_go_and_nothing_is_lost(servers: str, topic: str) -> None:
    group = f"of-{topic}"
    first: Member = ConsumerGroupMember(servers, topic, group)
    found: list[Message] = []
    with closing_all(first):
        found += poll_until([first], lambda: len(found) >= 600 or len(first.assignment()) == PARTITIONS)
        second: Member = ConsumerGroupMember(servers, topic, group)
        with closing_all(second):
            found += poll_until([first, second], lambda: has_split([first, second]))
            first.commit()
            second.commit()
        found += poll_until([first], lambda: len(first.assignment()) == PARTITIONS)
        first.commit()
    last: Member = ConsumerGroupMember(servers, topic, group)
    with closing_all(last):
        found += poll_until([last], lambda: len(last.assignment()) == PARTITIONS)
        for _ in range(10):
            found += last.poll(0.2)
    assert sorted(set(values(found))) == list(range(600))


def test_tools_see_the_group(servers: str, topic: str) -> None:
    group = f"of-{topic}"
    members: list[Member] = [
        ConsumerGroupMember(servers, topic, group, group_instance_id="i1"),
        ConsumerGroupMember(servers, topic, group),
    ]
    with closing_all(*members):
        poll_until(members, lambda: has_split(members))
        admin = AdminClient({"bootstrap.servers": servers})
        (listed,) = [one for one in admin.list_consumer_groups().result().valid if one.group_id == group]
        assert (listed.type, listed.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
        described = admin.describe_consumer_groups([group])[group].result(60)
        assert described.partition_assignor == "uniform"
        assert {member.group_instance_id for member in described.members} == {"i1", None}
        shares = [{one.partition for one in member.assignment.topic_partitions} for member in described.members]
        assert sorted(map(len, shares)) == [3, 3]
    assert admin.delete_consumer_groups([group])[group].exception(10) is not None, "i1 is away for a while only"


def test_a_pattern_finds_topics_that_come_later(servers: str) -> None:
    prefix = f"pattern-{next(_numbers)}"
    create_topic(servers, f"{prefix}-a", 2)
    member: Member = ConsumerGroupMember(servers, f"^{prefix}-.*", f"of-{prefix}")
    with closing_all(member):
        poll_until([member], lambda: member.assignment() == {0, 1})
        create_topic(servers, f"{prefix}-b", 4)
        poll_until([member], lambda: member.assignment() == {0, 1, 2, 3})


def test_the_restart_of_a_static_member_does_not_rebalance_the_group(servers: str, topic: str) -> None:
    group = f"of-{topic}"
    stays: Member = ConsumerGroupMember(servers, topic, group, group_instance_id="stays")
    goes: Member = ConsumerGroupMember(servers, topic, group, group_instance_id="goes")
    with closing_all(stays):
        with closing_all(goes):
            poll_until([stays, goes], lambda: has_split([stays, goes]))
            share = goes.assignment()
        back: Member = ConsumerGroupMember(servers, topic, group, group_instance_id="goes")
        with closing_all(back):
            poll_until([stays, back], lambda: bool(back.assignment()))
            assert back.assignment() == share
            assert stays.assignment() == set(range(PARTITIONS)) - share


def standby(group: GroupSpec) -> dict[str, dict[UUID, range]]:
    """One member reads everything, for as long as it is there."""
    reader = next((member for member, held in group.assignments.items() if held and member in group.members), min(group.members))
    return {reader: {topic: range(group.topics[topic].partitions) for topic in group.members[reader].topics}}


def test_a_broker_that_is_restarted_knows_its_groups_and_an_assignor_may_be_the_users_own(tmp_path: Path) -> None:
    settings = {"group.consumer.heartbeat.interval.ms": 300, "group.consumer.assignors": "standby"}
    with Broker(tmp_path, settings=settings, assignors={"standby": standby}) as broker:
        servers = broker.bootstrap_servers
        port = int(servers.rsplit(":", 1)[1])
        create_topic(servers, "kept", PARTITIONS)
        members: list[Member] = [ConsumerGroupMember(servers, "kept", "of-kept") for _ in range(2)]
        with closing_all(*members):
            poll_until(members, lambda: sorted(len(one.assignment()) for one in members) == [0, PARTITIONS])
            broker.close()
            with Broker(tmp_path, port=port, settings=settings, assignors={"standby": standby}):
                PRODUCE["confluent"](servers, "kept", [(number, None, b"1", 0, ()) for number in range(PARTITIONS)])
                found: list[Message] = []
                reader = next(one for one in members if one.assignment())
                waits = next(one for one in members if one is not reader)
                poll_until([waits], lambda: bool(found.extend(reader.poll(0.2))) or len(found) >= PARTITIONS)
                assert sorted(len(one.assignment()) for one in members) == [0, PARTITIONS]
                reader.commit()
