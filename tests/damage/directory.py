"""The data directory that is damaged: what is written to it, once, and the ways in which the broker ends.

Owns its topics and groups. Must not know faults. Invariant: each run builds the same directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.broker.log import PartitionLog
from ottla.broker.resources import AlterConfigOp, ResourceType, alter
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_request
from ottla.records import NewRecord, encode_batch, read_header
from ottla.runtime.log_files import PartitionFolder
from ottla.simulation.clock import START
from ottla.types import Now
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.transactional import Producer

HIGH_WATERMARK_CHECKPOINT = ("closed", "killed", "swapping")
"""How the broker ended: cleanly, with kill -9, or with kill -9 while compaction replaced segments."""

SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 1,
    "log.retention.check.interval.ms": 60_000,
    "log.cleaner.backoff.ms": 60_000,
    "log.cleaner.min.cleanable.ratio": 0,
    "log.index.interval.bytes": 100,
}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
MINUTE = 60_000
RETENTION = 20 * MINUTE
TOPICS = {
    "plain": (2, {"retention.ms": "-1"}),
    "expiring": (1, {"retention.ms": str(RETENTION)}),
    "trimmed": (1, {"retention.ms": "-1"}),
    "compacted": (1, COMPACT),
    "former": (1, COMPACT),
    "t": (1, {"retention.ms": "-1"}),
}
INTERNAL = {"__consumer_offsets": 2, "__transaction_state": 1}
PARTITIONS = [(name, number) for name, (count, _) in TOPICS.items() for number in range(count)]
ALL = [*PARTITIONS, *((name, number) for name, count in INTERNAL.items() for number in range(count))]
GROUPS = [f"group-{number}" for number in range(5)]
TRANSACTIONAL = ["tx-a", "tx-b", "tx-c"]
_SEGMENT = 600


class Whole(NamedTuple):
    """An undamaged directory: what is in its files, which folders there are, and when its broker ended."""

    ended: str
    files: dict[str, bytes]
    now: Now

    def write(self, path: Path) -> None:
        """Write it."""
        for folder in sorted({name.rpartition("/")[0] for name in self.files}):
            (path / folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (path / name).write_bytes(content)


def build(path: Path, ended: str) -> Whole:
    """Let a broker make the directory at ``path``, and end."""
    broker = CoreUnderTest(path, durable=False, **SETTINGS)
    _make_topics(broker)
    _write_plain(broker)
    _write_keys(broker)
    producers = _write_transactions(broker)
    _commit(broker, range(16))
    with _no_swap() if ended == "swapping" else _nothing():
        _pass(broker, 3)
        _change_policy(broker)
        _write_keys(broker)
        if ended == "swapping":
            _pass(broker, 2)
    _append(broker, "plain", 0, [(b"late", b"%d" % number, START.wall) for number in range(3)])
    _commit(broker, range(16, 22))
    producers[2].write(count=2)
    producers[2].commit_offset(77)
    broker.run_jobs()
    if ended == "closed":
        broker.close()
    else:
        broker.kill()
    files = {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}
    return Whole(ended, files, broker.now)


def _make_topics(broker: CoreUnderTest) -> None:
    core = broker.core
    for name, (partitions, configs) in TOPICS.items():
        core.catalog.create_topic(name, partitions, {"index.interval.bytes": "100", **configs})
    for name in INTERNAL:
        core.catalog.get_or_create_topic(name)
    for row, (name, number) in enumerate(ALL):
        # Offsets of their own: a segment of another partition is never mistaken for one's own.
        core.catalog.log(name, number).start_offset = 1000 * row
        _small(core.catalog.log(name, number))


def _small(log: PartitionLog) -> None:
    """Segments smaller than settings allow."""
    log.config = replace(log.config, segment_bytes=_SEGMENT * (3 if log.topic_partition.topic in INTERNAL else 1))


def _append(broker: CoreUnderTest, topic: str, partition: int, rows: list[tuple[bytes | None, bytes | None, int]]) -> None:
    data = encode_batch([NewRecord(key, value, timestamp=stamp) for key, value, stamp in rows])
    broker.core.catalog.append(broker.core.catalog.log(topic, partition), data, read_header(data), broker.now)
    broker.run_jobs()


def _write_plain(broker: CoreUnderTest) -> None:
    for topic, count in (("plain", 15), ("expiring", 15), ("trimmed", 15)):
        for number in range(count):
            # Records come a little out of order; those of ``expiring`` expire from the first minutes of a round on.
            stamp = START.wall - RETENTION + 5 * MINUTE + number * 40_000 - (number % 3) * 1000
            rows = [(b"k%d" % row, b"%s %d %d" % (topic.encode(), number, row) * 2, stamp + row) for row in range(1 + number % 3)]
            _append(broker, topic, 0, rows)
    for number in range(6):
        _append(broker, "plain", 1, [(None, b"x" * 70, START.wall + number)])
    log = broker.core.catalog.log("trimmed", 0)
    broker.core.catalog.delete_records(log, log.segments[1].base_offset + 2)
    broker.core.catalog.logs.checkpoint_starts()()


def _write_keys(broker: CoreUnderTest) -> None:
    for topic in ("compacted", "former"):
        for number in range(14):
            key = b"key %d" % (number * 7 % 5)
            value = None if number % 11 == 5 else b"%s %d" % (topic.encode(), number) * 3
            _append(
                broker,
                topic,
                0,
                [(key, value, START.wall + number), (b"other %d" % number, b"v" * 9, START.wall)][: 1 + number % 2],
            )


def _write_transactions(broker: CoreUnderTest) -> list[Producer]:
    producers = [Producer(broker, name, timeout_ms=15 * MINUTE) for name in TRANSACTIONAL]
    for producer in producers:
        producer.init()
    for number in range(12):
        producer = producers[number % 3]
        producer.write(count=1 + number % 2)
        if number % 2:
            producers[(number + 1) % 3].write()
        if number % 4 == 0:
            producer.write(topic="compacted")
        producer.commit_offset(100 + number)
        producer.end(commit=number % 3 != 1)
        broker.run_jobs()
    for producer in producers:
        producer.end(commit=producer.transactional_id != "tx-b")
    return producers


def _commit(broker: CoreUnderTest, numbers: range) -> None:
    for number in numbers:
        for group in GROUPS[number % 3 :: 3]:
            part = offset_commit_request.OffsetCommitRequestPartition(
                partition_index=number % 2, committed_offset=number, committed_metadata=""
            )
            topic = offset_commit_request.OffsetCommitRequestTopic(name="plain", partitions=(part,))
            broker.ask(
                Api.OFFSET_COMMIT,
                offset_commit_request.OffsetCommitRequest(group_id=group, member_id="", topics=(topic,)),
                version=9,
            )
            broker.run_jobs()


def _pass(broker: CoreUnderTest, minutes: int) -> None:
    for _ in range(minutes):
        broker.pass_time(MINUTE)
        broker.run_jobs()


def _change_policy(broker: CoreUnderTest) -> None:
    changes = [("cleanup.policy", AlterConfigOp.SET, "delete"), ("retention.ms", AlterConfigOp.SET, "-1")]
    alter(
        broker.core.catalog,
        ResourceType.TOPIC,
        "former",
        changes,
        broker.core.state.alter_settings,
        replacing=False,
        validate_only=False,
    )
    for name, number in ALL:
        _small(broker.core.catalog.log(name, number))


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _no_swap() -> Iterator[None]:
    """Compaction begins to replace segments, and goes no further."""

    def finish_swap(*_: object) -> None:
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionFolder, "finish_swap", finish_swap)
        yield
