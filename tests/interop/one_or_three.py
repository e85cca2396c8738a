"""The same tests on one of Ottla's brokers, and on three in one ZooKeeper.

Owns the two kinds of clusters. Must not know the tests. Invariant: other clients see no difference but the number of addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla import Broker
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.broker_cluster import cluster_of

BROKERS = [1, pytest.param(3, marks=pytest.mark.interop)]
"""The numbers of brokers, as the parameters of a fixture."""


@contextmanager
def brokers(number: int, folder: Path, settings: Mapping[str, object] = {}) -> Iterator[str]:
    """Run so many brokers; the value is their addresses."""
    if number == 1:
        with Broker(settings=settings) as broker:
            yield broker.bootstrap_servers
        return
    several = {"offsets.topic.num.partitions": 50, "auto.create.topics.enable": True, **settings}
    with (
        ZooKeeperServer() as server,
        cluster_of(
            number, server.connect_string, folder, **{name.replace(".", "_"): value for name, value in several.items()}
        ) as cluster,
    ):
        yield ",".join(broker.bootstrap_servers for broker in cluster.brokers)
