"""One measurement of the version of Ottla that PYTHONPATH names, for ``versions.py``: prints its figures as JSON.

The first argument is ``broker``, which prints its address, and its figures when stdin ends; ``read``, with servers, a topic and a
number of records; or ``latency``, with servers and a topic.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

begun = time.perf_counter()

from ottla import Broker, Consumer  # noqa: E402 - the import is measured

IMPORTED = time.perf_counter() - begun
RATE, SECONDS = 200, 6.0
"""The records per second whose latency is measured, and for how long."""


def modules() -> list[str]:
    """The modules of Ottla, and of its client for ZooKeeper, that are loaded."""
    return sorted(name for name in sys.modules if name.partition(".")[0] in ("ottla", "kazoo"))


def broker() -> dict[str, object]:
    """A broker until stdin ends."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Broker(folder) as running:
        figures = {"start": time.perf_counter() - started, "modules": modules()}
        print(running.bootstrap_servers, flush=True)
        sys.stdin.read()
    return figures


def read(servers: str, topic: str, records: str) -> dict[str, object]:
    """Read so many records in a classic group."""
    settings = {"group.id": "read", "group.protocol": "classic", "auto.offset.reset": "earliest", "max.poll.records": 5000}
    with Consumer({"bootstrap.servers": servers, **settings}) as consumer:
        consumer.subscribe([topic])
        subscribed, first, left = time.perf_counter(), 0.0, int(records)
        while left > 0:
            for _ in consumer.poll(5):
                first = first or time.perf_counter()
                left -= 1
        ended = time.perf_counter()
        return {"import": IMPORTED, "first": first - subscribed, "rate": int(records) / (ended - first), "modules": modules()}


def follow(servers: str, topic: str, partitions: int) -> Iterator[bytes]:
    """``poll()`` in a classic group, from the end of the log."""
    with Consumer(bootstrap_servers=servers, group_id="latency", group_protocol="classic", auto_offset_reset="latest") as consumer:
        consumer.subscribe([topic])
        while len(consumer.assignment()) < partitions:
            consumer.poll(0.2)
        consumer.poll(0.5)
        yield b""
        while True:
            for record in consumer.poll(0.5):
                yield record.value or b""


def latency(servers: str, topic: str) -> dict[str, object]:
    """The milliseconds from ``produce()`` of another client to the record in the application."""
    from _waiting import waits  # not at the top: it imports Ottla

    found = waits(follow, servers, topic, 1, RATE, SECONDS)
    return {"median": found.median, "99 %": found.p99}


if __name__ == "__main__":
    measurements: dict[str, Callable[..., dict[str, object]]] = {"broker": broker, "read": read, "latency": latency}
    print(json.dumps(measurements[sys.argv[1]](*sys.argv[2:])))
