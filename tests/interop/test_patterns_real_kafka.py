"""Subscription by a pattern on Apache Kafka and on Ottla's broker: existing, new and deleted topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient

from ottla import Broker, Consumer
from tests.interop.other_clients import PRODUCE, create_topic

PATIENCE = 60
"""Seconds."""
_numbers = count()


@pytest.fixture(scope="module", params=["apache-kafka", "embedded"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("real_kafka")
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


def poll_until(consumer: Consumer, done: Callable[[], bool]) -> None:
    """Poll until something holds."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, (consumer.subscription(), consumer.assignment())
        consumer.poll(0.1)


def topics(consumer: Consumer) -> set[str]:
    return {tp.topic for tp in consumer.assignment()}


def test_topics_come_and_go_with_the_pattern(servers: str) -> None:
    name = f"pattern{next(_numbers)}"
    for topic in (f"{name}-a", f"{name}-b", f"other-{name}-a"):
        create_topic(servers, topic)
        PRODUCE["confluent"](servers, topic, [(0, None, topic.encode(), 0, ())])
    settings = {"bootstrap_servers": servers, "group_id": name, "group_protocol": "classic", "auto_offset_reset": "earliest"}
    with Consumer(settings, metadata_max_age=0.5, partition_assignment_strategy="cooperative-sticky") as consumer:
        consumer.subscribe(pattern=f"{name}-.*")
        poll_until(consumer, lambda: topics(consumer) == {f"{name}-a", f"{name}-b"})
        create_topic(servers, f"{name}-c")
        PRODUCE["confluent"](servers, f"{name}-c", [(0, None, b"late", 0, ())])
        poll_until(consumer, lambda: topics(consumer) == {f"{name}-a", f"{name}-b", f"{name}-c"})
        assert consumer.subscription() == {f"{name}-a", f"{name}-b", f"{name}-c"}
        admin = AdminClient({"bootstrap.servers": servers})
        admin.delete_topics([f"{name}-b"])[f"{name}-b"].result(60)
        poll_until(consumer, lambda: topics(consumer) == {f"{name}-a", f"{name}-c"})


def test_everything_a_pattern_matches_is_read(servers: str) -> None:
    name = f"pattern{next(_numbers)}"
    for topic in (f"{name}-a", f"{name}-b"):
        create_topic(servers, topic)
        PRODUCE["confluent"](servers, topic, [(0, None, topic.encode(), 0, ())])
    settings = {"bootstrap_servers": servers, "group_id": name, "group_protocol": "classic", "auto_offset_reset": "earliest"}
    with Consumer(settings) as consumer:
        consumer.subscribe(pattern=f"{name}-.")
        seen: set[bytes | None] = set()
        end = time.monotonic() + PATIENCE
        while seen != {f"{name}-a".encode(), f"{name}-b".encode()}:
            assert time.monotonic() < end, seen
            seen |= {record.value for record in consumer.poll(0.2)}
