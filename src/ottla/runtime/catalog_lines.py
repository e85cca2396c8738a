"""The format of the catalog's files: numbered lines with checksums, in two files, of which one may be damaged or missing.

Owns the layout of a line, the versions, and the merging of two files. Must not know the meaning of a change. Invariants: a line is
used only if its checksum fits; the content of one intact file is never lost because of the other; a file of a newer version is not
interpreted.

The first line has the version. Each other line is a JSON object: one change, the number of the line, and the CRC-32 of the
bytes before it in the line. Numbers go on when the files are replaced; the line with ``begin`` makes all lines with smaller numbers
outdated, so that a file that was not replaced yet does no harm.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.errors import StorageError
from ottla.runtime.folders import read_whole

VERSION = 2
_PLAIN_LINES, _WHOLE_DOCUMENT = 1, 0
"""Earlier formats: lines without numbers and checksums; one JSON document, replaced with each change."""

BEGIN = "begin"
_HEAD = json.dumps({"version": VERSION}).encode() + b"\n"
_TAIL = re.compile(rb', "line": (\d+), "crc": "([0-9a-f]{8})"\}')

Content = dict[str, Any]


@dataclass(slots=True)
class CatalogContent:
    """The content of the files. ``last`` is the number of the last line."""

    contents: list[Content] = field(default_factory=list)
    last: int = 0
    faults: list[str] = field(default_factory=list)
    """A message for each problem, with its file."""
    is_lost: bool = False
    """Whether changes are missing that no file has."""
    is_current: bool = False
    """Whether the first file has all of it, undamaged, in the present format."""
    damaged: list[Path] = field(default_factory=list)
    """The files that have damaged lines."""
    is_from_earlier_release: bool = False
    """Whether it is one file, of a version before there were two."""


@dataclass(slots=True)
class _Read:
    """One file of the present version."""

    path: Path
    rows: dict[int, Content] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    torn: int = 0
    """Bytes of a last line without an end."""
    bad_at_end: int = 0
    last_seen: int = 0
    """The number of the last line that shows its number, damaged or not."""

    @property
    def is_flawless(self) -> bool:
        return not self.bad and not self.torn and bool(self.rows)


def body_of(content: Content) -> bytes:
    """Return a change as it is kept in memory: its line without number and checksum."""
    return json.dumps(content)[:-1].encode()


def line(body: bytes, number: int) -> bytes:
    """Return a change as a line of the file."""
    text = b'%b, "line": %d' % (body, number)
    return b'%b, "crc": "%08x"}\n' % (text, zlib.crc32(text))


def whole(bodies: Iterable[bytes], number: int) -> bytes:
    """Return the content of a new file, whose first change gets ``number`` + 1."""
    lines = [line(body, at) for at, body in enumerate(bodies, number + 1)]
    return b"".join([_HEAD, line(body_of({BEGIN: True}), number), *lines])


def read_files(first: Path, second: Path) -> CatalogContent:
    """Read the two files; the result is empty if neither exists. Raises ``StorageError`` for a newer version, and ``OSError``."""
    found = [(path, read_whole(path)) for path in (first, second) if path.exists()]
    documents = [_checked_version(path, content) for path, content in found]
    if not found:
        return CatalogContent()
    if len(found) == 1 and found[0][0] == first:
        if documents[0] is not None:
            return _document(first, documents[0])
        if _version(found[0][1].partition(b"\n")[0]) == _PLAIN_LINES:
            return _plain(first, found[0][1])
    read = _read(*found[0])
    if len(found) == 2 and found[0][1] == found[1][1] and read.is_flawless:
        return _together([read, _Read(second, read.rows)])
    parsed = _together([read, *(_read(*one) for one in found[1:])])
    missing = next((path for path in (first, second) if not path.exists()), None)
    if missing is not None:
        parsed.faults.append(f"{missing} is missing")
        parsed.is_current &= missing != first
    return parsed


def _checked_version(path: Path, content: bytes) -> Content | None:
    """Return the document in a file, if it is one. Raises ``StorageError`` if its version is newer."""
    version, document = _version(content.partition(b"\n")[0]), None
    if version is None or version == _WHOLE_DOCUMENT:
        parsed = _object(content)
        if parsed is not None and "topics" in parsed:
            version, document = parsed.get("version"), parsed
    newest = _WHOLE_DOCUMENT if document is not None else VERSION
    if isinstance(version, int) and version > newest:
        raise StorageError(
            f"{path} has version {version} of its format; this release of Ottla reads versions 0 to {VERSION}",
            hint="start the broker with the release of Ottla that wrote the file, or a newer one",
        )
    return document


def _version(head: bytes) -> int | None:
    content = _object(head)
    version = content.get("version") if content is not None else None
    return version if isinstance(version, int) and not isinstance(version, bool) else None


def _object(text: bytes) -> Content | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _read(path: Path, content: bytes) -> _Read:
    head, newline, rest = content.partition(b"\n")
    read, number = _Read(path), 0
    if not content:
        read.bad.append(f"{path} is empty")
        return read
    if not newline or _version(head) != VERSION:
        read.bad.append(f"line 1 of {path} is damaged")
    *lines, torn = rest.split(b"\n")
    read.torn = len(torn)
    for at, text in enumerate(lines, 2):
        row = _row(text)
        if row is None:
            read.bad.append(f"line {at} of {path} is damaged")
            read.bad_at_end += 1
            number, tail = number + 1, _TAIL.search(text, max(0, len(text) - 64))
            if tail is not None and int(tail[1]) == number:  # the number itself is intact
                read.last_seen = number
        else:
            number, read.rows[row[0]] = row
            read.bad_at_end, read.last_seen = 0, number
    return read


def _row(text: bytes) -> tuple[int, Content] | None:
    """Return the number and the change of a line; ``None`` if its checksum does not fit."""
    tail = _TAIL.search(text, max(0, len(text) - 64))
    if tail is None or tail.end() != len(text) or zlib.crc32(text[: tail.end(1)]) != int(tail[2], 16):
        return None
    content = _object(text[: tail.start()] + b"}")
    return (int(tail[1]), content) if content is not None else None


def _together(files: list[_Read]) -> CatalogContent:
    rows: dict[int, Content] = {}
    for read in reversed(files):
        rows.update(read.rows)
    faults = [fault for read in files for fault in _faults(read)]
    damaged = [read.path for read in files if read.bad]
    begin = max((number for number, content in rows.items() if BEGIN in content), default=None)
    if begin is None:
        return CatalogContent(
            [rows[number] for number in sorted(rows)], max(rows, default=0), faults, is_lost=True, damaged=damaged
        )
    last = max(rows)
    kept = [rows[number] for number in range(begin + 1, last + 1) if number in rows]
    is_lost = len(kept) < last - begin or any(read.last_seen > last for read in files)
    if not any(read.is_flawless for read in files):
        ends = [max(read.rows) + read.bad_at_end for read in files if read.rows]
        is_lost |= max(ends) > last or _is_cut(files)
    present = {number for number in range(begin, last + 1) if number in rows}
    faults += [
        f"{read.path} lacks changes that the other file has"
        for read in files
        if not read.bad and not read.torn and not read.rows.keys() >= present
    ]
    is_current = files[0].is_flawless and files[0].rows.keys() >= present and not is_lost
    return CatalogContent(kept, last, faults, is_lost, is_current, damaged)


def _is_cut(files: list[_Read]) -> bool:
    """Whether a file may have been cut anywhere.

    A kill leaves one in the middle of a change, but the other one undamaged; a power failure may leave both in the last change.
    """
    torn = [read for read in files if read.torn]
    ends = {max(read.rows, default=0) for read in torn}
    return bool(torn) and (len(torn) < len(files) or len(files) == 1 or len(ends) > 1)


def _faults(read: _Read) -> list[str]:
    shown = read.bad if len(read.bad) <= 3 else [*read.bad[:3], f"{read.path} has {len(read.bad) - 3} more damaged lines"]
    return shown if not read.torn else [*shown, f"{read.path} ends in the middle of a change, which is ignored: {read.torn} bytes"]


def _plain(path: Path, content: bytes) -> CatalogContent:
    """A file of version 1."""
    parsed = CatalogContent(is_from_earlier_release=True)
    *lines, torn = content.partition(b"\n")[2].split(b"\n")
    for number, text in enumerate(lines, 2):
        change = _object(text)
        if not change:
            parsed.faults.append(f"line {number} of {path} is damaged")
            parsed.is_lost, parsed.damaged = True, [path]
        else:
            parsed.contents.append(change)
    if torn:
        parsed.faults.append(f"{path} ends in the middle of a change, which is ignored: {len(torn)} bytes")
    return parsed


def _document(path: Path, document: Content) -> CatalogContent:
    """A file of version 0."""
    topics = document["topics"]
    if not isinstance(topics, list):
        return CatalogContent(
            faults=[f"{path} is damaged: its topics are not a list"], is_lost=True, damaged=[path], is_from_earlier_release=True
        )
    others = {name: value for name, value in document.items() if name not in ("version", "topics")}
    return CatalogContent(
        [*({"topic": topic} for topic in topics), *({name: value} for name, value in others.items())], is_from_earlier_release=True
    )
