"""Invariants of a log under any sequence of batches, any damage to its end, and any lookup (I27, I28)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from ottla.broker.log import PartitionLog
from ottla.broker.producer_state import ProducerStateManager
from ottla.broker.segment import Segment
from ottla.coordinator.effects import ApiError
from ottla.records import BatchHeader, InvalidBatchError, iter_headers, iter_records
from ottla.simulation.clock import START
from tests.example_counts import examples
from tests.simulation.files import content
from tests.unit.broker.harness import append, batch, header_of, open_log, reload, stored

Written = list[tuple[int, int]]
"""Records a batch, timestamp of the first relative to the start."""

batches = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), min_size=1, max_size=25)
shapes = st.fixed_dictionaries({"segment_bytes": st.integers(100, 1500), "index_interval_bytes": st.integers(0, 400)})


def _written(path: Path, written: Written, shape: dict[str, int]) -> PartitionLog:
    log = open_log(path, **shape)
    for count, timestamp in written:
        append(log, batch(count, timestamp=START.wall + timestamp, step=3))
    return log


def _check_offsets(log: PartitionLog) -> None:
    assert log.start_offset <= log.high_watermark <= log.end_offset
    lost = {damage.first_offset: damage.next_offset for segment in log.segments for damage in segment.damages}
    expected = log.start_offset
    for header in stored(log):
        expected = lost.get(expected, expected)
        assert header.base_offset == expected
        expected = header.next_offset
    assert expected == log.end_offset


@given(batches, shapes, st.data())
def test_damage_to_the_newest_segment_leaves_all_intact_batches(
    written: Written, shape: dict[str, int], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = _written(Path(folder), written, shape)
        before = stored(log)
        safe = log.recovery_point
        newest = Path(folder) / "t-0" / f"{log.segments[-1].base_offset:020d}.log"
        whole = bytearray(newest.read_bytes())
        written_bytes = bytes(whole)
        kind = data.draw(st.sampled_from(("truncate", "flip", "garbage", "zeros")))
        at = data.draw(st.integers(0, len(whole) - 1))
        if kind == "truncate":
            del whole[at:]
        elif kind == "flip":
            whole[at] ^= data.draw(st.integers(1, 255))
        else:
            whole += data.draw(st.binary(min_size=1, max_size=200)) if kind == "garbage" else bytes(100)
        newest.write_bytes(whole)
        again, cut = reload(log, recovery_point=data.draw(st.sampled_from((0, safe))))
        after = stored(again)
        # The leader epoch is the one field that neither the checksum nor the order of offsets vouches for.
        before, left = ([header._replace(leader_epoch=0) for header in headers] for headers in (before, after))
        assert set(left) <= set(before)
        assert set(left) >= set(_intact(before, log.segments[-1], written_bytes, bytes(whole)))
        assert again.end_offset >= safe
        if kind in ("garbage", "zeros"):
            assert len(after) == len(before)
            assert cut is not None
        _check_offsets(again)
        append(again, batch(2))
        _check_offsets(again)
        _check_offsets(reload(again)[0])


def _intact(headers: list[BatchHeader], newest: Segment, before: bytes, after: bytes) -> Iterator[BatchHeader]:
    """The batches of older segments, and those of the newest one whose bytes have not changed."""
    position = 0
    for header in headers:
        if header.base_offset < newest.base_offset:
            yield header
            continue
        end = position + header.size
        if before[position:end] == after[position:end]:
            yield header
        position = end


@given(batches, shapes, st.booleans(), st.data())
def test_a_lookup_finds_what_a_scan_finds(written: Written, shape: dict[str, int], fresh: bool, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = _written(Path(folder), written, shape)
        if fresh:
            log.seal().job()
            log, cut = reload(log, clean=True)
            assert cut is None
        headers = stored(log)
        offset = data.draw(st.integers(0, log.end_offset))
        limit = data.draw(st.integers(0, 2000))
        found = log.read(offset, limit, at_least_one=True)
        wanted = [header for header in headers if header.last_offset >= offset]
        if not wanted:
            assert found is None
        else:
            given_out = [header for _, header in iter_headers(content(found))]
            assert sum(header.size for header in given_out) == len(content(found)), "whole batches"
            assert given_out == wanted[: len(given_out)]
            assert len(given_out) == 1 or sum(header.size for header in given_out) <= limit
        target = START.wall + data.draw(st.integers(-1, 70))
        records = [
            (record.offset, record.timestamp)
            for segment in log.segments
            for record in iter_records(content(segment.file.range(0, segment.size)))
        ]
        assert log.find_offset_by_timestamp(target) == next((record for record in records if record[1] >= target), None)
        largest = max(timestamp for _, timestamp in records)
        assert log.find_max_timestamp() == next(record for record in records if record[1] == largest)


@given(batches, shapes, st.integers(0, 100), st.integers(-1, 3000))
def test_retention_keeps_offsets_in_order(written: Written, shape: dict[str, int], age: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = _written(Path(folder), written, {**shape, "retention_ms": 50, "retention_bytes": size})
        end = log.end_offset
        log.delete_old_segments(START.wall + age)
        assert log.end_offset == end
        _check_offsets(log)
        append(log, batch(3))
        _check_offsets(log)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(0, 2)), max_size=30), st.integers(0, 29))
def test_no_sequence_is_skipped_or_repeated(sent: list[tuple[int, int, int]], restart: int) -> None:
    """I28, for a producer that sends any sequence, across a restart that restores only its last batch."""
    producers = ProducerStateManager()
    accepted: list[tuple[int, int, int]] = []
    offset = 0
    for number, (sequence, count, epoch) in enumerate(sent):
        if number == restart:
            again = ProducerStateManager.from_snapshot(producers.snapshot())
            assert again is not None
            producers = again
        header = header_of(batch(count, producer_id=1, producer_epoch=epoch, base_sequence=sequence))
        try:
            repeated = producers.check(header)
        except ApiError:
            continue
        if repeated is not None:
            assert (epoch, sequence, sequence + count - 1) in accepted
            continue
        producers.append(header, offset, now=0)
        accepted.append((epoch, sequence, sequence + count - 1))
        offset += count
    for (epoch, _, last), (next_epoch, first, _) in pairwise(accepted):
        assert (next_epoch == epoch and first == last + 1) or (next_epoch > epoch and first == 0)


@given(st.binary(max_size=300))
def test_any_garbage_is_a_log_without_batches_or_a_cut_one(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(Path(folder))
        append(log, batch())
        path = Path(folder) / "t-0" / f"{0:020d}.log"
        path.write_bytes(data)
        again, cut = reload(log)
        try:
            kept = [header for _, header in iter_headers(path.read_bytes())]
        except InvalidBatchError as error:
            raise AssertionError("what recovery keeps is whole") from error
        assert (cut is None) == (not data)
        assert stored(again) == kept
