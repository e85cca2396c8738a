"""Ottla's consumer in one group with each other client, on Apache Kafka and on Ottla's broker: any member may lead, leave or
join."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import aiokafka.coordinator.assignors.range as aiokafka_range
import kafka.coordinator.assignors.cooperative_sticky as kafka_cooperative
import pytest

from ottla import Broker
from tests.interop.other_clients import MEMBER, PRODUCE, Member, Message, Row, closing_all, create_topic, poll_all, poll_until
from tests.interop.ottla_client import OttlaMember

pytestmark = pytest.mark.interop

PARTITIONS = 4
ROWS: list[Row] = [(index % PARTITIONS, None, b"%d" % index, 1_700_000_000_000, ()) for index in range(200)]
RANGE: dict[str, dict[str, Any]] = {
    "confluent": {"partition_assignment_strategy": "range"},
    "kafka-python": {},
    "aiokafka": {"partition_assignment_strategy": [aiokafka_range.RangePartitionAssignor]},
}
"""What makes each peer offer the range assignor: aiokafka offers roundrobin alone."""
COOPERATIVE: dict[str, dict[str, Any]] = {
    "confluent": {"partition_assignment_strategy": "cooperative-sticky"},
    "kafka-python": {"partition_assignment_strategy": [kafka_cooperative.CooperativeStickyAssignor]},
}
"""What makes those peers cooperative that can be."""
_numbers = count()


@pytest.fixture(scope="module", params=["apache-kafka", "embedded"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("real_kafka")
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> str:
    name = f"mixed-{next(_numbers)}"
    create_topic(servers, name, PARTITIONS)
    PRODUCE["confluent"](servers, name, ROWS)
    return name


def share(*members: Member) -> bool:
    """Whether the members have all partitions between them, each some and none twice."""
    owned = [member.assignment() for member in members]
    return all(owned) and sorted(number for numbers in owned for number in numbers) == list(range(PARTITIONS))


def values(messages: list[Message]) -> set[bytes | None]:
    return {message.value for message in messages}


@pytest.mark.parametrize("peer", sorted(MEMBER))
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_mixed_group_shares_reads_everything_and_survives_a_leave(servers: str, topic: str, peer: str, first: str) -> None:
    makers: list[Callable[[], Member]] = [
        lambda: OttlaMember(servers, topic, f"g-{topic}"),
        lambda: MEMBER[peer](servers, topic, f"g-{topic}", **RANGE[peer]),
    ]
    if first == "theirs":
        makers.reverse()
    founder = makers[0]()
    with closing_all(founder):
        found = poll_until([founder], lambda: share(founder))
        newcomer, meanwhile = make_beside(founder, makers[1])
        found += meanwhile
        with closing_all(newcomer):
            found += poll_until([founder, newcomer], lambda: share(founder, newcomer))
            found += read_on([founder, newcomer], values(found), {row[2] for row in ROWS})
            founder.commit()
            newcomer.commit()
        PRODUCE["confluent"](servers, topic, [(number, None, b"late %d" % number, 0, ()) for number in range(PARTITIONS)])
        late = poll_until([founder], lambda: share(founder))
        read_on([founder], values(late), {b"late %d" % number for number in range(PARTITIONS)})


@pytest.mark.parametrize("peer", sorted(COOPERATIVE))
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_cooperative_mixed_group_moves_only_what_has_to(servers: str, topic: str, peer: str, first: str) -> None:
    """The leader's kind assigns for both; no one loses what it keeps, and nothing is read twice by those who keep it."""
    makers: list[Callable[[], Member]] = [
        lambda: OttlaMember(servers, topic, f"g-{topic}", partition_assignment_strategy="cooperative-sticky"),
        lambda: MEMBER[peer](servers, topic, f"g-{topic}", **COOPERATIVE[peer]),
    ]
    if first == "theirs":
        makers.reverse()
    founder = makers[0]()
    with closing_all(founder):
        found = poll_until([founder], lambda: share(founder))
        found += read_on([founder], values(found), {row[2] for row in ROWS})
        founder.commit()
        newcomer, meanwhile = make_beside(founder, makers[1])
        with closing_all(newcomer):
            meanwhile += poll_until([founder, newcomer], lambda: share(founder, newcomer))
            assert (len(founder.assignment()), len(newcomer.assignment())) == (PARTITIONS // 2, PARTITIONS // 2)
            PRODUCE["confluent"](servers, topic, [(number, None, b"new %d" % number, 0, ()) for number in range(PARTITIONS)])
            read_on([founder, newcomer], set(), {b"new %d" % number for number in range(PARTITIONS)})
            kept = founder.assignment()
            assert not [one for one in meanwhile if one.partition in kept], "what stayed was not read again"
        poll_until([founder], lambda: share(founder))


def test_a_group_becomes_cooperative_member_by_member(servers: str, topic: str) -> None:
    """Kafka's rolling upgrade: everyone offers both, then one after the other drops the eager one; it stays one group."""

    def ours(strategy: str) -> OttlaMember:
        return OttlaMember(servers, topic, f"g-{topic}", partition_assignment_strategy=strategy)

    members: list[Member] = [ours("range"), ours("range")]
    try:
        poll_until(members, lambda: share(*members))
        for strategy in ("range,cooperative-sticky", "cooperative-sticky"):
            for place in range(len(members)):
                members[place].close()
                members[place] = ours(strategy)
                poll_until(members, lambda: share(*members))
        before = [member.assignment() for member in members]
        members.append(ours("cooperative-sticky"))
        poll_until(members, lambda: share(*members))
        assert all(member.assignment() <= had for member, had in zip(members, before, strict=False))
    finally:
        for member in members:
            member.close()


def make_beside(member: Member, make: Callable[[], Member]) -> tuple[Member, list[Message]]:
    """Make another member while one goes on polling: some peers wait in their constructor until the group has let them in."""
    found: list[Message] = []
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make)
        while not making.done():
            found += member.poll(0.1)
    return making.result(), found


def read_on(members: list[Member], seen: set[bytes | None], wanted: set[bytes | None], seconds: float = 60) -> list[Message]:
    """Poll until all wanted values have come; fails the test if they do not."""
    found: list[Message] = []
    end = time.monotonic() + seconds
    while not wanted <= seen | values(found):
        assert time.monotonic() < end, f"missing: {sorted(wanted - seen - values(found), key=str)}"
        found += poll_all(members, 0.2)
    return found
