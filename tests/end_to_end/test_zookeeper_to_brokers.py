"""A group moves from ZooKeeper to the brokers while records are produced: the last step of docs/leaving-0.8.md, both protocols."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from ottla import Broker, Consumer
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.zookeeper_cluster import ZooKeeperCluster, registered
from tests.interop.zookeeper.load import Load

pytestmark = pytest.mark.long

LIMIT = 30.0


@pytest.fixture
def cluster(kafka_broker: Broker) -> Iterator[ZooKeeperCluster]:
    with ZooKeeperServer() as server, registered(kafka_broker, server.connect_string) as cluster:
        yield cluster


class Reader:
    """A member that polls in a thread of its own."""

    def __init__(self, topic: str, settings: dict[str, Any]) -> None:
        self._topic, self._settings = topic, settings
        self.owns = 0
        self.values: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Consumer(self._settings, group_id="kitchen", auto_offset_reset="earliest", auto_commit_interval=0.1) as consumer:
            consumer.subscribe([self._topic])
            while not self._ended.is_set():
                self.values += [int(record.value or b"") for record in consumer.poll(0.1)]
                self.owns = len(consumer.assignment())

    def close(self) -> None:
        self._ended.set()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()


@contextmanager
def two_readers(topic: str, **settings: Any) -> Iterator[list[Reader]]:
    """Two members that share the partitions and have read something."""
    with ExitStack() as open_ones:
        readers = [Reader(topic, settings) for _ in range(2)]
        for reader in readers:
            open_ones.callback(reader.close)
        until(lambda: all(reader.owns == 2 and reader.values for reader in readers))
        yield readers


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_no_record_is_lost_and_none_is_read_twice(cluster: ZooKeeperCluster, protocol: str) -> None:
    topic = cluster.create_topic(f"moving-{protocol}", 4)
    address = cluster.broker.bootstrap_servers
    load = Load(address, topic)
    try:
        with two_readers(topic, zookeeper_connect=cluster.connect, offsets_storage="kafka", dual_commit_enabled=True) as earlier:
            pass
        before = load.produced
        with two_readers(topic, bootstrap_servers=address, group_protocol=protocol) as later:
            until(lambda: any(value > before for reader in later for value in reader.values))
            produced = {int(value) for value in load.end()}
            until(lambda: produced <= {value for reader in (*earlier, *later) for value in reader.values})
    finally:
        load.end()
    assert sorted(value for reader in (*earlier, *later) for value in reader.values) == sorted(produced)
