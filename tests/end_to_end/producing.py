"""A broker, new topics and what is in them, for the tests of producers.

Owns the topics' names and number of partitions. Must not know producers. Invariant: a test leaves no fault behind on the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from ottla import Admin, Broker, Consumer, Record, TopicPartition

PARTITIONS = 3

_NUMBERS = count(1)


def started() -> Broker:
    """A broker that creates no topics on its own."""
    return Broker(settings={"auto.create.topics.enable": "false"})


@contextmanager
def new_topic(broker: Broker) -> Iterator[str]:
    """A topic of its own for one test."""
    name = f"topic-{next(_NUMBERS)}"
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({name: PARTITIONS})
    yield name
    broker.faults.clear()


def stored(broker: Broker, topic: str) -> list[Record]:
    """All records of a topic, those of each partition in order."""
    found: list[Record] = []
    with Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found.extend(consumer.poll(1.0))
    return found
