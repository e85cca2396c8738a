"""The catalog of a data directory: each change a line, the file replaced when most of them are outdated."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.ports import Catalog, NextProducerId, StoredSettings, StoredTopic, TopicDeleted
from ottla.errors import StorageError
from ottla.runtime import catalog_lines
from ottla.runtime.catalog import CatalogFile
from ottla.runtime.folders import PinnedFolder
from ottla.runtime.log_files import OpenFiles
from ottla.types import uuid_text


def topic(name: str, number: int = 1, **configs: str) -> StoredTopic:
    return StoredTopic(name, uuid.UUID(int=number), 1, configs)


def new(folder: Path) -> CatalogFile:
    return CatalogFile(folder / "topics.json", OpenFiles())


def read(folder: Path) -> Catalog:
    return CatalogFile.read(folder / "topics.json", OpenFiles()).catalog


CHANGES = (
    topic("orders"),
    NextProducerId(1000),
    topic("p\u00e4iv\u00e4", 2, **{"retention.ms": "5"}),
    StoredSettings(broker={"message.max.bytes": "9"}, groups={"g": {"consumer.session.timeout.ms": "50000"}}),
    topic("orders")._replace(partitions=3),
    topic("passing", 3),
    NextProducerId(2000),
    TopicDeleted("passing"),
    TopicDeleted("p\u00e4iv\u00e4"),
    topic("p\u00e4iv\u00e4", 4),
)
LEFT = Catalog((topic("orders")._replace(partitions=3), topic("p\u00e4iv\u00e4", 4)), 2000, CHANGES[3])


def test_later_changes_win(tmp_path: Path) -> None:
    catalog = new(tmp_path)
    for change in CHANGES:
        catalog.change([change])
    assert read(tmp_path) == LEFT


def test_a_change_after_a_restart_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    for change in CHANGES:
        path = tmp_path / "topics.json"
        catalog = CatalogFile.read(path, OpenFiles()) if path.exists() else new(tmp_path)
        catalog.change([change])
    assert read(tmp_path) == LEFT


def test_a_change_is_one_line_however_many_topics_there_are(tmp_path: Path) -> None:
    catalog, path = new(tmp_path), tmp_path / "topics.json"
    catalog.change([topic("first-000")])
    file, size = path.stat().st_ino, path.stat().st_size
    for number in range(1, 500):
        catalog.change([topic(f"first-{number:03}", number)])
    assert path.stat().st_ino == file, "the file was replaced"
    assert path.read_bytes().count(b"\n") == 2 + 500, "the version, the beginning, the topics"
    assert path.stat().st_size - size < 499 * 150


def test_a_file_of_outdated_lines_is_replaced(tmp_path: Path) -> None:
    catalog = new(tmp_path)
    catalog.change([topic("stays")])
    sizes = []
    for number in range(5_000):
        catalog.change([topic("passing", number)])
        catalog.change([TopicDeleted("passing")])
        sizes.append((tmp_path / "topics.json").stat().st_size)
    assert max(sizes) < 300_000
    assert read(tmp_path).topics == (topic("stays"),)


def test_what_ends_in_the_middle_of_a_change_in_both_files_lacks_that_change_alone(tmp_path: Path) -> None:
    catalog, path = new(tmp_path), tmp_path / "topics.json"
    catalog.change([topic("kept")])
    kept = path.read_bytes()
    catalog.change([topic("torn", 2)])
    whole = path.read_bytes()
    for size in range(len(kept) + 1, len(whole)):
        for file in files(tmp_path):
            file.write_bytes(whole[:size])
        found = CatalogFile.read(path, OpenFiles())
        assert found.catalog.topics == (topic("kept"),)
        assert not found.is_lost
        assert "ends in the middle of a change" in found.faults[0]
        found.change([topic("next", 3)])
        assert read(tmp_path).topics == (topic("kept"), topic("next", 3)), "what is torn is not written behind"


def test_a_version_without_its_end_of_line_is_not_written_behind(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_bytes(b'{"version": 1}')
    catalog = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    catalog.change([topic("orders")])
    assert read(tmp_path).topics == (topic("orders"),)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"version": 1}\n{"next_producer_id": 1}\n\x00\x00\n', "line 3 of "),
        (b'{"version": 1}\n\n', "line 2 of "),
        (b'{"version": 1}\n{"next_producer_id": "x"}\n', "makes no sense"),
        (b'{"version": 1}\n[1]\n', "line 2 of "),
        (b'{"version": 1}\n{}\n', "line 2 of "),
        (b'{"version": 1}\n{"topic": {"name": "a", "id": "x", "partitions": 1, "configs": {}}}\n', "'x' is not a topic id"),
        (b'{"version": 1}\n{"topic": {"name": "a"}}\n', "makes no sense"),
        (b'{"version": 1}\n{"settings": {"broker": []}}\n', "broker is not an object"),
        (b'{"version": 0, "topics": [1]}', "makes no sense"),
        (b"", "is empty"),
        (b"{", "line 1 of "),
        (b"[]", "line 1 of "),
    ],
)
def test_damage_of_what_an_earlier_release_wrote_is_said(tmp_path: Path, content: bytes, reason: str) -> None:
    """It had no copy, and no checksums."""
    (tmp_path / "topics.json").write_bytes(content)
    found = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    assert found.is_lost
    assert any(reason in fault for fault in found.faults)
    found.repair()
    assert (tmp_path / "topics.json.damaged").read_bytes() == content, "someone may still make sense of it"
    assert not CatalogFile.read(tmp_path / "topics.json", OpenFiles()).faults


def files(folder: Path) -> tuple[Path, Path]:
    return folder / "topics.json", folder / "topics.json.copy"


def written(folder: Path) -> bytes:
    """A catalog with all changes, whose first lines come from a replaced file."""
    catalog = new(folder)
    for change in CHANGES[:5]:
        catalog.change([change])
    catalog = CatalogFile.read(folder / "topics.json", OpenFiles())
    catalog._file = None  # the next change replaces the files
    for later in CHANGES[5:]:
        catalog.change([later])
    one, other = files(folder)
    assert one.read_bytes() == other.read_bytes()
    return one.read_bytes()


def check_nothing_is_lost(folder: Path, file: Path, damage: bytes | None, whole: bytes) -> None:
    found = CatalogFile.read(folder / "topics.json", OpenFiles())
    assert found.catalog == LEFT, damage
    assert not found.is_lost, damage
    assert any(file.name in fault for fault in found.faults), (damage, found.faults)


@pytest.mark.parametrize("row", [0, 1])
def test_one_flipped_bit_anywhere_costs_nothing(tmp_path: Path, row: int) -> None:
    whole = written(tmp_path)
    file = files(tmp_path)[row]
    digit = whole.index(b"2")
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (7 if at == digit else at % 8)  # in the version, some bits make it a newer one
        file.write_bytes(damaged)
        check_nothing_is_lost(tmp_path, file, bytes(damaged), whole)


@pytest.mark.parametrize("row", [0, 1])
def test_a_truncated_empty_or_removed_file_costs_nothing(tmp_path: Path, row: int) -> None:
    whole = written(tmp_path)
    file = files(tmp_path)[row]
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        check_nothing_is_lost(tmp_path, file, whole[:size], whole)
    file.unlink()
    check_nothing_is_lost(tmp_path, file, None, whole)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("damage", [b"", b'{"version": 2}\n', b"\x00" * 900, None])
def test_both_files_are_whole_again_after_the_repair(tmp_path: Path, row: int, damage: bytes | None) -> None:
    written(tmp_path)
    file = files(tmp_path)[row]
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    found = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    found.repair()
    one, other = files(tmp_path)
    assert one.read_bytes() == other.read_bytes()
    again = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    assert (again.catalog, again.faults) == (LEFT, [])
    again.change([topic("next", 9)])
    assert one.read_bytes() == other.read_bytes()
    assert read(tmp_path).topics == (*LEFT.topics, topic("next", 9))


def test_what_neither_file_has_is_lost_and_leaves_no_settings_known(tmp_path: Path) -> None:
    whole = written(tmp_path)
    lines = whole.splitlines(keepends=True)
    for file in files(tmp_path):
        file.write_bytes(b"".join([*lines[:3], b"\x00\n", *lines[4:]]))
    found = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    assert found.is_lost
    found.recover([topic("found", 8)])
    found.repair()
    again = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    assert not again.is_lost
    assert {one.name: one.settings_unknown for one in again.catalog.topics}.keys() >= {"found"}
    assert all(one.settings_unknown for one in again.catalog.topics)


def test_a_damaged_file_that_could_not_be_kept_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the start nor with a later change: the user may be able to recover it."""
    damaged = written(tmp_path).replace(b"orders", b"0rders")
    for file in files(tmp_path):
        file.write_bytes(damaged)

    def full(folder: PinnedFolder, name: str, content: bytes, **keywords: Any) -> None:
        if ".damaged" in name:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        write_small(folder, name, content, **keywords)

    write_small: Callable[..., None] = PinnedFolder.write_small
    found = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    with monkeypatch.context() as patch:
        patch.setattr(PinnedFolder, "write_small", full)
        found.repair()
        with pytest.raises(OSError, match="No space"):
            found.change([topic("next", 9)])
    assert [file.read_bytes() for file in files(tmp_path)] == [damaged, damaged]
    found.change([topic("next", 9)])
    assert {one.read_bytes() for one in tmp_path.glob("*.damaged")} == {damaged}
    found.change([topic("last", 10)])
    assert sorted(one.name for one in tmp_path.glob("*.damaged*")) == ["topics.json.copy.damaged", "topics.json.damaged"]


def test_a_change_that_makes_no_sense_in_the_only_file_is_repaired(tmp_path: Path) -> None:
    rows = [{"topic": {"name": "a"}}, {"next_producer_id": 5}]
    one, other = files(tmp_path)
    other.write_bytes(catalog_lines.whole(map(catalog_lines.body_of, rows), 1))
    found = CatalogFile.read(one, OpenFiles())
    assert found.is_lost
    found.repair()
    assert one.read_bytes() == other.read_bytes()
    assert (tmp_path / "topics.json.copy.damaged").exists()
    again = CatalogFile.read(one, OpenFiles())
    assert (again.catalog, again.faults) == (Catalog((), 5), [])


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_change_that_one_file_lacks_and_that_is_damaged_in_the_other_is_lost(tmp_path: Path, row: int, missing: int) -> None:
    """The file that lacks it looks undamaged; its settings may be outdated."""
    lines = written(tmp_path).splitlines(keepends=True)
    one, other = files(tmp_path)[row], files(tmp_path)[1 - row]
    one.write_bytes(b"".join(lines[:-missing]))
    other.write_bytes(b"".join([*lines[:-missing], *(b"\x00" + line[1:] for line in lines[-missing:])]))
    assert CatalogFile.read(tmp_path / "topics.json", OpenFiles()).is_lost
    other.write_bytes(b"".join([*lines[:-missing], b"garbage\n"]))
    assert not CatalogFile.read(tmp_path / "topics.json", OpenFiles()).is_lost, "it has no number"


@pytest.mark.parametrize("row", [0, 1])
def test_files_that_were_cut_in_different_changes_are_not_believed(tmp_path: Path, row: int) -> None:
    whole = written(tmp_path)
    files(tmp_path)[row].write_bytes(whole[:-3])
    files(tmp_path)[1 - row].write_bytes(whole[: len(whole) * 2 // 3])
    assert CatalogFile.read(tmp_path / "topics.json", OpenFiles()).is_lost


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("other", [None, b"", b"\x00" * 900])
def test_a_file_that_was_cut_is_not_believed_alone(tmp_path: Path, row: int, other: bytes | None) -> None:
    whole = written(tmp_path)
    files(tmp_path)[row].write_bytes(whole[: len(whole) * 2 // 3])
    assert whole[len(whole) * 2 // 3 - 1] != b"\n"
    if other is None:
        files(tmp_path)[1 - row].unlink()
    else:
        files(tmp_path)[1 - row].write_bytes(other)
    found = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    assert found.is_lost
    found.recover([])
    assert all(one.settings_unknown for one in found.catalog.topics)


def test_damage_that_both_files_have_is_said_of_both(tmp_path: Path) -> None:
    lines = written(tmp_path).splitlines()
    for file in files(tmp_path):
        file.write_bytes(b"\n".join([*lines[:2], *(b"\x00" for _ in lines[2:]), b""]))
    faults = CatalogFile.read(tmp_path / "topics.json", OpenFiles()).faults
    count = len(lines) - 2
    assert faults == [
        fault
        for file in files(tmp_path)
        for fault in (*(f"line {at} of {file} is damaged" for at in (3, 4, 5)), f"{file} has {count - 3} more damaged lines")
    ]


def test_a_power_failure_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems write the new name of a file to disk before its content."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    new(tmp_path).change([topic("orders")])
    assert synced == [f"{tmp_path / 'topics.json.tmp'}"]
    CatalogFile(tmp_path / "topics.json", OpenFiles(), durable=False).change([topic("orders")])
    assert len(synced) == 1


def test_a_kill_between_the_replacements_of_the_two_files_costs_nothing(tmp_path: Path) -> None:
    whole = written(tmp_path)
    catalog = CatalogFile.read(tmp_path / "topics.json", OpenFiles())
    catalog._file = None
    catalog.change([topic("next", 9)])
    (tmp_path / "topics.json.copy").write_bytes(whole)
    assert read(tmp_path) == LEFT._replace(topics=(*LEFT.topics, topic("next", 9)))


def test_fields_that_are_not_known_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    row = {"name": "orders", "id": uuid_text(uuid.UUID(int=1)), "partitions": 1, "configs": {}, "rack": "a"}
    changes = [
        {"topic": row, "by": "admin"},
        {"settings": {"broker": {}, "cluster": {}, "groups": {}, "clients": {"c": {"x": "y"}}}},
        {"share_group": "s", "state": [1]},
        {"next_producer_id": 7, "block": 1},
    ]
    path.write_bytes(catalog_lines.whole(map(catalog_lines.body_of, changes), 40))
    found = CatalogFile.read(path, OpenFiles())
    assert found.catalog == Catalog((topic("orders"),), 7)
    assert not found.is_lost
    found.change([topic("orders")._replace(partitions=2)])
    found.change([StoredSettings(broker={"message.max.bytes": "9"}), NextProducerId(8)])
    for _ in range(2):
        content = path.read_text()
        for part in (
            '"rack": "a"}, "by": "admin"',
            '"clients": {"c": {"x": "y"}}',
            '"share_group": "s", "state": [1]',
            '"block": 1',
        ):
            assert part in content.rsplit('"begin"')[-1]
        found = CatalogFile.read(path, OpenFiles())
        assert found.catalog.topics == (topic("orders")._replace(partitions=2),)
        found._file = None
        found.change([NextProducerId(9)])  # replaces the files
    found.change([TopicDeleted("orders"), topic("orders", 2)])
    assert json.loads(path.read_text().splitlines()[-1])["topic"].keys() == {"name", "id", "partitions", "configs"}


@pytest.mark.parametrize("name", ["topics.json", "topics.json.copy"])
@pytest.mark.parametrize(
    "content", [b'{"version": 3}\n{"share_group": {}}\n', b'{"version": 9, "topics": []}', b'{"version": 3, "x": 1}']
)
def test_a_newer_version_is_refused_with_both_versions(tmp_path: Path, name: str, content: bytes) -> None:
    written(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match=rf"{name} has version [39] of its format; this release of Ottla reads versions 0 to 2"):
        CatalogFile.read(tmp_path / "topics.json", OpenFiles())


def test_a_copy_that_cannot_be_written_refuses_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = new(tmp_path)
    catalog.change([topic("orders")])
    one, other = files(tmp_path)
    other.unlink()
    other.mkdir()
    catalog._copy = None
    catalog.change([topic("more", 2)])
    catalog.change([topic("most", 3)])
    assert caplog.text.count("topics.json.copy could not be written") == 1
    other.rmdir()
    catalog.change([topic("last", 4)])
    assert one.read_bytes() == other.read_bytes()
    assert read(tmp_path).topics == (topic("orders"), topic("more", 2), topic("most", 3), topic("last", 4))
    other.unlink()
    catalog.change([topic("after", 5)])
    assert caplog.text.count("topics.json.copy could not be written") == 2


def test_the_document_of_the_first_releases_is_read_and_replaced_with_the_first_change(tmp_path: Path) -> None:
    document = {
        "version": 0,
        "next_producer_id": 2000,
        "topics": [{"name": "orders", "id": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": 1, "configs": {"retention.ms": "5"}}],
        "settings": {"broker": {"message.max.bytes": "9"}, "cluster": {}, "groups": {}},
    }
    path = tmp_path / "topics.json"
    path.write_text(json.dumps(document, indent=1))
    before = Catalog((topic("orders", **{"retention.ms": "5"}),), 2000, StoredSettings(broker={"message.max.bytes": "9"}))
    catalog = CatalogFile.read(path, OpenFiles())
    assert catalog.catalog == before
    catalog.change([topic("more", 2)])
    assert read(tmp_path) == before._replace(topics=(*before.topics, topic("more", 2)))
    assert path.read_text().startswith('{"version": 2}\n')


def test_a_document_keeps_its_unknown_fields(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('{"version": 0, "topics": [], "next_producer_id": 3, "settings": {"clients": {}}, "shares": [1]}')
    found = CatalogFile.read(path, OpenFiles())
    assert (found.catalog, found.is_lost) == (Catalog((), 3), False)
    found.repair()
    assert '"shares": [1]' in path.read_text()
    assert '"clients": {}' in path.read_text()


def test_a_change_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, path = new(tmp_path), tmp_path / "topics.json"

    def half(fd: int, pieces: Sequence[bytes]) -> int:
        os.write(fd, b"".join(pieces)[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    def full(*args: object, **keywords: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            catalog.change([topic("first")])
    assert not path.exists()
    catalog.change([topic("orders")])
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", half)
        with pytest.raises(OSError, match="No space"):
            catalog.change([topic("lost", 2)])
    assert path.read_bytes() == before
    catalog.change([topic("next", 3)])
    assert read(tmp_path).topics == (topic("orders"), topic("next", 3))
