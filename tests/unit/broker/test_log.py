"""A partition's log: offsets, reads, rolls, retention, lookups by time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.log import PartitionLog
from ottla.coordinator.effects import ApiError
from ottla.records import iter_headers, verify_batch
from ottla.simulation.clock import START
from ottla.types import TimestampType, TopicPartition
from tests.simulation.files import content
from tests.unit.broker.harness import append, batch, header_of, open_log, reload, stored

HOUR = 3_600_000


def test_offsets_are_dense_and_only_two_fields_of_a_batch_change(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = [batch(3), batch(2), batch(5)]
    assert [append(log, one) for one in sent] == [0, 3, 5]
    assert (log.start_offset, log.end_offset, log.high_watermark) == (0, 10, 10)
    whole = (tmp_path / "t-0" / "00000000000000000000.log").read_bytes()
    for (position, header), one in zip(iter_headers(whole), sent, strict=True):
        assert header.leader_epoch == 0
        verify_batch(whole, position)
        assert whole[position + 16 : position + header.size] == one[16:]


def test_a_log_has_no_files_before_its_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.read(0, 100, at_least_one=True) is None
    assert not (tmp_path / "t-0").exists()
    append(log, batch())
    assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == [
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert (tmp_path / "t-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw\n"
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


@pytest.mark.parametrize("offset", [0, 1, 4, 5, 9])
def test_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    for _ in range(2):
        append(log, batch(5))
    found = log.read(offset, 1 << 20, at_least_one=True)
    headers = [header for _, header in iter_headers(content(found))]
    assert headers[0].base_offset == offset // 5 * 5
    assert headers[-1].last_offset == 9


def test_a_read_is_whole_batches_up_to_the_limit_but_at_least_one_if_asked(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        append(log, batch(2))
    size = header_of(batch(2)).size
    assert len(content(log.read(0, 3 * size + 1, at_least_one=False))) == 3 * size
    assert log.read(0, size - 1, at_least_one=False) is None
    assert len(content(log.read(0, size - 1, at_least_one=True))) == size
    assert log.read(8, 1 << 20, at_least_one=True) is None


def test_a_log_rolls_by_size_and_reads_go_on_across_segments(tmp_path: Path) -> None:
    size = header_of(batch(2)).size
    log = open_log(tmp_path, segment_bytes=2 * size)
    for _ in range(5):
        append(log, batch(2))
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8]
    assert [header.base_offset for header in stored(log)] == [0, 2, 4, 6, 8]
    assert header_of(content(log.read(5, 1 << 20, at_least_one=True))).base_offset == 4
    assert log.recovery_point == 8


def test_a_log_rolls_by_age_as_the_records_are_stamped(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=HOUR)
    for timestamp in (0, HOUR, HOUR + 1):
        append(log, batch(timestamp=START.wall + timestamp))
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_the_age_of_a_segment_counts_from_its_first_record_after_a_restart_too(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=HOUR, index_interval_bytes=0)
    for timestamp in (0, HOUR // 2, HOUR):
        append(log, batch(timestamp=START.wall + timestamp))
    log.seal().job()
    again, _ = reload(log, clean=True)
    append(again, batch(timestamp=START.wall + HOUR + 1))
    assert [segment.base_offset for segment in again.segments] == [0, 3]


def test_a_segment_that_begins_with_damage_is_followed_by_another(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=HOUR, index_interval_bytes=0)
    for _ in range(3):
        append(log, batch())
    log.seal().job()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[16] = 9
    path.write_bytes(damaged)
    again, _ = reload(log, clean=True)
    assert append(again, batch()) == 3
    assert [segment.base_offset for segment in again.segments] == [0, 3]


def test_jitter_takes_from_the_age_of_a_segment_always_the_same(tmp_path: Path) -> None:
    ages: list[Any] = []
    for folder in ("a", "a", "b"):
        log = open_log(tmp_path / f"{folder}-{len(ages)}", segment_ms=1_000, segment_jitter_ms=600)
        log.topic_partition = TopicPartition(folder, 0)
        append(log, batch(timestamp=START.wall))
        ages.append(next(age for age in range(2_000) if append(log, batch(timestamp=START.wall + age)) and len(log.segments) > 1))
    assert ages[0] == ages[1] != ages[2]
    assert all(400 < age <= 1_001 for age in ages)


def test_a_log_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=0, segment_index_bytes=16)
    for _ in range(7):
        append(log, batch())
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]


def test_what_a_roll_leaves_is_what_a_dump_expects(tmp_path: Path) -> None:
    size = header_of(batch(2)).size
    log = open_log(tmp_path, segment_bytes=3 * size, index_interval_bytes=size - 1)
    for number in range(4):
        append(log, batch(2, timestamp=START.wall + number, step=1))
    folder = tmp_path / "t-0"
    index = (folder / "00000000000000000000.index").read_bytes()
    times = (folder / "00000000000000000000.timeindex").read_bytes()
    # The first batch has no entry; an entry names the last offset of a batch and where the batch begins.
    entries = [tuple(int.from_bytes(index[at + 4 * part : at + 4 * part + 4]) for part in (0, 1)) for at in range(0, len(index), 8)]
    assert entries == [(3, size), (5, 2 * size)]
    stamps = [(int.from_bytes(times[at : at + 8]), int.from_bytes(times[at + 8 : at + 12])) for at in range(0, len(times), 12)]
    assert stamps == [(START.wall + 2, 3), (START.wall + 3, 5)]


def test_retention_by_time_drops_old_segments_and_keeps_the_offsets_going(tmp_path: Path) -> None:
    size = header_of(batch(2)).size
    log = open_log(tmp_path, segment_bytes=size, retention_ms=HOUR)
    for hours in (0, 1, 3):
        append(log, batch(2, timestamp=START.wall + hours * HOUR))
    dropped = log.delete_old_segments(START.wall + 2 * HOUR + 1)
    assert [segment.base_offset for segment in dropped] == [0, 2]
    assert (log.start_offset, log.end_offset) == (4, 6)
    dropped = log.delete_old_segments(START.wall + 9 * HOUR)
    assert [segment.base_offset for segment in dropped] == [4]
    assert log.take_sealings(), "the newest segment went too: what a roll leaves is to be done"
    assert (log.start_offset, log.end_offset) == (6, 6)
    assert append(log, batch()) == 6
    assert reload(log)[0].end_offset == 7


def test_retention_by_size_keeps_at_least_what_it_promises(tmp_path: Path) -> None:
    size = header_of(batch(2)).size
    log = open_log(tmp_path, segment_bytes=size, retention_bytes=2 * size, retention_ms=-1)
    for _ in range(5):
        append(log, batch(2))
    dropped = log.delete_old_segments(START.wall)
    assert [segment.base_offset for segment in dropped] == [0, 2, 4]
    assert log.size == 2 * size
    assert log.delete_old_segments(START.wall) == []


def test_a_record_is_found_by_its_time(tmp_path: Path) -> None:
    size = header_of(batch(3)).size
    log = open_log(tmp_path, segment_bytes=2 * size, index_interval_bytes=0)
    for number in range(6):
        append(log, batch(3, timestamp=START.wall + number * 10, step=1))
    assert log.find_offset_by_timestamp(0) == (0, START.wall)
    assert log.find_offset_by_timestamp(START.wall + 31) == (10, START.wall + 31)
    assert log.find_offset_by_timestamp(START.wall + 33) == (12, START.wall + 40)
    assert log.find_offset_by_timestamp(START.wall + 53) is None
    assert log.find_max_timestamp() == (17, START.wall + 52)


def test_the_broker_s_time_needs_a_new_checksum(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    data = batch(2, timestamp=5)
    appended = log.append(data, header_of(data), START.wall)
    assert appended.append_time == START.wall
    whole = content(log.read(0, 1 << 20, at_least_one=True))
    header = header_of(whole)
    verify_batch(whole)
    assert (header.timestamp_type, header.max_timestamp, header.base_timestamp) == (TimestampType.LOG_APPEND_TIME, START.wall, 5)
    assert log.find_offset_by_timestamp(START.wall) == (0, START.wall)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError("No space left in memory")])
def test_a_write_that_fails_halfway_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    before = (tmp_path / "t-0" / "00000000000000000000.log").read_bytes()

    def half(fd: int, pieces: list[bytes]) -> int:
        os.write(fd, b"".join(pieces)[:30])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", half)
        with pytest.raises(type(error), match="No space"):
            append(log, batch())
    assert (tmp_path / "t-0" / "00000000000000000000.log").read_bytes() == before
    assert append(log, batch()) == 1
    assert [header.base_offset for header in stored(log)] == [0, 1]


def test_a_failed_sealing_is_done_again_with_the_next(tmp_path: Path) -> None:
    size = header_of(batch()).size
    log = open_log(tmp_path, segment_bytes=size)

    def roll() -> PartitionLog:
        log.append(batch(), header_of(batch()), START.wall)
        sealings.extend(log.take_sealings())
        return log

    sealings: list[Any] = []
    for _ in range(3):
        roll()
    first, second = sealings
    log.sealed(first, OSError(errno.ENOSPC, "full"))
    second.job()
    log.sealed(second, None)
    assert log.recovery_point == 0, "what the first sealing did not bring to disk is not safe"
    roll()
    sealings[-1].job()
    log.sealed(sealings[-1], None)
    assert log.recovery_point == 3
    assert (tmp_path / "t-0" / "00000000000000000000.index").exists()


def test_a_failing_disk_is_one_line_in_the_broker_s_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path)
    for _ in range(2):
        append(log, batch())
    for path in (tmp_path / "t-0").glob("*.log"):
        path.write_bytes(b"")
    for _ in range(3):
        with pytest.raises(ApiError, match="t-0 is damaged"):
            log.read(0, 100, at_least_one=True)
    assert len(caplog.messages) == 1
