"""A broker in a separate process, and a writer that keeps what the broker has acknowledged.

Must not know how the process ends.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.interop.other_clients import LIBRDKAFKA_PATIENT, Message, read_all

PATIENCE = 60.0
"""Seconds."""
PROGRAM = """
import json, sys
from ottla import Broker
broker = Broker(sys.argv[1], port=int(sys.argv[2]), settings=json.loads(sys.argv[3]))
print(broker.bootstrap_servers, flush=True)
sys.stdin.read()
broker.close()
"""


@contextmanager
def broker_process(
    folder: Path,
    port: int = 0,
    file_size: int | None = None,
    descriptors: int | None = None,
    settings: Mapping[str, int] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker in a separate process; closing its stdin ends it well. ``file_size``: no file may be larger (bytes);
    ``descriptors``: so many files may be open."""

    def limit() -> None:
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    command = [sys.executable, "-c", PROGRAM, str(folder), str(port), json.dumps(dict(settings or {}))]
    with (folder.parent / f"{folder.name}.errors").open("a") as errors:  # a pipe that no one reads would hold it up
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=limit
        )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


class Writer:
    """Produces numbered records without end and keeps those that were acknowledged, by number."""

    def __init__(self, servers: str, topic: str, **config: Any) -> None:
        settings = {"bootstrap.servers": servers, "linger.ms": 1, **LIBRDKAFKA_PATIENT}
        self._producer = confluent_kafka.Producer({**settings, **{name.replace("_", "."): value for name, value in config.items()}})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failed: list[confluent_kafka.KafkaError] = []

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def go_on(self, count: int = 1) -> None:
        """Wait until so many records more are acknowledged."""
        wanted, end = len(self.acknowledged) + count, time.monotonic() + PATIENCE
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < end, f"{len(self.acknowledged)} of {wanted} were acknowledged within {PATIENCE} s"
            time.sleep(0.01)

    def stop(self) -> None:
        """Produce no more, and wait for what is on its way."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(PATIENCE)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, b"%d" % number, partition=number % 2, on_delivery=self._note)
                number += 1
            except BufferError:
                pass
            self._producer.poll(0.0 if number % 100 else 0.005)

    def _note(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged[int(message.value())] = (message.partition(), message.offset())


def stored(found: list[Message]) -> dict[int, tuple[int, int]]:
    """What a topic holds, by number."""
    return {int(one.value or b"-1"): (one.partition, one.offset) for one in found}


def everything(servers: str, topic: str) -> list[Message]:
    """All records of a topic of two partitions."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": f"all-{random.random()}"})
    ends = [consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), 60)[1] for partition in (0, 1)]
    consumer.close()
    return read_all(servers, topic, "confluent", sum(ends), group=f"all-{random.random()}", seconds=100)
