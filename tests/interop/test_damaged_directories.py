"""Apache Kafka reads a directory that Ottla's broker has recovered from damage: ``DumpLogSegments``, and a node with its
partitions."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import confluent_kafka
import pytest

from tests.damage.directory import PARTITIONS
from tests.damage.faults import Fault, fault_of
from tests.damage.reading import Place, read_everything
from tests.damage.rounds import Rounds, restarted
from tests.interop.other_clients import create_topic
from tests.interop.real_kafka import KafkaTool, OwnKafka

pytestmark = pytest.mark.torture

DUMP = "org.apache.kafka.tools.DumpLogSegments"
REPAIRED = ("newest log", "index", "timeindex", "txnindex", "snapshot", "swap", "epochs")
"""Kinds of files that a start makes again, or cuts: nothing that is damaged is left in its place."""

EXCHANGED = {"plain": 2, "expiring": 1, "t": 1}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    return Rounds(tmp_path_factory.mktemp("damage"))


def faults(rounds: Rounds, count: int, kinds: tuple[str, ...]) -> list[Fault]:
    """The first rounds with these kinds of files, as different ones as there are."""
    found = [fault for number in range(1000) if (fault := fault_of(number, rounds.wholes)).kind in kinds]
    return sorted(found, key=lambda one: [each.kind for each in found[: found.index(one)]].count(one.kind))[:count]


def test_dump_log_segments_reads_what_is_left(rounds: Rounds, kafka_tool: KafkaTool, tmp_path: Path) -> None:
    for fault in faults(rounds, 14, REPAIRED):
        path = tmp_path / str(fault.number)
        assert not rounds.run(fault.number, keep=path)
        files = [
            one for suffix in ("log", "index", "timeindex") for one in sorted(path.glob(f"*/*.{suffix}")) if one.stat().st_size
        ]
        logs = [one for one in files if one.suffix == ".log"]
        printed = kafka_tool(DUMP, "--files", ",".join(map(str, logs)), "--deep-iteration")
        assert "isvalid: false" not in printed, fault
        assert "invalid bytes" not in printed, fault
        assert printed.count("isvalid: true") > 50, fault
        if fault.kind in ("index", "timeindex"):
            continue  # wrong entries that no reader has needed are still there: each is checked when it is used
        indexes = [one for one in files if one.suffix != ".log"]
        compared = kafka_tool(DUMP, "--files", ",".join(map(str, indexes))).lower()
        assert "mismatch" not in compared, fault
        assert "not found" not in compared, fault


def test_a_real_kafka_serves_what_is_left(rounds: Rounds, own_kafka: OwnKafka, tmp_path: Path) -> None:
    for topic, partitions in EXCHANGED.items():
        create_topic(own_kafka.address, topic, partitions, retention_ms="-1")
    for fault in faults(rounds, 3, ("newest log", "timeindex", "txnindex")):
        path = tmp_path / str(fault.number)
        assert not rounds.run(fault.number, keep=path)
        broker = restarted(path)
        served = read_everything(broker, 1 << 20)
        broker.close()
        own_kafka.end()
        for topic, number in PARTITIONS:
            if topic not in EXCHANGED:
                continue
            target = own_kafka.data / f"{topic}-{number}"
            metadata = (target / "partition.metadata").read_bytes()
            shutil.rmtree(target)
            shutil.copytree(path / target.name, target)
            (target / "partition.metadata").write_bytes(metadata)
        own_kafka.again()
        for topic, number in PARTITIONS:
            if topic in EXCHANGED:
                read = served.partitions[topic, number]
                expected = {offset: row.value for offset, row in read.rows(committed=True).items()}
                assert consumed(own_kafka.address, (topic, number), read.stable) == expected, (fault, topic, number)


def consumed(servers: str, place: Place, end: int) -> dict[int, bytes | None]:
    """What a consumer of committed records gets of a partition."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "reader",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = confluent_kafka.Consumer(settings)
    found: dict[int, bytes | None] = {}
    try:
        low, _ = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(*place), timeout=60)
        consumer.assign([confluent_kafka.TopicPartition(*place, low)])
        until = time.monotonic() + 60
        while time.monotonic() < until:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                break
            offset = message.offset()
            assert offset is not None
            assert offset < end
            found[offset] = message.value()
    finally:
        consumer.close()
    return found
