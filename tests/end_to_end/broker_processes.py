"""Brokers in processes of their own that are one cluster in a real ZooKeeper, to be killed, stopped and started again.

Owns the processes. Must not know what is tested. Invariant: a broker keeps its directory, its address and its node id over all its
processes.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry

from ottla import Admin
from tests.end_to_end.broker_cluster import until
from tests.end_to_end.programs import environment, free_port

FIRST_ID = 1
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": 500,
}
PROGRAM = """
import json, logging, signal, sys
from ottla import Broker
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
logging.getLogger("kazoo").setLevel(logging.WARNING)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
folder, port, zookeeper, settings = sys.argv[1:]
with Broker(folder, int(port), zookeeper=zookeeper, settings=json.loads(settings)):
    signal.sigwait([signal.SIGTERM])
"""
_numbers = itertools.count(1)


class BrokerProcesses:
    """See the module. ``session`` is that of a broker with ZooKeeper, in milliseconds."""

    def __init__(self, servers: str, folder: Path, count: int, session: int) -> None:
        self.chroot = f"/processes-{next(_numbers)}"
        self._connect = f"{servers}{self.chroot}"
        self._folder, self._session = folder, session
        retry = KazooRetry(max_tries=-1, delay=0.02, max_delay=0.1, ignore_expire=True)
        self.zookeeper = KazooClient(servers, timeout=5, connection_retry=retry, command_retry=retry)
        self.zookeeper.start(60)
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count

    def start(self, number: int) -> None:
        """Start a broker that does not run."""
        settings = {**SETTINGS, "node.id": FIRST_ID + number, "zookeeper.session.timeout.ms": self._session}
        port = self.addresses[number].rpartition(":")[2]
        arguments = [str(self._folder / f"broker-{number}"), port, self._connect, json.dumps(settings)]
        with self.log(number).open("a") as log:
            command = [sys.executable, "-c", PROGRAM, *arguments]
            self.processes[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment())

    def start_all(self) -> None:
        """Start the brokers that do not run, and wait until all are registered and one is elected."""
        for number, process in enumerate(self.processes):
            if process is None:
                self.start(number)
        until(lambda: self.ids() == [FIRST_ID + number for number in range(len(self.processes))] and self.elected() >= 0)

    def log(self, number: int) -> Path:
        return self._folder / f"broker-{number}.log"

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to a broker that runs."""
        process = self.processes[number]
        assert process is not None
        process.send_signal(which)

    def kill(self, number: int) -> None:
        """Kill a broker that runs, if it does."""
        process, self.processes[number] = self.processes[number], None
        if process is not None:
            process.kill()
            process.wait(60)

    def running(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process is not None]

    # -- ZooKeeper --------------------------------------------------------------------------------------------------------

    def data(self, *names: object) -> str | None:
        """The data of a node; ``None`` if it does not exist."""
        try:
            data: bytes = self.zookeeper.retry(self.zookeeper.get, "/".join([self.chroot, *map(str, names)]))[0]
        except NoNodeError:
            return None
        return data.decode()

    def children(self, *names: object) -> list[str]:
        """The children of a node; none if it does not exist."""
        try:
            return sorted(self.zookeeper.retry(self.zookeeper.get_children, "/".join([self.chroot, *map(str, names)])))
        except NoNodeError:
            return []

    def ids(self) -> list[int]:
        """The node ids of the registered brokers."""
        return sorted(map(int, self.children("brokers", "ids")))

    def elected(self) -> int:
        """The number of the broker that is elected; -1: none."""
        data = self.data("consumers", "coordinator")
        return -1 if data is None else int(data) - FIRST_ID

    @property
    def epoch(self) -> int:
        return int(self.data("coordinator_epoch") or -1)

    def owners(self, group: str, topic: str) -> dict[int, str | None]:
        """Partition -> the thread that owns it."""
        return {
            int(name): self.data("consumers", group, "owners", topic, name)
            for name in self.children("consumers", group, "owners", topic)
        }

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """Partition -> the committed offset."""
        names = self.children("consumers", group, "offsets", topic)
        return {int(name): int(self.data("consumers", group, "offsets", topic, name) or -1) for name in names}

    # -- topics -----------------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int) -> dict[int, int]:
        """Create a topic. Returns partition -> the number of the broker that leads it."""
        with Admin(bootstrap_servers=self.addresses) as admin:
            until(lambda: len(admin.describe_cluster().nodes) == len(self.addresses))
            admin.create_topics({topic: partitions})
        leaders: dict[int, int] = {}
        for address in self.addresses:  # each broker has to know it
            with Admin(bootstrap_servers=address) as admin:
                until(lambda: topic in admin.list_topics() and all(one.leader for one in admin.list_topics()[topic].partitions))
                leaders = {one.partition: (one.leader or 0) - FIRST_ID for one in admin.list_topics()[topic].partitions}
        return leaders

    def close(self) -> None:
        for process in self.processes:
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            if process is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait(10)
        self.zookeeper.stop()
        self.zookeeper.close()


@contextmanager
def broker_processes(servers: str, folder: Path, count: int = 2, session: int = 2000) -> Iterator[BrokerProcesses]:
    """A cluster of so many brokers."""
    cluster = BrokerProcesses(servers, folder, count, session)
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.close()
