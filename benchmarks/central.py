"""A large central group beside a classic one: the time from the start of its last member until all members read.

One broker in a ZooKeeper serves both, in fresh directories. 199 members share 200 partitions; another one joins and leaves. Each
time the seconds count from the member's start until the owner of each partition has got a record since its last assignment. A
producer writes to all partitions continuously. The figures are medians, the ratio is that of the medians. The classic members
have the default heartbeat interval, 3 s, which is most of their time; ``consumer`` (KIP-848) is there to compare.

    python benchmarks/central.py [--members 200] [--rounds 5] [--protocols classic central consumer]

Needs Java (ZooKeeper) and kazoo.
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
import threading
import time
import uuid
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from _nodes import OttlaNode

from ottla import Admin, Producer
from ottla.runtime.zookeeper_server import ZooKeeperServer

HERE = Path(__file__).parent
PROCESSES = 4
"""Of members; the last member has one of its own."""
LIMIT = 300.0
QUIET = 1.0
"""Seconds without a change after which a group counts as settled."""
TARGET = 1.5
SETTINGS = ("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1", "group.max.size=1000")


class Group:
    """The members of one protocol, and who of them reads."""

    def __init__(self, protocol: str, servers: str, members: int) -> None:
        self.protocol, self.partitions = protocol, members
        self._servers, self._topic = servers, f"{protocol}-{uuid.uuid4()}"
        self._events: SimpleQueue[list[Any]] = SimpleQueue()
        self._reading: dict[int, tuple[str, float]] = {}
        self._owners: dict[int, str] = {}
        self._changed = time.time()
        self._ended = threading.Event()
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics({self._topic: members})
        self._producing = threading.Thread(target=self._produce)
        self._producing.start()
        self._processes = [self._process() for _ in range(PROCESSES)]

    def _process(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "_group_members.py"), self.protocol, self._servers, self._topic]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._events.put(json.loads(line))

    def _produce(self) -> None:
        with Producer(bootstrap_servers=self._servers) as producer:
            while not self._ended.wait(0.2):
                for partition in range(self.partitions):
                    producer.send(self._topic, b"x", partition=partition)

    def start(self, process: subprocess.Popen[str], name: str) -> None:
        """Start a member."""
        assert process.stdin is not None
        process.stdin.write(name + "\n")
        process.stdin.flush()

    def gather(self, members: int) -> None:
        """Start all but the last member."""
        for number in range(members):
            self.start(self._processes[number % PROCESSES], f"member-{number}")
        self.settle(members)

    def join(self, members: int) -> float:
        """Let one more member join and leave. Return the seconds until all members read."""
        process = self._process()
        began = time.time()
        self.start(process, "last")
        try:
            return self.settle(members) - began
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(LIMIT)

    def settle(self, members: int) -> float:
        """Wait until each member reads, and nothing changes for a while. Return since when."""
        deadline = time.time() + LIMIT
        while time.time() < deadline:
            with contextlib.suppress(Empty):
                self._take(*self._events.get(timeout=0.05))
                continue
            reads = len(self._reading) == self.partitions and len({name for name, _ in self._reading.values()}) == members
            if reads and time.time() - self._changed > QUIET:
                return max(at for _, at in self._reading.values())
        raise TimeoutError(f"{self.protocol}: {len(self._reading)} of {self.partitions} partitions are read after {LIMIT} s")

    def _take(self, kind: str, member: str, partitions: list[int], at: float) -> None:
        for partition in partitions:
            if kind == "read" and self._owners.get(partition) == member:
                self._reading[partition] = member, at
            elif kind == "assigned":
                self._owners[partition] = member
                self._reading.pop(partition, None)
            elif kind == "revoked" and self._owners.get(partition) == member:
                del self._owners[partition]
                self._reading.pop(partition, None)
        self._changed = time.time()

    def close(self) -> None:
        """End the members, and the producer."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._ended.set()
        self._producing.join()


def measure(servers: str, protocols: list[str], members: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, by protocol. One group at a time has members, so that they do not disturb each other."""
    found: dict[str, list[float]] = {}
    for protocol in protocols:
        with contextlib.closing(Group(protocol, servers, members)) as group:
            group.gather(members - 1)
            found[protocol] = []
            for number in range(rounds + 1):
                seconds = group.join(members)
                group.settle(members - 1)
                if number:
                    found[protocol].append(seconds)
                print(f"  {protocol}: {seconds:.2f} s{'' if number else ' (does not count)'}", flush=True)
    return found


def main() -> int:
    """Print the table. The exit code is 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--protocols", nargs="+", default=["classic", "central", "consumer"])
    options = parser.parse_args()
    busy = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores (load {busy:.1f} at the beginning), Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ZooKeeperServer() as zookeeper, contextlib.ExitStack() as stack:
        settings = (*SETTINGS, f"zookeeper.connect={zookeeper.connect_string}/bench")
        node = stack.enter_context(contextlib.closing(OttlaNode(Path(folder), 0, *settings)))
        found = measure(node.servers, options.protocols, options.members, options.rounds)
    medians = {protocol: statistics.median(times) for protocol, times in found.items()}
    for protocol, seconds in medians.items():
        ratio = f", {seconds / medians['classic']:.2f}x classic" if "classic" in medians else ""
        print(f"{protocol}: last of {options.members} members joins -> all read: {seconds:.2f} s{ratio}", flush=True)
    if not {"classic", "central"} <= medians.keys():
        return 0
    return int(medians["central"] / medians["classic"] > TARGET)


if __name__ == "__main__":
    sys.exit(main())
