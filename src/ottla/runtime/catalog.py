"""The catalog of a data directory: topics with their settings, settings of the broker and of groups, producer ids.

Owns the meaning of the lines in ``topics.json`` and in its copy. Must not know the use of a topic, nor how a line is checked
(``catalog_lines``). Invariants: what ``change`` has written survives the end of the process; a change is in ``topics.json``
completely or not at all; its cost does not grow with the number of topics; a field that this release does not know is kept; if a
change is lost, the settings of all topics count as unknown.

Each line is one change, and overrides earlier lines for the same topic, so a change is one small write at the end of each file.
When more lines are outdated than not, the files are replaced by ones with only the current state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ottla.broker.ports import Catalog, CatalogChange, NextProducerId, StoredSettings, StoredTopic, TopicDeleted
from ottla.runtime import catalog_lines
from ottla.runtime.catalog_lines import CatalogContent, Content, body_of
from ottla.runtime.folders import PinnedFolder, read_whole
from ottla.runtime.log_files import DiskSegment, OpenFiles
from ottla.types import parse_uuid, uuid_text

COPY = ".copy"
_DAMAGED = ".damaged"
_OUTDATED = 1000
"""The number of outdated lines that is always tolerated, however few topics there are."""

_SETTINGS_UNKNOWN = "settings_unknown"
_OF_TOPIC = ("name", "id", "partitions", "configs", _SETTINGS_UNKNOWN)
_TOPIC, _DELETED, _PRODUCERS, _SETTINGS = "topic", "deleted", "next_producer_id", "settings"

log = logging.getLogger("ottla.broker")

LineKey = tuple[str, str]
"""The key of a line: the kind of the change, and the name of the topic."""

Unknown = tuple[Content, Content]
"""The fields of a line, and those of the change in it, that this release does not know."""

_EMPTY = Catalog(())


class CatalogFile:
    """The catalog at ``path``; ``catalog`` is its content when it was opened."""

    def __init__(self, path: Path, open_files: OpenFiles, parsed: CatalogContent | None = None, *, durable: bool = True) -> None:
        """The catalog that the files tell; without ``parsed``, an empty one. ``durable`` False: it is never forced to disk."""
        self._path, self._copy_path = path, path.with_name(path.name + COPY)
        self._open = open_files
        self._durable = durable
        self._parsed = parsed if parsed is not None else CatalogContent()
        self._file: DiskSegment | None = None
        self._copy: DiskSegment | None = None
        self._copy_failed = False
        """Whether the last attempt to write the copy failed, which is logged once."""
        self._unknown: dict[LineKey, Unknown] = {}
        """By the ids of topics: a topic that has only the name of an earlier one has none of its fields."""
        self._rows: dict[LineKey, bytes] = {}
        """The current change of each topic and setting, and each change of a kind that this release does not know."""
        self._number, self._lines = self._parsed.last, len(self._parsed.contents) + 1
        self.catalog = self._interpreted(self._parsed)
        if self._parsed.is_current:
            self._file = DiskSegment(path, open_files)
            if not self._parsed.faults:
                self._copy = DiskSegment(self._copy_path, open_files)

    @classmethod
    def read(cls, path: Path, open_files: OpenFiles, *, durable: bool = True) -> CatalogFile:
        """The catalog at ``path``, or a new one. Raises ``StorageError`` for a newer version, and ``OSError``."""
        return cls(path, open_files, catalog_lines.read_files(path, path.with_name(path.name + COPY)), durable=durable)

    @property
    def faults(self) -> Sequence[str]:
        """A message for each problem with the files."""
        return self._parsed.faults

    @property
    def is_lost(self) -> bool:
        """Whether changes are lost that no file has."""
        return self._parsed.is_lost

    @property
    def is_from_earlier_release(self) -> bool:
        """Whether a release has written it that made no copies of files."""
        return self._parsed.is_from_earlier_release

    @property
    def has_damaged_lines(self) -> bool:
        """Whether a file has lines that are not whole changes. A kill leaves none, but the last one without an end."""
        return bool(self._parsed.damaged)

    @property
    def is_new(self) -> bool:
        """Whether there is no file."""
        return not self._parsed.last and not self._parsed.contents and not self._parsed.faults

    def recover(self, folders: Iterable[StoredTopic]) -> None:
        """Recover topics from their folders, after changes were lost. The settings of all topics count as unknown now.

        ``folders`` may have a topic several times, with different ids: that of the catalog counts, or the first.
        """
        found: dict[str, list[StoredTopic]] = {}
        for one in folders:
            found.setdefault(one.name, []).append(one)
        topics = {topic.name: topic for topic in self.catalog.topics}
        for name, rows in found.items():
            known = topics.get(name, rows[0])
            topic_id = known.topic_id if any(one.topic_id == known.topic_id for one in rows) else rows[0].topic_id
            topics[name] = known._replace(topic_id=topic_id, partitions=max(known.partitions, rows[0].partitions))
        self.catalog = self.catalog._replace(topics=tuple(one._replace(settings_unknown=True) for one in topics.values()))
        for topic in self.catalog.topics:
            self._rows[_TOPIC, topic.name] = self._body(topic)
        self._parsed.is_lost = True
        self._file = self._copy = None

    def repair(self) -> None:
        """Bring both files to the present state. A damaged file is kept under another name."""
        if self._copy is not None or (self.is_new and not self._rows):
            return
        try:
            if self._file is None:
                self._replace(self._rows)
            else:
                self._keep_damaged()
                self._bring_copy_up_to_date()
        except OSError as error:
            self._file = None  # the next change retries
            log.error("%s could not be written: %s", self._path, error)

    def change(self, changes: Sequence[CatalogChange]) -> None:
        """Write changes. Raises ``OSError`` with nothing changed."""
        bodies = [(_key(one), self._body(one), isinstance(one, TopicDeleted)) for one in changes]
        if self._file is None or self._lines > 2 * len(self._rows) + _OUTDATED:
            rows = self._rows.copy()
            _apply(rows, bodies)
            self._replace(rows)
        else:
            data = b"".join([catalog_lines.line(body, at) for at, (_, body, _) in enumerate(bodies, self._number + 1)])
            self._file.append([data])
            self._number += len(bodies)
            self._lines += len(bodies)
            _apply(self._rows, bodies)
            self._bring_copy_up_to_date(data)

    def _replace(self, rows: dict[LineKey, bytes]) -> None:
        self._keep_damaged()
        content = catalog_lines.whole(rows.values(), self._number + 1)
        # Forced to disk first: the old file may have been there, and an empty one would take every topic with it.
        self._pin().write_small(self._path.name, content, forced=True)
        self._open.forget([self._path])
        self._file = DiskSegment(self._path, self._open, len(content))
        self._rows, self._lines = rows, len(rows) + 1
        self._number += 1 + len(rows)
        self._copy = None
        self._bring_copy_up_to_date()

    def _bring_copy_up_to_date(self, added: bytes = b"") -> None:
        """Append what was ``added`` to the catalog; a copy that is not open is replaced by the whole of it.

        The change is already in effect: a failure of the copy does not fail it.
        """
        copy, self._copy = self._copy, None
        try:
            if copy is None:
                content = read_whole(self._path)
                self._pin().write_small(self._copy_path.name, content)
                self._open.forget([self._copy_path])
                copy = DiskSegment(self._copy_path, self._open, len(content))
            else:
                copy.append([added])
        except OSError as error:
            if not self._copy_failed:
                log.error("%s could not be written; each change retries it: %s", self._copy_path, error)
            self._copy_failed = True
            return
        self._copy, self._copy_failed = copy, False

    def _keep_damaged(self) -> None:
        """Write the damaged files under other names, before they are replaced. Raises ``OSError``; the next call goes on."""
        while self._parsed.damaged:
            path, folder = self._parsed.damaged[0], self._pin()
            if path.exists():
                name = folder.free_name(path.name + _DAMAGED)
                folder.write_small(name, read_whole(path), forced=True)
                log.warning("the damaged %s was kept as %s", path, name)
            del self._parsed.damaged[0]

    def _pin(self) -> PinnedFolder:
        return PinnedFolder(self._path.parent, self._open.check, durable=self._durable)

    def _interpreted(self, parsed: CatalogContent) -> Catalog:
        """The content of the lines."""
        topics: dict[str, StoredTopic] = {}
        catalog = _EMPTY
        for number, content in enumerate(parsed.contents):
            try:
                change, unknown = _change(content)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                parsed.faults.append(f"{self._path} has a change that makes no sense ({type(error).__name__}: {error}): {content}")
                parsed.is_lost, parsed.is_current = True, False
                parsed.damaged = [self._path, self._copy_path]
                continue
            if change is None:
                self._rows["unknown", str(number)] = body_of(content)
                continue
            self._unknown[_owner(change)] = unknown
            match change:
                case StoredTopic():
                    topics[change.name] = change
                case TopicDeleted(name):
                    topics.pop(name, None)
                case NextProducerId(value):
                    catalog = catalog._replace(next_producer_id=value)
                case StoredSettings():
                    catalog = catalog._replace(settings=change)
            _apply(self._rows, [(_key(change), body_of(content), isinstance(change, TopicDeleted))])
        self._unknown = {owner: unknown for owner, unknown in self._unknown.items() if any(unknown)}
        return catalog._replace(topics=tuple(topics.values()))

    def _body(self, change: CatalogChange) -> bytes:
        """The change, with the fields that were in its line and that this release does not know."""
        of_line, of_change = self._unknown.get(_owner(change), ({}, {}))
        match change:
            case StoredTopic():
                return body_of({_TOPIC: {**_row(change), **of_change}, **of_line})
            case TopicDeleted(name):
                return body_of({_DELETED: name})
            case NextProducerId(value):
                return body_of({_PRODUCERS: value, **of_line})
            case StoredSettings():
                return body_of({_SETTINGS: {**change._asdict(), **of_change}, **of_line})


def _key(change: CatalogChange) -> LineKey:
    match change:
        case StoredTopic(name) | TopicDeleted(name):
            return (_TOPIC, name)
        case NextProducerId():
            return (_PRODUCERS, "")
        case StoredSettings():
            return (_SETTINGS, "")


def _owner(change: CatalogChange) -> LineKey:
    return (_TOPIC, uuid_text(change.topic_id)) if isinstance(change, StoredTopic) else _key(change)


def _apply(rows: dict[LineKey, bytes], bodies: Iterable[tuple[LineKey, bytes, bool]]) -> None:
    for key, body, is_gone in bodies:
        if is_gone:
            rows.pop(key, None)
        else:
            rows[key] = body


def _row(topic: StoredTopic) -> Content:
    row = {"name": topic.name, "id": uuid_text(topic.topic_id), "partitions": topic.partitions, "configs": dict(topic.configs)}
    return {**row, _SETTINGS_UNKNOWN: True} if topic.settings_unknown else row


def _change(content: Content) -> tuple[CatalogChange | None, Unknown]:
    """The change in a line, if it is of a kind that is known. Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
    kind = next((one for one in (_TOPIC, _DELETED, _PRODUCERS, _SETTINGS) if one in content), None)
    of_line = {name: field for name, field in content.items() if name != kind}
    if kind is None:
        return None, ({}, {})
    value = content[kind]
    match kind:
        case "topic":
            return _topic(value), (of_line, {name: field for name, field in value.items() if name not in _OF_TOPIC})
        case "deleted":
            return TopicDeleted(str(value)), ({}, {})
        case "next_producer_id":
            return NextProducerId(int(value)), (of_line, {})
    known = StoredSettings._fields
    settings = StoredSettings(**{name: _checked(name, field) for name, field in value.items() if name in known})
    return settings, (of_line, {name: field for name, field in value.items() if name not in known})


def _checked(name: str, settings: Any) -> Any:
    """Settings by their names; of groups, by their ids and names. Raises ``TypeError``."""
    if not isinstance(settings, dict):
        raise TypeError(f"{name} is not an object")
    for one in settings.values():
        if not isinstance(one, dict if name == "groups" else str):
            raise TypeError(f"{name} has a {type(one).__name__}")
    return settings


def _topic(row: Any) -> StoredTopic:
    topic_id = parse_uuid(row["id"])
    if topic_id is None:
        raise ValueError(f"{row['id']!r} is not a topic id")
    configs = _checked("configs", row["configs"])
    return StoredTopic(str(row["name"]), topic_id, int(row["partitions"]), configs, bool(row.get(_SETTINGS_UNKNOWN, False)))
