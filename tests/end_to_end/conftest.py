"""One broker, started as a user starts it, for the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.end_to_end.programs import broker

NUMBERS = count(1)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that all tests of the session share: use fresh names for topics and groups."""
    folder = tmp_path_factory.mktemp("served")
    with broker("--data-dir", str(folder), "--set", "group.initial.rebalance.delay.ms=0") as (_, address):
        yield address


@pytest.fixture
def topic(served: str) -> Callable[..., str]:
    """Makes topics with fresh names and ``key:value`` records in them: ``topic(partitions, *records)``."""
    client: dict[str, Any] = {"bootstrap.servers": served}
    admin = AdminClient(client)

    def make(partitions: int = 1, *records: str) -> str:
        name = f"topic-{next(NUMBERS)}"
        for created in admin.create_topics([NewTopic(name, partitions)]).values():
            created.result(60)
        producer = Producer(client)
        for key, _, value in (record.partition(":") for record in records):
            producer.produce(name, key=key, value=value)
        assert producer.flush(60) == 0
        return name

    return make
