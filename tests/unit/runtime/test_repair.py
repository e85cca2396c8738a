"""The repaired copy of a directory: it has every intact batch at its offset, a start finds nothing wrong, and the original is as it
was."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.findings import FindingKind
from ottla.broker.scan import Batch, scan
from ottla.errors import StorageError
from ottla.records import iter_headers
from ottla.runtime.check import FolderReader, StoppedDirectory
from ottla.runtime.data_dir import DataDir
from ottla.runtime.repair import check_target, repair
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.transactional import Producer, make_topic, read
from tests.unit.runtime.stopped import LAST, SECOND, SIZE, check, damage, flipped, kill, store, times

BATCHES = {("t", 2 * number) for number in range(12)} | {("u", 2 * number) for number in range(12)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store(path := tmp_path_factory.mktemp("stored"))
    return path


@pytest.fixture
def data(stored: Path, tmp_path: Path) -> Path:
    shutil.copytree(stored, path := tmp_path / "data")
    return path


def repaired(path: Path, on_copied: Callable[[int], object] = lambda size: None) -> Path:
    """The repaired copy; the original is as it was."""
    before, content = times(path), {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    try:
        out = repaired_copy(path, on_copied)
    finally:
        assert times(path) == before
        assert {one: one.read_bytes() for one in path.rglob("*") if one.is_file()} == content
    assert not [finding for finding in check(out) if finding.is_damage]
    return out


def repaired_copy(path: Path, on_copied: Callable[[int], object] = lambda size: None) -> Path:
    out = path.with_name("out")
    directory = StoppedDirectory(path)
    try:
        repair(directory, list(directory.check(lambda size: None)), out, on_copied)
    finally:
        directory.release()
    return out


def intact(path: Path, topic: str = "t") -> dict[int, bytes]:
    """The intact batches of a partition, by their base offsets."""
    found: dict[int, bytes] = {}
    reader = FolderReader(path / f"{topic}-0", lambda size: None, [])
    bases = reader.segments()
    for base, following in zip(bases, [*bases[1:], None], strict=False):
        with reader.open(f"{base:020d}.log") as file:
            batches = [one for one in scan(file, base, limit=following) if isinstance(one, Batch)]
            found |= {one.header.base_offset: bytes(one.content) for one in batches}
    return found


def started(path: Path) -> CoreUnderTest:
    """A broker on it, that has nothing to say about it."""
    broker = CoreUnderTest(path)
    assert broker.warnings == []
    return broker


def test_a_directory_in_which_nothing_is_wrong(data: Path) -> None:
    out = repaired(data)
    for topic in ("t", "u", "x"):
        assert intact(out, topic) == intact(data, topic)
    kept = {one.relative_to(data) for one in data.rglob("*")} - {Path(".lock")}
    assert {one.relative_to(out) for one in out.rglob("*")} == kept
    for path in kept:
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".metadata"):
            assert (out / path).read_bytes() == (data / path).read_bytes(), path


def test_a_directory_of_a_broker_with_zookeeper_stays_one(data: Path) -> None:
    with (data / "meta.properties").open("a") as properties:
        properties.write("metadata=zookeeper\n")
    copy = repaired(data)
    assert "metadata=zookeeper" in (copy / "meta.properties").read_text().splitlines()
    with pytest.raises(StorageError, match="belongs to a broker with ZooKeeper"):
        DataDir(copy, 1)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("base", [0, 6, 18])
def test_a_damaged_batch_is_left_out_and_kept_beside(data: Path, base: int, which: int, clean: bool) -> None:
    if not clean:
        (data / ".kafka_cleanshutdown").unlink()
    log = data / "t-0" / f"{base:020d}.log"
    positions = [position for position, _ in iter_headers(log.read_bytes())]
    position = positions[which]
    flipped(log, position + 80)
    expected = intact(data)
    assert len(expected) == 11
    out = repaired(data)
    assert intact(out) == expected
    assert intact(out, "u") == intact(data, "u")
    (kept,) = (out / "t-0" / "damaged").iterdir()
    assert kept.name == f"{log.name}.from-{position}"
    assert kept.read_bytes() == log.read_bytes()[position : [*positions, None][which + 1]]
    for _ in range(2):
        broker = started(out)
        assert broker.core.catalog.log("t", 0).end_offset == 24, "no offset is given twice"
        broker.kill() if not clean else broker.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_of_which_nothing_is_left(data: Path, clean: bool) -> None:
    if not clean:
        kill(data)
    for name in (SECOND, LAST):
        log = data / "t-0" / f"{name}.log"
        log.write_bytes(b"\1" * log.stat().st_size)
    out = repaired(data)
    assert sorted(intact(out)) == [0, 2, 4, 12, 14, 16]
    broker = started(out)
    log_of = broker.core.catalog.log("t", 0)
    assert log_of.end_offset == (24 if clean else 18)
    assert log_of.leader_epochs.current == 1
    broker.close()


def test_a_hole_that_appears_after_a_repair_is_reported(data: Path) -> None:
    (data / "t-0" / f"{12:020d}.log").unlink()
    out = repaired(data)
    broker = started(out)
    assert broker.core.catalog.log("t", 0).first_dirty_offset == 0, "what was never compacted would not be compacted later"
    broker.close()
    for suffix in ("log", "index", "timeindex"):
        (out / "t-0" / f"{SECOND}.{suffix}").unlink()
    directory = StoppedDirectory(out)
    what = [one.what for check in directory.check(lambda size: None) for one in check.findings if one.kind is FindingKind.HOLE]
    directory.release()
    broker = CoreUnderTest(out)
    (line,) = broker.warnings
    assert line == f"t-0: {what[0]}" == f"t-0: offsets 6 to 17 are missing between {0:020d}.log and {18:020d}.log"
    broker.close()


@pytest.mark.parametrize("content", [None, b"", b"0\n6 12 18\n", b"1\n12 18\n", b"0\n\xff 18\n", b"0\n12 19\n"])
def test_holes_are_reported_again_if_the_list_of_them_is_lost(data: Path, content: bytes | None) -> None:
    (data / "t-0" / f"{12:020d}.log").unlink()
    known = repaired(data) / "t-0" / "known-holes"
    assert known.read_bytes() == b"0\n12 18\n"
    known.unlink() if content is None else known.write_bytes(content)
    broker = CoreUnderTest(known.parent.parent)
    assert broker.warnings == [f"t-0: offsets 12 to 17 are missing between {SECOND}.log and {18:020d}.log"]
    broker.close()


def test_holes_and_lost_folders_keep_the_offsets(data: Path) -> None:
    (data / "t-0" / f"{SECOND}.log").unlink()
    shutil.rmtree(data / "u-0")
    out = repaired(data)
    assert sorted(intact(out)) == [0, 2, 4, *range(12, 24, 2)]
    broker = started(out)
    assert broker.core.catalog.log("u", 0).end_offset == 24
    broker.close()


@pytest.mark.parametrize(
    "name", ["*.index", "*.timeindex", "*.snapshot", "*.txnindex", "leader-epoch-checkpoint", "partition.metadata"]
)
def test_small_files_are_made_again(data: Path, name: str) -> None:
    for path in data.glob(f"*/{name}"):
        path.write_bytes(b"\xff" * 7)
    assert damage(data)
    out = repaired(data)
    assert [intact(out, topic) for topic in "tux"] == [intact(data, topic) for topic in "tux"]
    started(out).close()


def test_files_of_the_directory_are_made_again(data: Path) -> None:
    for name in ("topics.json", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint.copy", "meta.properties"):
        (data / name).write_bytes(b"\xff" * 7)
    out = repaired(data)
    started(out).close()


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "cleaner-offset-checkpoint.copy", "meta.properties"])
@pytest.mark.parametrize("kind", [Path.mkdir, os.mkfifo])
def test_a_file_of_the_directory_that_is_none_is_made_again(data: Path, name: str, kind: Callable[[Path], object]) -> None:
    (data / name).unlink()
    kind(data / name)
    assert (repaired_copy(data) / name).is_file()


def test_a_file_of_the_directory_that_the_disk_cannot_read_is_made_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = data / "recovery-point-offset-checkpoint"
    content = bad.read_bytes()
    real = os.open

    def denying(path: object, *arguments: int, **named: int) -> int:
        if path in (bad, str(bad)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denying)
        patch.setattr(shutil, "copyfile", lambda source, target: os.close(os.open(source, os.O_RDONLY)))
        out = repaired_copy(data)
    assert sorted((out / bad.name).read_bytes().splitlines()) == sorted(content.splitlines())


def test_a_folder_that_cannot_be_completed_in_its_place_is_removed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def failing(source: Path, target: Path, **named: int) -> None:
        if target == data.with_name("out") / "u-0":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target, **named)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(StorageError, match="No space left"):
        repaired(data)
    assert not data.with_name("out").exists()


def test_aborted_transactions_stay_aborted(tmp_path: Path) -> None:
    """Also where the batch before the marker is damaged, so that the marker is in another segment."""
    broker = CoreUnderTest(tmp_path / "data")
    make_topic(broker, "t", 1)
    producer = Producer(broker)
    producer.init()
    for commit in (True, False, False, True):
        producer.write(count=2)
        producer.write(count=2)
        producer.end(commit=commit)
    broker.close()
    path = tmp_path / "data" / "t-0" / f"{0:020d}.log"
    reader = FolderReader(path.parent, lambda size: None, [])
    with reader.open(path.name) as file:
        batches = [one for one in scan(file, 0) if isinstance(one, Batch)]
    flipped(path, batches[4].position + 70)  # the second one of the first aborted transaction
    out = repaired(tmp_path / "data")
    broker = started(out)
    assert read(broker) == [0, 1, 2, 3]
    assert read(broker, offset=7) == [15, 16, 17, 18]
    broker.close()


def test_what_is_not_the_brokers_is_copied(data: Path) -> None:
    (data / "photos").mkdir()
    (data / "photos" / "1.jpg").write_bytes(b"1")
    (data / "photos" / "link").symlink_to("1.jpg")
    os.mkfifo(data / "photos" / "pipe")
    (data / "t-0" / "notes").write_bytes(b"2")
    (data / "t-0" / "damaged").mkdir()
    (data / "t-0" / "damaged" / f"{SECOND}.log.from-0").write_bytes(b"3")
    flipped(data / "t-0" / f"{SECOND}.log", 80)
    out = repaired(data)
    assert (out / "photos" / "link").read_bytes() == b"1"
    assert (out / "t-0" / "notes").read_bytes() == b"2"
    kept = out / "t-0" / "damaged" / f"{SECOND}.log.from-0"
    assert kept.read_bytes() == b"3"
    assert kept.with_name(kept.name + ".2").stat().st_size == SIZE


def test_a_segment_that_is_a_folder_is_kept_beside(data: Path) -> None:
    log = data / "t-0" / f"{SECOND}.log"
    log.unlink()
    log.mkdir()
    (log / "inside").write_bytes(b"1")
    out = repaired(data)
    assert (out / "t-0" / "damaged" / log.name / "inside").read_bytes() == b"1"
    assert sorted(intact(out)) == [0, 2, 4, *range(12, 24, 2)]
    started(out).close()


def test_an_interrupted_compaction_is_completed(data: Path) -> None:
    log = data / "t-0" / f"{SECOND}.log"
    expected = intact(data)
    shutil.copy(log, log.with_name(log.name + ".swap"))
    log.rename(log.with_name(log.name + ".deleted"))
    out = repaired(data)
    assert intact(out) == expected
    started(out).close()


# What is refused, fails or is interrupted


def test_targets_that_are_refused(data: Path) -> None:
    for out in (data, data / "in" / "it", data.parent / "full", data.parent / "file"):
        if out.name == "full":
            (out / "something").mkdir(parents=True)
        elif out.name == "file":
            out.write_bytes(b"")
        with pytest.raises(StorageError, match=r"is in the directory that is checked|exists and is not an empty folder"):
            check_target(data, out)
    (data.parent / "empty").mkdir()
    check_target(data, data.parent / "empty")


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_remains_of_a_copy_that_is_not_complete(data: Path, error: BaseException, exists: bool) -> None:
    out, copied = data.with_name("out"), []

    def failing(size: int) -> None:
        copied.append(size)
        if len(copied) == 7:
            raise error

    if exists:
        out.mkdir()
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StorageError):
        repaired(data, failing)
    assert len(copied) == 7
    assert list(out.iterdir()) == [] if exists else not out.exists()


def test_no_broker_takes_half_a_copy_for_a_whole_one(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kill -9 leaves it: nothing can be removed then."""
    monkeypatch.setattr("shutil.rmtree", lambda *arguments, **named: None)

    def killed(size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repaired(data, killed)
    assert [one.name for one in data.with_name("out").iterdir()] == [".unfinished"]
    with pytest.raises(StorageError, match="not an empty folder"):
        check_target(data, data.with_name("out"))
