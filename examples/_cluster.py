"""The cluster of the examples, and orders in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from ottla import Broker

DRINKS = ("coffee", "tea", "chocolate")


@contextmanager
def cluster() -> Iterator[str]:
    """The bootstrap servers named on the command line, or those of an embedded broker."""
    if len(sys.argv) > 1:
        yield sys.argv[1]
    else:
        with Broker() as broker:
            yield broker.bootstrap_servers


def produce_orders(bootstrap_servers: str, topic: str, count: int, first_timestamp: int = 1_700_000_000_000) -> None:
    """Produce ``count`` orders, one per second: the key is ``table N``, the value the drink."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(count):
        key, value = f"table {number % 5}", DRINKS[number % len(DRINKS)]
        producer.produce(topic, key=key, value=value, timestamp=first_timestamp + 1000 * number)
    producer.flush()
