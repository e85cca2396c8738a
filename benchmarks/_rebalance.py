"""The time of a rebalance with librdkafka's consumers when a third member joins a group.

    python benchmarks/_rebalance.py classic|consumer SERVERS TIMES

A third member joins and leaves TIMES times. Each time it prints the seconds from the member's first poll until the final owner of
each partition has got a record. A producer writes to all partitions continuously. Most of the time passes until the other two
members send their next heartbeats, with any broker. So the joins are distributed evenly over the interval between two heartbeats.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 6
LIMIT = 60.0
HEARTBEAT = 0.5
"""Seconds between two heartbeats."""


class Member:
    """A consumer in its own thread, with the time of the first record of each partition since its assignment."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self.fetched: dict[int, float | None] = {}
        self._topic = topic
        self._consumer = Consumer(settings)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the group."""
        self._ended.set()
        self._thread.join()

    def forget(self) -> None:
        """Reset the times of all partitions."""
        self.fetched = dict.fromkeys(self.fetched)

    def _run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
        while not self._ended.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None and self.fetched.get(message.partition(), 0) is None:
                self.fetched[message.partition()] = time.perf_counter()
        self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self.fetched = {**self.fetched, **{one.partition: None for one in partitions}}

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        gone = {one.partition for one in partitions}
        self.fetched = {number: at for number, at in self.fetched.items() if number not in gone}


def settled(members: list[Member]) -> float | None:
    """Return when the last partition got its first record; ``None`` if one has none yet, or a member has no partition."""
    owned = [member.fetched.copy() for member in members]
    times = [at for one in owned for at in one.values()]
    if len(times) != PARTITIONS or not all(owned) or None in times:
        return None
    return max(at for at in times if at is not None)


def wait_for(members: list[Member]) -> float:
    """Wait until the members have been settled for a second. Return when they became settled."""
    end = time.perf_counter() + LIMIT
    while time.perf_counter() < end:
        at = settled(members)
        if at is not None and time.perf_counter() - at > 1:
            return at
        time.sleep(0.01)
    raise TimeoutError(f"the group of {len(members)} is not settled after {LIMIT} s: {[member.fetched for member in members]}")


def joined(settings: dict[str, Any], topic: str, others: list[Member], phase: float) -> float:
    """Let a third member join and leave. Return the seconds from its start until the group is settled.

    ``phase`` is the moment of the join, as a fraction of the interval after the last heartbeats.
    """
    settled_at = wait_for(others)
    time.sleep((settled_at - time.perf_counter()) % HEARTBEAT + phase * HEARTBEAT)
    third = Member(settings, topic)
    for member in others:
        member.forget()
    begin = time.perf_counter()
    third.start()
    try:
        return wait_for([*others, third]) - begin
    finally:
        third.stop()


def main(protocol: str, servers: str, times: int) -> None:
    """Measure."""
    topic = f"rebalance-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "group.protocol": protocol,
        "auto.offset.reset": "latest",
        "fetch.wait.max.ms": 50,
    }
    if protocol == "classic":
        settings |= {"heartbeat.interval.ms": round(HEARTBEAT * 1000), "session.timeout.ms": 10_000}
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.01):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"x", partition=partition)
            producer.poll(0)

    thread = threading.Thread(target=produce)
    thread.start()
    members = [Member(settings, topic) for _ in range(2)]
    for member in members:
        member.start()
    try:
        for number in range(times):
            print(joined(settings, topic, members, (number + 0.5) / times), flush=True)
    finally:
        ended.set()
        thread.join()
        producer.flush(10)
        for member in members:
            member.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
