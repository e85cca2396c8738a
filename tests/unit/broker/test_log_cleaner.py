"""Which logs are cleaned, when, and what becomes of a cleaning that does not work out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.effects import Outbox, RunJob
from ottla.broker.log import PartitionLog
from ottla.broker.log_cleaner import LogCleaner
from ottla.errors import CorruptRecordError
from ottla.records import NewRecord, encode_batch, iter_records, read_header
from ottla.simulation.clock import START
from ottla.types import Now
from tests.unit.broker.harness import append, clean, open_log, reload, stored

HOUR = 3_600_000
MEMORY = 1 << 20


def write(log: PartitionLog, *keys: bytes, value: bytes | None = b"v", stamp: int = START.wall) -> None:
    """One batch for each key, each of which fills a segment."""
    for key in keys:
        append(log, encode_batch([NewRecord(key, value, timestamp=stamp)]), stamp)


def compacted_log(path: Path, **config: Any) -> PartitionLog:
    """A log that begins a new segment with every batch."""
    return open_log(path, **{"cleanup_policy": "compact", "segment_bytes": 50, "min_cleanable_dirty_ratio": 0.0, **config})


def kept(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """Offset and key of what is left."""
    found = []
    for segment in log.segments:
        data = segment.file.read(0, segment.size)
        found += [(record.offset, record.key) for record in iter_records(data)]
    return found


def test_the_newest_segment_is_never_touched(tmp_path: Path) -> None:
    log = compacted_log(tmp_path)
    write(log, b"a", b"a", b"b", b"a", b"a")
    assert clean(log)
    assert kept(log) == [(2, b"b"), (3, b"a"), (4, b"a")]
    assert (log.first_dirty_offset, log.end_offset, log.segments[-1].base_offset) == (4, 5, 4)
    assert not clean(log), "nothing is new"


def test_a_log_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, cleanup_policy="delete")
    write(log, b"a", b"a", b"a")
    assert not clean(log)


def test_little_that_is_new_waits_for_more_or_for_its_time(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=HOUR)
    write(log, b"a", b"b", b"c", b"d", b"e")
    assert clean(log)
    write(log, b"a")
    assert not clean(log), "one segment of five is new"
    assert clean(log, START.wall + HOUR + 1), "and now it is overdue"


def test_young_records_are_not_compacted(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, min_compaction_lag_ms=HOUR)
    write(log, b"a", b"a")
    write(log, b"a", b"a", stamp=START.wall + HOUR)
    assert clean(log, START.wall + HOUR + 1)
    assert kept(log) == [(1, b"a"), (2, b"a"), (3, b"a")]


def test_a_tombstone_goes_when_its_time_is_up_and_no_sooner(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, delete_retention_ms=HOUR)
    write(log, b"a")
    write(log, b"a", value=None)
    write(log, b"z")
    later = START.wall + 10 * HOUR
    assert clean(log, later), "old as it is, its time begins with its first cleaning"
    assert (1, b"a") in kept(log)
    horizons = [header.base_timestamp for header in stored(log) if header.has_delete_horizon]
    assert horizons == [later + HOUR]
    write(log, b"y")
    assert clean(log, later + HOUR - 1)
    assert (1, b"a") in kept(log)
    write(log, b"x")
    assert clean(log, later + HOUR)
    assert (1, b"a") not in kept(log)


def test_memory_bounds_what_one_cleaning_takes_on(tmp_path: Path) -> None:
    log = compacted_log(tmp_path)
    write(log, b"a", b"b", b"a", b"b", b"c")
    assert clean(log, memory=1)
    assert log.first_dirty_offset == 1
    while clean(log, memory=1):
        pass
    assert kept(log) == [(2, b"a"), (3, b"b"), (4, b"c")]


def test_a_log_that_changed_meanwhile_keeps_what_it_has(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, cleanup_policy="compact,delete", retention_bytes=100)
    write(log, b"a", b"a", b"b", b"c")
    outbox = Outbox()
    cleaner = LogCleaner(lambda one: True, outbox)
    cleaner.clean_filthiest([log], MEMORY, START)
    dropped = log.delete_old_segments(START.wall)
    assert dropped
    before = kept(log)
    while jobs := [one.job for one in outbox.take() if isinstance(one, RunJob)]:
        over = cleaner.on_step(jobs[0](), START)
    assert not over, "what is left is looked at when its turn comes"
    assert kept(log) == before
    assert not list((tmp_path / "t-0").glob("*.cleaned"))
    assert reload(log)[1] is None


def test_a_segment_whose_old_indexes_are_about_to_be_written_again_is_not_replaced(tmp_path: Path) -> None:
    """Its sealing failed, yet ``flush.ms`` brought it to disk; the sealing is tried again while the segment is compacted."""
    log = compacted_log(tmp_path, segment_bytes=1_000, index_interval_bytes=300)
    for number in range(20):
        data = encode_batch([NewRecord(b"%d" % max(1, number), b"v", timestamp=START.wall)])
        log.append(data, read_header(data), START.wall)
    for sealing in log.take_sealings():
        log.sealed(sealing, OSError("full"))
    log.flushed(log.end_offset)
    outbox = Outbox()
    cleaner = LogCleaner(lambda one: True, outbox)
    cleaner.clean_filthiest([log], MEMORY, START)
    sealing = log.seal(end=log.segments[-1].base_offset)
    while jobs := [one.job for one in outbox.take() if isinstance(one, RunJob)]:
        cleaner.on_step(jobs[0](), START)
    sealing.job()
    log.sealed(sealing, None)

    again, _ = reload(log, clean=True)
    batches = [{position for position, _ in segment.walk(0)} for segment in again.segments]
    for segment, positions in zip(again.segments, batches, strict=True):
        assert {segment.locate(offset) for offset in range(segment.base_offset, segment.next_offset)} <= positions
    assert clean(log), "its turn comes again"
    assert [offset for offset, _ in kept(log)] == list(range(1, 20))


@pytest.mark.parametrize(("error", "again"), [(OSError("full"), True), (CorruptRecordError("damaged"), False)])
def test_a_disk_that_fails_is_tried_again_and_a_damaged_log_is_not(tmp_path: Path, error: Exception, again: bool) -> None:
    log = compacted_log(tmp_path)
    write(log, b"a", b"a", b"b")
    outbox = Outbox()
    cleaner = LogCleaner(lambda one: True, outbox)
    cleaner.clean_filthiest([log], MEMORY, START)
    assert outbox.take()
    cleaner.clean_filthiest([log], MEMORY, START)
    assert outbox.take() == [], "one at a time"
    assert cleaner.on_step(error, START) is False
    assert outbox.take() == []
    cleaner.clean_filthiest([log], MEMORY, Now(START.mono + 1, START.wall))
    assert bool(outbox.take()) is again
    assert kept(log) == [(0, b"a"), (1, b"a"), (2, b"b")]


def test_a_log_whose_disk_fails_again_and_again_does_not_keep_others_from_being_compacted(tmp_path: Path) -> None:
    bad, good = compacted_log(tmp_path / "bad"), compacted_log(tmp_path / "good")
    write(bad, b"a", b"a", b"b")
    write(good, b"a", b"a", b"b")
    outbox = Outbox()
    cleaner = LogCleaner(lambda one: True, outbox)
    for _ in range(3):
        cleaner.clean_filthiest([bad, good], MEMORY, START)
        while jobs := [one.job for one in outbox.take() if isinstance(one, RunJob)]:
            fails = jobs[0].__self__._files is bad.files  # type: ignore[attr-defined]
            cleaner.on_step(OSError("full") if fails else jobs[0](), START)
    assert kept(good) == [(1, b"a"), (2, b"b")]
    cleaner.clean_filthiest([bad, good], MEMORY, START)
    assert outbox.take(), "it is still tried again"


def test_segments_that_compaction_emptied_do_not_keep_others_from_expiring(tmp_path: Path) -> None:
    log = compacted_log(tmp_path, cleanup_policy="compact,delete", retention_ms=HOUR, segment_bytes=100)
    write(log, b"a", b"b", b"a", b"b", b"c", b"d")
    assert clean(log)
    write(log, b"e", stamp=START.wall + 2 * HOUR)
    dropped = log.delete_old_segments(START.wall + 2 * HOUR)
    assert any(not segment.size for segment in dropped)
    assert kept(log) == [(6, b"e")]
    assert log.start_offset == 6
