"""The time from sending a single record to its acknowledgement, and the memory of a producer whose broker is gone.

Each client is used idiomatically: Ottla with ``send(...).result()``, confluent-kafka with ``poll()`` until the callback has run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from _cluster import TOOLS
from _nodes import OttlaNode
from _wire import Api, Lane

VALUE, KEY = bytes(100), b"12345678"

GONE = """
import json, os, signal, sys, time
from pathlib import Path
from ottla import Producer
from ottla.errors import OttlaTimeoutError

def resident(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)) * 1024

value = bytes(100)
producer = Producer(bootstrap_servers=sys.argv[1], max_block=2, delivery_timeout=60, request_timeout=30)
producer.send("gone", value).result()
before = resident("VmRSS")
os.kill(int(sys.argv[2]), signal.SIGKILL)
sent = 0
try:
    while True:
        producer.send("gone", value, b"%08d" % sent)
        sent += 1
except OttlaTimeoutError:
    print(json.dumps({"grown": resident("VmHWM") - before, "records": sent}), flush=True)
os._exit(0)
"""
"""A program that sends to a broker that it kills, until no memory is free. Kafka's default of ``buffer.memory`` is 32 MiB."""


class Waits(NamedTuple):
    """Milliseconds from sending to the acknowledgement, the median and the 99th percentile."""

    median: float
    p99: float


Single = Callable[[], object]
"""Sends one record and waits for its acknowledgement."""


@contextmanager
def ottla(servers: str, topic: str) -> Iterator[Single]:
    """``send(...).result()`` without linger."""
    from ottla import Producer

    with Producer(bootstrap_servers=servers, linger=0) as producer:
        yield lambda: producer.send(topic, VALUE, KEY).result()


@contextmanager
def confluent(servers: str, topic: str) -> Iterator[Single]:
    """``produce`` and ``poll`` without linger."""
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": "all", "enable.idempotence": True})
    done: list[Any] = []

    def single() -> None:
        producer.produce(topic, VALUE, KEY, on_delivery=lambda error, message: done.append(error))
        while not done:
            producer.poll(1.0)
        assert done.pop() is None

    yield single
    assert producer.flush(30) == 0


@contextmanager
def two_threads(servers: str, topic: str) -> Iterator[Single]:
    """A ready-made request with one record, handed to a second Python thread, and the bytes of its response handed back.

    Neither is encoded, decoded or looked at: a producer with two threads cannot be faster.
    """
    from ottla.records.encode import encode_batch

    api, lane = Api("produce", 9), Lane(servers)
    batch = encode_batch([(KEY, VALUE, (), 1_700_000_000_000)], base_offset=0)
    data = (api.requests.PartitionProduceData(index=0, records=batch),)
    topics = (api.requests.TopicProduceData(name=topic, partition_data=data),)
    request = api.request(1, transactional_id=None, acks=-1, timeout=timedelta(minutes=1), topic_data=topics)
    asked: SimpleQueue[bytes | None] = SimpleQueue()
    answered: SimpleQueue[bytes] = SimpleQueue()

    def work() -> None:
        while (frame := asked.get()) is not None:
            lane.sock.sendall(frame)
            answered.put(lane.frame())

    thread = threading.Thread(target=work)
    thread.start()

    def single() -> None:
        asked.put(request)
        answered.get()

    yield single
    asked.put(None)
    thread.join()
    lane.sock.close()


def waits(client: Callable[[str, str], Any], servers: str, topic: str, rate: int, seconds: float) -> Waits:
    """Send records at a rate, one after the other, and return the times until they were acknowledged."""
    found: list[float] = []
    with client(servers, topic) as single:
        for _ in range(20):
            single()
        began = time.perf_counter()
        for number in range(round(rate * seconds)):
            while (left := began + number / rate - time.perf_counter()) > 0:
                time.sleep(left)
            sent = time.perf_counter()
            single()
            found.append((time.perf_counter() - sent) * 1000)
    return Waits(statistics.median(found), statistics.quantiles(found, n=100)[98])


def growth() -> tuple[int, int]:
    """Return the bytes by which the memory of a process grows that sends to a broker that is gone, and its records."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=TOOLS.parent) as folder, closing(OttlaNode(Path(folder), 0)) as node:
        command = [sys.executable, "-c", GONE, node.servers, str(node.pid)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found["grown"], found["records"]


def imported() -> tuple[float, int]:
    """Return the seconds that ``import ottla`` takes in a fresh process, and the modules of the producer that it loads."""
    program = (
        "import json, sys, time; began = time.perf_counter(); import ottla; took = time.perf_counter() - began;"
        "print(json.dumps([took, sum('produce' in name for name in sys.modules if name.startswith('ottla'))]))"
    )
    took, modules = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    return took, modules
