"""``ottla broker check`` on brokers' directories: it finds nothing without damage, and DumpLogSegments reads a repaired copy."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import confluent_kafka
import pytest

from ottla import Broker
from tests.end_to_end.programs import broker, ottla
from tests.interop.other_clients import MEMBER, PRODUCE, Row, closing_all, create_topic, poll_until
from tests.interop.real_kafka import KafkaTool, OwnKafka

DUMP = "org.apache.kafka.tools.DumpLogSegments"
NOW = time.time_ns() // 1_000_000
CLEANER = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0, "offsets.topic.num.partitions": 5}
SMALL = {"segment_bytes": "1048576", "index_interval_bytes": "4096", "min_cleanable_dirty_ratio": "0"}


def fill(servers: str) -> None:
    """Several segments, compacted ones, transactions that were committed, aborted and left open, and a group."""
    create_topic(servers, "plain", 2, **SMALL)
    rows: list[Row] = [(number % 2, b"%d" % number, b"%0100d" % number, NOW + number % 777, ()) for number in range(30_000)]
    PRODUCE["confluent"](servers, "plain", rows, enable_idempotence=True, batch_num_messages=50)
    create_topic(servers, "squeezed", 1, cleanup_policy="compact", **SMALL)
    rows = [(0, b"%d" % (number % 300), b"%0200d" % number, NOW + number % 100, ()) for number in range(15_000)]
    PRODUCE["confluent"](servers, "squeezed", rows, batch_num_messages=20)
    create_topic(servers, "transacted", 1, cleanup_policy="compact", **SMALL)
    for number in range(3):
        producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": f"tx-{number}"})
        producer.init_transactions()
        for turn in range(6):
            producer.begin_transaction()
            for key in range(300):
                producer.produce("transacted", key=b"%d" % key, value=b"%0500d" % turn)
            producer.flush()
            if turn % 2:
                producer.abort_transaction()
            elif turn < 4 or number:
                producer.commit_transaction()
            else:
                break
    members = [MEMBER["confluent"](servers, "plain", "checkers") for _ in range(2)]
    with closing_all(*members):
        poll_until(members, lambda: [len(one.assignment()) for one in members] == [1, 1])
        for member in members:
            member.poll(1.0)
            member.commit()


def checked(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ottla("broker", "check", "--data-dir", str(path), *arguments)


def flipped(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.interop
@pytest.mark.timeout(240)
def test_what_a_real_kafka_leaves_is_not_damage(own_kafka: OwnKafka, tmp_path: Path) -> None:
    fill(own_kafka.address)
    for number in range(2):  # as a kill leaves it; the second time after a recovery
        refused = checked(own_kafka.data)
        assert refused.returncode == 1
        assert "in use by a broker" in refused.stderr
        # Kafka renames .tmp files to its checkpoints: they may vanish before they are copied.
        shutil.copytree(own_kafka.data, killed := tmp_path / f"killed-{number}", ignore=shutil.ignore_patterns("*.tmp"))
        found = checked(killed)
        assert (found.returncode, found.stderr) == (0, ""), found.stdout + found.stderr
        assert "damage: " not in found.stdout
        own_kafka.end()
        found = checked(own_kafka.data)
        assert (found.returncode, found.stderr) == (0, ""), found.stdout + found.stderr
        own_kafka.again()


@pytest.mark.slow
def test_dump_log_segments_reads_a_repaired_copy(tmp_path: Path, kafka_tool: KafkaTool) -> None:
    path, copy = tmp_path / "data", tmp_path / "data.repaired"
    with Broker(path, settings=CLEANER) as running_broker:
        fill(running_broker.bootstrap_servers)
        time.sleep(0.5)  # some compaction
    shutil.copytree(path, killed := tmp_path / "killed")
    (killed / ".kafka_cleanshutdown").unlink()
    for one in (path, killed):
        found = checked(one)
        assert (found.returncode, found.stderr) == (0, ""), found.stdout + found.stderr
    logs = sorted((path / "plain-0").glob("*.log"))
    assert len(logs) > 1
    flipped(logs[0], 30_000)
    flipped(logs[0], 300_000)
    flipped(logs[-1], logs[-1].stat().st_size - 10)
    flipped(sorted((path / "plain-1").glob("*.log"))[0], 11)  # the length of a batch
    flipped(sorted((path / "transacted-0").glob("*.log"))[0], 100)
    flipped(sorted((path / "plain-1").glob("*.index"))[0], 100)
    found = checked(path)
    assert found.returncode == 1
    assert found.stdout.count("damage: ") == 6
    assert checked(path, "--repair").returncode == 0
    found = checked(copy)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout + found.stderr
    files = [
        file for file in copy.glob("*/*") if file.suffix in (".log", ".index", ".timeindex", ".txnindex") and file.stat().st_size
    ]
    printed = kafka_tool(DUMP, "--files", ",".join(map(str, files)), "--deep-iteration")
    for complaint in ("isvalid: false", "invalid bytes", "mismatch", "not found", "out of order", "xception"):
        assert complaint not in printed.lower(), complaint
    compacted = [f"Non-consecutive offsets in {file}" for file in copy.glob("[st_]*/*.log")]
    for line in printed.splitlines():
        assert "Non-consecutive" not in line or line.startswith(tuple(compacted)), line
    sane = kafka_tool(DUMP, "--files", ",".join(str(file) for file in files if "index" in file.suffix), "--index-sanity-check")
    assert "exception" not in sane.lower()
    with broker("--data-dir", str(copy)) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1] == "", "the start has nothing to say"
