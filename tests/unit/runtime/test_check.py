"""The check of a stopped directory: each fault is found, in the right file, and nothing else is."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.findings import FindingKind
from ottla.errors import StorageError
from ottla.runtime.check import StoppedDirectory
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.damage import filled
from tests.unit.runtime.stopped import LAST, SECOND, SIZE, check, damage, flipped, kill, store, times


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store(path := tmp_path_factory.mktemp("stored"))
    return path


@pytest.fixture
def data(stored: Path, tmp_path: Path) -> Path:
    shutil.copytree(stored, path := tmp_path / "data")
    return path


def test_nothing_is_wrong_after_a_clean_end_and_nothing_is_touched(data: Path) -> None:
    before = times(data)
    assert check(data) == []
    (data / ".lock").unlink()
    before = times(data)
    assert check(data) == []
    assert times(data) == before
    assert not (data / ".lock").exists()


def test_nothing_is_wrong_after_a_kill(tmp_path: Path) -> None:
    broker = filled(tmp_path, "t")
    broker.kill()
    assert damage(tmp_path) == []
    with (tmp_path / "t-0" / f"{LAST}.log").open("ab") as file:
        file.write((tmp_path / "t-0" / f"{SECOND}.log").read_bytes()[:100])
    (torn,) = [one for one in check(tmp_path) if one.kind is FindingKind.TORN]
    assert (torn.is_damage, torn.size, torn.first_offset) == (False, 100, 24)
    with (tmp_path / "t-0" / f"{LAST}.log").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 100)
        file.seek(0, os.SEEK_END)
        file.write(bytes(5000))  # a power failure
    assert damage(tmp_path) == []


@pytest.mark.parametrize(
    ("at", "bit", "what"),
    [(SIZE + 80, 0, "checksum"), (SIZE + 10, 1, "of which"), (SIZE + 16, 0, "magic byte 3"), (SIZE + 7, 0, "claims offset")],
)
def test_a_flipped_bit_in_a_batch(data: Path, at: int, bit: int, what: str) -> None:
    flipped(data / "t-0" / f"{SECOND}.log", at, bit)
    (found,) = check(data)
    assert (found.kind, found.topic_partition, found.file) == (FindingKind.BATCHES, ("t", 0), f"{SECOND}.log")
    assert (found.position, found.size, found.first_offset, found.next_offset) == (SIZE, SIZE, 8, 10)
    assert what in found.what


def test_a_damaged_end(data: Path) -> None:
    log = data / "t-0" / f"{LAST}.log"
    flipped(log, log.stat().st_size // 3 * 2 + 16)
    assert damage(data) == [(FindingKind.END, f"{LAST}.log"), (FindingKind.LOST_END, f"{LAST}.log")]
    kill(data)
    assert (FindingKind.END, f"{LAST}.log") in damage(data)


def test_a_log_that_ends_too_early(data: Path) -> None:
    for one in (data / "t-0").glob(f"{LAST}.*"):
        one.unlink()
    (found,) = check(data)
    assert (found.kind, found.first_offset, found.next_offset) == (FindingKind.LOST_END, 18, 24)


@pytest.mark.parametrize("how", ["removed", "empty", "cut"])
def test_a_hole(data: Path, how: str) -> None:
    log = data / "t-0" / f"{SECOND}.log"
    size = log.stat().st_size
    log.unlink() if how == "removed" else os.truncate(log, 0 if how == "empty" else size - SIZE)
    holes = [one for one in check(data) if one.kind is FindingKind.HOLE]
    (found,) = holes
    assert (found.first_offset, found.next_offset) == (10 if how == "cut" else 6, 12)
    orphans = {name for kind, name in damage(data) if kind is FindingKind.ORPHAN}
    assert orphans == ({f"{SECOND}.index", f"{SECOND}.timeindex"} if how == "removed" else set())


INDEX, TIMES = "index", "timeindex"


def _entry(path: Path, number: int, *values: int) -> None:
    layout = struct.Struct(">ii" if path.suffix == ".index" else ">qi")
    content = bytearray(path.read_bytes())
    layout.pack_into(content, number * layout.size, *values)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("suffix", "fault", "what"),
    [
        (INDEX, Path.unlink, "missing"),
        (INDEX, lambda path: path.write_bytes(b""), "empty"),
        (INDEX, lambda path: os.truncate(path, 11), "multiple"),
        (INDEX, lambda path: _entry(path, 0, 3, SIZE + 1), "entry 1"),
        (INDEX, lambda path: _entry(path, 0, 2, SIZE), "entry 1"),
        (INDEX, lambda path: _entry(path, 0, 1, SIZE), "entry 1"),
        (INDEX, lambda path: _entry(path, 1, 5, 100_000), "entry 2"),
        (INDEX, lambda path: path.write_bytes(bytes(16)), "entry 1"),
        (TIMES, Path.unlink, "missing"),
        (TIMES, lambda path: path.write_bytes(b""), "empty"),
        (TIMES, lambda path: os.truncate(path, 12), "largest timestamp of the segment"),
        (TIMES, lambda path: _entry(path, 0, 5, 3), "entry 1"),
        (TIMES, lambda path: _entry(path, 1, 1 << 60, 5), "entry 2"),
        (TIMES, lambda path: _entry(path, 1, 1_700_000_000_005, 50), "entry 2"),
        (TIMES, lambda path: path.write_bytes(bytes(24)), "entry 1"),
    ],
)
def test_an_index_that_contradicts_the_batches(data: Path, suffix: str, fault: Callable[[Path], object], what: str) -> None:
    fault(data / "t-0" / f"{SECOND}.{suffix}")
    (found,) = check(data)
    assert (found.kind, found.file) == (FindingKind.INDEX, f"{SECOND}.{suffix}")
    assert what in found.what


def test_what_indexes_say_of_damage_is_not_wrong(data: Path) -> None:
    flipped(data / "t-0" / f"{SECOND}.log", SIZE + 80)
    flipped(data / "t-0" / f"{SECOND}.log", 2 * SIZE + 80)
    assert {kind for kind, _ in damage(data)} == {FindingKind.BATCHES}


def test_an_index_in_use_may_have_zeros_at_its_end(data: Path) -> None:
    """Kafka reserves space for the indexes of its newest segment."""
    kill(data)
    for suffix in (INDEX, TIMES):
        with (data / "t-0" / f"{LAST}.{suffix}").open("ab") as file:
            file.write(bytes(2400))
    assert damage(data) == [(FindingKind.CHECKPOINT, "recovery-point-offset-checkpoint")]


def test_a_snapshot(data: Path) -> None:
    flipped(data / "t-0" / f"{24:020d}.snapshot", 3)
    assert damage(data) == [(FindingKind.SNAPSHOT, f"{24:020d}.snapshot")]


@pytest.mark.parametrize(
    "fault", [Path.unlink, lambda path: path.write_bytes(b""), lambda path: flipped(path, 17, 4), lambda path: flipped(path, 1)]
)
def test_aborted_transactions(data: Path, fault: Callable[[Path], object]) -> None:
    (listed,) = [one for one in (data / "x-0").glob("*.txnindex") if one.stat().st_size]
    fault(listed)
    assert damage(data) == [(FindingKind.TRANSACTIONS, listed.name)]


def test_a_copy_of_aborted_transactions_that_is_shorter_than_an_entry(data: Path) -> None:
    (copy,) = [one for one in (data / "x-0").glob("*.txnindex.copy") if one.stat().st_size]
    os.truncate(copy, 20)
    assert damage(data) == [(FindingKind.TRANSACTIONS, copy.name)]
    broker = CoreUnderTest(data)
    assert any(copy.name in warning for warning in broker.warnings)
    broker.close()


@pytest.mark.parametrize("content", [None, b"", b"0\n1\n", b"0\n1\n7 0\n"])
def test_leader_epochs(data: Path, content: bytes | None) -> None:
    path = data / "t-0" / "leader-epoch-checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    assert damage(data) == [(FindingKind.EPOCHS, path.name)]


def test_a_leader_epoch_in_a_batch(data: Path) -> None:
    flipped(data / "t-0" / f"{SECOND}.log", SIZE + 13)
    (found,) = check(data)
    assert found.kind is FindingKind.EPOCHS
    assert f"byte {SIZE} of {SECOND}.log" in found.what


def test_a_draft_of_a_compaction(data: Path) -> None:
    log = data / "t-0" / f"{SECOND}.log"
    shutil.copy(log, draft := log.with_name(log.name + ".swap"))
    log.rename(log.with_name(log.name + ".deleted"))
    (found,) = check(data)
    assert (found.kind, found.is_damage) == (FindingKind.INTERRUPTED, False)
    log.with_name(log.name + ".deleted").rename(log)
    flipped(draft, 80)
    assert damage(data) == [(FindingKind.SWAP, draft.name)]


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"t-0/{SECOND}.log", FindingKind.UNREADABLE_LOG),
        (f"t-0/{SECOND}.index", FindingKind.UNREADABLE),
        (f"t-0/{24:020d}.snapshot", FindingKind.UNREADABLE),
    ],
)
@pytest.mark.parametrize("fault", [_folder, _pipe])
def test_a_part_of_a_log_that_is_not_a_file(data: Path, name: str, kind: FindingKind, fault: Callable[[Path], object]) -> None:
    fault(data / name)
    assert (kind, Path(name).name) in damage(data)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("t-0/partition.metadata", FindingKind.UNREADABLE),
        ("meta.properties", FindingKind.PROPERTIES),
        ("recovery-point-offset-checkpoint", FindingKind.CHECKPOINT),
    ],
)
@pytest.mark.parametrize("fault", [_folder, _pipe])
def test_another_file_that_is_not_one(data: Path, name: str, kind: FindingKind, fault: Callable[[Path], object]) -> None:
    fault(data / name)
    assert damage(data).count((kind, name)) == 1


@pytest.mark.timeout(20)
def test_a_lock_that_is_a_pipe_is_not_waited_for(data: Path) -> None:
    _pipe(data / ".lock")
    assert damage(data) == []


@pytest.mark.parametrize("name", ["meta.properties", "log-start-offset-checkpoint", "t-0/partition.metadata"])
def test_a_file_with_a_hole_of_a_terabyte_is_not_read_into_memory(data: Path, name: str) -> None:
    os.truncate(data / name, 1 << 40)
    assert any("too large" in finding.what for finding in check(data))


@pytest.mark.parametrize("name", ["topics.json", "topics.json.copy"])
def test_a_catalog_with_a_hole_of_a_terabyte_is_not_read_into_memory(data: Path, name: str) -> None:
    os.truncate(data / name, 1 << 40)
    with pytest.raises(StorageError, match="too large"):
        check(data)


def test_a_folder_that_cannot_be_listed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, every folder can be listed: the refusal is the system call's."""
    real = os.listdir

    def denying(path: Any) -> list[str]:
        if path in (data / "t-0", str(data / "t-0")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", denying)
    directory = StoppedDirectory(data)
    assert directory.size > 0
    directory.release()
    assert damage(data) == [(FindingKind.UNREADABLE_LOG, ".")]


def test_a_file_in_the_place_of_the_folder_of_damaged_files(data: Path) -> None:
    (data / "t-0" / "damaged").write_bytes(b"abc")
    assert [(one.kind, one.file, one.size) for one in check(data)] == [(FindingKind.KEPT, "damaged", 3)]


def test_an_emptied_folder_whose_topic_is_not_known(data: Path) -> None:
    for one in (data / "t-0").iterdir():
        one.unlink()
    for one in data.glob("topics.json*"):
        one.unlink()
    found = [finding for finding in check(data) if "t-0" in f"{finding.file}{finding.what}"]
    assert [finding.what for finding in found] == ["it is missing, and the topic is not known"]


def test_what_this_user_may_not_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, every file can be read: the refusal is the system call's."""
    refused = data / "t-0" / f"{SECOND}.log"
    real = os.open

    def denying(path: object, *arguments: int, **named: int) -> int:
        if path == refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", denying)
    directory = StoppedDirectory(data)
    kinds = [finding.kind for partition in directory.check(lambda size: None) for finding in partition.findings]
    assert kinds == [FindingKind.UNREADABLE_LOG]
    assert directory.denied == [str(refused)]
    directory.release()


def test_a_sector_that_the_disk_cannot_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = data / "t-0" / f"{SECOND}.log"
    content = log.read_bytes()
    inode, real = log.stat().st_ino, os.pread

    def failing(fd: int, size: int, position: int) -> bytes:
        if os.fstat(fd).st_ino == inode and position < 4096 and position + size > 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size, position)

    monkeypatch.setattr(os, "pread", failing)
    assert damage(data) == [(FindingKind.BATCHES, log.name), (FindingKind.SECTORS, log.name)]
    (sectors,) = [one for one in check(data) if one.kind is FindingKind.SECTORS]
    assert (sectors.position, sectors.size) == (0, len(content))


# The directory itself


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"])
@pytest.mark.parametrize("copy", ["", ".copy"])
def test_a_checkpoint(data: Path, name: str, copy: str) -> None:
    (data / (name + copy)).write_bytes(b"0\n7\n")
    assert damage(data) == [(FindingKind.CHECKPOINT, name)]
    (data / (name + copy)).unlink()
    assert damage(data) == [(FindingKind.CHECKPOINT, name)]
    (data / (name if copy else name + ".copy")).unlink()
    assert (FindingKind.CHECKPOINT, name) in damage(data)


def test_a_catalog(data: Path) -> None:
    for name in ("topics.json", "topics.json.copy"):
        content = (data / name).read_bytes()
        flipped(data / name, 60)
        assert damage(data) == [(FindingKind.CATALOG, "topics.json")]
        (data / name).unlink()
        assert damage(data) == [(FindingKind.CATALOG, "topics.json")]
        (data / name).write_bytes(content)
    for name in ("topics.json", "topics.json.copy"):
        (data / name).unlink()
    assert damage(data) == [(FindingKind.LOST_CATALOG, "topics.json")]


@pytest.mark.parametrize("size", [0, SIZE])
def test_a_segment_of_a_compacted_log_that_is_shorter_than_its_indexes_say(tmp_path: Path, size: int) -> None:
    """Gaps between segments are normal there."""
    filled(tmp_path, "t", **{"index.interval.bytes": "0", "cleanup.policy": "compact"}).close()
    assert check(tmp_path) == []
    os.truncate(tmp_path / "t-0" / f"{SECOND}.log", size)
    (hole,) = [finding for finding in check(tmp_path) if finding.kind is FindingKind.HOLE]
    assert (hole.file, hole.first_offset, hole.next_offset) == (f"{SECOND}.log", 8 if size else 6, 12)
    assert "its indexes name offset 11, and it ends at " in hole.what
    again = CoreUnderTest(tmp_path)
    assert any("name offset 11" in warning for warning in again.warnings)
    again.close()


@pytest.mark.parametrize("clean", [True, False])
def test_nothing_is_wrong_with_a_broker_that_never_had_a_topic(tmp_path: Path, clean: bool) -> None:
    broker = CoreUnderTest(tmp_path)
    broker.close() if clean else broker.kill()
    assert check(tmp_path) == []


def test_a_change_of_the_catalog_that_a_kill_interrupted(data: Path) -> None:
    kill(data)
    with (data / "topics.json").open("ab") as file:
        file.write(b'{"topic": {')
    (found,) = [one for one in check(data) if one.kind is FindingKind.CATALOG]
    assert not found.is_damage


def test_meta_properties(data: Path) -> None:
    for content in (None, b"", b"version=1\n"):
        (data / "meta.properties").unlink() if content is None else (data / "meta.properties").write_bytes(content)
        assert damage(data) == [(FindingKind.PROPERTIES, "meta.properties")]


def test_partition_metadata_and_strays(data: Path) -> None:
    (data / "t-0" / "partition.metadata").write_bytes(b"")
    assert damage(data) == [(FindingKind.METADATA, "t-0/partition.metadata")]
    shutil.copy(data / "u-0" / "partition.metadata", data / "t-0" / "partition.metadata")
    flipped(data / "t-0" / "partition.metadata", 25, 1)
    flipped(data / "t-0" / "partition.metadata", 26, 1)
    found = damage(data)
    assert (FindingKind.STRAY, "t-0") in found
    shutil.rmtree(data / "t-0")
    assert damage(data) == [(FindingKind.LOST_FOLDER, "t-0")]
    (data / "t-0").write_bytes(b"")
    assert (FindingKind.UNREADABLE_LOG, "t-0") in damage(data)


def test_foreign_files_and_what_is_kept_are_notes(data: Path) -> None:
    (data / "photos").mkdir()
    (data / "t-0" / "no\x1btes").write_bytes(b"")
    (data / "t-0" / "damaged").mkdir()
    (data / "t-0" / "damaged" / "x").write_bytes(b"123")
    found = check(data)
    assert [(one.kind, one.is_damage) for one in found] == [
        (FindingKind.FOREIGN, False),
        (FindingKind.KEPT, False),
        (FindingKind.FOREIGN, False),
    ]
    assert "'photos'" in found[0].what
    assert (found[1].file, found[1].size) == ("damaged/x", 3)


def test_of_many_foreign_files_the_first_are_named(data: Path) -> None:
    for folder in (data, data / "t-0"):
        for number in range(1_000):
            (folder / f"photo{number:04d}").touch()
    texts = [finding.what for finding in check(data)]
    broker = CoreUnderTest(data)
    texts += [warning for warning in broker.warnings if "photo" in warning]
    broker.close()
    assert len(texts) == 3
    for text in texts:
        assert "'photo0000', 'photo0001'" in text
        assert "'photo0019' and 980 more" in text


def test_what_is_not_a_stopped_data_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        StoppedDirectory(tmp_path / "none")
    with pytest.raises(StorageError, match="is not the data directory of a broker"):
        StoppedDirectory(tmp_path)
    broker = filled(tmp_path / "data", "t")
    with pytest.raises(StorageError, match="is in use by a broker"):
        StoppedDirectory(tmp_path / "data")
    broker.close()


def test_no_broker_starts_on_it_meanwhile(data: Path) -> None:
    directory = StoppedDirectory(data)
    other = StoppedDirectory(data)
    with pytest.raises(StorageError, match="in use"):
        CoreUnderTest(data)
    directory.release()
    other.release()
    (data / ".lock").unlink()
    directory = StoppedDirectory(data)
    CoreUnderTest(data).close()
    with pytest.raises(StorageError, match="a broker was started"):
        list(directory.check(lambda size: None))
    directory.release()


def test_large_files_are_read_in_pieces(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in ("log", "index"):
        os.truncate(data / "t-0" / f"{SECOND}.{suffix}", 8 << 20)
    largest, real = 0, os.pread

    def noting(fd: int, size: int, position: int) -> bytes:
        nonlocal largest
        largest = max(largest, size)
        return real(fd, size, position)

    monkeypatch.setattr(os, "pread", noting)
    assert {kind for kind, _ in damage(data)} == {FindingKind.BATCHES, FindingKind.INDEX}
    assert largest < 2 << 20


def _every_file(path: Path) -> Iterator[Path]:
    return (one for one in sorted(path.rglob("*")) if one.is_file() and one.stat().st_size and one.name != ".kafka_cleanshutdown")


def test_a_flipped_bit_anywhere_is_found(data: Path) -> None:
    """One in each file, but for settings whose every value is possible."""
    for path in _every_file(data):
        content = path.read_bytes()
        flipped(path, len(content) // 3, 6)
        assert damage(data) or path.name == "meta.properties", path
        path.write_bytes(content)
