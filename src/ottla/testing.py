"""The pytest plugin, loaded by pytest wherever Ottla is installed: a broker for the test session, a new topic for each test.

Owns the fixtures; must not know how a broker works. Invariant: loading it imports nothing of Ottla but this module, since every
test run on a machine with Ottla loads it.

::

    def test_orders_are_counted(kafka_broker, kafka_topic):
        produce(kafka_broker.bootstrap_servers, kafka_topic, ...)

    @pytest.mark.kafka_topic(partitions=6, configs={"retention.ms": "-1"})
    def test_six_partitions(kafka_broker, kafka_topic): ...

    def test_a_lost_commit(kafka_broker, kafka_topic):
        kafka_broker.faults.lose_reply("OffsetCommit")  # every fault ends with its test
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.embedded import Broker

_LONGEST = 200
"""Kafka accepts topic names of up to 249 characters; a number is appended to the truncated name of the test."""

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "kafka_topic(partitions=1, configs={}): properties of the topic of the fixture kafka_topic")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the faults of a test before its fixtures, so that its clients can be closed."""
    broker = getattr(item, "funcargs", {}).get("kafka_broker")
    if broker is not None:
        broker.faults.clear()


@pytest.fixture(scope="session")
def kafka_broker_settings() -> dict[str, object]:
    """The settings of ``kafka_broker``, by Kafka's names: override this fixture in ``conftest.py`` to change them."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_settings: dict[str, object]) -> Iterator[Broker]:
    """An embedded broker that all tests of the session share, in a temporary folder; see ``.bootstrap_servers``."""
    from ottla.embedded import Broker

    with Broker(settings=kafka_broker_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def _kafka_admin(kafka_broker: Broker) -> Iterator[Admin]:
    from ottla.admin import Admin

    with Admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, _kafka_admin: Admin) -> str:
    """The name of an empty topic that no other test uses, with one partition unless the marker ``kafka_topic`` says otherwise."""
    partitions, configs = _wanted(request.node.get_closest_marker("kafka_topic"))
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_LONGEST] + f"-{next(_numbers)}"
    _kafka_admin.create_topics({name: partitions}, configs=configs)
    return name


def _wanted(marker: pytest.Mark | None) -> tuple[int, Mapping[str, str] | None]:
    """The number of partitions, and the settings."""
    args, kwargs = ((), {}) if marker is None else (marker.args, marker.kwargs)
    wanted = {"partitions": 1, "configs": None, **kwargs}
    if args or len(wanted) > 2:
        written = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        pytest.fail(f"kafka_topic({written}): the marker takes partitions=1 and configs={{}}, by these names", pytrace=False)
    return wanted["partitions"], wanted["configs"]
