"""ZooKeeper groups: Ottla's members beside Java's 1.1.1 members, on a real Kafka 1.1.1 with its ZooKeeper.

Method: a group has three members in processes of their own, of Ottla, of Java (ConsoleConsumer), or mixed. One joins or leaves; the
time counts from the change of the group's ``ids`` until the owner nodes are those of the new assignment, and is read by watching
ZooKeeper every 2 ms. SIGKILL: the time from the kill until the others own its partitions, without the session time-out of 6 s.
Commits: 100 partitions by ``Consumer.commit()``, and by 100 ``set`` calls of kazoo, one after the other, as
Java's consumer writes them. Reading: ``poll()`` of the same topic in a ZooKeeper group and in a classic group. The figures are
medians of the rounds, but for SIGKILL the longest time.

    python benchmarks/zookeeper.py [--rounds 5] [--records 1000000] [--rows join,kill,commit,read]

The exit code is 1 if a target is missed. It needs Java 17 and Maven (see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from _cluster import TOOLS, tool
from confluent_kafka import Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ottla import Consumer, OffsetAndMetadata, TopicPartition

os.environ["OTTLA_KAFKA_VERSION"] = "1.1.1"
os.environ["OTTLA_ZOOKEEPER_TICK"] = "500"
PORTS = range(19_600, 19_690, 2)
PARTITIONS = 12
SESSION = 6.0
LIMIT = 60.0
MEMBER = """
import sys
from ottla import Consumer
connect, topic, group, consumer_id, session = sys.argv[1:]
settings = {"zookeeper_connect": connect, "consumer_id": consumer_id, "zookeeper_session_timeout": float(session)}
with Consumer(settings, group_id=group) as consumer:
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.5)
"""


class Cluster:
    """Kafka 1.1.1 and its ZooKeeper."""

    def __init__(self, port: int) -> None:
        self.broker = tool("kafka", "start", str(port))
        self.zookeeper = f"127.0.0.1:{port + 1}"
        self.client = KazooClient(self.zookeeper, timeout=20)
        self.client.start()

    def create_topic(self, topic: str, partitions: int) -> str:
        arguments = ["--zookeeper", self.zookeeper, "--create", "--topic", topic, "--partitions", str(partitions)]
        tool("kafka", "run", "kafka.admin.TopicCommand", *arguments, "--replication-factor", "1")
        return topic

    def children(self, path: str) -> list[str]:
        try:
            return sorted(self.client.get_children(path))
        except NoNodeError:
            return []

    def owners(self, group: str, topic: str) -> dict[int, str]:
        owners = {}
        for number in self.children(f"/consumers/{group}/owners/{topic}"):
            try:
                owners[int(number)] = self.client.get(f"/consumers/{group}/owners/{topic}/{number}")[0].decode()
            except NoNodeError:
                continue
        return owners

    def expected(self, group: str) -> dict[int, str]:
        """The owners by the formula of ``range``, for members with one stream."""
        members = self.children(f"/consumers/{group}/ids")
        size, more = divmod(PARTITIONS, max(1, len(members)))
        owners: dict[int, str] = {}
        for place, member in enumerate(members):
            first = place * size + min(place, more)
            owners.update(dict.fromkeys(range(first, first + size + (place < more)), f"{member}-0"))
        return owners

    def wait_until_stable(self, group: str, topic: str, members: int) -> float:
        """Seconds from the time at which the group has this many members until the owners are as expected."""
        deadline = time.monotonic() + LIMIT
        changed: float | None = None
        while time.monotonic() < deadline:
            if len(self.children(f"/consumers/{group}/ids")) != members:
                changed = None
            elif changed is None:
                changed = time.monotonic()
            if changed is not None and self.owners(group, topic) == self.expected(group):
                return time.monotonic() - changed
            time.sleep(0.002)
        raise SystemExit(f"group {group} was not stable after {LIMIT:g} s")


class Member:
    """A member in a process of its own, of Ottla or of Java."""

    def __init__(self, cluster: Cluster, topic: str, group: str, name: str, *, java: bool) -> None:
        self.java = java
        if java:
            self._config = tempfile.NamedTemporaryFile("w", suffix=".properties", delete=False)  # noqa: SIM115 - deleted in stop()
            self._config.write(f"group.id={group}\nconsumer.id={name}\nzookeeper.session.timeout.ms={SESSION * 1000:.0f}\n")
            self._config.close()
            arguments = ["run", "kafka.tools.ConsoleConsumer", "--zookeeper", cluster.zookeeper, "--topic", topic]
            command = [str(TOOLS / "kafka"), *arguments, "--consumer.config", self._config.name]
        else:
            command = [sys.executable, "-c", MEMBER, cluster.zookeeper, topic, group, name, str(SESSION)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it; with SIGKILL it cannot leave its group."""
        os.killpg(self.process.pid, number)
        self.process.wait(LIMIT)
        if self.java:
            Path(self._config.name).unlink(missing_ok=True)


def joins_and_leaves(cluster: Cluster, kinds: str, rounds: int) -> list[float]:
    """Seconds to stable of each join and leave of the third member. ``kinds`` has ``o`` or ``j`` for each member."""
    group, topic = f"group-{kinds}", f"topic-{kinds}"
    cluster.create_topic(topic, PARTITIONS)
    members = [Member(cluster, topic, group, f"m{place}", java=kind == "j") for place, kind in enumerate(kinds[:2])]
    times: list[float] = []
    try:
        cluster.wait_until_stable(group, topic, 2)
        for _ in range(rounds):
            third = Member(cluster, topic, group, "m2", java=kinds[2] == "j")
            times.append(cluster.wait_until_stable(group, topic, 3))
            time.sleep(1)
            third.stop()
            times.append(cluster.wait_until_stable(group, topic, 2))
            time.sleep(1)
    finally:
        for member in members:
            member.stop(signal.SIGKILL)
    return times


def after_a_kill(cluster: Cluster, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds from SIGKILL of one of three members until the others own all partitions, and from the end of its session.

    The server ends a session at the next multiple of its tick: up to 0.5 s (``tickTime`` here; the default is 3 s) after the
    session time-out, which begins with the last ping.
    """
    group, topic = "group-kill", cluster.create_topic("topic-kill", PARTITIONS)
    members = [Member(cluster, topic, group, f"m{place}", java=False) for place in range(2)]
    whole: list[float] = []
    afterwards: list[float] = []
    try:
        for _ in range(rounds):
            victim = Member(cluster, topic, group, "m2", java=False)
            cluster.wait_until_stable(group, topic, 3)
            began = time.monotonic()
            victim.stop(signal.SIGKILL)
            afterwards.append(cluster.wait_until_stable(group, topic, 2))
            whole.append(time.monotonic() - began)
    finally:
        for member in members:
            member.stop(signal.SIGKILL)
    return whole, afterwards


def commits(cluster: Cluster, rounds: int) -> tuple[float, float]:
    """Partitions per second: by ``commit()`` of 100 partitions, and by one ``set`` each."""
    topic = cluster.create_topic("topic-commit", 100)
    partitions = [TopicPartition(topic, number) for number in range(100)]
    ours, theirs = [], []
    with Consumer(zookeeper_connect=cluster.zookeeper, group_id="commits", enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        while len(consumer.assignment()) < 100:
            consumer.poll(0.1)
        consumer.commit({tp: OffsetAndMetadata(0) for tp in partitions})
        for number in range(10 * rounds):
            began = time.perf_counter()
            consumer.commit({tp: OffsetAndMetadata(number) for tp in partitions})
            ours.append(100 / (time.perf_counter() - began))
            began = time.perf_counter()
            for tp in partitions:
                cluster.client.set(f"/consumers/commits/offsets/{topic}/{tp.partition}", str(number).encode())
            theirs.append(100 / (time.perf_counter() - began))
    return statistics.median(ours), statistics.median(theirs)


def reading(cluster: Cluster, rounds: int, records: int) -> tuple[float, float]:
    """Records per second of ``poll()``: in a ZooKeeper group, and in a classic group."""
    topic = cluster.create_topic("topic-read", 2)
    producer = Producer({"bootstrap.servers": cluster.broker, "queue.buffering.max.messages": 2_000_000, "linger.ms": 50})
    for number in range(records):
        producer.produce(topic, value=b"x" * 100, partition=number % 2)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    kinds = {
        "zookeeper": {"zookeeper_connect": cluster.zookeeper},
        "classic": {"bootstrap_servers": cluster.broker, "group_protocol": "classic"},
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind, settings in kinds.items():
            common = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 5_000}
            with Consumer({**common, **settings}, group_id=f"{kind}-{number}", fetch_max_wait=0.5) as consumer:
                consumer.subscribe([topic])
                while not (first := consumer.poll(1)):
                    pass
                seen, began = 0, time.perf_counter()
                while seen < records - len(first):
                    seen += sum(1 for record in consumer.poll(1) if record.value is not None)
                rates[kind].append(seen / (time.perf_counter() - began))
    return statistics.median(rates["zookeeper"][1:]), statistics.median(rates["classic"][1:])


def verdict(what: str, ours: str, theirs: str, ratio: float, target: float, *, least: bool) -> bool:
    """Print a line of the table; return whether the target is reached."""
    reached = ratio >= target if least else ratio <= target
    sign = "at least" if least else "at most"
    print(f"{what:50} {ours:>18} {theirs:>18}   {ratio:6.2f} ({sign} {target:g}){'' if reached else '   MISSED'}", flush=True)
    return reached


@contextmanager
def kafka() -> Iterator[Cluster]:
    port = random.choice(PORTS)
    os.environ["OTTLA_KAFKA_OWNER"] = str(os.getpid())
    try:
        yield Cluster(port)
    finally:
        tool("kafka", "stop", str(port))


def rows(cluster: Cluster, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], bool]]]:
    """The rows of the table."""

    def join() -> bool:
        java, ours, mixed = (statistics.median(joins_and_leaves(cluster, kinds, options.rounds)) for kinds in ("jjj", "ooo", "joo"))
        base = f"{java:.3f} s"
        one = verdict("one of 3 joins or leaves: Ottla / Java", f"{ours:.3f} s", base, ours / java, 0.5, least=False)
        return verdict("one of 3 joins or leaves: mixed / Java", f"{mixed:.3f} s", base, mixed / java, 1, least=False) and one

    def kill() -> bool:
        whole, afterwards = after_a_kill(cluster, options.rounds)
        longest = max(whole)
        ended = f"{max(afterwards):.3f} s since its end"
        return verdict("SIGKILL, without the session time-out", f"{longest:.2f} s in all", ended, longest - SESSION, 1, least=False)

    def commit() -> bool:
        ours, theirs = commits(cluster, options.rounds)
        figures = f"{ours:,.0f}/s", f"{theirs:,.0f}/s"
        return verdict("commit of 100 partitions / one set each", *figures, ours / theirs, 25, least=True)

    def read() -> bool:
        ours, theirs = reading(cluster, options.rounds, options.records)
        return verdict("records/s / classic", f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, 0.95, least=True)

    yield from {"join": join, "kill": kill, "commit": commit, "read": read}.items()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rows", default="join,kill,commit,read")
    options = parser.parse_args()
    wanted = options.rows.split(",")
    with kafka() as cluster:
        outcomes = [run() for name, run in rows(cluster, options) if name in wanted]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
