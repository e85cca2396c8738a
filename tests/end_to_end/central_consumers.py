"""Consumers of a central group, in threads and in processes of their own, with what they have seen.

Owns the processes. Must not know what is tested. Invariant: a member that a test has started ends with the test.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.end_to_end.polling_members import LIMIT, PollingMember
from tests.end_to_end.programs import environment

MEMBER = r"""
import json, os, sys, time
from ottla import Consumer
from ottla.types import OffsetAndMetadata, TopicPartition

def say(**what):
    # One write, since a signal may interrupt print() between a line and its end.
    os.write(1, json.dumps({"at": time.time(), **what}).encode() + b"\n")

def listener(event):
    return lambda consumer, partitions: say(**{event: [tp.partition for tp in partitions]})

def revoked(consumer, partitions):
    say(revoked=[tp.partition for tp in partitions])
    time.sleep(slow)

under_way = []

def commit(partition, offset):
    if under_way:
        return
    say(commits=partition, to=offset)
    offsets = {TopicPartition(topic, partition): OffsetAndMetadata(offset)}
    under_way.append(offsets)

    def note(offsets, error):
        under_way.clear()
        say(**({"committed": partition, "to": offset} if error is None else {"error": type(error).__name__, "text": str(error)}))

    if waits:
        try:
            consumer.commit(offsets)
            note(offsets, None)
        except Exception as error:
            note(offsets, error)
    else:
        consumer.commit_async(offsets, note)

settings, topic, slow, waits = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4] == "True"
with Consumer(settings, group_protocol="central", auto_offset_reset="earliest", enable_auto_commit=False,
              max_poll_records=1) as consumer:
    consumer.subscribe([topic], on_assign=listener("assigned"), on_revoke=revoked, on_lost=listener("lost"))
    state = ""
    while True:
        try:
            records = consumer.poll(0.1)
        except Exception as error:
            say(error=type(error).__name__, text=str(error))
            continue
        at = time.time()
        if not records and consumer.health().state != state:
            state = consumer.health().state
            say(state=state)
        for record in records:
            said = {"partition": record.partition, "offset": record.offset}
            say(**said, value=(record.value or b"").decode(), at=at)
            commit(record.partition, record.offset + 1)
"""

FEED = r"""
import json, sys, threading, time
from ottla import Producer
from ottla.errors import OttlaError

servers, topic, partitions, interval = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), float(sys.argv[4])
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
sent = {}
with Producer(bootstrap_servers=servers, linger=0, delivery_timeout=120) as producer:
    for number in range(1 << 30):
        for partition in partitions:
            value = f"{partition}:{number}:{time.time()}"
            sent[value] = producer.send(topic, value.encode(), partition=partition)
        if number == 0:
            producer.flush(60)
            print("begun", flush=True)
        if stop.wait(interval):
            break
    producer.flush(60)

def is_acknowledged(delivery):
    try:
        delivery.result(60)
    except OttlaError:
        return False
    return True

print(json.dumps([value for value, delivery in sent.items() if is_acknowledged(delivery)]))
"""


class Process:
    """A member in a process of its own, with what it has said. ``slow``: seconds that its ``on_revoke`` takes; ``waits``: for
    the commit of each record, before it polls again; else it reads on, and commits again when that has an outcome."""

    def __init__(
        self,
        servers: Sequence[str],
        topic: str,
        consumer_id: str,
        said: Path,
        *,
        slow: float = 0,
        waits: bool = True,
        group: str = "g",
        session: float = 3,
    ) -> None:
        self.consumer_id = consumer_id
        self._path = said
        settings = {
            "bootstrap_servers": list(servers),
            "group_id": group,
            "consumer_id": consumer_id,
            "client_id": consumer_id,
            "session_timeout": session,
        }
        command = [sys.executable, "-c", MEMBER, json.dumps(settings), topic, str(slow), str(waits)]
        with said.open("w") as out, said.with_suffix(".errors").open("w") as errors:
            self.process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment())

    @property
    def complaints(self) -> str:
        """What it has logged."""
        return self._path.with_suffix(".errors").read_text()

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines() if line.endswith("}")]

    @property
    def owned(self) -> list[int]:
        held: set[int] = set()
        for item in self.said():
            held |= set(item.get("assigned", ()))
            held -= {*item.get("revoked", ()), *item.get("lost", ())}
        return sorted(held)

    @property
    def state(self) -> str:
        """That of its membership, when it last had no record to handle."""
        return next((item["state"] for item in reversed(self.said()) if "state" in item), "")

    def handled(self) -> set[str]:
        """The values of the records that were handed out."""
        return {item["value"] for item in self.said() if "value" in item}

    def commits(self, word: str = "committed") -> set[tuple[int, int]]:
        """The offsets whose commit was accepted, or (``commits``) asked for, by partition."""
        return {(item[word], item["to"]) for item in self.said() if word in item}

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)


@contextmanager
def process(*arguments: Any, **more: Any) -> Iterator[Process]:
    member = Process(*arguments, **more)
    try:
        yield member
    finally:
        member.kill()


class Member(PollingMember):
    """A member of a central group, in a thread of its own."""

    def __init__(
        self,
        servers: Sequence[str],
        *topics: str,
        pattern: str | None = None,
        listeners: dict[str, Callable[[Any, Any], None]] | None = None,
        **settings: Any,
    ) -> None:
        defaults = {"group_id": "g", "group_protocol": "central", "auto_offset_reset": "earliest", "session_timeout": 6}
        merged = {"bootstrap_servers": list(servers), **defaults, **settings}
        super().__init__(merged, *topics, pattern=pattern, listeners=listeners)


class Feed:
    """A producer in a process of its own that writes a record to each of some partitions every few milliseconds."""

    def __init__(self, servers: Sequence[str], topic: str, partitions: Sequence[int], interval: float = 0.005) -> None:
        arguments = [json.dumps(list(servers)), topic, json.dumps(list(partitions)), str(interval)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", FEED, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n"

    def stop(self) -> set[str]:
        """Write no more. Returns the values of the records that were acknowledged."""
        out, _ = self._process.communicate("")
        return set(json.loads(out))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT)


@contextmanager
def feed(*arguments: Any, **more: Any) -> Iterator[Feed]:
    made = Feed(*arguments, **more)
    try:
        yield made
    finally:
        made.kill()
