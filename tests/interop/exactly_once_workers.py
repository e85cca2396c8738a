"""Workers that read, process and write exactly once, in processes that a test kills, and the check of what they have done.

Owns the program of a worker, its supervisor and the check. Must not know what is killed. Invariant: a worker that has ended is
started again, with the same transactional id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ottla import Admin, Consumer, IsolationLevel, TopicPartition

GROUP = "workers"
PARTITIONS = 4
PROGRAM = """
import logging, random, sys, time
import ottla
from ottla import Consumer, Producer

servers, name, seed, protocol = sys.argv[1:]
logging.basicConfig(level=logging.WARNING)
chance = random.Random(int(seed))
reading = {
    "group_id": "workers",
    "group_protocol": protocol,
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "max_poll_records": 50,
}
if protocol == "classic":
    reading |= {"session_timeout": 6, "heartbeat_interval": 1}
with (
    Producer(bootstrap_servers=servers, transactional_id=name, transaction_timeout=10, linger=0.001) as producer,
    Consumer(bootstrap_servers=servers, **reading) as consumer,
):
    consumer.subscribe(["in"])
    for transaction, records in ottla.transactions(consumer, producer, timeout=0.2):
        for record in records:
            producer.send("out", record.value, partition=record.partition)
        lot = chance.random()
        if lot < 0.01:
            sys.exit("something went wrong")
        if lot < 0.02:
            raise RuntimeError("the handler failed")
        if lot < 0.04:
            transaction.abort()
        elif lot < 0.05:
            producer.flush()
            time.sleep(12)  # longer than transaction.timeout.ms, and than session.timeout.ms if there is no other thread
"""
"""Any error ends it, and the supervisor starts another one, as in production."""


class Workers:
    """Processes of ``PROGRAM``, which ``watch`` restarts whenever one has ended."""

    def __init__(self, servers: str, folder: Path, protocol: str, count: int = 3) -> None:
        self._servers, self._protocol = servers, protocol
        self._errors = folder / "workers.errors"
        self.starts = 0
        self._processes = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self.starts += 1
        command = [sys.executable, "-c", PROGRAM, self._servers, f"worker-{number}", str(self.starts), self._protocol]
        with self._errors.open("ab") as errors:
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)

    @property
    def errors(self) -> str:
        """The end of what the workers have logged."""
        return self._errors.read_text(errors="replace")[-4_000:]

    def watch(self, seconds: float) -> None:
        """Wait, and restart each worker that ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for number, process in enumerate(self._processes):
                if process.poll() is not None:
                    self._processes[number] = self._start(number)
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    def kill(self, number: int) -> None:
        """Kill a worker with SIGKILL."""
        self._processes[number].kill()
        self._processes[number].wait()

    def suspend(self, number: int, seconds: float) -> None:
        """Stop a worker for a while: it does not know then that others have taken over."""
        process = self._processes[number]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            self.watch(seconds)
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill all."""
        for process in self._processes:
            process.kill()
            process.wait()


def values(servers: str, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> list[list[bytes]]:
    """The values of a topic by partition."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[list[bytes]] = [[] for _ in partitions]
    with Consumer(bootstrap_servers=servers, isolation_level=isolation, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for record in consumer.poll(1.0):
                found[record.partition].append(record.value or b"")
    return found


def all_processed(admin: Admin) -> bool:
    """Whether the group has committed the end of each partition, and no transaction is open."""
    inputs = [TopicPartition("in", number) for number in range(PARTITIONS)]
    ends = admin.list_offsets(dict.fromkeys(inputs, "latest"))
    committed = admin.group_offsets(GROUP)
    done = all(tp in committed and (end := ends[tp]) is not None and committed[tp].offset == end.offset for tp in inputs)
    return done and not hanging(admin)


def hanging(admin: Admin) -> list[TopicPartition]:
    """The partitions of the output whose last stable offset is below their end."""
    outputs = dict.fromkeys((TopicPartition("out", number) for number in range(PARTITIONS)), "latest")
    ends = admin.list_offsets(outputs)
    stable = admin.list_offsets(outputs, isolation_level=IsolationLevel.READ_COMMITTED)
    return [tp for tp in outputs if ends[tp] != stable[tp]]


def check(servers: str, count: int) -> None:
    """Each record of the input is in the output once, in the order of its partition."""
    read, written = values(servers, "in", IsolationLevel.READ_UNCOMMITTED), values(servers, "out")
    assert sum(map(len, read)) == count
    twice = [value for value, number in Counter(value for part in written for value in part).items() if number > 1]
    assert not twice, f"{len(twice)} records were written twice"
    missing = {value for part in read for value in part} - {value for part in written for value in part}
    assert not missing, f"{len(missing)} records were not written"
    assert written == read, "the records are in another order"
