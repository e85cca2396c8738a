"""What ZooKeeper has executed, in order, from the files of its transaction log.

Owns the format of the log: the header of a file, and transactions in ZooKeeper's own encoding (jute). Must not know what the nodes
are for. Invariant: only what is complete in the file is returned, so it may be the file of a server that runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CREATE, DELETE, SET_DATA, MULTI, CREATE_2 = 1, 2, 5, 14, 15
FAILED, CLOSE_SESSION = -1, -11
_MAGIC = b"ZKLG"


class Change(NamedTuple):
    """A change of a node, or the end of a session, which has no path."""

    zxid: int
    session: int
    """The session that has asked for it."""
    type: int
    path: str = ""
    data: bytes = b""
    ephemeral: bool = False


class _Input:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        value = struct.unpack_from(f">{form}", self.data, self.at)[0]
        self.at += struct.calcsize(f">{form}")
        return value

    def buffer(self) -> bytes:
        size: int = max(self.take("i"), 0)
        self.at += size
        return self.data[self.at - size : self.at]


def changes(folder: Path) -> Iterator[Change]:
    """The changes in the log files of a folder (``version-2`` of a data directory), in order."""
    for path in sorted(folder.glob("log.*"), key=lambda path: int(path.suffix[1:], 16)):
        file = _Input(path.read_bytes())
        assert file.data[:4] == _MAGIC, path
        file.at = 16
        while file.at + 12 <= len(file.data):
            file.take("q")  # a checksum
            entry = file.buffer()
            if not entry or file.at > len(file.data):
                break  # the rest of the file is allocated and not used yet
            assert file.take("c") == b"B", "the end of a record"
            yield from _transaction(_Input(entry))


def _transaction(entry: _Input) -> Iterator[Change]:
    session, _, zxid, _, kind = (entry.take(form) for form in "qiqqi")
    if kind != MULTI:
        yield from _changes(Change(zxid, session, kind), entry)
        return
    parts = [(entry.take("i"), entry.buffer()) for _ in range(entry.take("i"))]
    if FAILED not in (part for part, _ in parts):  # the operations before the one that failed are in the log as well
        for part, body in parts:
            yield from _changes(Change(zxid, session, part), _Input(body))


def _changes(change: Change, body: _Input) -> Iterator[Change]:
    if change.type in (CREATE, CREATE_2):
        path, data = body.buffer().decode(), body.buffer()
        for _ in range(body.take("i")):  # access rights: permissions, scheme, id
            body.take("i")
            body.buffer()
            body.buffer()
        yield change._replace(path=path, data=data, ephemeral=bool(body.take("?")))
    elif change.type == SET_DATA:
        yield change._replace(path=body.buffer().decode(), data=body.buffer())
    elif change.type == DELETE:
        yield change._replace(path=body.buffer().decode())
    elif change.type == CLOSE_SESSION:
        yield change
