"""Each file operation of a broker fails once, in one run each; afterwards the broker works as before.

A run without failures counts the operations of appends, rolls, retention, compaction, checkpoints, deletions and coordinators; each
further run fails one of them, or three in a row, as a disk that is full for a moment.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.log import PartitionLog
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    delete_records_request,
    delete_topics_request,
    fetch_request,
    offset_commit_request,
    offset_fetch_request,
    produce_request,
)
from ottla.records import NewRecord, encode_batch, iter_headers, iter_records
from ottla.types import TopicPartition
from tests.simulation.broker import CoreUnderTest
from tests.simulation.disk import FailingDisk, on_disk
from tests.simulation.files import content
from tests.unit.broker.transactional import Producer, make_topic

pytestmark = pytest.mark.long

OK = ErrorCode.none
FLUSH_MESSAGES = 3
RETENTION = 9_000
DELETED = 2
"""Where ``steady`` begins when its first records have been deleted."""
SETTINGS: dict[str, Any] = {
    "log.retention.check.interval.ms": 10_000,
    "log.flush.offset.checkpoint.interval.ms": 10_000,
    "log.cleaner.backoff.ms": 5_000,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
ROLLING = {"segment.ms": "1", "file.delete.delay.ms": "1000"}
TOPICS: dict[str, dict[str, str]] = {
    "aging": {"retention.ms": str(RETENTION), **ROLLING},
    "steady": ROLLING,
    "compact": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", **ROLLING},
    "careful": {"flush.messages": str(FLUSH_MESSAGES), **ROLLING},
    "doomed": ROLLING,
    "t": ROLLING,  # where the transactional producer writes
}


class Story:
    """A broker, a workload, and the acknowledged records."""

    def __init__(self, path: Path, disk: FailingDisk) -> None:
        self.path, self.disk = path, disk
        self.broker = CoreUnderTest(path, **SETTINGS)
        for name, configs in TOPICS.items():
            make_topic(self.broker, name, 1, **configs)
        self.acknowledged: dict[str, dict[int, bytes]] = {name: {} for name in TOPICS}
        self.written: dict[int, int] = {}
        """When what was acknowledged in ``aging`` was written."""
        self.refused = 0
        self.committed = -1
        self.round = 0
        self.visible: set[int] = set()
        self.hidden: set[int] = set()
        self.producer = Producer(self.broker)

    # What happens.

    def prepare(self) -> None:
        """Make topics and producers, before anything fails."""
        for _ in range(2):
            self.play_round()
        self.pass_time(5_000)

    def go_through(self) -> None:
        """Run all kinds of work that use files."""
        self.play_round()
        self.delete_topic("doomed")
        self.play_round()
        self.delete_records("steady", DELETED)
        self.pass_time(6_000)

    def go_on(self) -> None:
        """Continue until all periodic work has run again."""
        for _ in range(3):
            self.play_round()
        self.pass_time(15_000)

    def play_round(self) -> None:
        """Produce to each topic, commit for a group, end a transaction, and let time pass."""
        self.round += 1
        self.produce_all()
        self.commit(self.round)
        self.transact(commit=self.round % 2 == 0)
        self.pass_time(3_000)

    def pass_time(self, duration: int) -> None:
        """Let time pass and run jobs as they become due, as the disk thread does."""
        for _ in range(duration // 500):
            self.broker.run_jobs()
            self.broker.pass_time(500)
        self.broker.run_jobs()

    def produce_all(self) -> None:
        """Produce to all topics in one request: an error of one topic does not affect the others."""
        names = [name for name in TOPICS if name != "t" and self.broker.core.catalog.topics.get(name) is not None]
        values = {name: b"%s-%d" % (name.encode(), self.round) for name in names}
        now = self.broker.now.wall
        data = {name: encode_batch([NewRecord(b"k%d" % (self.round % 2), values[name], timestamp=now)]) for name in names}
        request = produce_request.ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=1),
            topic_data=tuple(
                produce_request.TopicProduceData(
                    name=name, partition_data=(produce_request.PartitionProduceData(index=0, records=data[name]),)
                )
                for name in names
            ),
        )
        for topic in self.broker.ask(Api.PRODUCE, request, version=11).responses:
            (answer,) = topic.partition_responses
            if answer.error_code is OK:
                self.acknowledged[topic.name][answer.base_offset] = values[topic.name]
                self.check_flushed(topic.name)
                if topic.name == "aging":
                    self.written[answer.base_offset] = now
            else:
                assert answer.error_code is ErrorCode.kafka_storage_error
                self.refused += 1

    def commit(self, offset: int) -> None:
        """Commit for a group without members."""
        partition = offset_commit_request.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = offset_commit_request.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=(offset_commit_request.OffsetCommitRequestTopic(name="steady", partitions=(partition,)),),
        )
        code = self.broker.ask(Api.OFFSET_COMMIT, request, version=9).topics[0].partitions[0].error_code
        if code is OK:
            self.committed = offset
        else:
            self.refused += 1

    def transact(self, *, commit: bool) -> None:
        """Produce one record in a transaction, with the retries of a client."""
        if self.producer.producer_id < 0:
            self.insist(self.producer.init)
        log = self.log("t")
        self.insist(self.producer.write)
        (self.visible if commit else self.hidden).add(log.end_offset - 1)
        self.insist(lambda: self.producer.end(commit=commit))

    def insist(self, ask: Any) -> None:
        """Repeat a request until it succeeds."""
        for _ in range(10):
            if ask() is OK:
                return
            self.refused += 1
            self.pass_time(500)
        raise AssertionError("it never works again")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and create it again."""
        wanted = delete_topics_request.DeleteTopicState(name=name, topic_id=None)
        request = delete_topics_request.DeleteTopicsRequest(topics=(wanted,), timeout=timedelta(seconds=1))

        def ask() -> ErrorCode:
            return ErrorCode(self.broker.ask(Api.DELETE_TOPICS, request).responses[0].error_code)

        def create() -> ErrorCode:
            try:
                make_topic(self.broker, name, 1, **TOPICS[name])
            except AssertionError:
                return ErrorCode.kafka_storage_error
            return OK

        self.insist(ask)
        self.acknowledged[name].clear()
        self.insist(create)

    def delete_records(self, name: str, before: int) -> None:
        """Delete the first records of a topic."""
        partition = delete_records_request.DeleteRecordsPartition(partition_index=0, offset=before)
        topic = delete_records_request.DeleteRecordsTopic(name=name, partitions=(partition,))
        request = delete_records_request.DeleteRecordsRequest(topics=(topic,), timeout=timedelta(seconds=1))
        self.insist(lambda: ErrorCode(self.broker.ask(Api.DELETE_RECORDS, request).topics[0].partitions[0].error_code))
        for offset in [offset for offset in self.acknowledged[name] if offset < before]:
            del self.acknowledged[name][offset]

    def restart(self, *, clean: bool) -> None:
        """Stop the broker, cleanly or not, and start it again."""
        if clean:
            self.broker.close()
        else:
            self.broker.kill()
        self.broker = self.producer.broker = CoreUnderTest(self.path, self.broker.now, **SETTINGS)
        self.broker.store.remove_leftovers()()

    # What has to hold.

    def log(self, name: str) -> PartitionLog:
        return self.broker.core.catalog.log(name, 0)

    def check_flushed(self, name: str) -> None:
        """Check that fewer than ``flush.messages`` acknowledged records are not on disk."""
        if name != "careful":
            return
        log = self.log(name)
        with self.disk.looking_away():
            for segment in log.segments:
                size = on_disk(self.disk, self.path / "careful-0", segment.base_offset)
                lost = [header for position, header in segment.walk(0) if position + header.size > size]
                if lost:
                    assert log.end_offset - lost[0].base_offset < FLUSH_MESSAGES, "acknowledged, and not on disk"
                    return

    def check_kept(self) -> None:
        """Check that no acknowledged record is lost, and that no deleted record comes back."""
        for name in ("steady", "careful", "doomed"):
            assert self.records(name, self.log(name).start_offset).items() >= self.acknowledged[name].items(), name
        assert all(offset >= DELETED for offset in self.records("steady", self.log("steady").start_offset))
        latest = self.records("compact", 0)
        for parity in (0, 1):
            written = {offset: value for offset, value in self.acknowledged["compact"].items() if value[-1] % 2 == parity}
            assert latest[max(written)] == written[max(written)]
        aging = self.log("aging")
        kept = {offset: value for offset, value in self.acknowledged["aging"].items() if offset >= aging.start_offset}
        assert self.records("aging", aging.start_offset).items() >= kept.items()
        assert set(self.records("t", 0, committed=True)) == self.visible
        assert self.committed_offset() == self.committed

    def check_tidy(self) -> None:
        """Check that retention, compaction, sealing and removal have caught up."""
        aging = self.log("aging")
        ages = {offset: self.broker.now.wall - written for offset, written in self.written.items()}
        assert all(offset >= aging.start_offset for offset, age in ages.items() if age < RETENTION)
        late = RETENTION + int(str(SETTINGS["log.retention.check.interval.ms"]))
        assert all(offset < aging.start_offset for offset, age in ages.items() if age > late), "retention works"
        compact = self.log("compact")
        assert compact.first_dirty_offset == compact.segments[-1].base_offset, "compaction works"
        assert len(self.records("compact", 0)) <= 4
        for log in self.broker.core.catalog.logs:
            assert log.recovery_point >= log.segments[-1].base_offset, log
            assert (log.pending_deletes, log.swap) == ([], None)
            folder = self.path / f"{log.topic_partition.topic}-0"
            names = {path.name for path in folder.iterdir()}
            assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".swap"))]
            assert sorted(int(name[:20]) for name in names if name.endswith(".log")) == [one.base_offset for one in log.segments]
        points = self.broker.store.read_checkpoint("recovery-point-offset-checkpoint")
        for name in ("steady", "careful", "compact"):
            assert points[TopicPartition(name, 0)] >= self.log(name).segments[-2].base_offset

    def records(self, name: str, offset: int, *, committed: bool = False) -> dict[int, bytes]:
        """The records that a consumer reads of a topic, from ``offset`` on."""
        found: dict[int, bytes] = {}
        aborting: set[int] = set()
        while True:
            answer = self.fetch(name, offset, committed=committed)
            assert answer.error_code is OK, (name, offset, answer.error_code)
            data = content(answer.records) if len(answer.records) else b""
            if not data:
                return found
            aborted = sorted(answer.aborted_transactions or (), key=lambda one: one.first_offset)
            for position, header in iter_headers(data):
                while aborted and aborted[0].first_offset <= header.last_offset:
                    aborting.add(aborted.pop(0).producer_id)
                if header.is_control:
                    aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    batch = data[position : position + header.size]
                    found |= {record.offset: bytes(record.value or b"") for record in iter_records(batch)}
                offset = header.next_offset

    def fetch(self, name: str, offset: int, *, committed: bool) -> Any:
        wanted = fetch_request.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = fetch_request.FetchRequest(
            max_wait=timedelta(0),
            min_bytes=0,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            topics=(fetch_request.FetchTopic(topic=name, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        return self.broker.ask(Api.FETCH, request, version=12).responses[0].partitions[0]

    def committed_offset(self) -> int:
        topic = offset_fetch_request.OffsetFetchRequestTopics(name="steady", partition_indexes=(0,))
        group = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=(topic,))
        request = offset_fetch_request.OffsetFetchRequest(groups=(group,), require_stable=False)
        answer = self.broker.ask(Api.OFFSET_FETCH, request, version=9).groups[0].topics[0].partitions[0]
        return int(answer.committed_offset)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingDisk]:
    disk = FailingDisk()
    disk.install(monkeypatch.setattr)
    yield disk
    monkeypatch.undo()


def operations(path: Path, disk: FailingDisk) -> int:
    """The number of file operations of a run without failures."""
    story = Story(path, disk)
    story.prepare()
    expired, compacted = story.log("aging").start_offset, story.log("compact").first_dirty_offset
    with disk.watching():
        story.go_through()
    count = disk.count
    assert story.log("aging").start_offset > expired, "the story contains no retention"
    assert story.log("compact").first_dirty_offset > compacted, "the story contains no compaction"
    assert story.refused == 0
    story.go_on()
    story.check_kept()
    story.check_tidy()
    story.broker.kill()
    return count


def run(path: Path, disk: FailingDisk, failing: range, *, killed: bool) -> None:
    """Fail some operations, and check that the broker recovers, with or without a restart."""
    story = Story(path, disk)
    story.prepare()
    with disk.watching(failing):
        story.go_through()
    assert story.refused <= 2 * len(failing)
    if killed:
        story.restart(clean=False)
        story.check_kept()
    before = story.refused
    story.go_on()
    assert story.refused == before, "no request is refused any more"
    story.check_kept()
    story.check_tidy()
    for clean in (True, False):
        story.restart(clean=clean)
        story.check_kept()
    story.broker.kill()


def sweep(path: Path, disk: FailingDisk, every: int, first: int, width: int) -> None:
    """Fail ``width`` operations in a row, beginning at each ``every``-th."""
    count = operations(path / "sound", disk)
    for number in range(first, count, every):
        try:
            run(path / str(number), disk, range(number, number + width), killed=number % 2 == 0)
        except BaseException as error:
            error.add_note(f"what failed, from operation {number} of {count}: {disk.failed}")
            raise
        shutil.rmtree(path / str(number))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "first", "every"), [(1, 5, 13), (3, 17, 37)])
def test_the_broker_recovers_from_a_failed_operation(tmp_path: Path, disk: FailingDisk, width: int, first: int, every: int) -> None:
    sweep(tmp_path, disk, every, first, width)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))
def test_the_broker_recovers_from_each_failed_operation(tmp_path: Path, disk: FailingDisk, first: int) -> None:
    sweep(tmp_path, disk, 4, first, 1)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2))
def test_the_broker_recovers_from_a_disk_that_fails_briefly(tmp_path: Path, disk: FailingDisk, first: int) -> None:
    sweep(tmp_path, disk, 6, first, 3)
