"""ZooKeeper groups with offsets in Kafka: for how long commits of a former owner are accepted, Java's 1.1.1 member and Ottla's.

Kafka does not know the owners of a ZooKeeper group, so it cannot refuse such a commit. Method: two members on a real Kafka 1.1.1,
in processes of their own. The first one commits as often as it can, the other one never, so each commit in ``__consumer_offsets``
is one of the first. That one is stopped (SIGSTOP), or cut off from ZooKeeper but not from Kafka, until its session is over and the
other one owns all partitions, and for up to two more seconds. What it commits from the end of its session until it owns partitions
again is late. The time of a commit is the broker's, in ms. The four groups run at the same time.

    python benchmarks/zookeeper_window.py [--rounds 5]

The exit code is 1 if Ottla's commits were late in a round in which it was cut off, or more than one in any other: a commit that was
about to be sent when the process was stopped. It needs Java 17 and Maven (see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from statistics import median

from _cluster import TOOLS
from confluent_kafka import Producer
from zookeeper import Cluster, kafka

from ottla import Consumer, TopicPartition

PARTITIONS = 2
SESSION = 6.0
LIMIT = 60.0
MEMBER = """
import sys
from ottla import Consumer
connect, topic, group, consumer_id, session, commits = sys.argv[1:]
with Consumer(zookeeper_connect=connect, group_id=group, consumer_id=consumer_id, zookeeper_session_timeout=float(session),
              offsets_storage="kafka", dual_commit_enabled=False, enable_auto_commit=False) as consumer:
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.01)
        if commits == "yes":
            try:
                consumer.commit()
            except Exception as error:
                print(error, file=sys.stderr)
"""


@dataclass(frozen=True)
class Round:
    """The times of a member that lost its session, in seconds from the end of the session."""

    back: float
    """When the member continued, or was connected again."""
    commits: tuple[float, ...]
    """When a commit of it was accepted."""


class Line:
    """A connection to ZooKeeper that can be cut: then nothing passes in either direction, until it is restored."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def restore(self) -> None:
        self._whole.set()

    def _accept(self) -> None:
        while True:
            client = self._listener.accept()[0]
            server = socket.create_connection(self._target)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with source, sink, suppress(OSError):
            while data := source.recv(65_536):
                self._whole.wait()
                sink.sendall(data)


class Commits:
    """Reads the commits of a group from ``__consumer_offsets``."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._group = group.encode()
        self._partitions = [TopicPartition("__consumer_offsets", number) for number in range(5)]
        self._consumer = Consumer(bootstrap_servers=cluster.broker, max_poll_records=10_000, auto_offset_reset="earliest")
        self._consumer.assign(self._partitions)

    def times(self) -> list[float]:
        """The times of the commits since the last call."""
        times: list[float] = []
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(tp) < end for tp, end in ends.items()):
            times += [record.timestamp / 1000 for record in self._consumer.poll(0.1) if self._is_commit(record.key)]
        return times

    def close(self) -> None:
        self._consumer.close()

    def _is_commit(self, key: bytes | None) -> bool:
        # The version (0 or 1: an offset), and the group with its length.
        version, size = struct.unpack_from(">hh", key or b"\xff\xff\xff\xff")
        return version in (0, 1) and key is not None and key[4 : 4 + size] == self._group


class Group:
    """A group of two: ``m1`` commits, ``m2`` does not. ``stopped``: the process; else only its connection to ZooKeeper is cut."""

    def __init__(self, cluster: Cluster, *, java: bool, stopped: bool, running: ExitStack) -> None:
        self.name = self.topic = f"window-{'java' if java else 'ottla'}-{'stopped' if stopped else 'cut-off'}"
        self._stopped = stopped
        self._cluster = cluster
        cluster.create_topic(self.topic, PARTITIONS)
        self._line = Line(cluster.zookeeper)
        zookeeper = cluster.zookeeper if stopped else self._line.address
        former = java_member(zookeeper, self.topic, self.name) if java else self._ours(zookeeper, "m1", "yes")
        self._former = running.enter_context(former)
        running.enter_context(self._ours(cluster.zookeeper, "m2", "no"))
        self._commits = Commits(cluster, self.name)
        running.callback(self._commits.close)

    def _ours(self, zookeeper: str, name: str, commits: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running_process([sys.executable, "-c", MEMBER, zookeeper, self.topic, self.name, name, str(SESSION), commits])

    def rounds(self, number: int) -> list[Round]:
        dice = random.Random(self.name)
        return [self._round(dice.uniform(0, 2)) for _ in range(number)]

    def _round(self, pause: float) -> Round:
        self._wait(lambda: len(set(self._owners().values())) == 2, "both members own partitions")
        self._commits.times()
        self._wait_until_it_commits()
        if self._stopped:
            self._former.send_signal(signal.SIGSTOP)
        else:
            self._line.cut()
        try:
            self._wait(lambda: f"{self.name}_m1" not in self._cluster.children(f"/consumers/{self.name}/ids"), "the session ends")
            ended = time.time()
            self._wait(lambda: list(self._owners().values()) == [f"{self.name}_m2-0"] * PARTITIONS, "the other one owns all")
            time.sleep(pause)
        finally:
            back = time.time()
            self._former.send_signal(signal.SIGCONT)
            self._line.restore()
        self._wait(lambda: self._owner_again() is not None, "the former owner owns partitions again")
        again = self._owner_again() or 0.0
        return Round(back - ended, tuple(at - ended for at in self._commits.times() if ended <= at < again))

    def _wait_until_it_commits(self) -> None:
        seen: list[float] = []

        def commits() -> bool:
            seen.extend(self._commits.times())
            return len(seen) > 50

        self._wait(commits, "the first one commits")

    def _owner_again(self) -> float | None:
        """The time at which ``m1`` has got its first partition."""
        mine = [number for number, owner in self._owners().items() if owner == f"{self.name}_m1-0"]
        nodes = [self._cluster.client.exists(f"/consumers/{self.name}/owners/{self.topic}/{number}") for number in mine]
        return min((node.ctime / 1000 for node in nodes if node is not None), default=None)

    def _owners(self) -> dict[int, str]:
        return self._cluster.owners(self.name, self.topic)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"group {self.name}: it is not so after {LIMIT:g} s that {what}: {self._owners()}")
            time.sleep(0.002)


@contextmanager
def running_process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT)


@contextmanager
def java_member(zookeeper: str, topic: str, group: str) -> Iterator[subprocess.Popen[bytes]]:
    settings = {
        "zookeeper.connect": zookeeper,
        "group.id": group,
        "consumer.id": "m1",
        "zookeeper.session.timeout.ms": round(SESSION * 1000),
        "offsets.storage": "kafka",
        "dual.commit.enabled": "false",
        "auto.commit.interval.ms": 10,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as config:
        config.write("".join(f"{name}={value}\n" for name, value in settings.items()))
        config.flush()
        command = [str(TOOLS / "kafka"), "run", str(TOOLS / "OldConsumer.java"), config.name, "topic", topic, "1"]
        with running_process(command) as process:
            yield process


@contextmanager
def load(cluster: Cluster, topics: list[str]) -> Iterator[None]:
    """Produce 500 records per second into each topic."""
    producer, ended = Producer({"bootstrap.servers": cluster.broker}), threading.Event()

    def produce() -> None:
        while not ended.wait(0.02):
            for topic in topics:
                for _ in range(10):
                    producer.produce(topic, b"x")
            producer.poll(0)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.flush(LIMIT)


def show(what: str, rounds: list[Round]) -> int:
    """Print the figures of a group; return the largest number of late commits in a round."""
    late = [one for one in rounds if one.commits]
    print(f"{what}: late commits in {len(late)} of {len(rounds)} rounds, {sum(len(one.commits) for one in rounds)} in all")
    if late:
        after_end = [max(one.commits) for one in late]
        after_back = [max(one.commits) - one.back for one in late]
        print(f"    the last of a round after the session's end: median {median(after_end):.2f} s, at most {max(after_end):.2f} s")
        print(f"    and after it was back: median {median(after_back) * 1000:.0f} ms, at most {max(after_back) * 1000:.0f} ms")
    return max(len(one.commits) for one in rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kinds = [(java, stopped) for stopped in (True, False) for java in (True, False)]
    most: dict[tuple[bool, bool], int] = {}
    with kafka() as cluster, ExitStack() as running:
        groups = [Group(cluster, java=java, stopped=stopped, running=running) for java, stopped in kinds]
        running.enter_context(load(cluster, [group.topic for group in groups]))
        with ThreadPoolExecutor(len(groups)) as pool:
            results = list(pool.map(partial(Group.rounds, number=options.rounds), groups))
    for (java, stopped), rounds in zip(kinds, results, strict=True):
        what = f"{'Java 1.1.1' if java else 'Ottla'}, {'stopped' if stopped else 'cut off from ZooKeeper'}"
        most[java, stopped] = show(what, rounds)
    return 0 if most[False, True] <= 1 and most[False, False] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
