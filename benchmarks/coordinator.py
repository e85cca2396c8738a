"""The group coordinators of Ottla's broker and of Apache Kafka under the same load, alternating in one run.

Each broker runs in a separate process in a fresh data directory on the same disk. The load comes from another process
(``_load.py``): prepared bytes over four pipelined connections. The figures are medians of the rounds, the ratio is that of the
medians. The second figure is the microseconds of processor time per request, of all the broker's threads; on a busy machine it
varies less than the requests per second. Apache Kafka uses several cores, Ottla's broker one.

    python benchmarks/coordinator.py [ROW ...] [--rounds 5] [--seconds 3] [--groups 100000]

``ROW``: heartbeats, growth, commits, joins, rebalance, load, idle; default: all. Apache Kafka needs Java 17 and Maven (see
``tools/kafka``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _cluster import TOOLS
from _nodes import KafkaNode, OttlaNode, memory_of

PORTS = range(19_400, 19_490, 2)
HERE = Path(__file__).parent
WARM_UP = 3
"""Rounds that do not count, in which the JVM compiles its hot code."""
Nodes = list[OttlaNode | KafkaNode]
TARGET = 0.5
"""The least ratio of requests per second, on one core."""
KINDS = {"classic": "classic heartbeats", "consumer": "KIP-848 heartbeats"}
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.heartbeat.interval.ms=500",
    "group.consumer.heartbeat.interval.ms=500",
    "group.consumer.max.session.timeout.ms=600000",  # no session may expire while thousands of members join
    "group.consumer.session.timeout.ms=300000",
    "offsets.topic.num.partitions=50",  # the default of both brokers; ``tools/kafka`` sets fewer
)


class Load:
    """A process that creates a group and sends its requests."""

    def __init__(self, kind: str, servers: str, members: int) -> None:
        command = [sys.executable, str(HERE / "_load.py"), kind, servers, f"{kind}-{members}-{time.monotonic_ns()}", str(members)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._answer()

    def run(self, seconds: float) -> tuple[float, float]:
        """Send for so many seconds. Return the number of responses and the elapsed seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answered, took = self._answer()
        return answered, took

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the load has failed; what it said stands above"
        return json.loads(line)


def rates(nodes: Nodes, kind: str, members: int, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return the requests per second, and the microseconds of processor time per request, of each broker."""
    found: dict[str, list[tuple[float, float]]] = {node.name: [] for node in nodes}
    loads = [(node, Load(kind, node.servers, members)) for node in nodes]
    for number in range(options.rounds + WARM_UP):
        for node, load in loads:
            before = node.cpu()
            answered, took = load.run(options.seconds)
            if number >= WARM_UP:
                found[node.name].append((answered / took, (node.cpu() - before) / answered * 1e6))
    for _, load in loads:
        load.close()
    return {name: (median(rate for rate, _ in one), median(cost for _, cost in one)) for name, one in found.items()}


def median(figures: Any) -> float:
    """Return the median of an iterator's values."""
    return float(statistics.median(list(figures)))


def show_rates(title: str, found: dict[str, tuple[float, float]]) -> bool:
    """Print one line of the table. Return whether the target is met."""
    (ours, our_cost), (theirs, their_cost) = found["Ottla"], found["Apache Kafka"]
    print(
        f"{title}: Ottla {ours:,.0f}/s ({our_cost:.0f} us of processor time each),"
        f" Apache Kafka {theirs:,.0f}/s ({their_cost:.0f} us):"
        f" {ours / theirs:.2f}x (target {TARGET}x), {their_cost / our_cost:.2f}x for the same processor time",
        flush=True,
    )
    return ours / theirs >= TARGET


def show_times(title: str, found: dict[str, list[float]], target: float) -> bool:
    """Print one line of the table about times. Return whether the target is met."""
    ours, theirs = median(found["Ottla"]), median(found["Apache Kafka"])
    print(
        f"{title}: Ottla {ours:.3f} s, Apache Kafka {theirs:.3f} s: {ours / theirs:.2f}x the time (target {target:g}x)",
        flush=True,
    )
    return ours / theirs <= target


def heartbeats(nodes: Nodes, options: argparse.Namespace) -> bool:
    """A steady group of 200 members."""
    kept = [show_rates(f"{title}, 200 members", rates(nodes, kind, 200, options)) for kind, title in KINDS.items()]
    return all(kept)


def growth(nodes: Nodes, options: argparse.Namespace) -> bool:
    """The same with other numbers of members: the cost per heartbeat must not grow with the group."""
    kept = [
        show_rates(f"{title}, {members:,} members", rates(nodes, kind, members, options))
        for kind, title in KINDS.items()
        for members in (10, 100, 1_000, 10_000)
    ]
    return all(kept)


def commits(nodes: Nodes, options: argparse.Namespace) -> bool:
    """OffsetCommit of ten partitions."""
    return show_rates("OffsetCommit of 10 partitions, 200 groups", rates(nodes, "commit", 200, options))


def joins(nodes: Nodes, options: argparse.Namespace) -> bool:
    """The first heartbeats of 200 members, one after the other."""
    found: dict[str, list[float]] = {node.name: [] for node in nodes}
    for number in range(options.rounds + WARM_UP):
        for node in nodes:
            load = Load("consumer", node.servers, 200)
            load.close()
            if number >= WARM_UP:
                found[node.name].append(load.ready["joined"])
    return show_times("200 members join one KIP-848 group", found, 2)


def rebalance(nodes: Nodes, options: argparse.Namespace) -> bool:
    """The time from the poll of the last of three members until its new owner fetches each partition, with librdkafka's clients."""
    kept, times = True, 6
    for protocol in KINDS:
        found: dict[str, list[float]] = {node.name: [] for node in nodes}
        for number in range(options.rounds + 1):
            for node in nodes:
                command = [sys.executable, str(HERE / "_rebalance.py"), protocol, node.servers, str(times)]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                if number:
                    found[node.name] += map(float, printed.split())
        kept &= show_times(f"{protocol}: last of 3 members joins -> every partition fetched", found, 1)
    return kept


def load(nodes: Nodes, options: argparse.Namespace) -> bool:
    """Groups with ten offsets each: the time that a restarted broker needs to load them, and its memory."""
    kept = True
    print(f"{options.groups:,} groups with 10 offsets each:")
    for node in nodes:
        subprocess.run([sys.executable, str(HERE / "_load.py"), "fill", node.servers, "many", str(options.groups)], check=True)
        node.stop()
        begin = time.perf_counter()
        node.start()
        subprocess.run([sys.executable, str(HERE / "_load.py"), "loaded", node.servers, "many", str(options.groups)], check=True)
        seconds, size = time.perf_counter() - begin, node.memory() / 2**20
        kept &= node.name != "Ottla" or (seconds <= 20 and size < 1500)
        print(
            f"  {node.name}: {seconds:.1f} s from the start of the process until the last group is served (target 20 s),"
            f" {size:,.0f} MiB (target 1,500)",
            flush=True,
        )
    return kept


def idle(nodes: Nodes, options: argparse.Namespace) -> bool:
    """A broker without requests."""
    bare = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    time.sleep(1)
    nothing = memory_of(bare.pid)
    bare.communicate()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        node = stack.enter_context(contextlib.closing(OttlaNode(Path(folder), 0)))
        time.sleep(2)
        before = node.cpu()
        time.sleep(10)
        share = (node.cpu() - before) * 10
        over = (node.memory() - nothing) / 2**20
    print(f"idle: {share:.2f} % of a core (target 1), {over:.0f} MiB over bare Python (target 60)", flush=True)
    return share < 1 and over < 60


ROWS: dict[str, Callable[[Nodes, argparse.Namespace], bool]] = {
    row.__name__: row for row in (heartbeats, growth, commits, joins, rebalance, load, idle)
}


@contextlib.contextmanager
def brokers() -> Iterator[Nodes]:
    """One of each."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=TOOLS.parent) as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(contextlib.closing(OttlaNode(Path(folder), 0, *SETTINGS)))
        theirs = stack.enter_context(contextlib.closing(KafkaNode(PORTS, *SETTINGS)))
        yield [ours, theirs]


def main() -> int:
    """Print the table. The exit code is 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--groups", type=int, default=100_000)
    options = parser.parse_args()
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    busy = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores (load {busy:.1f} at the beginning), Python {platform.python_version()}")
    with brokers() as nodes:
        kept = [ROWS[name](nodes, options) for name in options.rows or ROWS]
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
