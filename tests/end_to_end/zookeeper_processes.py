"""Members of a ZooKeeper group in processes of their own, with what they say about their partitions and records.

Owns the processes. Must not know what is tested. Invariant: a member that a test has started ends with the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.end_to_end.programs import environment
from tests.end_to_end.zookeeper_cluster import ZooKeeperCluster

LIMIT = 30.0
SESSION = 4.0
"""Seconds: the time-out of each member's session."""
MEMBER = r"""
import json, os, sys, time
from ottla import Consumer
from ottla.errors import ConnectionFailedError

def say(**what):
    # One write, since Ctrl-C may interrupt print() between a line and its end.
    os.write(1, json.dumps({**what, "at": time.time()}).encode() + b"\n")

def listener(event):
    return lambda consumer, partitions: say(**{event: [tp.partition for tp in partitions]})

connect, topic, consumer_id, session, storage = sys.argv[1:]
with Consumer(zookeeper_connect=connect, group_id="billing", consumer_id=consumer_id, zookeeper_session_timeout=float(session),
              auto_offset_reset="earliest", enable_auto_commit=False, offsets_storage=storage, max_poll_records=1) as consumer:
    consumer.subscribe([topic], on_assign=listener("assigned"), on_revoke=listener("revoked"), on_lost=listener("lost"))
    while True:
        try:
            records = consumer.poll(0.1)
        except ConnectionFailedError as error:
            say(error=type(error).__name__)
            continue
        for record in records:
            say(partition=record.partition, offset=record.offset)
            try:
                consumer.commit()
            except Exception as error:
                say(error=type(error).__name__)
"""


class Process:
    """A member in a process of its own, with what it has said."""

    def __init__(self, cluster: ZooKeeperCluster, topic: str, consumer_id: str, said: Path, storage: str = "zookeeper") -> None:
        self._path = said
        arguments = [cluster.connect, topic, consumer_id, str(SESSION), storage]
        with said.open("w") as out:
            self.process = subprocess.Popen([sys.executable, "-c", MEMBER, *arguments], stdout=out, env=environment())

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines() if line.endswith("}")]

    @property
    def owned(self) -> list[int]:
        held: set[int] = set()
        for item in self.said():
            held |= set(item.get("assigned", ()))
            held -= {*item.get("revoked", ()), *item.get("lost", ())}
        return sorted(held)

    def handled(self, since: float = 0) -> list[tuple[int, int]]:
        return [(item["partition"], item["offset"]) for item in self.said() if "offset" in item and item["at"] >= since]


@contextmanager
def process(*arguments: Any, **more: Any) -> Iterator[Process]:
    member = Process(*arguments, **more)
    try:
        yield member
    finally:
        member.process.kill()
        member.process.wait(LIMIT)
