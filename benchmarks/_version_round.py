"""One measurement of the version of Ottla that PYTHONPATH names, for ``versions.py``: prints its figures as JSON.

python benchmarks/_version_round.py broker               (prints its address, and its figures when stdin ends)
python benchmarks/_version_round.py read SERVERS TOPIC RECORDS
python benchmarks/_version_round.py latency SERVERS TOPIC
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable

begun = time.perf_counter()

from ottla import Broker, Consumer  # noqa: E402 - the import is measured

IMPORTED = time.perf_counter() - begun
LATENCY_SECONDS = 6.0
INTERVAL = 0.005
"""Seconds between two records whose latency is measured."""


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


def latency(servers: str, topic: str) -> dict[str, object]:
    """The seconds from ``produce()`` of another client to the record in the application."""
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
    stopped = threading.Event()

    def produce() -> None:
        while not stopped.wait(INTERVAL):
            producer.produce(topic, repr(time.perf_counter()).encode())
            producer.poll(0)

    found: list[float] = []
    with Consumer(bootstrap_servers=servers, group_id="latency", group_protocol="classic", auto_offset_reset="latest") as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.2)
        consumer.poll(0.5)
        producing = threading.Thread(target=produce)
        producing.start()
        end = time.monotonic() + LATENCY_SECONDS
        while time.monotonic() < end:
            found += [time.perf_counter() - float(record.value or b"") for record in consumer.poll(0.5)]
        stopped.set()
        producing.join()
        producer.flush(10)
    settled = found[len(found) // 20 :]
    return {"median": statistics.median(settled), "99 %": statistics.quantiles(settled, n=100)[-1]}


if __name__ == "__main__":
    measurements: dict[str, Callable[..., dict[str, object]]] = {"broker": broker, "read": read, "latency": latency}
    print(json.dumps(measurements[sys.argv[1]](*sys.argv[2:])))
