"""Kafka's DumpLogSegments reads the files of Ottla's broker: segments, indexes, producer snapshots, group records."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from ottla import Broker, Consumer
from tests.interop.other_clients import MEMBER, PRODUCE, Row, closing_all, create_topic, poll_until
from tests.interop.real_kafka import KafkaTool

DUMP = "org.apache.kafka.tools.DumpLogSegments"
NOW = time.time_ns() // 1_000_000
RECORDS = 30_000


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker leaves after real clients have written several segments and shared a group."""
    folder = tmp_path_factory.mktemp("dumped")
    with Broker(folder) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "dumped", 2, segment_bytes="1048576", index_interval_bytes="4096")
        rows: list[Row] = [
            (index % 2, b"key-%d" % index, b"%0100d" % index, NOW + index % 1000, (("origin", b"test"),) if index % 5 == 0 else ())
            for index in range(RECORDS)
        ]
        PRODUCE["confluent"](servers, "dumped", rows, enable_idempotence=True, batch_num_messages=50)
        create_topic(servers, "squeezed", 1)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            PRODUCE["confluent"](servers, "squeezed", [(0, None, b"x" * 100, NOW, ())] * 100, compression_codec=codec)
        create_topic(servers, "stamped", 1, message_timestamp_type="LogAppendTime")
        PRODUCE["confluent"](servers, "stamped", [(0, None, b"x", 5, ())] * 10)
        members = [MEMBER["confluent"](servers, "dumped", "dumpers") for _ in range(2)]
        with closing_all(*members):
            poll_until(members, lambda: [len(one.assignment()) for one in members] == [1, 1])
            for member in members:
                member.poll(1.0)
                member.commit()
    assert len(list(folder.glob("dumped-0/*.log"))) >= 2, "there are sealed segments"
    return folder


def _segments(folder: Path, suffix: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"*/*.{suffix}") if path.stat().st_size)


def _dump(kafka_tool: KafkaTool, paths: list[Path], *flags: str) -> str:
    return kafka_tool(DUMP, "--files", ",".join(map(str, paths)), *flags)


def test_every_batch_and_record_is_valid(data_dir: Path, kafka_tool: KafkaTool) -> None:
    printed = _dump(kafka_tool, _segments(data_dir, "log"), "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in printed
    assert "invalid bytes" not in printed
    assert printed.count("isvalid: true") > RECORDS / 50
    values = re.findall(r"payload: (0\d{99})$", printed, re.MULTILINE)
    assert sorted(map(int, values)) == list(range(RECORDS))
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in printed
    assert "LogAppendTime" in printed


def test_every_index_is_sane_and_matches_its_log(data_dir: Path, kafka_tool: KafkaTool) -> None:
    indexes, times = _segments(data_dir, "index"), _segments(data_dir, "timeindex")
    assert indexes
    assert times
    sane = _dump(kafka_tool, [*indexes, *times], "--index-sanity-check")
    assert sane.count("passed sanity check") == len(indexes) + len(times)
    compared = _dump(kafka_tool, [*indexes, *times])
    assert "mismatch" not in compared.lower()
    assert "not found" not in compared.lower()
    assert "out of order" not in compared.lower()
    assert compared.count("offset: ") > 100


def test_producer_snapshots_are_read(data_dir: Path, kafka_tool: KafkaTool) -> None:
    snapshots = sorted(data_dir.glob("dumped-*/*.snapshot"))
    printed = _dump(kafka_tool, snapshots)
    assert printed.count("producerId: ") >= 2
    assert "rror" not in printed


def test_group_records_are_decoded(data_dir: Path, kafka_tool: KafkaTool) -> None:
    logs = sorted(path for path in data_dir.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    assert len(logs) == 1, "one group lives in one partition"
    printed = _dump(kafka_tool, logs, "--offsets-decoder", "--deep-iteration")
    assert "isvalid: false" not in printed
    keys = re.findall(r"key: (\{.*?\}) payload: ", printed)
    assert len(keys) >= 4
    assert all('"dumpers"' in key for key in keys)
    assert '"topic":"dumped"' in printed
    assert '"protocolType":"consumer"' in printed
    assert "baseSequence: 0" in printed, "as Kafka's coordinator writes its batches"


def test_what_a_killed_broker_left_is_valid_too(data_dir: Path, kafka_tool: KafkaTool, tmp_path: Path) -> None:
    """Indexes that recovery recreated are those that DumpLogSegments expects."""
    copy = tmp_path / "killed"
    shutil.copytree(data_dir, copy)
    (copy / ".kafka_cleanshutdown").unlink()
    for path in copy.glob("recovery-point-offset-checkpoint*"):
        path.unlink()
    for path in [*copy.glob("*/*index"), *copy.glob("*/*.snapshot")]:
        path.unlink()
    with Broker(copy):
        pass
    paths = [*_segments(copy, "index"), *_segments(copy, "timeindex")]
    assert [path.relative_to(copy) for path in paths] == [
        path.relative_to(data_dir) for path in [*_segments(data_dir, "index"), *_segments(data_dir, "timeindex")]
    ]
    assert [path.read_bytes() for path in paths] == [(data_dir / path.relative_to(copy)).read_bytes() for path in paths]
    printed = _dump(kafka_tool, paths)
    assert "mismatch" not in printed.lower()


def test_members_that_assign_themselves_are_decoded_without_what_kafka_does_not_know(kafka_tool: KafkaTool, tmp_path: Path) -> None:
    """The assignors that a member can run are in a tagged field of its record."""
    with Broker(tmp_path, settings={"group.consumer.client.assignors.enable": True}) as broker:
        create_topic(broker.bootstrap_servers, "assigned", 2)
        settings = {"group_id": "assigners", "group_protocol": "consumer", "group_client_assignors": ["sticky", "range"]}
        with Consumer(bootstrap_servers=broker.bootstrap_servers, **settings) as consumer:
            consumer.subscribe(["assigned"])
            until = time.monotonic() + 60
            while len(consumer.assignment()) < 2:
                consumer.poll(timeout=0.2)
                assert time.monotonic() < until
            assert consumer.health().assignor == "sticky"
    logs = sorted(path for path in tmp_path.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    assert b"sticky" in b"".join(path.read_bytes() for path in logs)
    printed = _dump(kafka_tool, logs, "--offsets-decoder", "--deep-iteration")
    assert "isvalid: false" not in printed
    assert "rror" not in printed
    assert '"subscribedTopicNames":["assigned"]' in printed
    assert printed.count('"memberId"') >= 3
