"""A central group on three brokers: members, brokers and ZooKeeper join, leave, are killed, stopped and restarted at random.

Nothing is lost, no offset goes back, no commit of another than the owner is accepted, and no partition has two owners.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ottla import Admin, Consumer, Producer
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.types import TopicPartition
from tests.end_to_end.broker_cluster import until
from tests.end_to_end.broker_processes import BrokerProcesses, broker_processes
from tests.end_to_end.central_consumers import Process, feed, process
from tests.end_to_end.central_history import check

pytestmark = pytest.mark.long

EVENTS, PARTITIONS, MOST_MEMBERS = 6, 5, 4
PATIENCE = 120.0
"""Seconds until all is handled: a broker that comes back needs its last session to end."""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    folder = tmp_path_factory.mktemp("brokers")
    with broker_processes(zookeeper.connect_string, folder, count=3, session=2000) as brokers:
        yield brokers


class Run:
    """One run: members of one group, and the events that a seed chooses."""

    def __init__(self, brokers: BrokerProcesses, zookeeper: ZooKeeperServer, seed: int, folder: Path, stack: ExitStack) -> None:
        self._brokers, self._zookeeper, self._folder, self._stack = brokers, zookeeper, folder, stack
        self._chance = random.Random(seed)
        self._name = f"torture{seed}"
        self._partitions = PARTITIONS
        self._members: list[Process] = []
        self._all: list[Process] = []
        self.events: list[str] = []

    def run(self) -> None:
        """Let events happen, then wait until the group has read everything."""
        brokers, name = self._brokers, self._name
        brokers.start_all()
        brokers.create_topic(name, PARTITIONS)
        self._join()
        self._join()
        with feed(brokers.addresses, name, range(PARTITIONS), interval=0.2) as produced:
            for _ in range(EVENTS):
                time.sleep(self._chance.uniform(0, 2))
                event = self._chance.choice(
                    [
                        self._join,
                        self._join,
                        self._leave,
                        self._kill_member,
                        self._freeze_member,
                        self._grow,
                        self._kill_coordinator,
                        self._kill_coordinator,
                        self._kill_broker,
                        self._freeze_coordinator,
                        self._start_brokers,
                        self._zookeeper.restart,
                    ]
                )
                self.events.append(event.__name__)
                event()
            if not self._members:
                self._join()
            brokers.start_all()
            values = produced.stop()
        values |= self._produce_to_all()
        until(lambda: self._handled() >= values, PATIENCE)
        until(lambda: [*brokers.owners(name, name)] == list(range(self._partitions)), PATIENCE)
        until(self._all_committed, PATIENCE)
        check(self._zookeeper.data_dir / "node-1", brokers.chroot, name, self._all)

    # -- events -----------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if len(self._members) < MOST_MEMBERS:
            name = f"m{len(self._all)}"
            slow = self._chance.choice((0, 0, 0.3, 1))
            made = process(self._brokers.addresses, self._name, name, self._folder / name, group=self._name, slow=slow, session=4)
            self._members.append(self._stack.enter_context(made))
            self._all.append(self._members[-1])

    def _leave(self) -> None:
        if self._members:
            self._members.pop(self._chance.randrange(len(self._members))).process.send_signal(signal.SIGINT)

    def _kill_member(self) -> None:
        if self._members:
            self._members.pop(self._chance.randrange(len(self._members))).kill()

    def _freeze_member(self) -> None:
        """Stop a member, perhaps for longer than its session."""
        if self._members:
            member = self._chance.choice(self._members)
            member.freeze()
            time.sleep(self._chance.choice((0.5, 3, 6)))
            member.go_on()

    def _grow(self) -> None:
        self._brokers.start_all()
        self._partitions += 1
        with Admin(bootstrap_servers=self._brokers.addresses) as admin:
            admin.create_partitions({self._name: self._partitions}, timeout=60)

    def _kill_coordinator(self) -> None:
        number = self._brokers.elected()
        if number >= 0:
            self._brokers.kill(number)

    def _kill_broker(self) -> None:
        running = self._brokers.running()
        if len(running) > 1:
            self._brokers.kill(self._chance.choice(running))

    def _freeze_coordinator(self) -> None:
        number = self._brokers.elected()
        if number in self._brokers.running():
            self._brokers.signal(number, signal.SIGSTOP)
            time.sleep(self._chance.choice((0.5, 3, 6)))
            self._brokers.signal(number, signal.SIGCONT)

    def _start_brokers(self) -> None:
        for number in {*range(3)} - {*self._brokers.running()}:
            self._brokers.start(number)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def _produce_to_all(self) -> set[str]:
        """Write to each partition, also to later ones."""
        values = set()
        with Producer(bootstrap_servers=self._brokers.addresses, delivery_timeout=120) as producer:
            until(lambda: len(producer.partitions_for(self._name)) == self._partitions)
            for partition in range(self._partitions):
                values.add(value := f"{partition}:last")
                producer.send(self._name, value.encode(), partition=partition).result(120)
        return values

    def _handled(self) -> set[str]:
        return set().union(*(member.handled() for member in self._all))

    def _all_committed(self) -> bool:
        with Consumer(bootstrap_servers=self._brokers.addresses) as consumer:
            ends = consumer.end_offsets([TopicPartition(self._name, number) for number in range(self._partitions)])
        return self._brokers.offsets(self._name, self._name) == {tp.partition: end for tp, end in ends.items()}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(2, 101))])
def test_random_life(seed: int, brokers: BrokerProcesses, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        run = Run(brokers, zookeeper, seed, tmp_path, stack)
        try:
            run.run()
        except BaseException as error:
            error.add_note(f"events: {run.events}")
            raise
