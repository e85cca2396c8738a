"""Ottla's member of a consumer group (KIP-848) on Apache Kafka and on Ottla's broker: assignments, assignors, changes of protocol.

Apache Kafka's heartbeat interval is at least five seconds, so each step of a rebalance takes that long: one test covers the most
important steps, the others run in the full matrix only.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import confluent_kafka
import pytest

from ottla import Broker, Consumer, TopicPartition
from ottla.errors import InvalidRegularExpressionError, RebalanceInProgressError, UnreleasedInstanceIdError
from tests.interop.other_clients import PRODUCE, Row, create_topic

NOW = 1_700_000_000_000
_numbers = count()


@pytest.fixture(scope="module", params=["apache-kafka", "embedded"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("real_kafka")
        return
    with Broker(settings={"group.consumer.heartbeat.interval.ms": 300}) as broker:
        yield broker.bootstrap_servers


class Member:
    """A member, what its listeners heard, and what it has read and committed."""

    def __init__(self, servers: str, topic: str | None, protocol: str = "consumer", **settings: Any) -> None:
        self.callbacks: list[tuple[str, set[int]]] = []
        self.read: list[tuple[int, int]] = []
        pattern = settings.pop("pattern", None)
        group = settings.pop("group_id", f"g-{topic}")
        basics = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 20}
        self.consumer = Consumer(bootstrap_servers=servers, group_id=group, group_protocol=protocol, **basics, **settings)
        self.consumer.subscribe(
            [topic] if topic is not None else (),
            pattern=pattern,
            on_assign=self._hears("assign"),
            on_revoke=self._hears("revoke"),
            on_lost=self._hears("lost"),
        )

    def _hears(self, what: str) -> Any:
        return lambda _, tps: self.callbacks.append((what, {tp.partition for tp in tps}))

    @property
    def owns(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def step(self) -> None:
        records = self.consumer.poll(0.1)
        self.read += [(record.partition, record.offset) for record in records]
        if records:
            # A classic group is rebalancing: what was read is committed before anything is given up.
            with contextlib.suppress(RebalanceInProgressError):
                self.consumer.commit(timeout=10)

    def close(self) -> None:
        self.consumer.close()


def rows(partitions: int, per_partition: int) -> list[Row]:
    return [(number % partitions, None, b"v%d" % number, NOW, ()) for number in range(partitions * per_partition)]


def new_topic(servers: str, partitions: int = 4) -> str:
    name = f"consumer-protocol-{next(_numbers)}"
    create_topic(servers, name, partitions)
    PRODUCE["confluent"](servers, name, rows(partitions, 50))
    return name


def until(condition: Callable[[], bool], *members: Member, seconds: float = 60.0) -> None:
    """Let members work until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, [(member.consumer, member.callbacks) for member in members]
        for member in members:
            member.step()


def shared(*members: Member, partitions: int = 4) -> Callable[[], bool]:
    """Whether these members have all partitions, and each has some."""
    everything = set(range(partitions))
    return lambda: (
        all(member.owns for member in members)
        and set.union(*(member.owns for member in members)) == everything
        and sum(len(member.owns) for member in members) == partitions
    )


def test_members_share_and_hand_over_what_has_to_go_and_nothing_else(servers: str) -> None:
    topic = new_topic(servers)
    first = Member(servers, topic)
    until(lambda: len(first.read) == 200, first)
    second = Member(servers, topic, "auto")
    until(shared(first, second), first, second)
    kept = first.owns
    assert first.callbacks[0] == ("assign", {0, 1, 2, 3})
    assert first.callbacks[1] == ("revoke", {0, 1, 2, 3} - kept)
    assert len(kept) == 2
    assert second.consumer.group_metadata().generation_id > 0
    second.close()
    until(shared(first), first)
    first.close()
    assert sorted(first.read) == [(partition, offset) for partition in range(4) for offset in range(50)]
    assert second.read == [], "all was committed before it was handed over"
    assert "lost" not in [what for what, _ in first.callbacks + second.callbacks]


@pytest.mark.interop
def test_auto_joins_a_live_classic_group_as_it_is(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.client.groups.protocol")
    topic = new_topic(servers)
    settings = {"bootstrap.servers": servers, "group.id": f"g-{topic}", "partition.assignment.strategy": "range"}
    classic = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200})
    classic.subscribe([topic])
    end = time.monotonic() + 60
    while len(classic.assignment()) < 4:
        assert time.monotonic() < end
        classic.poll(0.1)
    member = Member(servers, topic, "auto")
    end = time.monotonic() + 60
    while not (len(member.owns) == len(classic.assignment()) == 2):
        assert time.monotonic() < end
        member.step()
        classic.poll(0.1)
    assert "chose classic: the group is a classic group with 1 member" in caplog.text
    classic.close()
    until(shared(member), member)
    member.close()


@pytest.mark.interop
def test_a_group_moves_to_the_consumer_protocol_and_back_member_by_member(servers: str) -> None:
    topic = new_topic(servers)
    members: list[Member] = []

    def replace(before: Member | None, other: Member | None, protocol: str) -> Member:
        """One instance is started, then the one that it replaces is stopped; the others work on."""
        after = Member(servers, topic, protocol)
        members.append(after)
        staying = [one for one in (after, other) if one is not None]
        until(shared(*staying, *([before] if before is not None else [])), *staying, *([before] if before is not None else []))
        if before is not None:
            before.close()
        until(shared(*staying), *staying)
        PRODUCE["confluent"](servers, topic, rows(4, 10))
        return after

    one = replace(None, None, "classic")
    two = replace(None, one, "classic")
    one = replace(one, two, "consumer")
    two = replace(two, one, "consumer")
    one = replace(one, two, "classic")
    two = replace(two, one, "classic")
    expected = [(partition, offset) for partition in range(4) for offset in range(50 + 6 * 10)]
    until(lambda: len({item for member in members for item in member.read}) == len(expected), one, two)
    one.close()
    two.close()
    assert sorted(item for member in members for item in member.read) == expected
    assert "lost" not in [what for member in members for what, _ in member.callbacks]


@pytest.mark.interop
def test_a_pattern_is_the_brokers_to_match(servers: str) -> None:
    topic = new_topic(servers)
    member = Member(servers, None, group_id=f"g-{topic}", pattern=f"{topic}(-more)?")
    until(shared(member), member)
    create_topic(servers, f"{topic}-more", 1)
    assert {tp.topic for tp in member.consumer.assignment()} == {topic}
    member.close()
    bad = Member(servers, None, group_id=f"h-{topic}", pattern=r"(a)\1")
    with pytest.raises(InvalidRegularExpressionError, match="RE2"):
        until(lambda: False, bad, seconds=20)
    bad.close()


@pytest.mark.interop
def test_a_static_member_returns_to_its_partitions_and_a_double_is_refused(servers: str) -> None:
    topic = new_topic(servers)
    first, second = Member(servers, topic, group_instance_id="one"), Member(servers, topic, group_instance_id="two")
    until(shared(first, second), first, second)
    owned, callbacks = first.owns, list(second.callbacks)
    first.close()
    again = Member(servers, topic, group_instance_id="one")
    until(lambda: again.owns == owned, again, second)
    assert second.callbacks == callbacks
    double = Member(servers, topic, group_instance_id="one")
    with pytest.raises(UnreleasedInstanceIdError, match="give each its own"):
        until(lambda: False, double, seconds=20)
    double.close()
    again.close()
    second.close()


@pytest.mark.interop
def test_beside_a_member_of_librdkafka(servers: str) -> None:
    topic = new_topic(servers)
    settings = {
        "bootstrap.servers": servers,
        "group.id": f"g-{topic}",
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    }
    other = confluent_kafka.Consumer(settings)
    other.subscribe([topic])
    member = Member(servers, topic)
    end = time.monotonic() + 60
    while not (len(member.owns) == len(other.assignment()) == 2):
        assert time.monotonic() < end
        other.poll(0.1)
        member.step()
    other.close()
    until(shared(member), member)
    assert member.consumer.committed(TopicPartition(topic, 0))
    member.close()
