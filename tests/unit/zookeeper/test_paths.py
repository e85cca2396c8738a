"""The paths of Kafka 0.8 in ZooKeeper, and the names that can be part of them."""

from __future__ import annotations

import pytest

from ottla.errors import ConfigError
from ottla.zookeeper import paths


def test_the_layout_of_kafka() -> None:
    assert paths.member("g", "m") == "/consumers/g/ids/m"
    assert paths.owner("g", "t", 3) == "/consumers/g/owners/t/3"
    assert paths.offset("g", "t", 3) == "/consumers/g/offsets/t/3"
    assert paths.broker(1) == "/brokers/ids/1"
    assert paths.topic("t") == "/brokers/topics/t"
    assert paths.partition_state("t", 3) == "/brokers/topics/t/partitions/3/state"
    assert paths.parents("/consumers/g/ids") == ("/consumers", "/consumers/g")
    assert paths.parents("/a") == ()


def test_names_of_brokers() -> None:
    assert paths.broker_ids(("10", "2", "0")) == [0, 2, 10]
    assert paths.broker_ids(("", "x", "-1", "01", "1" * 11, "1" * 10_000, "٣")) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\x00", "a\n", "\x7f", "\ud800", "\uffff"])
def test_a_name_that_zookeeper_refuses_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a node of ZooKeeper"):
        paths.group(name)


@pytest.mark.parametrize("name", ["g", "a b", "grüppe", "a.b-c_d", "...", "群"])
def test_other_names_are_accepted(name: str) -> None:
    assert paths.group(name) == f"/consumers/{name}"
