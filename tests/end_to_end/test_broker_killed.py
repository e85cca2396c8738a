"""A broker that is killed at random moments under load, over and over: logs, compacted logs, offsets of groups (I28).

What was acknowledged is there; what was not is there whole or not at all, as each start finds out by checksum.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.end_to_end.broker_process import Writer, everything, stored
from tests.interop.other_clients import LIBRDKAFKA_PATIENT, create_topic
from tests.interop.real_kafka import free_port_pair

PROGRAM = """
import json, sys
from ottla import Broker
broker = Broker(sys.argv[1], port=int(sys.argv[2]), settings=json.loads(sys.argv[3]))
print(broker.bootstrap_servers, flush=True)
sys.stdin.read()
broker.close()
"""
SETTINGS = {
    "log.cleaner.backoff.ms": 20,
    "log.cleaner.min.cleanable.ratio": 0,
    "log.segment.bytes": 1 << 20,
    "log.segment.delete.delay.ms": 100,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.segment.bytes": 1 << 20,
}
KEYS = 40
PAYLOAD = b"-" * 1500


@contextmanager
def broker_process(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A broker in a separate process, listening; whatever happens, it does not outlive the test."""
    command = [sys.executable, "-c", PROGRAM, str(folder), str(port), json.dumps(SETTINGS)]
    with (folder.parent / f"{folder.name}.errors").open("a") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the broker started"
        yield process
    finally:
        process.kill()
        process.communicate()


class KeyedWriter:
    """Writes ever larger numbers to a few keys of a compacted topic, and keeps of each the last that was acknowledged."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "linger.ms": 1, "reconnect.backoff.max.ms": 100, **LIBRDKAFKA_PATIENT}
        )
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: dict[bytes, int] = {}
        self.written = 0

    def __enter__(self) -> KeyedWriter:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    self._topic, b"%d" % self.written + PAYLOAD, b"%d" % (self.written % KEYS), 0, on_delivery=self._note
                )
                self.written += 1
            except BufferError:
                pass
            self._producer.poll(0.0 if self.written % 20 else 0.01)

    def _note(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            key, value = message.key(), number_in(message.value())
            self.acknowledged[key] = max(value, self.acknowledged.get(key, -1))


class Committer:
    """Commits ever larger offsets for a group, and keeps the last that was acknowledged."""

    def __init__(self, servers: str, group: str) -> None:
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, **LIBRDKAFKA_PATIENT})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = -1
        self.tried = -1

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.tried += 1
            try:
                self._consumer.commit(offsets=[confluent_kafka.TopicPartition("kept", 0, self.tried)], asynchronous=False)
                self.acknowledged = self.tried
            except confluent_kafka.KafkaException:
                time.sleep(0.01)

    def committed(self) -> int:
        """What the broker says."""
        return int(self._consumer.committed([confluent_kafka.TopicPartition("kept", 0)], 30)[0].offset)

    def close(self) -> None:
        self._consumer.close()


def number_in(value: bytes) -> int:
    """The number that was written."""
    return int(value.rstrip(b"-"))


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_kills_at_random_moments_under_load(tmp_path: Path, rounds: int) -> None:
    folder, port = tmp_path / "data", free_port_pair()
    servers = f"127.0.0.1:{port}"
    moments = random.Random(rounds)
    with broker_process(folder, port):
        create_topic(servers, "kept", 2)
        create_topic(servers, "latest", 1, cleanup_policy="compact")
    writer = Writer(servers, "kept", enable_idempotence=True, reconnect_backoff_max_ms=100)
    keyed, committer = KeyedWriter(servers, "latest"), Committer(servers, "counting")
    with writer, keyed, committer:
        for _ in range(rounds):
            with broker_process(folder, port) as process:
                time.sleep(moments.uniform(0.05, 0.8))
                os.kill(process.pid, signal.SIGKILL)
        with broker_process(folder, port):
            writer.go_on()
            writer.stop()
            await_compaction(folder)  # of a long log it takes longer than the brokers lived, and begins when a segment is full
            committer.__exit__()
            keyed.__exit__()
            found = everything(servers, "kept")
            latest = last_values(servers)
            offset = committer.committed()
            committer.close()
    assert len(writer.acknowledged) > 100 * rounds
    held = stored(found)
    assert {number: held.get(number) for number in writer.acknowledged} == writer.acknowledged
    assert len(held) == len(found), "an idempotent producer's records are there once"
    assert not {key: number for key, number in keyed.acknowledged.items() if latest.get(key, -1) < number}
    assert max(latest.values()) < keyed.written
    assert committer.acknowledged <= offset <= committer.tried


def await_compaction(folder: Path) -> None:
    """Return when the compacted topic was compacted."""
    end = time.monotonic() + 120
    while "latest 0" not in (folder / "cleaner-offset-checkpoint").read_text():
        assert time.monotonic() < end, "nothing was compacted"
        time.sleep(0.1)


def last_values(servers: str) -> dict[bytes, int]:
    """The last number of each key, as a consumer reads them from the beginning."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "last", "enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition("latest", 0, 0)])
    known: dict[bytes, int] = {}
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return known
            known[message.key()] = number_in(message.value())
    finally:
        consumer.close()
