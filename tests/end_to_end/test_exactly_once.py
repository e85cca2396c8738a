"""Exactly-once processing: a worker and its broker are killed at random moments, and each record is written once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from ottla import Consumer, TopicPartition as OurPartition
from tests.end_to_end.broker_process import PROGRAM, broker_process
from tests.interop.other_clients import PRODUCE, Row, create_topic

GROUP = "workers"
NOW = time.time_ns() // 1_000_000
RECORDS_A_KILL = 2_500
"""As many as keep the worker busy between two kills."""
WORKER = """
import random, sys
import confluent_kafka as ck

servers, seed = sys.argv[1:]
chance = random.Random(int(seed))
common = {"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 200, "metadata.recovery.strategy": "none"}
producer = ck.Producer({**common, "transactional.id": "worker", "transaction.timeout.ms": 20000, "linger.ms": 1})
producer.init_transactions(30)
settings = {"group.id": "workers", "isolation.level": "read_committed", "enable.auto.commit": False}
consumer = ck.Consumer({**common, **settings, "auto.offset.reset": "earliest"})
partitions = [ck.TopicPartition("in", number) for number in range(2)]
consumer.assign(consumer.committed(partitions, timeout=30))
print("working", flush=True)
while True:
    messages = consumer.consume(chance.randint(1, 100), 0.1)
    if not messages:
        continue
    producer.begin_transaction()
    reached = {}
    for message in messages:
        assert message.error() is None, message.error()
        while True:
            try:
                producer.produce("out", message.value(), partition=message.partition())
                break
            except BufferError:
                producer.poll(0.1)
        reached[message.partition()] = message.offset() + 1
    offsets = [ck.TopicPartition("in", number, offset) for number, offset in reached.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
    if chance.random() < 0.02:
        producer.abort_transaction(30)
        sys.exit("something went wrong")
    producer.commit_transaction(30)
"""
"""Any error ends it, and the test starts another one, as a supervisor does in production. For the
reason of ``metadata.recovery.strategy`` see ``LIBRDKAFKA_PATIENT``."""


class Worker:
    """The process of ``WORKER``, which ``watch`` restarts whenever it has ended."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers, self._errors = servers, folder / "worker.errors"
        self.starts = 0
        self._start()

    def _start(self) -> None:
        self.starts += 1
        with self._errors.open("a") as errors:
            command = [sys.executable, "-c", WORKER, self._servers, str(self.starts)]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)

    def watch(self, seconds: float) -> None:
        """Wait, and restart the worker whenever it ends."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self.process.wait(min(left, 0.2))
            except subprocess.TimeoutExpired:
                continue
            self._start()

    def kill(self) -> None:
        """Kill the worker with SIGKILL."""
        self.process.kill()
        self.process.wait()


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in (0, 1)]


def ends(consumer: confluent_kafka.Consumer, topic: str) -> list[int]:
    return [consumer.get_watermark_offsets(one, 20)[1] for one in partitions_of(topic)]


def committed_by_confluent(servers: str, topic: str) -> list[list[bytes]]:
    """The values of a topic's committed records by partition, read by librdkafka."""
    settings = {"group.id": "checker", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in (0, 1)])
    found: list[list[bytes]] = [[], []]
    at_end: set[int] = set()
    while len(at_end) < 2:
        message = consumer.poll(20)
        assert message is not None, "nothing came for 20 s"
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            at_end.add(message.partition())
        else:
            found[message.partition()].append(message.value())
    consumer.close()
    return found


def committed_by_ours(servers: str, topic: str, counts: list[int]) -> list[list[bytes]]:
    """The values of a topic's committed records by partition, read by a ``Consumer``."""
    found: list[list[bytes]] = [[], []]
    with Consumer(bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([OurPartition(topic, number) for number in (0, 1)])
        quiet = 0
        while quiet < 3:  # surplus records would arrive now
            records = consumer.poll(1.0)
            quiet = quiet + 1 if not len(records) and [len(one) for one in found] == counts else 0
            for record in records:
                found[record.partition].append(record.value or b"")
    return found


def _all_processed(servers: str) -> bool:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": GROUP, "log_level": 0})
    try:
        return [one.offset for one in consumer.committed(partitions_of("in"), 2)] == ends(consumer, "in")
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() == confluent_kafka.KafkaError._TIMED_OUT:
            return False  # a transaction is open, until a worker ends it
        raise
    finally:
        consumer.close()


def _run(folder: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    data = folder / "data"
    with broker_process(data) as (broker, servers):
        port = int(servers.rsplit(":", 1)[1])
        create_topic(servers, "in", 2)
        create_topic(servers, "out", 2, segment_bytes="1048576")
        rows: list[Row] = [(number % 2, None, b"%d" % number, NOW + number, ()) for number in range(RECORDS_A_KILL * kills)]
        PRODUCE["confluent"](servers, "in", rows, enable_idempotence=True)
        worker = Worker(servers, folder)
        process = broker
        try:
            for _ in range(kills):
                worker.watch(rng.uniform(0.2, 1.5))
                if rng.random() < 0.5:
                    worker.kill()
                else:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                    process = _restarted(data, port)
            deadline = time.monotonic() + 120
            worker.watch(0.5)  # the open transaction of a killed worker is aborted when the next worker starts
            while not _all_processed(servers):
                assert time.monotonic() < deadline, (folder / "worker.errors").read_text()[-3000:]
                worker.watch(0.5)
            worker.kill()
            _check(servers, len(rows))
        finally:
            worker.kill()
            process.kill()
            process.communicate()


def _restarted(data: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(data), str(port), "{}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip().endswith(str(port))
    return process


def _check(servers: str, count: int) -> None:
    read = committed_by_confluent(servers, "in")
    written = committed_by_confluent(servers, "out")
    assert sum(map(len, read)) == count
    twice = [value for value, count in Counter(value for one in written for value in one).items() if count > 1]
    assert not twice, f"{len(twice)} records were written twice"
    assert written == read, "each record once, in the order of its partition"
    assert committed_by_ours(servers, "out", [len(one) for one in written]) == written


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_record_is_written_once_despite_kills(tmp_path: Path) -> None:
    _run(tmp_path, kills=4, seed=1)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_each_record_is_written_once_despite_many_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, kills=40, seed=seed)
