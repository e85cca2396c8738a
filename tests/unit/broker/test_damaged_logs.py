"""A broker on a data directory with damaged logs: each fault costs what it hit, and is reported."""

from __future__ import annotations

import errno
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.log_manager import VERIFY_TIMESTAMPS
from ottla.coordinator.effects import ApiError
from ottla.errors import StorageError
from ottla.protocol import ErrorCode
from ottla.records import NewRecord, encode_batch, iter_headers, read_header
from ottla.simulation.clock import START
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.damage import ALL, BATCHES, bases, filled, flipped, with_bad_sector
from tests.unit.broker.transactional import Producer, make_topic, read

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_that_is_gone_does_not_bring_the_offsets_back_to_zero(tmp_path: Path, clean: bool) -> None:
    """A group at the end would miss as many new records as it has read."""
    broker = filled(tmp_path, "t")
    broker.pass_time(120_000)  # the checkpoints are written
    broker.run_jobs()
    broker.close() if clean else broker.kill()
    for one in (tmp_path / "t-0").iterdir():
        one.unlink()
    (tmp_path / "t-0").rmdir()
    for number in range(3):
        again = CoreUnderTest(tmp_path)
        log = again.core.catalog.log("t", 0)
        assert bool(again.warnings) is (number == 0)
        assert (log.start_offset, log.end_offset) == (24, 24)
        assert log.leader_epochs.current == 1 << 16
        again.close() if number == 1 else again.kill()
    broker = CoreUnderTest(tmp_path)
    data = encode_batch([NewRecord(None, b"new")])
    broker.core.catalog.append(broker.core.catalog.log("t", 0), data, read_header(data), broker.now)
    assert bases(broker, "t") == [24]
    broker.close()


@pytest.mark.parametrize("growing", [False, True])
def test_a_new_topic_without_records_does_not_begin_where_a_deleted_one_of_its_name_ended(tmp_path: Path, growing: bool) -> None:
    """After a kill the checkpoints decide whether a folder is missing, and they do not know ids of topics."""
    broker = CoreUnderTest(tmp_path)
    topic = broker.core.catalog.create_topic("t", 2, {})
    data = encode_batch([NewRecord(None, b"old")])
    for partition in range(2):
        broker.core.catalog.append(broker.core.catalog.log("t", partition), data, read_header(data), broker.now)
    broker.pass_time(120_000)
    broker.run_jobs()
    broker.core.catalog.delete_topic(topic)
    broker.run_jobs()
    fresh = broker.core.catalog.create_topic("t", 1 if growing else 2, {})
    if growing:
        broker.core.catalog.replace_topic(replace(fresh, partition_count=2))
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert not again.warnings
    assert [again.core.catalog.log("t", partition).end_offset for partition in range(2)] == [0, 0]
    again.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("at", "bit", "what"),
    [
        (11, 6, "checksum"),
        (8, 0, "of which"),
        (16, 0, "magic byte 3"),
        (7, 0, "claims offset"),
        (80, 0, "checksum"),
        (0, 7, "batch at byte {} claims base offset -"),
    ],
)
def test_a_flipped_bit_in_a_sealed_segment_costs_one_batch(
    tmp_path: Path, clean: bool, at: int, bit: int, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = filled(tmp_path, "t")
    second = broker.core.catalog.log("t", 0).segments[1]
    hit = second.base_offset + 2
    position = second.locate(hit)
    assert position is not None
    broker.close() if clean else broker.kill()
    if not clean:
        for one in tmp_path.glob("recovery-point-offset-checkpoint*"):
            one.unlink()
    flipped(tmp_path / "t-0" / f"{second.base_offset:020d}.log", position + at, bit)
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    refused = {}
    for offset in range(log.end_offset):
        try:
            assert log.read(offset, 1 << 20, at_least_one=True) is not None
        except ApiError as api_error:
            refused[offset] = api_error.code
    if clean and at == 80:
        assert not refused, "the checksum is the client's affair"
    else:
        assert refused == dict.fromkeys((hit, hit + 1), ErrorCode.corrupt_message)
    if not clean or at != 80:
        assert bases(again, "t") == [base for base in ALL if base != hit]
        place = f"t-0: {second.base_offset:020d}.log is damaged at byte {position}: "
        (line,) = {line for line in [*again.warnings, *caplog.messages] if line.startswith(place)}
        assert what.format(position) in line
    again.close()


def test_a_time_index_of_zeros_does_not_make_retention_delete_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, "t").close()
    for one in (tmp_path / "t-0").glob("*.timeindex"):
        one.write_bytes(struct.pack(">qi", 1, 1))
    again = CoreUnderTest(tmp_path, START)
    again.pass_time(10 * 60_000)
    again.run_jobs()
    assert bases(again, "t") == ALL
    again.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_index_entry_that_points_elsewhere_hides_no_offset(tmp_path: Path, clean: bool) -> None:
    broker = filled(tmp_path, "t", segment_bytes=2000)
    log = broker.core.catalog.log("t", 0)
    expected = [log.segments[0].locate(offset) for offset in range(log.segments[0].next_offset)]
    broker.close()
    index = tmp_path / "t-0" / f"{0:020d}.index"
    size = index.stat().st_size
    for at in range(0, size, 8):
        for byte, bit in ((3, 0), (3, 2), (7, 3), (6, 0)):
            content = bytearray(index.read_bytes())
            flipped(index, at + byte, bit)
            again = CoreUnderTest(tmp_path)
            log = again.core.catalog.log("t", 0)
            segment = log.segments[0]
            assert [segment.locate(offset) for offset in range(segment.next_offset)] == expected
            for offset in range(log.end_offset):
                assert log.read(offset, 300, at_least_one=True) is not None
            again.close()
            index.write_bytes(content)


def test_files_of_others_are_named_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, "t").close()
    others = [
        "t-0/5.log",
        "t-0/notes.deleted",
        "t-0/x.tmp",
        "t-0/²0000000000000000000.log",
        "photos-delete/1.jpg",
        "backup/0.log.deleted",
    ]
    others += ["t-0/0000000000000000005.log.swap", "t-0/a.cleaned"]
    for name in others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"mine")
    again = CoreUnderTest(tmp_path)
    again.store.remove_leftovers()()
    again.core.catalog.log("t", 0).files.remove_deleted()()
    (line,) = [warning for warning in again.warnings if "not the broker's" in warning]
    for name in others:
        assert (tmp_path / name).read_bytes() == b"mine"
        if name.startswith("t-0/"):
            assert ascii(name.removeprefix("t-0/")) in line
    assert "'backup', 'photos-delete' in" in caplog.text
    assert bases(again, "t") == ALL
    again.close()


@pytest.mark.parametrize("at", [11, 16, 40, 80])
def test_compaction_drops_nothing_behind_damage(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    broker = filled(tmp_path, "t", **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    log = broker.core.catalog.log("t", 0)
    before = {path.name: path.stat().st_size for path in (tmp_path / "t-0").glob("*.log")}
    second = log.segments[1]
    hit = second.base_offset + 2
    position = second.locate(hit)
    assert position is not None
    flipped(tmp_path / "t-0" / f"{second.base_offset:020d}.log", position + at)
    broker.pass_time(5 * 60_000)
    broker.run_jobs()
    broker.pass_time(5 * 60_000)
    broker.run_jobs()
    assert {path.name: path.stat().st_size for path in (tmp_path / "t-0").glob("*.log")} == before
    assert f"t-0 is not compacted any more: {second.base_offset:020d}.log is damaged at byte" in caplog.text
    assert bases(broker, "t") == [base for base in ALL if base != hit]
    broker.close()
    again = CoreUnderTest(tmp_path)
    assert again.core.catalog.log("t", 0).end_offset == 24
    again.close()


@pytest.mark.parametrize("bit", [0, 1, 3])
def test_a_flipped_bit_in_the_first_magic_byte_is_damage_and_no_older_format(
    tmp_path: Path, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, "t", **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}).close()
    flipped(tmp_path / "t-0" / f"{0:020d}.log", 16, bit)
    again = CoreUnderTest(tmp_path)
    for _ in range(3):
        again.pass_time(5 * 60_000)
        again.run_jobs()
    first, second = caplog.messages
    name, magic = f"{0:020d}.log", 2 ^ 1 << bit
    assert first == f"t-0 is not compacted any more: {name} is damaged: magic byte {magic} instead of 2 at byte 0"
    assert second.startswith(f"t-0: {name} is damaged at byte 0: magic byte {magic} instead of 2 (")
    assert bases(again, "t") == ALL[1:]
    again.close()


def test_an_index_that_leads_to_the_middle_of_a_batch_is_not_taken_for_an_older_format(tmp_path: Path) -> None:
    filled(tmp_path, "t", segment_bytes=2000).close()
    first = tmp_path / "t-0" / f"{0:020d}.log"
    index = first.with_suffix(".index")
    content = first.read_bytes()
    wrong = next(at for at in range(1, len(content)) if content[at + 16] == 0)
    index.write_bytes(index.read_bytes()[:-4] + wrong.to_bytes(4, "big"))
    again = CoreUnderTest(tmp_path)
    reason = f"magic byte 0 instead of 2 at byte {wrong}"
    assert again.warnings == [f"t-0: the indexes of {first.name} were rebuilt from its batches: {reason}"]
    again.close()


def test_retention_reads_the_batches_before_it_drops_a_segment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, "t", **{"retention.ms": str(3_600_000)}).close()
    for one in sorted((tmp_path / "t-0").glob("*.timeindex"))[:2]:
        content = one.read_bytes()
        one.write_bytes(struct.pack(">q", 1) + content[8:12])
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    for segment in log.segments[:2]:  # as if the start had believed the files
        segment.max_timestamp, segment.is_max_timestamp_from_file = 1, True
    again.pass_time(10 * 60_000)
    again.run_jobs()
    assert bases(again, "t") == ALL
    assert "00000000000000000000.timeindex is damaged: it says 1 for the largest timestamp" in caplog.text
    again.pass_time(3_600_000)
    again.run_jobs()
    assert bases(again, "t") == [], "and then it does"
    again.close()


@pytest.mark.parametrize("clean", [True, False])
def test_retention_keeps_damaged_batches_for_as_long_as_they_may_be_fresh(tmp_path: Path, clean: bool) -> None:
    """Nothing says how old they are but the time when the file was last written to."""
    broker = filled(tmp_path, "t", **{"retention.ms": "3600000"})
    broker.close() if clean else broker.kill()
    first, second, *_ = sorted((tmp_path / "t-0").glob("*.log"))
    flipped(first, read_header(first.read_bytes()).size + 16)
    for one in (first, second):
        written = START.wall // 1000 + 2 * 3600
        os.utime(one, (written, written))
    again = CoreUnderTest(tmp_path)
    again.pass_time(2 * 3_600_000)
    again.run_jobs()
    log = again.core.catalog.log("t", 0)
    assert log.start_offset == 0
    assert log.is_damaged
    again.pass_time(2 * 3_600_000)
    again.run_jobs()
    assert log.start_offset == log.end_offset
    again.close()


def test_a_timestamp_that_only_an_index_has_does_not_hide_the_largest(tmp_path: Path) -> None:
    filled(tmp_path, "t").close()
    for one in sorted((tmp_path / "t-0").glob("*.timeindex"))[:2]:
        one.write_bytes(struct.pack(">qi", START.wall + (1 << 40), 1))
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    expected = log.end_offset - 2, START.wall + BATCHES - 1
    for segment in log.segments[:2]:  # a start looks at the last batches only, and here that is enough
        segment.max_timestamp, segment.is_max_timestamp_from_file = START.wall + (1 << 40), True
    assert log.find_max_timestamp() == expected
    again.close()


def test_records_that_arrive_while_retention_reads_a_log_are_kept(tmp_path: Path) -> None:
    """All of a log is older than its retention when a producer goes on."""
    filled(tmp_path, "t", segment_bytes=1 << 20, **{"retention.ms": "3600000"}).close()
    again = CoreUnderTest(tmp_path)
    again.pass_time(3_600_000 + 10 * 60_000)
    (check,) = [job for job in again.jobs if job.tag[0] == VERIFY_TIMESTAMPS]
    again.jobs.remove(check)
    outcome = check.job()
    data = encode_batch([NewRecord(b"new", b"v", timestamp=again.now.wall)])
    again.core.catalog.append(again.core.catalog.log("t", 0), data, read_header(data), again.now)
    again.take(again.core.on_job(check.tag, outcome, again.now))
    assert bases(again, "t") == [*ALL, 24]
    again.close()


def test_a_segment_that_cannot_be_read_keeps_no_other_from_being_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, "t", **{"retention.ms": "3600000"}).close()
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    _, second, third, *_ = (segment.base_offset for segment in log.segments)
    with monkeypatch.context() as patch:
        with_bad_sector(patch, tmp_path / "t-0" / f"{second:020d}.log", 100)
        for _ in range(2):
            again.pass_time(2 * 3_600_000)
            again.run_jobs()
        assert log.start_offset == second
        log.config = replace(log.config, retention_bytes=sum(segment.size for segment in log.segments[1:]))
        again.pass_time(3_600_000)
        again.run_jobs()
    assert log.start_offset >= third
    again.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_unreadable_sector_takes_one_partition_offline(tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file would end the process with SIGBUS."""
    broker = filled(tmp_path, "bad", "good")
    broker.close() if clean else broker.kill()
    for one in tmp_path.glob("recovery-point-offset-checkpoint*"):
        one.unlink()
    real = os.pread

    def pread(fd: int, size: int, position: int) -> bytes:
        if "bad-0" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        again = CoreUnderTest(tmp_path)
        with pytest.raises(ApiError, match=r"bad-0 is offline .*Input/output error at byte \d+.*bad-0/0+\.log"):
            again.core.catalog.log("bad", 0)
        assert bases(again, "good") == ALL
        again.close()
    again = CoreUnderTest(tmp_path)
    assert bases(again, "bad") == ALL
    again.close()


UNREADABLE = Path("/proc/self/mem")
"""A file that can be opened, and of which each read fails with EIO."""


@pytest.mark.skipif(not UNREADABLE.exists(), reason="there is no file here of which each read fails")
@pytest.mark.parametrize("name", [f"{0:020d}.index", f"{0:020d}.timeindex", "leader-epoch-checkpoint", "partition.metadata"])
def test_a_small_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    filled(tmp_path, "t", "good").close()
    path = tmp_path / "t-0" / name
    path.unlink()
    path.symlink_to(UNREADABLE)
    again = CoreUnderTest(tmp_path)
    (line,) = again.warnings
    said = "t-0 is offline until the next start, since its files cannot be read: "
    assert re.fullmatch(rf"{said}\[Errno \d+\] [\w/ ]+: '{path}'", line)
    assert bases(again, "good") == ALL
    again.close()


@pytest.mark.skipif(not UNREADABLE.exists(), reason="there is no file here of which each read fails")
@pytest.mark.parametrize("name", ["meta.properties", "topics.json"])
def test_a_start_that_is_refused_names_the_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    filled(tmp_path, "t").close()
    path = tmp_path / name
    path.unlink()
    path.symlink_to(UNREADABLE)
    with pytest.raises(StorageError, match=rf"Input/output error: '{path}'"):
        CoreUnderTest(tmp_path)


@pytest.mark.skipif(not UNREADABLE.exists(), reason="there is no file here of which each read fails")
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, "t").close()
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.unlink()
    path.symlink_to(UNREADABLE)
    again = CoreUnderTest(tmp_path)
    assert f"{path} cannot be read: Input/output error: its copy is used" in caplog.messages
    again.close()


@pytest.mark.parametrize("at", [0, 20, 80])
def test_a_start_takes_a_bad_sector_for_neither_an_end_nor_damage(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = filled(tmp_path, "t")
    segments = broker.core.catalog.log("t", 0).segments
    places = [(one.base_offset, one.locate(one.base_offset + 2)) for one in (segments[1], segments[-1])]
    broker.kill()
    for one in tmp_path.glob("recovery-point-offset-checkpoint*"):
        one.unlink()
    for base, position in places:
        assert position is not None
        path = tmp_path / "t-0" / f"{base:020d}.log"
        with monkeypatch.context() as patch:
            with_bad_sector(patch, path, position + at)
            again = CoreUnderTest(tmp_path)
            with pytest.raises(ApiError, match=rf"t-0 is offline .*Input/output error at byte {position + at}: '{path}'"):
                again.core.catalog.log("t", 0)
            again.kill()
    again = CoreUnderTest(tmp_path)
    assert bases(again, "t") == ALL
    again.close()


@pytest.mark.parametrize(("at", "lost"), [(20, [12, 13, 14]), (80, [12, 13])], ids=["in a header", "in records"])
def test_what_is_before_and_behind_a_bad_sector_is_read(
    tmp_path: Path, at: int, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a header that cannot be read, the next entry of the index leads to where it goes on."""
    broker = filled(tmp_path, "t", segment_bytes=1 << 20)
    log = broker.core.catalog.log("t", 0)
    position = log.segments[0].locate(12)
    assert position is not None
    with_bad_sector(monkeypatch, tmp_path / "t-0" / f"{0:020d}.log", position + at)
    found: list[int] = []
    refused: dict[int, ErrorCode] = {}
    offset = 0
    while offset < log.end_offset:
        try:
            data = log.read(offset, 1 << 20, at_least_one=True)
        except ApiError as api_error:
            refused[offset] = api_error.code
            offset += 1
        else:
            assert isinstance(data, bytes)
            headers = [header for _, header in iter_headers(data)]
            found += [header.base_offset for header in headers]
            offset = headers[-1].next_offset
    assert refused == dict.fromkeys(lost, ErrorCode.kafka_storage_error)
    assert sorted({*found, 12}) == ALL
    broker.close()


def test_a_roll_costs_the_same_however_many_segments_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = filled(tmp_path, "t", segment_bytes=100)
    log = broker.core.catalog.log("t", 0)
    assert len(log.segments) == BATCHES

    def listed(path: object) -> list[str]:
        raise AssertionError(f"{path} was listed")

    data = encode_batch([NewRecord(b"k", b"v" * 50, timestamp=START.wall)] * 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listed)
        broker.core.catalog.append(log, data, read_header(data), broker.now)
    assert len(log.segments) == BATCHES + 1
    broker.run_jobs()
    broker.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, 0.5, 0.9])
def test_what_a_middle_segment_has_lost_is_said(tmp_path: Path, left: float, clean: bool) -> None:
    broker = filled(tmp_path, "t")
    segments = broker.core.catalog.log("t", 0).segments
    second, third = segments[1], segments[2]
    broker.close() if clean else broker.kill()
    path = tmp_path / "t-0" / f"{second.base_offset:020d}.log"
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    for _ in range(2):  # it is not said once and then forgotten
        again = CoreUnderTest(tmp_path)
        missing = [base for base in ALL if base not in bases(again, "t")]
        assert missing
        assert all(second.base_offset <= base < third.base_offset for base in missing)
        lines = [line for line in again.warnings if line.startswith("t-0: ") and path.name in line]
        assert any(f"offsets {missing[0]} to {third.base_offset - 1}" in line for line in lines), lines
        assert again.core.catalog.log("t", 0).end_offset == 2 * BATCHES
        again.close() if clean else again.kill()


def test_a_list_of_aborted_transactions_that_is_lost_or_damaged_is_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = CoreUnderTest(tmp_path)
    make_topic(broker, partitions=1)
    producer = Producer(broker)
    producer.init()
    for commit in (False, True, False):
        assert producer.write() is ErrorCode.none
        assert producer.end(commit=commit) is ErrorCode.none
    assert read(broker) == [2]
    broker.close()
    path = tmp_path / "t-0" / f"{0:020d}.txnindex"
    content = path.read_bytes()
    for damaged in (None, b"", bytes(len(content)), content[:34], content[:9] + b"\x01" + content[10:]):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        again = CoreUnderTest(tmp_path)
        assert read(again) == [2]
        assert [line for line in again.warnings if line.startswith(f"t-0: {path.name} was missing or damaged: its copy is used")]
        again.close()
        assert path.read_bytes() == content
    copy = path.with_name(path.name + ".copy")
    flipped(copy, 40)
    again = CoreUnderTest(tmp_path)
    assert f"t-0: {copy.name} is damaged: whether {path.name} is intact cannot be checked" in again.warnings
    again.close()
    copy.unlink()  # a directory of an earlier release has none
    for _ in range(2):
        again = CoreUnderTest(tmp_path)
        assert not again.warnings
        assert read(again) == [2]
        again.close()
        assert copy.exists()


def test_a_lookup_by_time_passes_over_a_damaged_batch_and_what_was_deleted(tmp_path: Path) -> None:
    broker = filled(tmp_path, "t")
    broker.close()
    flipped(tmp_path / "t-0" / f"{0:020d}.log", 80)
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("t", 0)
    assert log.find_offset_by_timestamp(0) == (2, START.wall + 1)
    again.core.catalog.delete_records(log, 3)
    assert log.find_offset_by_timestamp(0) == (3, START.wall + 1), "the log begins in the middle of a batch"
    again.close()


def test_a_swap_that_is_not_of_its_segments_replaces_nothing(tmp_path: Path) -> None:
    filled(tmp_path, "t", **{"cleanup.policy": "compact"}).close()
    other = encode_batch([NewRecord(b"k", b"v")] * 2, base_offset=21)
    swap = tmp_path / "t-0" / f"{0:020d}.log.swap"
    for content in (other, b""):
        swap.write_bytes(content)
        swap.with_name(f"{0:020d}.timeindex.swap").write_bytes(struct.pack(">qi", START.wall, 1))
        again = CoreUnderTest(tmp_path)
        assert bases(again, "t") == ALL
        assert [line for line in again.warnings if line.startswith(f"t-0: {swap.name} is damaged: it ")]
        again.close()


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_swap_is_used_where_the_segment_that_it_replaces_has_lost_its_batches(tmp_path: Path, left: float) -> None:
    filled(tmp_path, "t", **{"cleanup.policy": "compact"}).close()
    first = tmp_path / "t-0" / f"{0:020d}.log"
    whole = first.read_bytes()
    first.with_name(first.name + ".swap").write_bytes(whole)
    first.write_bytes(whole[: int(len(whole) * left)])
    again = CoreUnderTest(tmp_path)
    assert bases(again, "t") == ALL
    assert not [line for line in again.warnings if "swap" in line]
    again.close()


def test_a_compaction_that_a_start_completes_leaves_gaps_that_are_not_called_missing(tmp_path: Path) -> None:
    filled(tmp_path, "t").close()
    first = tmp_path / "t-0" / f"{0:020d}.log"
    size = read_header(first.read_bytes()).size
    first.with_name(first.name + ".swap").write_bytes(first.read_bytes()[:size])
    for _ in range(2):
        again = CoreUnderTest(tmp_path)
        assert not [line for line in again.warnings if "are missing" in line]
        again.close()


def test_an_emptied_segment_of_a_compacted_log_is_said(tmp_path: Path) -> None:
    filled(tmp_path, "t", **{"cleanup.policy": "compact"}).close()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    again = CoreUnderTest(tmp_path)
    second = again.core.catalog.log("t", 0).segments[1].base_offset
    (line,) = [line for line in again.warnings if "may be missing" in line]
    assert line.startswith(f"t-0: the indexes of {0:020d}.log name offset ")
    assert line.endswith(f"and it ends at 0: offsets 0 to {second - 1} may be missing")
    again.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_emptied_folder_does_not_bring_the_offsets_back_to_zero(tmp_path: Path, clean: bool) -> None:
    broker = filled(tmp_path, "t")
    broker.pass_time(120_000)
    broker.run_jobs()
    broker.close() if clean else broker.kill()
    for one in (tmp_path / "t-0").iterdir():
        one.unlink()
    for number in range(3):
        again = CoreUnderTest(tmp_path)
        log = again.core.catalog.log("t", 0)
        assert bool([line for line in again.warnings if "but had ended at" in line]) is (number == 0)
        assert log.start_offset == log.end_offset > 0
        assert log.leader_epochs.current > 1 << 16
        again.kill()


def test_a_producer_snapshot_of_another_log_is_not_believed(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    make_topic(broker, partitions=2)
    producer = Producer(broker)
    producer.init()
    for _ in range(9):
        producer.write(0)
    producer.write(1)
    broker.close()
    other, own = (next((tmp_path / f"t-{number}").glob("*.snapshot")) for number in range(2))
    own.write_bytes(other.read_bytes())
    again = CoreUnderTest(tmp_path)
    assert f"t-1: {own.name} is damaged: the producers are those of the batches" in again.warnings
    log = again.core.catalog.log("t", 1)
    assert (log.last_stable_offset, log.end_offset) == (0, 1)
    again.close()


def test_a_newest_segment_that_begins_later_than_its_name_says_is_reported(tmp_path: Path) -> None:
    filled(tmp_path, "t").kill()
    newest = sorted((tmp_path / "t-0").glob("*.log"))[-1]
    content = newest.read_bytes()
    newest.write_bytes(content[read_header(content).size :])
    base = int(newest.name[:20])
    again = CoreUnderTest(tmp_path)
    assert f"t-0: offsets {base} to {base + 1} are missing before byte 0 of {newest.name}" in again.warnings
    again.close()
