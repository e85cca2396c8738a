"""The delays in the topic that the Spark job writes exactly once, read back by a plain consumer.

Owns the reading and the sums. Must not know Spark. Invariant: records of open and aborted transactions are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla import Consumer, TopicPartition

POLL = 1.0
"""Seconds of one poll."""
KEYS = ("carrier", "airline", "origin", "hour")


class Delays(NamedTuple):
    """``rows``: flights and minutes for each carrier, origin and hour. ``distinct``: different flights in ``flights`` records."""

    rows: list[dict[str, Any]]
    flights: int
    distinct: int
    minutes: int


def read_delays(bootstrap_servers: str, topic: str, check: Callable[[], None]) -> Delays:
    """Read the topic to its end. ``check()`` is called between polls, and may raise."""
    settings = {"bootstrap.servers": bootstrap_servers, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    sums: dict[tuple[Any, ...], list[int]] = {}
    flights: set[tuple[int, int]] = set()
    count = minutes = 0
    with Consumer(settings) as consumer:
        partitions = sorted(TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic))
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            check()
            for record in consumer.poll(timeout=POLL):
                delay = json.loads(record.value or b"")
                total = sums.setdefault(tuple(delay.get(key) for key in KEYS), [0, 0])
                total[0] += 1
                total[1] += delay["dep_delay"]
                flights.add((delay["partition"], delay["offset"]))
                count += 1
                minutes += delay["dep_delay"]
    rows = [{**dict(zip(KEYS, keys, strict=True)), "flights": each[0], "minutes": each[1]} for keys, each in sums.items()]
    return Delays(rows, count, len(flights), minutes)
