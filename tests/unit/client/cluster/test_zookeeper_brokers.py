"""The brokers that ZooKeeper names, as a client sees them while nodes come and go."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.cluster.zookeeper_brokers import ZooKeeperBrokers
from ottla.config import ConsumerConfig, HostPort
from ottla.errors import KeeperCode, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper.operations import Children, Exists, GetChildren, GetData, Node, Stat
from ottla.zookeeper.session import Ask, Session
from tests.unit.client.managers import backoff

BROKER = b'{"host":"h%d","port":9092}'


class Brokers:
    """The manager, and the answers of ZooKeeper to it."""

    def __init__(self) -> None:
        self.reported: list[tuple[HostPort, ...]] = []
        self.session = Session(6_000)
        self.session.on_connected(1, Now(0, 0))
        config = ConsumerConfig.parse({"zookeeper_connect": "zk:2181", "group_id": "g"})
        self.manager = ZooKeeperBrokers(config, self.session, backoff(), self.reported.append)
        self.mono = 0

    def asks(self) -> list[Ask[Any]]:
        return [ask for ask in self.manager.poll(Now(self.mono, 0)).sends if isinstance(ask, Ask)]

    def answer(self, ask: Ask[Any], outcome: object) -> None:
        if isinstance(outcome, ZooKeeperError):
            ask.on_failure(outcome, Now(self.mono, 0))
        else:
            ask.on_result(outcome, Now(self.mono, 0))

    def list(self, *names: str) -> None:
        (ask,) = self.asks()
        assert isinstance(ask.operation, GetChildren)
        self.answer(ask, Children(names, Stat()))

    def read(self, *numbers: int | None) -> None:
        """Answer the reads of brokers; ``None``: the node is missing."""
        asks = self.asks()
        assert len(asks) == len(numbers)
        for ask, number in zip(asks, numbers, strict=True):
            assert isinstance(ask.operation, GetData)
            path = ask.operation.path
            self.answer(ask, missing(path) if number is None else Node(BROKER % number, Stat()))


def missing(path: str) -> ZooKeeperError:
    return ZooKeeperError(KeeperCode.NONODE, path)


@pytest.fixture
def brokers() -> Brokers:
    brokers = Brokers()
    brokers.list("1", "2")
    brokers.read(1, 2)
    assert brokers.reported == [(HostPort("h1", 9092), HostPort("h2", 9092))]
    brokers.manager._due = True
    return brokers


def test_brokers_that_vanish_while_they_are_read_are_not_reported_as_none(brokers: Brokers) -> None:
    brokers.list("1", "2")
    brokers.read(None, None)
    assert sorted(brokers.manager.brokers) == [1, 2]
    assert brokers.asks() == []
    brokers.mono = 100
    brokers.list("3")
    brokers.read(3)
    assert brokers.reported[1:] == [(HostPort("h3", 9092),)]


def test_what_is_no_broker_id_is_not_read(brokers: Brokers) -> None:
    brokers.list("007", "9" * 5_000, "-1", "x", "2")
    brokers.read(2)
    assert sorted(brokers.manager.brokers) == [2]


def test_a_list_that_is_created_between_two_looks_is_read(brokers: Brokers) -> None:
    (ask,) = brokers.asks()
    brokers.answer(ask, missing(ask.operation.path))
    (ask,) = brokers.asks()
    assert ask.operation == Exists("/brokers/ids", watch=True)
    brokers.answer(ask, Stat())
    assert sorted(brokers.manager.brokers) == [1, 2]
    assert brokers.asks() == []
    brokers.mono = 100
    brokers.list("2")
    brokers.read(2)
    assert brokers.reported[1:] == [(HostPort("h2", 9092),)]


def test_one_that_vanishes_is_left_out_and_all_that_are_gone_are_none(brokers: Brokers) -> None:
    brokers.list("1", "2")
    brokers.read(None, 2)
    assert sorted(brokers.manager.brokers) == [2]
    brokers.manager._due = True
    brokers.list()
    assert brokers.manager.is_empty


def test_a_missing_list_names_no_broker_until_it_is_created(brokers: Brokers) -> None:
    (ask,) = brokers.asks()
    brokers.answer(ask, missing(ask.operation.path))
    (ask,) = brokers.asks()
    brokers.answer(ask, None)
    assert brokers.manager.is_empty
    assert brokers.asks() == []
    assert brokers.manager.problem(Now(0, 0)) is None
    assert "no broker is registered in ZooKeeper" in str(brokers.manager.none_registered())
