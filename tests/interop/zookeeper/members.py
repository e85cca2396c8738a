"""Members of one ZooKeeper group on a real Kafka 1.1.1: Java's old consumers and Ottla's, each in a process of its own.

Owns the processes, and what the group's nodes say. Must not import the package: Ottla's members run as users run them. Invariant: a
member that a test has started ends with the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.interop.real_kafka import TOOL, OwnKafka, free_port_pair, run_tool

VERSION, OLDEST = "1.1.1", "0.8.2.2"
SESSION = 6.0
"""Seconds: the time-out of each member's session."""
LIMIT = 90.0
MEMBER = """
import sys
from ottla import Consumer
connect, group, name, strategy, storage, pattern, *topics = sys.argv[1:]
settings = {"zookeeper_connect": connect, "consumer_id": name, "partition_assignment_strategy": strategy,
            "offsets_storage": storage, "auto_offset_reset": "earliest", "auto_commit_interval": 0.5}
with Consumer(settings, group_id=group) as consumer:
    consumer.subscribe(topics, pattern=pattern or None)
    while True:
        for record in consumer.poll(0.2):
            print(record.value.decode(), flush=True)
"""


class Stage:
    """Kafka 1.1.1 with its ZooKeeper, and the members that run on it."""

    def __init__(self, folder: Path) -> None:
        port = free_port_pair()
        self._node = OwnKafka(port, version=VERSION)
        self.broker, self.zookeeper = self._node.address, f"127.0.0.1:{port + 1}"
        self.folder = folder
        self.members: list[Member] = []
        self._client = KazooClient(self.zookeeper, timeout=20)
        self._client.start(60)

    def close(self) -> None:
        self.stop_members()
        self._client.stop()
        self._client.close()
        self._node.stop()

    def stop_members(self) -> None:
        for member in self.members:
            member.kill()
        self.members.clear()

    def tool(self, name: str, *arguments: str, stdin: str = "", version: str = VERSION) -> str:
        """Run one of Kafka's tools."""
        return run_tool("run", name, *arguments, stdin=stdin, version=version, timeout=LIMIT)

    def create_topic(self, topic: str, partitions: int) -> str:
        counts = ("--partitions", str(partitions), "--replication-factor", "1")
        self.tool("kafka.admin.TopicCommand", "--zookeeper", self.zookeeper, "--create", "--topic", topic, *counts)
        return topic

    def grow_topic(self, topic: str, partitions: int) -> None:
        counts = ("--partitions", str(partitions))
        self.tool("kafka.admin.TopicCommand", "--zookeeper", self.zookeeper, "--alter", "--topic", topic, *counts)

    def produce(self, topic: str, first: int, last: int) -> None:
        """Produce the numbers from ``first`` to ``last``."""
        lines = "".join(f"{number}\n" for number in range(first, last))
        self.tool("kafka.tools.ConsoleProducer", "--broker-list", self.broker, "--topic", topic, stdin=lines)

    def children(self, path: str) -> list[str]:
        try:
            return sorted(self._client.get_children(path))
        except NoNodeError:
            return []

    def owners(self, group: str, topic: str) -> dict[int, str]:
        """Partition -> the consumer thread that owns it."""
        found = {}
        for number in self.children(f"/consumers/{group}/owners/{topic}"):
            try:
                found[int(number)] = self._client.get(f"/consumers/{group}/owners/{topic}/{number}")[0].decode()
            except NoNodeError:
                continue
        return found

    def offsets(self, group: str, topic: str) -> int:
        """The sum of the committed offsets in ZooKeeper."""
        paths = [f"/consumers/{group}/offsets/{topic}/{number}" for number in self.children(f"/consumers/{group}/offsets/{topic}")]
        return sum(int(self._client.get(path)[0]) for path in paths)

    def wait_for_owners(self, group: str, expected: Mapping[str, Mapping[int, str]]) -> None:
        """Wait until each topic has these owners."""
        until(lambda: {topic: self.owners(group, topic) for topic in expected} == expected, lambda: str(expected))


class Member:
    """A member in a process of its own; its output is the values of the records."""

    def __init__(
        self,
        stage: Stage,
        group: str,
        name: str,
        *topics: str,
        pattern: str = "",
        java: str = "",
        strategy: str = "range",
        storage: str = "zookeeper",
    ) -> None:
        """``java``: the version of a Java member; empty: one of Ottla."""
        self.id = f"{group}_{name}"
        self._output = stage.folder / f"{self.id}-{len(stage.members)}-{time.monotonic_ns()}.out"
        environment = dict(os.environ)
        if java:
            settings = {
                "group.id": group,
                "consumer.id": name,
                "zookeeper.session.timeout.ms": f"{SESSION * 1000:.0f}",
                "partition.assignment.strategy": strategy,
                "auto.commit.interval.ms": "500",
                # Java's member gives up after its retries; under load four are soon over.
                "rebalance.max.retries": "20",
                "offsets.storage": storage,
            }
            file = stage.folder / f"{self.id}.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            wanted = ["--whitelist", pattern] if pattern else ["--topic", topics[0]]
            console = ["run", "kafka.tools.ConsoleConsumer", "--zookeeper", stage.zookeeper, *wanted]
            command = [str(TOOL), *console, "--consumer.config", str(file)]
            environment["OTTLA_KAFKA_VERSION"] = java
        else:
            command = [sys.executable, "-c", MEMBER, stage.zookeeper, group, name, strategy, storage, pattern, *topics]
        with self._output.open("w") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True, env=environment
            )
        stage.members.append(self)

    def read(self) -> list[str]:
        """The values of the records that it has read."""
        return self._output.read_text().split()

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)

    def leave(self) -> None:
        """End the process as Ctrl-C does: the member leaves its group."""
        self.signal(signal.SIGINT)
        self._process.wait(LIMIT)

    def kill(self) -> None:
        """End the process without a chance to leave."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait(LIMIT)


def until(condition: Callable[[], object], what: Callable[[], str] = str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what()}"
        time.sleep(0.02)


def by_range(partitions: int, *members: Member) -> dict[int, str]:
    """The owners by 0.8's formula, for members with one stream of the topic."""
    names = sorted(member.id for member in members)
    size, more = divmod(partitions, len(names))
    owners: dict[int, str] = {}
    for place, name in enumerate(names):
        first = place * size + min(place, more)
        owners.update(dict.fromkeys(range(first, first + size + (place < more)), f"{name}-0"))
    return owners
