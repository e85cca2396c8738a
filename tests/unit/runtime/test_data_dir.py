"""The data directory: whose it is, what is damaged, what belongs to no one."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.ports import Catalog, LogFiles, NextProducerId, StoredTopic, TopicDeleted
from ottla.errors import StorageError
from ottla.runtime.data_dir import DataDir, Identity, read_identity
from ottla.runtime.log_files import topic_id_in
from ottla.types import TopicPartition
from tests.simulation.broker import CoreUnderTest

ID = uuid.UUID(int=11)
TOPIC = StoredTopic("orders", ID, 2, {"retention.ms": "5"})


def _opened(path: Path) -> DataDir:
    return DataDir(path, 1)


def _with_segment(files: LogFiles) -> None:
    files.make()
    files.create(0)


def _with_topic(path: Path) -> None:
    data = _opened(path)
    data.change_catalog(TOPIC, NextProducerId(3000))
    for partition in (0, 1):
        _with_segment(data.log_files("orders", ID, partition))
    data.release()


def test_the_catalog_comes_back(tmp_path: Path) -> None:
    _with_topic(tmp_path)
    data = _opened(tmp_path)
    assert data.read_catalog() == Catalog((TOPIC,), 3000)
    data.release()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version": 0, "next_producer_id": 0, "topics": [{"name": "a"}]}'])
def test_where_both_catalogs_are_damaged_topics_are_found_by_their_folders_and_their_settings_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    _with_topic(tmp_path)
    (tmp_path / "topics.json").write_bytes(damage)
    (tmp_path / "topics.json.copy").unlink()
    for _ in range(2):  # also after a restart
        data = _opened(tmp_path)
        assert data.read_catalog().topics == (TOPIC._replace(configs={}, settings_unknown=True),)
        data.release()
    assert caplog.text.count("settings of topics, groups and the broker, may be missing. 1 topics were found") == 1
    assert (tmp_path / "topics.json.damaged").read_bytes() == damage, "the user may be able to recover it"


def test_where_both_catalogs_are_gone_settings_are_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _with_topic(tmp_path)
    for path in tmp_path.glob("topics.json*"):
        path.unlink()
    data = _opened(tmp_path)
    assert data.read_catalog().topics == (TOPIC._replace(configs={}, settings_unknown=True),)
    assert "may be missing" in caplog.text
    data.release()


@pytest.mark.parametrize("content", [b'{"version": 3}\n{"share_group": {}}\n', b'{"version": 9, "topics": []}'])
def test_a_catalog_of_a_newer_release_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    _with_topic(tmp_path)
    (tmp_path / "topics.json").write_bytes(content)
    (tmp_path / ".kafka_cleanshutdown").touch()
    files = sorted(tmp_path.iterdir())
    with pytest.raises(
        StorageError, match=r"topics\.json has version [39] of its format; this release of Ottla reads versions 0 to 2"
    ):
        _opened(tmp_path)
    assert sorted(tmp_path.iterdir()) == files, "the marker of a good end too"
    assert (tmp_path / "topics.json").read_bytes() == content


def test_a_folder_of_no_topic_is_set_aside_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _with_topic(tmp_path)
    data = _opened(tmp_path)
    other = uuid.UUID(int=12)
    _with_segment(data.log_files("orders", ID, 7))
    _with_segment(data.log_files("gone", other, 0))
    data.release()
    again = _opened(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "orders-0",
        "orders-1",
        f"orders-7.{ID.hex}-stray",
        f"gone-0.{other.hex}-stray",
    }
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    again.release()


def test_a_folder_that_was_set_aside_before_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For example, a user has copied it back under its old name."""
    _with_topic(tmp_path)
    for number in range(3):
        data = _opened(tmp_path)
        _with_segment(data.log_files("gone", ID, 0))
        (tmp_path / "gone-0" / "number").write_text(f"{number}")
        data.release()
    _opened(tmp_path).release()
    strays = [f"gone-0.{ID.hex}-stray", f"gone-0.{ID.hex}-stray.2", f"gone-0.{ID.hex}-stray.3"]
    assert [(tmp_path / stray / "number").read_text() for stray in strays] == ["0", "1", "2"]
    assert all(f"it is now {stray}" in caplog.text for stray in strays)


def test_a_folder_of_an_earlier_topic_of_the_same_name_is_not_adopted(tmp_path: Path) -> None:
    _with_topic(tmp_path)
    data = _opened(tmp_path)
    fresh = TOPIC._replace(topic_id=uuid.UUID(int=12))
    data.change_catalog(TopicDeleted(TOPIC.name), fresh)
    data.release()
    again = _opened(tmp_path)
    assert not again.log_files("orders", fresh.topic_id, 0).exists()
    again.release()


def test_what_waits_for_the_disk_does_not_reach_a_new_topic_of_the_same_name(tmp_path: Path) -> None:
    _with_topic(tmp_path)
    data = _opened(tmp_path)
    old = data.log_files("orders", ID, 0)
    waiting = [old.job(lambda folder: folder.write_small("00000000000000000000.index", b"old")) for _ in range(2)]
    old.mark_topic_deleted()
    data.delete_topic_folders("orders", ID, [0])
    waiting[0]()
    _with_segment(data.log_files("orders", uuid.UUID(int=12), 0))
    waiting[1]()
    assert not list(tmp_path.rglob("*.index"))
    data.release()


def test_what_was_given_up_is_removed(tmp_path: Path) -> None:
    _with_topic(tmp_path)
    data = _opened(tmp_path)
    data.delete_topic_folders("orders", ID, [0])  # killed before the work was done
    files = data.log_files("orders", ID, 1)
    files.mark_deleted([0])()
    data.release()
    data = _opened(tmp_path)
    assert len(list(tmp_path.glob("*-delete"))) == 1
    data.remove_leftovers()()
    assert not list(tmp_path.glob("*-delete"))
    assert sorted(path.name for path in (tmp_path / "orders-1").iterdir()) == ["partition.metadata"]
    data.release()


def test_a_folder_that_could_not_be_renamed_is_set_aside_when_a_new_topic_needs_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _with_topic(tmp_path)
    data = _opened(tmp_path)

    def failing(*args: object, **keywords: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        assert data.delete_topic_folders("orders", ID, [0, 1, 7]) is None
    assert caplog.text.count("could not be renamed") == 2
    fresh = uuid.UUID(int=12)
    data.change_catalog(TopicDeleted("orders"), TOPIC._replace(topic_id=fresh))
    files = data.log_files("orders", fresh, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(OSError, match="Input/output"):
            files.make()
    _with_segment(files)
    assert (tmp_path / f"orders-0.{ID.hex}-stray" / "00000000000000000000.log").exists()
    data.release()
    again = _opened(tmp_path)
    assert again.log_files("orders", fresh, 0).listing().segments == [0]
    assert again.log_files("orders", fresh, 1).listing().segments == [], "the other one was set aside by the start"
    again.release()


def test_a_small_file_that_could_not_be_replaced_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _opened(tmp_path)
    files = data.log_files("orders", ID, 0)
    _with_segment(files)

    def failing(*args: object, **keywords: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(OSError, match="No space"):
            data.write_checkpoint("points", {})()
        with pytest.raises(OSError, match="No space"):
            files.pin().write_small("00000000000000000000.index", b"")
    assert sorted(tmp_path.rglob("*")) == before
    data.release()


def test_what_a_kill_has_left_of_small_files_is_removed(tmp_path: Path) -> None:
    _with_topic(tmp_path)
    for name in ("topics.json.tmp", "orders-0/00000000000000000000.index.tmp"):
        (tmp_path / name).write_bytes(b"half")
    broker = CoreUnderTest(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))
    broker.close()


def test_files_and_folders_of_others_in_the_data_directory_are_left_alone(tmp_path: Path) -> None:
    """A user may start a broker in a folder with work of their own."""
    (tmp_path / "thesis.tmp").write_bytes(b"chapter one")
    (tmp_path / "build.tmp").mkdir()
    (tmp_path / "to-delete").mkdir()
    (tmp_path / "to-delete" / "1.deleted").touch()
    data = _opened(tmp_path)
    data.remove_leftovers()()
    data.release()
    assert (tmp_path / "thesis.tmp").read_bytes() == b"chapter one"
    assert (tmp_path / "build.tmp").is_dir()
    assert (tmp_path / "to-delete" / "1.deleted").exists()


CHECKPOINTS = ["", "0\n", "0\nx\n", "1\n1\na 0 5\n", "0\n2\na 0 5\n", "0\n1\na 0\n", "0\n1\na b c\n", "0\n1\n\xff", "0\n1\na 0 4\n"]


@pytest.mark.parametrize("content", CHECKPOINTS)
def test_a_damaged_checkpoint_is_read_from_its_copy(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    data = _opened(tmp_path)
    offsets = {TopicPartition("a", 0): 5}
    data.write_checkpoint("points", offsets)()
    assert data.read_checkpoint("points") == offsets
    assert not caplog.records
    (tmp_path / "points").write_text(content, "latin-1")
    assert data.read_checkpoint("points") == offsets
    assert f"{tmp_path / 'points'} was not written completely or is damaged: its copy is used" in caplog.text
    (tmp_path / "points").unlink()
    assert data.read_checkpoint("points") == offsets
    assert f"{tmp_path / 'points'} is missing: its copy is used" in caplog.text
    data.release()


def test_a_flipped_bit_in_a_checkpoint_s_copy_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = _opened(tmp_path)
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b-c", 12): 7}
    data.write_checkpoint("points", offsets)()
    content = (tmp_path / "points.copy").read_bytes()
    for at in range(len(content)):
        caplog.clear()
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        (tmp_path / "points.copy").write_bytes(damaged)
        assert data.read_checkpoint("points") == offsets
        assert "points.copy is missing or damaged" in caplog.text
    data.release()


@pytest.mark.parametrize("content", CHECKPOINTS[:-1])
def test_a_damaged_checkpoint_without_a_copy_is_not_an_empty_one(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = _opened(tmp_path)
    (tmp_path / "points").write_text(content, "latin-1")
    assert data.read_checkpoint("points") is None
    assert "points is damaged, and so is its copy or there is none" in caplog.text
    data.release()


def test_a_checkpoint_is_kafka_s(tmp_path: Path) -> None:
    data = _opened(tmp_path)
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b-c", 12): 7}
    data.write_checkpoint("points", offsets)()
    assert (tmp_path / "points").read_text() == "0\n2\na 0 5\nb-c 12 7\n"
    assert data.read_checkpoint("points") == offsets
    data.release()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged: it is empty"),
        (b"\n \n", "is damaged: it is empty"),
        (b"\xff\xfe", "is damaged: byte 0 is not UTF-8"),
        (b"version=1\nnode.id=1\n", "is damaged: it has no cluster.id"),
        (b"version=1\nnode.id=1\ncluster.id=\n", "is damaged: it has no cluster.id"),
        (b"version=1\ncluster.id=x\n", "is damaged: it has no node.id"),
        (b"node.id=1\ncluster.id=x\n", "is damaged: it has no version"),
        (b"version=x\nnode.id=1\ncluster.id=x\n", "is damaged: version='x' is not a number"),
        (b"version=1\nnode.id=-\ncluster.id=x\n", "is damaged: node.id='-' is not a number"),
        (b"version=2\nnode.id=1\ncluster.id=x\n", "has version 2; this release of Ottla reads versions 0 and 1"),
    ],
)
def test_properties_that_cannot_be_used_are_named_and_left_as_they_are(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(StorageError) as refused:
        _opened(tmp_path)
    assert f"{tmp_path / 'meta.properties'} {reason}" in str(refused.value)
    assert "release of Ottla" in (refused.value.hint or "") or "move it away" in (refused.value.hint or "")
    assert (tmp_path / "meta.properties").read_bytes() == content


@pytest.mark.parametrize(
    "content", [b"#a\n\n!b\nversion = 1\r\nnode.id=1\r\ncluster.id = x=y\n", b"version=0\nbroker.id=1\ncluster.id=x=y\n"]
)
def test_properties_are_read_as_kafka_reads_them(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    data = _opened(tmp_path)
    assert data.cluster_id == "x=y"
    data.release()


@pytest.mark.parametrize("damage", ["flipped", "empty", "missing"])
def test_a_damaged_partition_metadata_of_a_known_topic_is_written_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    _with_topic(tmp_path)
    path = tmp_path / "orders-1" / "partition.metadata"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(b"" if damage == "empty" else bytes([*whole[:at], whole[at] ^ 1 << at % 8, *whole[at + 1 :]]))
        if damage == "missing":
            path.unlink()
        _opened(tmp_path).release()
        assert topic_id_in(path.read_bytes()) == ID
        assert {one.name for one in tmp_path.iterdir() if one.is_dir()} == {"orders-0", "orders-1"}
    assert f"{path} was missing or damaged and was written again" in caplog.text


def test_what_a_start_relies_on_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure some file systems have the new name of a file, but not its content, or a name that was removed."""
    done: list[tuple[str, str]] = []

    def noting(what: str, call: Callable[..., object], *arguments: Any, **keywords: Any) -> object:
        name = os.readlink(f"/proc/self/fd/{arguments[0]}") if what == "fsync" else str(arguments[0])
        done.append((what, Path(name).name))
        return call(*arguments, **keywords)

    for what in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, what, partial(noting, what, getattr(os, what)))
    data = _opened(tmp_path / "data")
    data.write_checkpoint("points", {TopicPartition("a", 0): 5})()
    data.mark_clean_shutdown()
    for name in ("meta.properties", "points", "points.copy"):
        assert done.index(("fsync", f"{name}.tmp")) < done.index(("replace", f"{name}.tmp"))
    assert done[-2:] == [("replace", ".kafka_cleanshutdown.tmp"), ("fsync", "data")]
    data.release()
    again = _opened(tmp_path / "data")
    assert done[-2:] == [("unlink", ".kafka_cleanshutdown"), ("fsync", "data")]
    again.release()
    done.clear()
    temporary = DataDir(tmp_path / "temporary", 1, durable=False)
    temporary.change_catalog(TOPIC)
    temporary.write_checkpoint("points", {})()
    temporary.mark_clean_shutdown()
    temporary.release()
    assert "fsync" not in dict(done)


def test_a_lock_is_let_go(tmp_path: Path) -> None:
    data = _opened(tmp_path)
    with pytest.raises(StorageError, match="in use by another broker"):
        _opened(tmp_path)
    data.release()
    _opened(tmp_path).release()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        _opened(tmp_path)


def test_a_file_that_became_shorter_is_an_error_of_the_disk(tmp_path: Path) -> None:
    data = _opened(tmp_path)
    files = data.log_files("orders", ID, 0)
    files.make()
    segment = files.create(0)
    segment.append([b"0123456789"])
    os.truncate(tmp_path / "orders-0" / f"{0:020d}.log", 5)
    with pytest.raises(OSError, match="the file ends before it should"), segment.reader():
        pass
    data.release()


def test_a_topic_whose_folder_was_removed_by_hand_can_be_deleted_and_created_again(tmp_path: Path) -> None:
    data = _opened(tmp_path)
    old = data.log_files("orders", ID, 0)
    old.make()
    segment = old.create(0)
    segment.append([b"old"])
    shutil.rmtree(tmp_path / "orders-0")
    with pytest.raises(FileNotFoundError):
        segment.append([b"lost"])
    old.mark_topic_deleted()
    data.delete_topic_folders("orders", ID, [0])
    new = data.log_files("orders", uuid.UUID(int=12), 0)
    new.make()
    new.create(0).append([b"new"])
    assert (tmp_path / "orders-0" / f"{0:020d}.log").read_bytes() == b"new"
    data.release()


def test_nothing_is_written_once_the_directory_was_removed(tmp_path: Path) -> None:
    """Appends to files that no one can open any more would be acknowledged and lost, and a new folder would have no lock."""
    path = tmp_path / "data"
    data = _opened(path)
    data.change_catalog(TOPIC)
    files = data.log_files("orders", ID, 0)
    files.make()
    segment = files.create(0)
    segment.append([b"before"])
    shutil.rmtree(path)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            segment.append([b"after"])
        with pytest.raises(FileNotFoundError):
            data.change_catalog(TopicDeleted("orders"))
        with pytest.raises(FileNotFoundError):
            data.log_files("orders", ID, 1).make()
    assert not path.exists()
    assert segment.size == len(b"before")
    data.release()


def test_nothing_is_written_to_a_removed_file_whose_name_another_one_has(tmp_path: Path) -> None:
    """The directory was removed, and a second broker started in a new one of its name."""
    path = tmp_path / "data"
    data = _opened(path)
    files = data.log_files("orders", ID, 0)
    files.make()
    segment = files.create(0)
    segment.append([b"before"])
    shutil.rmtree(path)
    other = _opened(path)
    _with_segment(other.log_files("orders", ID, 0))
    with pytest.raises(FileNotFoundError):
        segment.append([b"after"])
    other.release()
    data.release()


def _contents(path: Path) -> dict[str, bytes]:
    """Every file below a folder, and every folder."""
    return {str(one.relative_to(path)): one.read_bytes() if one.is_file() else b"" for one in path.rglob("*")}


class _Replaced:
    """A broker's data directory that was removed while it was in use; a second broker has the same topics in a new one."""

    def __init__(self, path: Path, *, keeps_folder: bool = False) -> None:
        self.path = path
        self.data = _opened(path)
        self._fill(self.data)
        self.files = self.data.log_files("orders", ID, 0)
        self.segment = self.files.open(0)
        self.prepared = self.files.job(lambda folder: folder.write_small("00000000000000000000.index", b"old"))
        self.checkpoint = self.data.write_checkpoint("points", {TopicPartition("orders", 0): 7})
        if keeps_folder:
            for one in path.iterdir():
                shutil.rmtree(one) if one.is_dir() else one.unlink()
        else:
            shutil.rmtree(path)
        self.other = _opened(path)
        self._fill(self.other)

    @staticmethod
    def _fill(data: DataDir) -> None:
        data.change_catalog(TOPIC)
        files = data.log_files("orders", ID, 0)
        files.make()
        files.create(0).append([b"content"])
        files.create(5)  # and not opened
        files.create_cleaned(9)
        data.write_checkpoint("points", {TopicPartition("orders", 0): 1})()


WRITES: dict[str, Callable[[_Replaced], object]] = {
    "append": lambda old: old.segment.append([b"after"]),
    "append to a file that is not open": lambda old: old.files.open(5).append([b"after"]),
    "roll": lambda old: old.files.create(1),
    "roll onto a segment": lambda old: old.files.create(0),
    "small file": lambda old: old.files.pin().write_small("00000000000000000000.index", b"old"),
    "job": lambda old: old.prepared(),
    "make": lambda old: old.data.log_files("orders", ID, 1).make(),
    "make in place of another topic": lambda old: old.data.log_files("orders", uuid.UUID(int=12), 0).make(),
    "set aside": lambda old: old.files.mark_deleted([0])(),
    "draft": lambda old: old.files.create_cleaned(0),
    "finish draft": lambda old: old.files.finish_cleaned(9, {"index": b""}),
    "discard draft": lambda old: old.files.discard_cleaned(9),
    "swap": lambda old: old.files.begin_swap(9),
    "truncate a file that is not open": lambda old: old.files.open(5).truncate(1),
    "checkpoint": lambda old: old.checkpoint(),
    "catalog": lambda old: old.data.change_catalog(TopicDeleted("orders")),
    "clean end": lambda old: old.data.mark_clean_shutdown(),
}


@pytest.mark.parametrize("keeps_folder", [False, True], ids=["folder", "content"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_to_the_data_directory_of_a_second_broker(
    tmp_path: Path, write: Callable[[_Replaced], object], keeps_folder: bool
) -> None:
    """Also where no file is open: the names of the first broker lead to files of the second."""
    old = _Replaced(tmp_path / "data", keeps_folder=keeps_folder)
    before = _contents(old.path)
    with pytest.raises(FileNotFoundError):
        write(old)
    assert _contents(old.path) == before
    old.other.release()
    old.data.release()


def test_nothing_is_written_to_a_data_directory_that_was_released(tmp_path: Path) -> None:
    data = _opened(tmp_path)
    files = data.log_files("orders", ID, 0)
    _with_segment(files)
    data.release()
    before = _contents(tmp_path)
    for write in (data.mark_clean_shutdown, data.write_checkpoint("points", {}), lambda: files.create(1)):
        with pytest.raises(OSError, match="the data directory was released"):
            write()
    assert _contents(tmp_path) == before


def test_a_deleted_topic_does_not_take_that_of_a_second_broker_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = _Replaced(tmp_path / "data")
    before = _contents(old.path)
    assert old.data.delete_topic_folders("orders", ID, [0]) is None
    assert "could not be renamed" in caplog.text
    assert _contents(old.path) == before
    old.other.release()
    old.data.release()


def test_a_lock_that_was_removed_and_not_replaced_stops_nothing(tmp_path: Path) -> None:
    """A cleaning script may remove it. No other broker is here, so that records go on to be stored."""
    data = _opened(tmp_path)
    data.change_catalog(TOPIC)
    (tmp_path / ".lock").unlink()
    _with_segment(data.log_files("orders", ID, 0))
    data.mark_clean_shutdown()
    data.release()


def test_another_working_directory_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = _opened(Path("data"))
    data.change_catalog(TOPIC)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _with_segment(data.log_files("orders", ID, 0))
    data.mark_clean_shutdown()
    data.release()
    assert (tmp_path / "data" / "orders-0" / "00000000000000000000.log").exists()


def test_files_of_others_among_the_files_of_a_partition_are_not_taken_for_segments(tmp_path: Path) -> None:
    """They kept the broker from starting: there is no 00000000000000000005.log, and no number is written with a superscript."""
    _with_topic(tmp_path)
    names = ["5.log", "\u00b2.log", "\u0663.log", "backup.log", "6.snapshot", "000000000000000000000.log"]
    for name in names:
        (tmp_path / "orders-0" / name).write_bytes(b"chapter one")
    broker = CoreUnderTest(tmp_path)
    assert [segment.base_offset for segment in broker.core.catalog.log("orders", 0).segments] == [0]
    broker.close()
    for name in names:
        assert (tmp_path / "orders-0" / name).read_bytes() == b"chapter one"


def test_folders_of_others_among_the_files_of_a_partition_are_left_and_named_once(tmp_path: Path) -> None:
    _with_topic(tmp_path)
    names = ["build.tmp", "old.cleaned", "old.swap", "old.deleted", "notes.log", "notes.snapshot"]
    for name in names:
        (tmp_path / "orders-0" / name).mkdir()
        (tmp_path / "orders-0" / name / "thesis").write_bytes(b"chapter one")
    (tmp_path / "orders-0" / "00000000000000000000.index.tmp").write_bytes(b"half")
    (tmp_path / "orders-0" / "00000000000000000000.index.deleted").write_bytes(b"old")
    broker = CoreUnderTest(tmp_path)
    broker.store.remove_leftovers()()
    broker.core.catalog.log("orders", 0).files.remove_deleted()()
    broker.close()
    for name in names:
        assert (tmp_path / "orders-0" / name / "thesis").read_bytes() == b"chapter one"
    (line,) = [warning for warning in broker.warnings if "not the broker's" in warning]
    assert all(f"'{name}'" in line for name in names)
    assert not list((tmp_path / "orders-0").glob("0*.index.*"))


def test_the_identity_of_a_directory_is_known_before_it_is_opened(tmp_path: Path) -> None:
    assert read_identity(tmp_path / "none") is read_identity(tmp_path) is None
    data = DataDir(tmp_path, 1001, "of-zookeeper")
    assert data.cluster_id == "of-zookeeper"
    assert read_identity(tmp_path) == Identity(1001, "of-zookeeper")
    data.release()
    again = DataDir(tmp_path, 1001, "of-zookeeper")
    again.release()
    with pytest.raises(StorageError, match="belongs to cluster of-zookeeper, not to another"):
        DataDir(tmp_path, 1001, "another")
    with pytest.raises(StorageError, match=r"belongs to a broker with ZooKeeper, in cluster of-zookeeper \(set zookeeper.connect"):
        DataDir(tmp_path, 1001)


@pytest.mark.parametrize("left", ["topics.json", "orders-0"])
def test_a_directory_with_topics_that_has_lost_its_identity_is_not_new(tmp_path: Path, left: str) -> None:
    _with_topic(tmp_path)
    for name in ("meta.properties", "topics.json", "topics.json.copy"):
        if name != left:
            (tmp_path / name).unlink()
    with pytest.raises(StorageError, match=r"meta.properties is missing, and the directory has topics"):
        read_identity(tmp_path)


def test_the_identity_of_an_unusable_directory(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").mkdir()
    with pytest.raises(StorageError, match=r"data directory .* cannot be used: "):
        read_identity(tmp_path)
