"""Kafka's own tools on Ottla's broker: their output is the same as with Apache Kafka (``sessions/``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import confluent_kafka
import pytest

from ottla import Broker
from tests.interop import terminal_sessions
from tests.interop.other_clients import MEMBER, PRODUCE, ConsumerGroupMember, closing_all, create_topic, poll_until
from tests.interop.real_kafka import KafkaTool

SESSIONS = sorted((Path(__file__).parent / "sessions").glob("*.session"))


@contextmanager
def a_live_group_and_idle_ones(servers: str, name: str) -> Iterator[None]:
    """``NAME-live`` has a member, ``NAME-idle`` and ``NAME-doomed`` only offsets: of ``NAME-read``, 2 partitions of 10 records."""
    topic = f"{name}-read"
    create_topic(servers, topic, 2)
    PRODUCE["confluent"](servers, topic, [(number % 2, None, b"x", 1_700_000_000_000 + number, ()) for number in range(20)])
    commit(servers, topic, f"{name}-idle", {0: 4, 1: 10})
    commit(servers, topic, f"{name}-doomed", {0: 1})
    member = MEMBER["confluent"](servers, topic, f"{name}-live", client_id="living", partition_assignment_strategy="range")
    with closing_all(member):
        poll_until([member], lambda: member.assignment() == {0, 1})
        yield


def commit(servers: str, topic: str, group: str, offsets: dict[int, int]) -> None:
    """Commit offsets for a group without being its member."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


@contextmanager
def a_consumer_group(servers: str, name: str) -> Iterator[None]:
    """``NAME-live`` is a consumer group (KIP-848) with a member, of ``NAME-read``, 2 partitions of 10 records."""
    topic = f"{name}-read"
    create_topic(servers, topic, 2)
    PRODUCE["confluent"](servers, topic, [(number % 2, None, b"x", 1_700_000_000_000 + number, ()) for number in range(20)])
    commit(servers, topic, f"{name}-live", {0: 4, 1: 10})
    member = ConsumerGroupMember(servers, topic, f"{name}-live", client_id="living")
    with closing_all(member):
        poll_until([member], lambda: member.assignment() == {0, 1})
        yield


@contextmanager
def a_transaction_that_is_open(servers: str, name: str) -> Iterator[None]:
    """``NAME-done`` has committed two records in ``NAME-topic``; ``NAME-open`` has written a third one and not ended."""
    topic = f"{name}-topic"
    create_topic(servers, topic)
    producers = []
    for transactional_id, values in ((f"{name}-done", (b"one", b"two")), (f"{name}-open", (b"three",))):
        producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": transactional_id})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(60) == 0
        producers.append(producer)
    producers[0].commit_transaction(20)
    yield


PREPARE: dict[str, Callable[[str, str], AbstractContextManager[None]]] = {
    "groups": a_live_group_and_idle_ones,
    "group-offsets": a_live_group_and_idle_ones,
    "consumer-groups": a_consumer_group,
    "transactions": a_transaction_that_is_open,
}
"""What a session finds on the broker, where it is not an empty one; ``NAME`` is the session's."""


EVERYDAY = ("consumer-groups", "records", "topics")
"""The sessions that run with every change: each takes some starts of a JVM. ``make interop`` runs all."""


@pytest.fixture(params=["embedded", pytest.param("apache-kafka", marks=pytest.mark.interop)])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("real_kafka")
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "session",
    [pytest.param(path, marks=() if path.stem in EVERYDAY else pytest.mark.interop, id=path.stem) for path in SESSIONS],
)
def test_a_session_reads_as_on_a_real_kafka(servers: str, kafka_tool: KafkaTool, session: Path, tmp_path: Path) -> None:
    with PREPARE.get(session.stem, lambda servers, name: nullcontext())(servers, session.stem):
        terminal_sessions.play(session, servers, tmp_path)
