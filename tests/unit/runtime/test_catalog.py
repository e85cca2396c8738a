"""The catalog of a data directory: each change a line, the file replaced when most of them are outdated."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.broker.ports import Catalog, NextProducerId, StoredSettings, StoredTopic, TopicDeleted
from ottla.runtime.catalog import CatalogFile
from ottla.runtime.log_files import OpenFiles


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
LEFT = Catalog((topic("orders")._replace(partitions=3), topic("p\u00e4iv\u00e4", 4)), 2000, CHANGES[3])  # type: ignore[arg-type]


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
    line = len(json.dumps({"topic": {"name": "first-000", "id": "A" * 22, "partitions": 1, "configs": {}}})) + 1
    assert path.stat().st_size == size + 499 * line


def test_a_file_of_outdated_lines_is_replaced(tmp_path: Path) -> None:
    catalog = new(tmp_path)
    catalog.change([topic("stays")])
    sizes = []
    for number in range(5_000):
        catalog.change([topic("passing", number)])
        catalog.change([TopicDeleted("passing")])
        sizes.append((tmp_path / "topics.json").stat().st_size)
    assert max(sizes) < 200_000
    assert read(tmp_path).topics == (topic("stays"),)


def test_what_ends_in_the_middle_of_a_change_lacks_that_change_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog, path = new(tmp_path), tmp_path / "topics.json"
    catalog.change([topic("kept")])
    kept = path.read_bytes()
    catalog.change([topic("torn", 2)])
    whole = path.read_bytes()
    for size in range(len(kept) + 1, len(whole)):
        path.write_bytes(whole[:size])
        caplog.clear()
        found = CatalogFile.read(path, OpenFiles())
        assert found.catalog.topics == (topic("kept"),)
        assert "ends in the middle of a change" in caplog.text
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
        (b'{"version": 1}\n{"next_producer_id": 1}\n\x00\x00\n', "line 3: "),
        (b'{"version": 1}\n\n', "line 2: "),
        (b'{"version": 1}\n{"next_producer_id": "x"}\n', "line 2: "),
        (b'{"version": 1}\n[1]\n', "line 2: it is not an object with one field"),
        (b'{"version": 1}\n{"topic": {"name": "a", "id": "x", "partitions": 1, "configs": {}}}\n', "line 2: 'x' is not a topic id"),
        (b'{"version": 1}\n{"share_groups": 1}\n', "line 2: 'share_groups' is unknown"),
    ],
)
def test_damage_is_said_with_its_line(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "topics.json").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read(tmp_path)


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
    assert path.read_text().startswith('{"version": 1}\n')


def test_a_change_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, path = new(tmp_path), tmp_path / "topics.json"

    def half(fd: int, pieces: Sequence[bytes]) -> int:
        os.write(fd, b"".join(pieces)[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    def full(*args: object, **keywords: object) -> None:
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
