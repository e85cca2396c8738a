"""The cluster of the examples, and orders in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ottla import Broker, Producer

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
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(count):
            drink = DRINKS[number % len(DRINKS)]
            producer.send(topic, drink, key=f"table {number % 5}", timestamp=first_timestamp + 1000 * number)
