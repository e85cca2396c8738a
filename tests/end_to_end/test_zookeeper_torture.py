"""Members of a ZooKeeper group that join, leave, are killed and stopped at random, and restarts of ZooKeeper.

Nothing is lost, no offset goes back, and none is committed but by the owner of its partition.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla import Broker
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.zookeeper_cluster import ZooKeeperCluster, registered
from tests.end_to_end.zookeeper_log import CLOSE_SESSION, DELETE, changes
from tests.end_to_end.zookeeper_processes import Process, process

pytestmark = pytest.mark.long

LIMIT = 60.0
EVENTS, RECORDS = 6, 60


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


class Run:
    """One run: members of one group, and the events that a seed chooses."""

    def __init__(self, cluster: ZooKeeperCluster, zookeeper: ZooKeeperServer, seed: int, folder: Path, running: ExitStack) -> None:
        self._cluster, self._zookeeper, self._folder, self._running = cluster, zookeeper, folder, running
        self._chance = random.Random(seed)
        self._topic = cluster.create_topic(f"torture{seed}{cluster.chroot.removeprefix('/')}", 5)
        self._partitions = 5
        self._members: list[Process] = []
        self._all: list[Process] = []
        self._produced: dict[int, int] = {}

    def run(self) -> None:
        """Let events happen, then wait until the group has read everything."""
        self._join()
        self._join()
        for _ in range(EVENTS):
            self._produce()
            self._chance.choice(
                [self._join, self._join, self._leave, self._kill, self._stop, self._grow, self._zookeeper.restart]
            )()
            time.sleep(self._chance.uniform(0, 2))
        if not self._members:
            self._join()
        self._produce()
        wait(lambda: self._handled() >= self._expected(), lambda: f"missing: {sorted(self._expected() - self._handled())[:10]}")
        wait(lambda: sorted(self._cluster.owners("billing", self._topic)) == list(range(self._partitions)), lambda: "owners")
        wait(self._all_committed, lambda: str(self._cluster.offsets("billing", self._topic)))
        self._check_commits()

    def _produce(self) -> None:
        # A producer that is older than a partition does not know it.
        producer = Producer({"bootstrap.servers": self._cluster.broker.bootstrap_servers})
        for _ in range(RECORDS):
            partition = self._chance.randrange(self._partitions)
            producer.produce(self._topic, value=b"x", partition=partition)
            self._produced[partition] = self._produced.get(partition, 0) + 1
        assert producer.flush(60) == 0

    def _join(self) -> None:
        if len(self._members) < 4:
            name = f"m{len(self._all)}"
            member = self._running.enter_context(process(self._cluster, self._topic, name, self._folder / name))
            self._members.append(member)
            self._all.append(member)

    def _leave(self) -> None:
        if self._members:
            self._members.pop(self._chance.randrange(len(self._members))).process.send_signal(signal.SIGINT)

    def _kill(self) -> None:
        if self._members:
            self._members.pop(self._chance.randrange(len(self._members))).process.kill()

    def _stop(self) -> None:
        """Stop a member, perhaps for longer than its session."""
        if self._members:
            member = self._chance.choice(self._members)
            member.process.send_signal(signal.SIGSTOP)
            time.sleep(self._chance.choice((0.5, 3, 7)))
            member.process.send_signal(signal.SIGCONT)

    def _grow(self) -> None:
        self._partitions += 1
        self._cluster.grow_topic(self._topic, self._partitions)

    def _handled(self) -> set[tuple[int, int]]:
        return {record for member in self._all for record in member.handled()}

    def _expected(self) -> set[tuple[int, int]]:
        return {(partition, offset) for partition, count in self._produced.items() for offset in range(count)}

    def _all_committed(self) -> bool:
        committed = self._cluster.offsets("billing", self._topic)
        return {tp.partition: offset for tp, offset in committed.items() if offset} == self._produced

    def _check_commits(self) -> None:
        """Each commit that ZooKeeper has executed was one of the owner's, and no offset has gone back."""
        root = self._cluster.path("billing")
        owners: dict[str, int] = {}
        offsets: dict[str, int] = {}
        for change in changes(self._zookeeper.data_dir / "node-1" / "data" / "version-2"):
            _, is_owner, owned = change.path.partition(f"{root}/owners/{self._topic}/")
            _, is_offset, committed = change.path.partition(f"{root}/offsets/{self._topic}/")
            if change.type == CLOSE_SESSION:
                owners = {partition: session for partition, session in owners.items() if session != change.session}
            elif is_owner and change.type == DELETE:
                del owners[owned]
            elif is_owner:
                assert change.ephemeral, change
                assert owned not in owners, change
                owners[owned] = change.session
            elif is_offset:
                assert owners.get(committed) == change.session, change
                assert int(change.data) >= offsets.get(committed, 0), change
                offsets[committed] = int(change.data)
        assert {int(partition): offset for partition, offset in offsets.items() if offset} == self._produced


def wait(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.slow), *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(1, 101))]
)
def test_random_members(seed: int, kafka_broker: Broker, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with registered(kafka_broker, zookeeper.connect_string) as cluster, ExitStack() as running:
        Run(cluster, zookeeper, seed, tmp_path, running).run()
