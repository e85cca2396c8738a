"""Consumers in separate processes: one is killed, one is interrupted, and a broker is killed; no record is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.programs import broker, environment, free_port, ottla

pytestmark = pytest.mark.slow

LONG = 120.0
"""The session timeout in seconds: longer than any wait of a test."""
MEMBER = """
import json, sys, time
from ottla import Consumer
from ottla.errors import ConnectionFailedError
from ottla.signals import stop_on_signals

servers, topic, group, pause, session, protocol = *sys.argv[1:4], *map(float, sys.argv[4:6]), sys.argv[6]

def say(**what):
    print(json.dumps(what), flush=True)

def listener(event):
    return lambda consumer, partitions: say(**{event: [tp.partition for tp in partitions]})

settings = {"group_protocol": protocol}
if protocol == "classic":
    settings |= {"session_timeout": session, "heartbeat_interval": 0.3}
settings |= {"max_poll_records": 5, "auto_offset_reset": "earliest"}
with Consumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False, **settings) as consumer, \\
        stop_on_signals(consumer) as stop:
    consumer.subscribe([topic], on_assign=listener("assigned"), on_revoke=listener("revoked"), on_lost=listener("lost"))
    while not stop:
        records = consumer.poll(0.5)
        for record in records:
            say(partition=record.partition, offset=record.offset)
        time.sleep(pause)
        if records:
            try:
                consumer.commit()
            except Exception as error:
                say(error=type(error).__name__)
say(ended=True)
"""


class Member:
    """A member in a separate process, with its output so far."""

    def __init__(self, process: subprocess.Popen[str], said: Path) -> None:
        self.process = process
        self._said = said

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._said.read_text().splitlines() if line.endswith("}")]

    def handled(self) -> set[tuple[object, object]]:
        return {(item["partition"], item["offset"]) for item in self.said() if "offset" in item}

    def owns(self) -> list[int]:
        held: set[int] = set()
        for item in self.said():
            held |= set(item.get("assigned", ()))
            held -= {*item.get("revoked", ()), *item.get("lost", ())}
        return sorted(held)


@contextmanager
def member(
    tmp_path: Path, servers: str, topic: str, group: str, pause: float = 0.05, session: float = 6, protocol: str = "classic"
) -> Iterator[Member]:
    """Run a member during the ``with``."""
    said = tmp_path / f"member-{len(list(tmp_path.iterdir()))}"
    with said.open("w") as out, (tmp_path / f"{said.name}-errors").open("w") as errors:
        command = [sys.executable, "-c", MEMBER, servers, topic, group, str(pause), str(session), protocol]
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment())
        try:
            yield Member(process, said)  # type: ignore[arg-type]
        finally:
            process.kill()
            process.wait()


def wait(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def fill(servers: str, topic: str, count: int, partitions: int = 2) -> None:
    if count and partitions:
        ottla("topic", "create", topic, "-p", str(partitions), bootstrap_servers=servers)
    produced = ottla("produce", "-t", topic, bootstrap_servers=servers, stdin="".join(f"{number}\n" for number in range(count)))
    assert (produced.returncode, produced.stderr) == (0, "")


def test_a_killed_member_is_replaced_and_an_interrupted_one_leaves_at_once(served: str, tmp_path: Path) -> None:
    fill(served, "killed-member", 300)
    with (
        member(tmp_path, served, "killed-member", "killed") as first,
        member(tmp_path, served, "killed-member", "killed", session=LONG) as second,
    ):
        wait(lambda: sorted(first.owns() + second.owns()) == [0, 1] and bool(first.owns()) and bool(second.owns()))
        first.process.kill()
        killed_at = time.monotonic()
        wait(lambda: second.owns() == [0, 1])
        assert time.monotonic() - killed_at > 3, "when its session is over"
        wait(lambda: len(first.handled() | second.handled()) == 300)
        with member(tmp_path, served, "killed-member", "killed", session=LONG) as third:
            wait(lambda: bool(third.owns()))
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait(60) == 0
            assert second.said()[-1] == {"ended": True}
            wait(lambda: third.owns() == [0, 1], LONG / 2)


def test_a_consumer_survives_its_brokers_death(tmp_path: Path) -> None:
    port = str(free_port())
    data = str(tmp_path / "data")
    with broker("--data-dir", data, "--port", port) as (process, servers):
        fill(servers, "deaths", 100)
        with member(tmp_path, servers, "deaths", "g", pause=0.01) as consumer:
            wait(lambda: len(consumer.handled()) >= 20)
            process.kill()
            process.wait()
            time.sleep(1.0)
            with broker("--data-dir", data, "--port", port) as (_, again):
                assert again == servers
                fill(servers, "deaths", 50, partitions=0)
                wait(lambda: len(consumer.handled()) == 150)
                assert consumer.process.poll() is None
                described = ottla("group", "describe", "g", "--format", "json", bootstrap_servers=servers)
                wait(lambda: _lag(servers) == 0)
                assert json.loads(described.stdout)["state"] == "Stable"


SHORT_SESSIONS = {
    "group.min.session.timeout.ms": 3_000,
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.min.session.timeout.ms": 3_000,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_suspended_beyond_its_session_rejoins_and_no_record_is_lost(tmp_path: Path, protocol: str) -> None:
    """Like a laptop that sleeps, or a virtual machine that is migrated."""
    settings = [part for name, value in SHORT_SESSIONS.items() for part in ("--set", f"{name}={value}")]
    with broker("--data-dir", str(tmp_path / "data"), *settings) as (_, servers):
        fill(servers, "stopped", 200)
        with (
            member(tmp_path, servers, "stopped", "g", session=3, protocol=protocol) as first,
            member(tmp_path, servers, "stopped", "g", session=3, protocol=protocol) as second,
        ):
            wait(lambda: bool(first.owns()) and bool(second.owns()))
            fill(servers, "stopped", 200, partitions=0)
            first.process.send_signal(signal.SIGSTOP)
            stopped_at = time.monotonic()
            wait(lambda: second.owns() == [0, 1])
            assert time.monotonic() - stopped_at > 1.5, "when its session is over"
            wait(lambda: _lag(servers) == 0)
            first.process.send_signal(signal.SIGCONT)
            wait(lambda: len(first.owns()) == len(second.owns()) == 1)
            fill(servers, "stopped", 200, partitions=0)
            wait(lambda: len(first.handled() | second.handled()) == 600)
            wait(lambda: _lag(servers) == 0)
            assert any("lost" in item for item in first.said())
            for one in (first, second):
                one.process.send_signal(signal.SIGINT)
                assert one.process.wait(60) == 0
                assert one.said()[-1] == {"ended": True}


def _lag(servers: str) -> int:
    described = ottla("group", "describe", "g", "--format", "json", bootstrap_servers=servers)
    return sum(item["lag"] for item in json.loads(described.stdout)["partitions"])
