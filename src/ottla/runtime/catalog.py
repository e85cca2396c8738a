"""The catalog of a data directory, ``topics.json``: topics with their settings, settings of the broker and of groups, producer ids.

Owns the file and its format. Must not know what a topic is for. Invariants: what ``change`` has written survives the end of the
process; a change is in the file completely or not at all; its cost does not grow with the number of topics.

The file has one JSON object per line. The first line is the version of the format. Each later line is one change, and overrides
earlier lines for the same topic, so a change is one small write at the end. When more lines are outdated than not, the file is
replaced by one with only the current state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.broker.ports import Catalog, CatalogChange, NextProducerId, StoredSettings, StoredTopic, TopicDeleted
from ottla.errors import StorageError
from ottla.runtime.folders import PinnedFolder
from ottla.runtime.log_files import DiskSegment, OpenFiles, uuid_of, uuid_text

VERSION = 1
_WHOLE_DOCUMENT = 0
"""The format of the first releases: one JSON document, replaced with each change."""

_OUTDATED = 1000
"""The number of outdated lines that is always tolerated, however few topics there are."""

_HINT = "start it with the release of Ottla that wrote the file, or a newer one"

log = logging.getLogger("ottla.broker")

Key = tuple[str, str]
"""The key of a line: the kind of the change, and the name of the topic."""

_EMPTY = Catalog(())


class CatalogFile:
    """The catalog at ``path``; ``catalog`` is its content when it was opened."""

    def __init__(self, path: Path, open_files: OpenFiles, catalog: Catalog = _EMPTY) -> None:
        """A new catalog: its first change replaces the file at ``path``, if any."""
        self.catalog = catalog
        self._path = path
        self._open = open_files
        self._file: DiskSegment | None = None
        self._rows = _rows_of(catalog)
        """The current line of each topic and setting."""
        self._lines = 0

    @classmethod
    def read(cls, path: Path, open_files: OpenFiles) -> CatalogFile:
        """The catalog at ``path``.

        Raises ``ValueError``, ``KeyError`` or ``TypeError`` if it is damaged, ``StorageError`` if its version is unknown, and
        ``OSError`` if it cannot be read.
        """
        content = path.read_bytes()
        first, newline, rest = content.partition(b"\n")
        if not _is_line_of_version(first, path):
            return cls(path, open_files, _document(json.loads(content), path))
        *lines, torn = rest.split(b"\n")
        if torn:
            log.warning("%s ends in the middle of a change, which is ignored: %d bytes", path, len(torn))
        read = cls(path, open_files, _catalog(lines))
        if newline and not torn:  # the file can be appended to as it is
            read._file, read._lines = DiskSegment(path, open_files), len(lines)
        return read

    def change(self, changes: Sequence[CatalogChange]) -> None:
        """Write changes. Raises ``OSError`` with nothing changed."""
        lines = [(*_row(one), isinstance(one, TopicDeleted)) for one in changes]
        if self._file is None or self._lines > 2 * len(self._rows) + _OUTDATED:
            rows = self._rows.copy()
            _apply(rows, lines)
            self._replace(rows)
        else:
            self._file.append([b"".join([line for _, line, _ in lines])])
            self._lines += len(lines)
            _apply(self._rows, lines)

    def _replace(self, rows: dict[Key, bytes]) -> None:
        content = b"".join([_line({"version": VERSION}), *rows.values()])
        PinnedFolder(self._path.parent, self._open.check).write_small(self._path.name, content)
        self._open.forget([self._path])
        self._file = DiskSegment(self._path, self._open, len(content))
        self._rows, self._lines = rows, len(rows)


def _is_line_of_version(line: bytes, path: Path) -> bool:
    """Whether the first line of a file has the version of this format; raises ``StorageError`` for another version."""
    try:
        content = json.loads(line)
    except ValueError:
        return False
    if not isinstance(content, dict) or content.keys() != {"version"}:
        return False
    _check_version(content["version"], VERSION, path)
    return True


def _document(content: Any, path: Path) -> Catalog:
    """The content of a file of the first releases."""
    _check_version(content["version"], _WHOLE_DOCUMENT, path)
    settings = content.get("settings", {})  # missing in catalogs of the first release
    return Catalog(tuple(map(_topic, content["topics"])), int(content["next_producer_id"]), StoredSettings(**settings))


def _check_version(version: Any, known: int, path: Path) -> None:
    if version != known:
        raise StorageError(f"{path} has version {version}, which this release of Ottla does not support", hint=_HINT)


def _catalog(lines: Iterable[bytes]) -> Catalog:
    """The content of the lines after the first."""
    topics: dict[str, StoredTopic] = {}
    catalog = _EMPTY
    for number, line in enumerate(lines, 2):
        try:
            change = _change(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number}: {error}") from error
        match change:
            case StoredTopic():
                topics[change.name] = change
            case TopicDeleted(name):
                topics.pop(name, None)
            case NextProducerId(value):
                catalog = catalog._replace(next_producer_id=value)
            case StoredSettings():
                catalog = catalog._replace(settings=change)
    return catalog._replace(topics=tuple(topics.values()))


def _rows_of(catalog: Catalog) -> dict[Key, bytes]:
    held: list[CatalogChange] = [*catalog.topics, NextProducerId(catalog.next_producer_id), catalog.settings]
    return dict(map(_row, held))


def _apply(rows: dict[Key, bytes], lines: Iterable[tuple[Key, bytes, bool]]) -> None:
    for key, line, is_gone in lines:
        if is_gone:
            rows.pop(key, None)
        else:
            rows[key] = line


def _row(change: CatalogChange) -> tuple[Key, bytes]:
    """The key of a change, and its line."""
    match change:
        case StoredTopic(name, topic_id, partitions, configs):
            topic = {"name": name, "id": uuid_text(topic_id), "partitions": partitions, "configs": dict(configs)}
            return ("topic", name), _line({"topic": topic})
        case TopicDeleted(name):
            return ("topic", name), _line({"deleted": name})
        case NextProducerId(value):
            return ("next_producer_id", ""), _line({"next_producer_id": value})
        case StoredSettings():
            return ("settings", ""), _line({"settings": change._asdict()})


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _change(content: Any) -> CatalogChange:
    """The change in a line; raises ``ValueError``, ``KeyError`` or ``TypeError``."""
    if not isinstance(content, dict) or len(content) != 1:
        raise ValueError("it is not an object with one field")
    ((kind, value),) = content.items()
    match kind:
        case "topic":
            return _topic(value)
        case "deleted":
            return TopicDeleted(str(value))
        case "next_producer_id":
            return NextProducerId(int(value))
        case "settings":
            return StoredSettings(**value)
    raise ValueError(f"{kind!r} is unknown")


def _topic(row: Any) -> StoredTopic:
    topic_id = uuid_of(row["id"])
    if topic_id is None:
        raise ValueError(f"{row['id']!r} is not a topic id")
    return StoredTopic(str(row["name"]), topic_id, int(row["partitions"]), dict(row["configs"]))
