"""Members of one ZooKeeper group on a real Kafka 1.1.1: Java's old consumers and Ottla's, each in a process of its own.

Owns the processes, and what they print. Must not import the package: Ottla's members run as users run them. Invariant: a member
that a test has started ends with the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from tests.interop.real_kafka import TOOL, OwnKafka, free_port_pair, run_tool
from tests.interop.zookeeper.java_programs import JavaPrograms

VERSION, OLDEST = "1.1.1", "0.8.2.2"
SESSION = 6.0
"""Seconds: the time-out of each member's session."""
LIMIT = 90.0
OLD_CONSUMER = TOOL.with_name("OldConsumer.java")
MEMBER = """
import json, os, signal, sys, threading
from ottla import Consumer

ended = threading.Event()
signal.signal(signal.SIGINT, lambda *_: ended.set())

def show(records):
    for record in records:
        os.write(1, record.value + b"\\n")

settings, subscription, streams = map(json.loads, sys.argv[1:])
with Consumer(settings) as consumer:
    if streams:
        topics = {topic: streams for topic in subscription.pop("topics")}
        found = consumer.streams(topics) if topics else {"": consumer.streams(**subscription, n=streams)}
        readers = [threading.Thread(target=show, args=[stream]) for streams in found.values() for stream in streams]
        for reader in readers:
            reader.start()
        ended.wait()
    else:
        consumer.subscribe(**subscription)
        while not ended.is_set():
            show(consumer.poll(0.2))
"""


class Stage:
    """Kafka 1.1.1 with its ZooKeeper, Kafka's programs, and the members that run on it."""

    def __init__(self, folder: Path) -> None:
        port = free_port_pair()
        self._node = OwnKafka(port, version=VERSION)
        self.broker, self.zookeeper = self._node.address, f"127.0.0.1:{port + 1}"
        self.folder = folder
        self.members: list[Member] = []
        self.programs, self.oldest_programs = JavaPrograms(VERSION), JavaPrograms(OLDEST)
        """Kafka's programs that describe groups, of both versions."""
        self.client = KazooClient(self.zookeeper, timeout=20)
        self.client.start(60)

    def close(self) -> None:
        self.stop_members()
        self.client.stop()
        self.client.close()
        self.programs.close()
        self.oldest_programs.close()
        self._node.stop()

    def stop_members(self) -> None:
        for member in self.members:
            member.kill()
        self.members.clear()

    def create_topic(self, topic: str, partitions: int) -> str:
        self._topics("--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", "1")
        return topic

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._topics("--alter", "--topic", topic, "--partitions", str(partitions))

    def _topics(self, *arguments: str) -> None:
        run_tool("run", "kafka.admin.TopicCommand", "--zookeeper", self.zookeeper, *arguments, version=VERSION, timeout=LIMIT)


class Member:
    """A member in a process of its own; its output is the values of the records."""

    def __init__(
        self,
        stage: Stage,
        group: str,
        name: str,
        topic: str = "",
        *,
        whitelist: str = "",
        blacklist: str = "",
        java: str = "",
        streams: int = 0,
        on_broker: bool = False,
        **settings: object,
    ) -> None:
        """``java``: the version of a Java member; empty: one of Ottla, which may be a member ``on_broker``, outside of ZooKeeper.

        ``streams``: how many, each with its thread; 0: one, or ``poll()``. ``settings`` have 0.8's names, with underscores.
        """
        self.id, self.java = f"{group}_{name}", java
        self._output = stage.folder / f"{self.id}-{len(stage.members)}-{time.monotonic_ns()}.out"
        environment = dict(os.environ)
        of_both = {"group.id": group, "auto.commit.interval.ms": 500}
        in_zookeeper = {
            "zookeeper.connect": stage.zookeeper,
            "consumer.id": name,
            "zookeeper.session.timeout.ms": round(SESSION * 1000),
        }
        more = {setting.replace("_", "."): value for setting, value in settings.items()}
        if java:
            # Java's member gives up after its retries; under load four are soon over.
            lines = {**of_both, **in_zookeeper, "auto.offset.reset": "smallest", "rebalance.max.retries": 20, **more}
            file = self._output.with_suffix(".properties")
            file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
            wanted = [("topic", topic), ("whitelist", whitelist), ("blacklist", blacklist)]
            kind, argument = next(pair for pair in wanted if pair[1])
            command = [str(TOOL), "run", str(OLD_CONSUMER), str(file), kind, argument, str(streams or 1)]
            environment["OTTLA_KAFKA_VERSION"] = java
        else:
            where = {"bootstrap.servers": stage.broker} if on_broker else in_zookeeper
            ours = {**of_both, **where, "auto.offset.reset": "earliest", **more}
            subscription = {
                "topics": [topic] if topic else [],
                "pattern": whitelist or None,
                "blacklist": blacklist or None,
            }
            command = [sys.executable, "-c", MEMBER, json.dumps(ours), json.dumps(subscription), str(streams)]
        with self._output.open("w") as out, self._output.with_suffix(".err").open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True, env=environment
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
        time.sleep(0.05)
