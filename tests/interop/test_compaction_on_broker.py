"""Compaction by Ottla's broker: other consumers read through gaps, DumpLogSegments reads the segments, groups keep their state."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from ottla import Broker
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_request, offset_fetch_request
from tests.interop.other_clients import MEMBER, PRODUCE, Row, closing_all, create_topic, poll_until
from tests.interop.real_kafka import KafkaTool
from tests.raw_client import RawClient

DUMP = "org.apache.kafka.tools.DumpLogSegments"
KEYS, RECORDS, PARTITIONS = 300, 24_000, 40
CODECS = ("gzip", "snappy", "lz4", "zstd")
NOW = time.time_ns() // 1_000_000
SETTINGS = {
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.min.cleanable.ratio": 0,
    "offsets.topic.segment.bytes": 1 << 20,
    "offsets.topic.num.partitions": 1,
    "log.segment.delete.delay.ms": 0,
}


def commit(servers: str, group: str, times: int) -> None:
    """Commit offsets of many partitions over and over, as one who is no member."""
    with RawClient(servers) as client:
        for number in range(times):
            partitions = tuple(
                offset_commit_request.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=number, committed_metadata="m" * 50
                )
                for partition in range(PARTITIONS)
            )
            topic = offset_commit_request.OffsetCommitRequestTopic(name="counted", partitions=partitions)
            message = offset_commit_request.OffsetCommitRequest(group_id=group, member_id="", topics=(topic,))
            answer = client.ask(Api.OFFSET_COMMIT, message, 9)
            assert {one.error_code for topic in answer.topics for one in topic.partitions} == {0}


def committed(servers: str, group: str) -> dict[int, int]:
    """What a group has committed."""
    wanted = offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=None)
    with RawClient(servers) as client:
        deadline = time.monotonic() + 60
        while True:
            (found,) = client.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=(wanted,)), 9).groups
            if found.error_code == 0 or time.monotonic() > deadline:
                return {one.partition_index: one.committed_offset for topic in found.topics for one in topic.partitions}


def expected() -> dict[bytes, bytes]:
    """The last value of each key that has one: every tenth ends with a tombstone."""
    values = {b"key-%d" % (number % KEYS): b"%0200d" % number for number in range(RECORDS)}
    return {key: value for key, value in values.items() if int(key[4:]) % 10}


def read(servers: str) -> dict[bytes, Any]:
    """What a consumer that reads ``latest`` from its beginning to its end knows of each key."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition("latest", 0, 0)])
    known: dict[bytes, Any] = {}
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return known
            known[message.key()] = message.value()
    finally:
        consumer.close()


def wait_until_compacted(folder: Path, *names: str) -> None:
    """Wait until of each log everything but the newest segment was compacted."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        checkpoint = folder / "cleaner-offset-checkpoint"
        points = {f"{row.split()[0]}-{row.split()[1]}": int(row.split()[2]) for row in _rows(checkpoint)}
        newest = {name: max(int(path.stem) for path in (folder / name).glob("*.log")) for name in names}
        if all(points.get(name) == newest[name] for name in names):
            return
        time.sleep(0.05)
    raise AssertionError(f"not compacted in time: {points}, {newest}")


def _rows(checkpoint: Path) -> list[str]:
    return checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[int, int]]]:
    """The data directory of a broker that runs, after compaction, and what a group has committed."""
    folder = tmp_path_factory.mktemp("compacted")
    with Broker(folder, settings=SETTINGS) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "latest", 1, cleanup_policy="compact", segment_bytes="1048576")
        create_topic(servers, "counted", PARTITIONS)
        rows: list[Row] = [(0, b"key-%d" % (number % KEYS), b"%0200d" % number, NOW, ()) for number in range(RECORDS)]
        PRODUCE["confluent"](servers, "latest", rows, enable_idempotence=True, compression_codec="lz4", batch_num_messages=200)
        tombstones: list[Row] = [(0, b"key-%d" % number, None, NOW, ()) for number in range(0, KEYS, 10)]
        PRODUCE["confluent"](servers, "latest", tombstones)
        for codec in CODECS:
            create_topic(servers, codec, 1, compression_type=codec)
            PRODUCE["confluent"](servers, codec, [(0, None, b"%0100d" % number, NOW, ()) for number in range(100)])
        aborted = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "never"})
        aborted.init_transactions(20)
        aborted.begin_transaction()
        for number in range(KEYS):
            aborted.produce("latest", b"aborted", b"key-%d" % number, 0)
        aborted.flush(60)
        aborted.abort_transaction(20)
        filler: list[Row] = [(0, b"filler", b"x" * 20_000, NOW, ()) for _ in range(120)]
        PRODUCE["confluent"](servers, "latest", filler)
        member = MEMBER["confluent"](servers, "latest", "living")
        with closing_all(member):
            poll_until([member], lambda: member.assignment() == {0})
            commit(servers, "many", 400)
            wait_until_compacted(folder, "latest-0", "__consumer_offsets-0")
            assert read(servers).keys() >= expected().keys(), "while it is served"
            yield folder, committed(servers, "many")


def test_a_consumer_finds_the_last_value_of_each_key(compacted: tuple[Path, dict[int, int]], tmp_path: Path) -> None:
    folder, before = compacted
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    size = sum(path.stat().st_size for path in (copy / "latest-0").glob("*.log"))
    assert size < 4 << 20, "most of it is gone"
    with Broker(copy, settings=SETTINGS) as broker:
        known = read(broker.bootstrap_servers)
        known.pop(b"filler")
        assert {key: value for key, value in known.items() if value is not None} == expected()
        assert committed(broker.bootstrap_servers, "many") == before == dict.fromkeys(range(PARTITIONS), 399)


def test_dump_log_segments_reads_it(compacted: tuple[Path, dict[int, int]], kafka_tool: KafkaTool) -> None:
    folder, _ = compacted
    logs = sorted((folder / "latest-0").glob("*.log"))
    printed = kafka_tool(DUMP, "--files", ",".join(map(str, logs)), "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in printed
    assert "invalid bytes" not in printed
    last: dict[str, str] = {}
    for key, value in re.findall(r"key: (key-\d+) payload: (0\d{199})$", printed, re.MULTILINE):
        last[key] = value
    assert {key.encode(): value.encode() for key, value in last.items()}.items() >= expected().items()
    assert len(re.findall(r"payload: 0\d{199}$", printed, re.MULTILINE)) < 3 * KEYS + RECORDS // 4
    indexes = sorted([*(folder / "latest-0").glob("*.index"), *(folder / "latest-0").glob("*.timeindex")])
    sane = kafka_tool(DUMP, "--files", ",".join(str(path) for path in indexes if path.stat().st_size), "--index-sanity-check")
    assert "passed sanity check" in sane
    assert "rror" not in sane


def test_dump_log_segments_reads_each_codec_of_ours(compacted: tuple[Path, dict[int, int]], kafka_tool: KafkaTool) -> None:
    folder, _ = compacted
    logs = [folder / f"{codec}-0" / f"{0:020d}.log" for codec in CODECS]
    printed = kafka_tool(DUMP, "--files", ",".join(map(str, logs)), "--deep-iteration", "--print-data-log")
    assert set(re.findall(r"compresscodec: (\w+)", printed)) == set(CODECS)
    assert len(re.findall(r"payload: 0\d{99}$", printed, re.MULTILINE)) == 100 * len(CODECS)


def test_dump_log_segments_decodes_compacted_group_records(compacted: tuple[Path, dict[int, int]], kafka_tool: KafkaTool) -> None:
    folder, _ = compacted
    logs = sorted((folder / "__consumer_offsets-0").glob("*.log"))
    printed = kafka_tool(DUMP, "--files", ",".join(map(str, logs)), "--offsets-decoder", "--deep-iteration")
    assert "isvalid: false" not in printed
    of_group = [line for line in printed.splitlines() if '"group":"many"' in line]
    assert len({re.search(r'"partition":(\d+)', line).group(1) for line in of_group if '"partition"' in line}) == PARTITIONS
    assert len(of_group) < 400 * PARTITIONS // 2, "what was written over is gone"
