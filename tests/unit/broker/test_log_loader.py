"""A log after a good end and after bad ones."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.log import PartitionLog
from ottla.broker.markers import marker_batch
from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.runtime.folders import PinnedFolder
from ottla.simulation.clock import START
from tests.unit.broker.harness import append, batch, header_of, open_log, reload, stored

MAGIC = 16
"""Where a batch says in which format it is."""


def _log(path: Path, count: int = 6, **config: Any) -> PartitionLog:
    log = open_log(path, segment_bytes=2 * header_of(batch(2)).size, index_interval_bytes=0, **config)
    for number in range(count):
        append(log, batch(2, timestamp=START.wall + number, producer_id=9, producer_epoch=0, base_sequence=2 * number))
    return log


def _segment(path: Path, base: int) -> Path:
    return path / "t-0" / f"{base:020d}.log"


def test_after_a_good_end_everything_is_as_it_was(tmp_path: Path) -> None:
    log = _log(tmp_path)
    sealing = log.seal()
    sealing.job()
    again, cut = reload(log, clean=True)
    assert cut is None
    assert (again.start_offset, again.end_offset, again.recovery_point) == (0, 12, 12)
    assert [segment.max_timestamp for segment in again.segments] == [segment.max_timestamp for segment in log.segments]
    assert stored(again) == stored(log)
    assert again.producers.snapshot() == log.producers.snapshot()
    assert append(again, batch()) == 12


def test_after_a_kill_the_indexes_are_rebuilt(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for path in (tmp_path / "t-0").glob("*.*index"):
        path.write_bytes(b"\x00\x01")
    again, cut = reload(log)
    assert cut is None
    assert [segment.seal()[0].to_bytes() for segment in again.segments] == [
        segment.seal()[0].to_bytes() for segment in log.segments
    ]
    assert [segment.seal()[1].to_bytes() for segment in again.segments] == [
        segment.seal()[1].to_bytes() for segment in log.segments
    ]


def test_a_sealed_segment_without_usable_indexes_is_read_all_the_same(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.seal().job()
    (tmp_path / "t-0" / f"{0:020d}.index").write_bytes(b"12345678")
    (tmp_path / "t-0" / f"{4:020d}.timeindex").unlink()
    again, cut = reload(log, clean=True)
    assert cut is not None
    assert [line.split(":")[1][:40] for line in cut.splitlines()] == [f" the indexes of {base:020d}.log" for base in (0, 4)]
    assert reload(log, clean=True)[1] is None, "they were written again"
    assert stored(again) == stored(log)
    assert [again.segments[0].locate(offset) for offset in range(4)] == [log.segments[0].locate(offset) for offset in range(4)]
    assert again.find_offset_by_timestamp(START.wall + 3) == (6, START.wall + 3)


@pytest.mark.parametrize("content", [None, b""])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_or_empty_index_is_made_from_the_batches(tmp_path: Path, clean: bool, content: bytes | None) -> None:
    """Without its entries each lookup would read the whole segment."""
    log = _log(tmp_path)
    log.seal().job()
    expected = [segment.index.to_bytes() for segment in log.segments]
    assert all(expected)
    for path in (tmp_path / "t-0").glob("*.index"):
        path.unlink() if content is None else path.write_bytes(content)
    again, cut = reload(log, clean=clean, recovery_point=log.recovery_point)
    assert cut is not None
    assert cut.count("were rebuilt from its batches: one of them was ") == len(log.segments) - 1
    assert [segment.index.to_bytes() for segment in again.segments] == expected


@pytest.mark.parametrize("damage", [None, b"", b"123"])
def test_the_newest_segment_without_a_time_index_knows_its_largest_timestamp(tmp_path: Path, damage: bytes | None) -> None:
    """Retention deletes by it."""
    log = open_log(tmp_path, index_interval_bytes=0)
    for number in range(4):
        append(log, batch(2, timestamp=START.wall - 1000 * number))
    log.seal().job()
    path = tmp_path / "t-0" / f"{0:020d}.timeindex"
    path.unlink() if damage is None else path.write_bytes(damage)
    again, cut = reload(log, clean=True)
    assert cut is None
    assert again.find_max_timestamp() == log.find_max_timestamp() == (0, START.wall)
    assert again.segments[0].time_index.to_bytes() == log.segments[0].time_index.to_bytes()


def test_epochs_are_read_from_the_batches_before_a_damaged_one(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2 * header_of(batch(2)).size)
    for number in range(4):
        log.leader_epochs.start_next_epoch(log.end_offset)
        append(log, batch(2, timestamp=START.wall + number))
    log.seal().job()
    path = _segment(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[MAGIC - header_of(batch(2)).size] = 9
    path.write_bytes(data)
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    again, cut = reload(log, clean=True)
    assert cut is not None
    assert "leader-epoch-checkpoint was missing and was written again from the batches: 4" in cut
    assert [again.leader_epochs.epoch_for_offset(offset) for offset in range(0, 8, 2)] == [1, 1, 3, 4]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("count", "words"), [(1, "offset 1 is"), (2, "offsets 2 to 3 are")])
def test_one_missing_offset_is_not_called_several(tmp_path: Path, count: int, words: str, clean: bool) -> None:
    log = open_log(tmp_path, segment_bytes=1)
    for _ in range(3):
        append(log, batch(count))
    _segment(tmp_path, count).unlink()
    _, cut = reload(log, clean=clean, recovery_point=3 * count)
    assert f"{words} missing between {0:020d}.log and {2 * count:020d}.log" in (cut or "")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("base", "left", "end"), [(0, [4, 6, 8, 10], 12), (4, [0, 2, 8, 10], 12), (8, [0, 2, 4, 6], 8)])
def test_a_missing_segment_is_reported(tmp_path: Path, base: int, left: list[int], end: int, clean: bool) -> None:
    log = _log(tmp_path)
    log.seal().job()
    _segment(tmp_path, base).unlink()
    again, cut = reload(log, clean=clean, recovery_point=12)
    assert cut is not None
    assert f"t-0: {base:020d}.index has no .log file: the records of this segment are missing. It is kept as" in cut
    assert ("offsets 4 to 7 are missing between 00000000000000000000.log and 00000000000000000008.log" in cut) == (base == 4)
    assert ("it ends at offset 8, but had ended at 12, where it goes on" in cut) == (base == 8)
    assert [header.base_offset for header in stored(again)] == left
    assert (again.start_offset, again.end_offset) == (left[0], 12)
    assert again.leader_epochs.current == (1 if base == 8 else 0)
    assert again.leader_epochs.end_offset_for(0, again.end_offset) == (0, end)
    assert append(again, batch()) == 12
    assert [header.base_offset for header in stored(reload(again)[0])] == [*left, 12]


@pytest.mark.parametrize("missing", [1, 16, 60, 61, 80])
def test_a_torn_tail_is_cut_off(tmp_path: Path, missing: int) -> None:
    log = _log(tmp_path, 5)
    path = _segment(tmp_path, 8)
    torn = path.read_bytes()[:-missing]
    path.write_bytes(torn)
    again, cut = reload(log)
    assert cut is not None
    assert f"t-0: {path.name} was truncated at byte 0" in cut
    assert "from offset 8 on" in cut
    (kept,) = (tmp_path / "t-0" / "damaged").iterdir()
    assert str(kept) in cut
    assert kept.read_bytes() == torn
    assert again.end_offset == 8
    assert [header.base_offset for header in stored(again)] == [0, 2, 4, 6]
    assert path.stat().st_size == 0
    assert append(again, batch()) == 8


def test_a_log_that_lost_bytes_begins_a_new_leader_epoch(tmp_path: Path) -> None:
    log = _log(tmp_path, 5)
    path = _segment(tmp_path, 8)
    path.write_bytes(path.read_bytes()[:-1])
    again, _ = reload(log)
    assert again.leader_epochs.current == 1
    assert (again.leader_epochs.epoch_for_offset(7), again.leader_epochs.epoch_for_offset(8)) == (0, 1)
    append(again, batch())
    assert stored(again)[-1].leader_epoch == 1
    assert reload(again)[0].leader_epochs.current == 1


@pytest.mark.parametrize(("at", "reason"), [(-1, "fails its checksum"), (MAGIC, "magic byte 3 instead of 2")])
def test_after_a_kill_a_flipped_bit_costs_one_batch(tmp_path: Path, at: int, reason: str) -> None:
    log = _log(tmp_path)
    path = _segment(tmp_path, 4)
    data = bytearray(path.read_bytes())
    data[at - header_of(batch(2)).size if at > 0 else at] ^= 1
    path.write_bytes(data)
    again, cut = reload(log)
    assert cut is not None
    assert f"t-0: {path.name} is damaged at byte {len(data) // 2}: " in cut
    assert reason in cut
    assert again.end_offset == 12
    assert [header.base_offset for header in stored(again)] == [0, 2, 4, 8, 10]
    assert again.leader_epochs.current == 0
    assert path.read_bytes() == data
    for offset in (6, 7):
        with pytest.raises(ApiError, match="the next offset that can be read is 8"):
            again.read(offset, 1000, at_least_one=True)


def test_what_lies_before_the_recovery_point_is_believed(tmp_path: Path) -> None:
    log = _log(tmp_path)
    path = _segment(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again, cut = reload(log, recovery_point=log.recovery_point)
    assert cut is None
    assert again.end_offset == 12


def test_zeros_at_the_end_are_no_batch(tmp_path: Path) -> None:
    log = _log(tmp_path, 5)
    with _segment(tmp_path, 8).open("ab") as file:
        file.write(bytes(4096))
    again, cut = reload(log)
    assert cut is not None
    assert again.end_offset == 10


def test_producers_come_back_from_a_snapshot_and_the_batches_after_it(tmp_path: Path) -> None:
    log = _log(tmp_path)
    again, _ = reload(log, recovery_point=log.recovery_point)
    repeated = header_of(batch(2, producer_id=9, producer_epoch=0, base_sequence=10))
    stamp = again.producers.check(repeated)
    assert stamp is not None
    assert stamp.base_offset == 10
    assert again.producers.check(header_of(batch(1, producer_id=9, producer_epoch=0, base_sequence=12))) is None


def test_a_damaged_snapshot_is_not_believed(tmp_path: Path) -> None:
    log = _log(tmp_path)
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.write_bytes(path.read_bytes()[:-1])
    again, _ = reload(log)
    assert [stamp.base_offset for stamp in again.producers.entries[9].batches] == [2, 4, 6, 8, 10]
    assert not list((tmp_path / "t-0").glob("*.snapshot"))


def test_a_snapshot_of_what_was_cut_off_is_not_believed(tmp_path: Path) -> None:
    log = _log(tmp_path, 5)
    log.seal().job()
    path = _segment(tmp_path, 8)
    path.write_bytes(path.read_bytes()[:-1])
    again, _ = reload(log)
    assert again.producers.entries[9].batches[-1].last_offset == 7


def test_an_empty_newest_segment_keeps_the_end(tmp_path: Path) -> None:
    log = open_log(tmp_path, retention_ms=0)
    append(log, batch(3))
    dropped = log.delete_old_segments(START.wall + 1)
    log.files.mark_deleted([segment.base_offset for segment in dropped])()
    for clean in (False, True):
        again, cut = reload(log, clean=clean)
        assert (cut, again.start_offset, again.end_offset) == (None, 3, 3)


def test_a_damaged_segment_is_an_error_for_readers_and_does_not_keep_the_log_from_loading(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.seal().job()
    path = _segment(tmp_path, 4)
    path.write_bytes(b"\x7f" * path.stat().st_size)
    for _ in range(2):
        again, cut = reload(log, clean=True)
        assert cut is not None
        lost = "(238 bytes, offsets 4 to 7, at most 4 records)"
        assert f"t-0: {path.name} is damaged at byte 0: magic byte 127 instead of 2 {lost}" in cut
        assert again.end_offset == 12
        with pytest.raises(ApiError, match=f"t-0 is damaged: {path.name} at byte 0: magic byte 127 .* can be read is 8") as raised:
            again.read(5, 1000, at_least_one=True)
        assert raised.value.code is ErrorCode.corrupt_message
        assert again.read(9, 1000, at_least_one=True) is not None
        (tmp_path / "t-0" / f"{4:020d}.timeindex").unlink()


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_segment_does_not_keep_a_log_without_snapshots_from_loading(tmp_path: Path, clean: bool) -> None:
    log = _log(tmp_path)
    log.seal().job()
    path = _segment(tmp_path, 4)
    path.write_bytes(b"\x7f" * path.stat().st_size)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    again, cut = reload(log, clean=clean, recovery_point=12)
    assert cut is not None
    assert again.end_offset == 12
    assert "the producer state of offsets 4 to 7 is lost" in cut
    assert again.producers.entries[9].batches[-1].last_offset == 11


class Transactions:
    """A log in which one producer after the other aborts, each with one batch and its marker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = open_log(path)

    def abort(self, producer_id: int) -> None:
        header = {"producer_id": producer_id, "producer_epoch": 0}
        append(self.log, batch(base_sequence=0, transactional=True, **header))
        append(self.log, marker_batch(False, producer_id, 0, 0, timestamp=START.wall))

    @property
    def file(self) -> Path:
        return self.path / "t-0" / f"{0:020d}.txnindex"

    def entries(self) -> list[tuple[int, int, int]]:
        """Producer, first and last offset of each entry in the file."""
        rows = struct.iter_unpack(">hqqqq", self.file.read_bytes())
        return [(producer, first, last) for _, producer, first, last, _ in rows]


def _found(log: PartitionLog) -> list[tuple[int, int, int]]:
    _, aborted = log.read_committed(0, 1 << 20, at_least_one=True)
    return [tuple(one[:3]) for one in aborted]  # type: ignore[misc]


ABORTED = [(1, 0, 1), (2, 2, 3), (3, 4, 5)]


def test_each_abort_is_in_the_file_at_once(tmp_path: Path) -> None:
    written = Transactions(tmp_path)
    for count, producer_id in enumerate((1, 2, 3), 1):
        written.abort(producer_id)
        assert written.entries() == ABORTED[:count] == _found(written.log)


@pytest.mark.parametrize("missing", [0, 1, 33, 34, 60, 102])
@pytest.mark.parametrize("clean", [True, False])
def test_what_is_missing_in_the_list_of_aborted_transactions_is_found_in_the_log(tmp_path: Path, missing: int, clean: bool) -> None:
    written = Transactions(tmp_path)
    written.abort(1)
    written.log.seal().job()  # with a snapshot
    written.abort(2)
    written.abort(3)
    content = written.file.read_bytes()
    written.file.write_bytes(content[: max(34, len(content) - missing)])
    again, _ = reload(written.log, clean=clean)
    assert _found(again) == ABORTED
    assert written.file.read_bytes() == content
    written.log = again
    written.abort(4)
    assert written.entries() == [*ABORTED, (4, 6, 7)]


@pytest.mark.parametrize("damage", [lambda content: content[34:] + content[:34], lambda content: b"\x00\x01" + content[2:]])
def test_a_list_of_aborted_transactions_in_another_order_or_version_is_rebuilt(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    written = Transactions(tmp_path)
    written.abort(1)
    written.abort(2)
    written.log.seal().job()
    content = written.file.read_bytes()
    written.file.write_bytes(damage(content))
    again, _ = reload(written.log, clean=True)
    assert _found(again) == ABORTED[:2]
    assert written.file.read_bytes() == content


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("with_copy", [False, True])
def test_a_missing_list_of_aborted_transactions_is_noticed_only_without_a_later_snapshot_or_with_its_copy(
    tmp_path: Path, clean: bool, sealed: bool, with_copy: bool
) -> None:
    """Directories of earlier releases have no copies."""
    written = Transactions(tmp_path)
    written.abort(1)
    written.abort(2)
    if sealed:
        written.log.seal().job()
    written.file.unlink()
    if not with_copy:
        written.file.with_name(written.file.name + ".copy").unlink()
    again, _ = reload(written.log, clean=clean)
    assert _found(again) == ([] if sealed and not with_copy else ABORTED[:2])


def test_an_abort_beyond_the_end_of_a_log_that_was_cut_is_forgotten(tmp_path: Path) -> None:
    written = Transactions(tmp_path)
    written.abort(1)
    written.abort(2)
    log_file = _segment(tmp_path, 0)
    log_file.write_bytes(log_file.read_bytes()[:-1])
    again, cut = reload(written.log)
    assert cut is not None
    assert _found(again) == written.entries() == ABORTED[:1]


def test_an_interrupted_swap_is_completed_without_its_file_in_memory(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(24):
        append(log, batch(size=1 << 20))
    segment = _segment(tmp_path, 0)
    segment.with_name(segment.name + ".swap").write_bytes(segment.read_bytes())
    tracemalloc.start()
    again, damage = reload(log)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (again.end_offset, damage) == (24, None)
    assert peak < 8 << 20


def test_committed_records_before_a_damaged_open_transaction_are_read(tmp_path: Path) -> None:
    """The last stable offset is that of a batch which is damaged: the snapshot of the producers has it."""
    log = open_log(tmp_path)
    for fields in ({}, {}, {"base_sequence": 0, "transactional": True, "producer_id": 1, "producer_epoch": 0}, {}):
        append(log, batch(**fields))
    log.seal().job()
    position = log.segments[0].locate(2)
    assert position is not None
    content = bytearray(_segment(tmp_path, 0).read_bytes())
    content[position + 16] ^= 1
    _segment(tmp_path, 0).write_bytes(content)
    again, damage = reload(log, clean=True, recovery_point=4)
    assert damage is not None
    assert again.last_stable_offset == 2
    data, _ = again.read_committed(0, 1 << 20, at_least_one=True)
    assert data is not None
    assert len(data) == position


def test_a_list_that_could_not_be_written_is_complete_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Transactions(tmp_path)
    written.abort(1)

    def half(self: PinnedFolder, name: str, content: bytes) -> None:
        with (written.path / "t-0" / name).open("ab") as file:
            file.write(content[:10])
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(PinnedFolder, "append_small", half)
        written.abort(2)
        assert _found(written.log) == ABORTED[:2]
    written.abort(3)
    assert written.entries() == ABORTED
