"""Members of ``Consumer`` and ``AsyncConsumer`` that run their group's assignor: in threads, in processes, on an event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla import AsyncConsumer, Broker, Consumer
from ottla.errors import AssignmentError
from tests.end_to_end.assigning_member import InTurn, settings
from tests.end_to_end.programs import environment
from tests.interop.other_clients import create_topic

PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""
PARTITIONS = 6
QUICK = {
    "group.consumer.client.assignors.enable": True,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture
def servers() -> Iterator[str]:
    with Broker(settings=QUICK) as broker:
        create_topic(broker.bootstrap_servers, "orders", PARTITIONS)
        yield broker.bootstrap_servers


def fill(servers: str) -> None:
    """A topic with 300 records, evenly distributed."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for number in range(300):
        producer.produce("orders", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


class Member(threading.Thread):
    """A consumer that polls in a separate thread."""

    def __init__(self, servers: str, name: str, *fails: int) -> None:
        super().__init__(name=name, daemon=True)
        self.assignor = InTurn(name, *fails)
        self.consumer = Consumer(settings(servers, self.assignor))
        self.handled: list[tuple[int, int]] = []
        self.errors: list[Exception] = []
        self.stopping = False
        self.start()

    def run(self) -> None:
        with self.consumer:
            self.consumer.subscribe(["orders"])
            while not self.stopping:
                try:
                    self.handled += [(one.partition, one.offset) for one in self.consumer.poll(timeout=0.1)]
                except AssignmentError as error:
                    self.errors.append(error)

    @property
    def owns(self) -> list[int]:
        return sorted(tp.partition for tp in self.consumer.assignment())

    def end(self) -> None:
        self.stopping = True
        self.join(PATIENCE)
        assert not self.is_alive()


def test_threads_share_a_topic_and_read_no_record_twice(servers: str) -> None:
    fill(servers)
    first = Member(servers, "a")
    wait(lambda: first.owns == [0, 1, 2, 3, 4, 5])
    second, third = Member(servers, "b"), Member(servers, "c")
    members = [first, second, third]
    wait(lambda: [one.owns for one in members] == [[0, 3], [1, 4], [2, 5]])
    fill(servers)
    wait(lambda: sum(len(one.handled) for one in members) >= 600)
    assert first.assignor.heard[-1].user_data == b"0 of 3"
    assert first.consumer.rebalances[-1].assignor == first.consumer.health().assignor == "in-turn"
    first.end()
    wait(lambda: [second.owns, third.owns] == [[0, 2, 4], [1, 3, 5]])
    for one in (second, third):
        one.end()
    handled = Counter(record for one in members for record in one.handled)
    assert len(handled) == 600
    assert set(handled.values()) == {1}
    asked = {ident for one in members for ident in one.assignor.asked_in}
    assert asked <= {one.ident for one in members}, "on the threads that poll"
    assert not any(one.errors for one in members)


def test_an_assignor_that_fails_is_an_error_in_every_thread(servers: str) -> None:
    first = Member(servers, "a", 2)
    wait(lambda: len(first.owns) == PARTITIONS)
    second = Member(servers, "b")
    wait(lambda: bool(first.errors and second.errors))
    for one in (first, second):
        assert "a cannot count" in str(one.errors[0])
    wait(lambda: [first.owns, second.owns] == [[0, 2, 4], [1, 3, 5]])
    for one in (first, second):
        one.end()


def test_async_consumers(servers: str) -> None:
    async def main() -> None:
        assignors = [InTurn("a"), InTurn("b")]
        async with asyncio.timeout(PATIENCE), AsyncConsumer(**settings(servers, assignors[0])) as first:
            await first.subscribe(["orders"])
            while len(first.assignment()) < PARTITIONS:
                await first.poll(0.1)
            async with AsyncConsumer(**settings(servers, assignors[1])) as second:
                await second.subscribe(["orders"])
                while [len(one.assignment()) for one in (first, second)] != [3, 3]:
                    await asyncio.gather(first.poll(0.1), second.poll(0.1))
                assert assignors[1].heard[-1].user_data == b"1 of 2"
                assignors[0].fails.append(1)
            with pytest.raises(AssignmentError, match="a cannot count"):
                await polled_for_ever(first)
            while len(first.assignment()) < PARTITIONS:
                await first.poll(0.1)
        assert assignors[0].asked_in == {threading.get_ident()}, "on the thread of the loop"

    asyncio.run(main())


async def polled_for_ever(consumer: AsyncConsumer) -> None:
    while True:
        await consumer.poll(0.1)


class Process:
    """A member in a separate process."""

    def __init__(self, folder: Path, servers: str, name: str) -> None:
        self._said = folder / name
        with self._said.open("w") as out:
            command = [sys.executable, "-m", "tests.end_to_end.assigning_member", servers, name]
            self.process = subprocess.Popen(command, stdout=out, env=environment(), cwd=Path(__file__).parents[2])

    @property
    def owns(self) -> list[int]:
        held: set[int] = set()
        for line in self._said.read_text().splitlines():
            for what, partitions in json.loads(line).items() if line.endswith("}") else ():
                held = held | set(partitions) if what == "assigned" else held - set(partitions)
        return sorted(held)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def test_the_member_process_that_assigns_is_killed(tmp_path: Path) -> None:
    quick = {**QUICK, "group.consumer.session.timeout.ms": 2_000, "group.consumer.min.session.timeout.ms": 2_000}
    with Broker(settings=quick) as broker, ExitStack() as stack:
        create_topic(broker.bootstrap_servers, "orders", PARTITIONS)
        members = []
        for name in ("a", "b", "c"):
            members.append(Process(tmp_path, broker.bootstrap_servers, name))
            stack.callback(members[-1].end)
        wait(lambda: [one.owns for one in members] == [[0, 3], [1, 4], [2, 5]])
        members[0].process.kill()
        wait(lambda: [one.owns for one in members[1:]] == [[0, 2, 4], [1, 3, 5]])
        members[1].process.terminate()
        wait(lambda: members[2].owns == [0, 1, 2, 3, 4, 5])


def test_members_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path, settings=QUICK) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        create_topic(broker.bootstrap_servers, "orders", PARTITIONS)
        first = Member(broker.bootstrap_servers, "a")
        wait(lambda: len(first.owns) == PARTITIONS)
    with Broker(tmp_path, port, settings=QUICK) as broker:
        second = Member(broker.bootstrap_servers, "b")
        wait(lambda: [first.owns, second.owns] == [[0, 2, 4], [1, 3, 5]])
        assert second.consumer.health().assignor == "in-turn"
        for one in (first, second):
            one.end()
        assert not first.errors + second.errors


@pytest.mark.slow
def test_a_real_kafka_runs_its_own_assignor(real_kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    create_topic(real_kafka, "assigned-by-kafka", 4)
    with caplog.at_level(logging.WARNING), Consumer({**settings(real_kafka, InTurn("a")), "group_id": "assigned-by-kafka"}) as one:
        one.subscribe(["assigned-by-kafka"])
        until = time.monotonic() + PATIENCE
        while len(one.assignment()) < 4:
            one.poll(timeout=0.2)
            assert time.monotonic() < until
        assert one.health().assignor == ""
    (warning,) = [record.message for record in caplog.records if "group.client.assignors" in record.message]
    assert "is ignored, and an assignor of the broker assigns the partitions" in warning
