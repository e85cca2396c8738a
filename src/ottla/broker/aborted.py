"""The aborted transactions of a segment: what a reader of committed records must leave out.

Owns the list and its layout, that of Kafka's ``.txnindex`` files, and that of their copies. Must not know segments, producers or
readers. Invariant: the entries stand in the order of their markers; what is read from bytes obeys that or is refused.

The copy, ``.txnindex.copy``, is there because Kafka's format has no checksum and a segment without entries has no file: a file that
is lost, or in which one bit is flipped, would give consumers of committed records what was aborted. In the copy a checksum follows
each entry.

Source: KIP-98; the layout is that of Apache Kafka 4.3 (version 0).
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from ottla.broker.ports import PinnedFolder

_ENTRY = struct.Struct(">hqqqq")
_CHECKSUM = struct.Struct(">I")
_VERSION = 0
TXNINDEX, TXNINDEX_COPY = "txnindex", "txnindex.copy"


class AbortedTransaction(NamedTuple):
    """``last_offset`` is that of the marker; ``last_stable_offset`` is how far committed records could be read with it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """The transactions whose abort markers lie in one segment."""

    __slots__ = ("_entries", "_stored")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)
        self._stored: int | None = len(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, aborted: AbortedTransaction) -> None:
        """Note one whose marker was just written."""
        self._entries.append(aborted)

    def between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those that have records from offset ``start`` on and before ``end``, as far as their markers lie in this segment."""
        first = bisect_left(self._entries, start, key=lambda entry: entry.last_offset)
        return [entry for entry in self._entries[first:] if entry.first_offset < end]

    @property
    def whole(self) -> bool:
        """Whether all of them are in the file."""
        return self._stored == len(self._entries)

    def compare(self, content: bytes, copy: bytes) -> None:
        """The content of the files; if it is anything else, the next ``store`` rewrites them."""
        is_right = content == self.to_bytes() and copy == self.to_copy()
        self._stored = len(self._entries) if is_right else None

    def store(self, folder: PinnedFolder, name: str, copy: str) -> None:
        """Write what is not yet in the files. Raises ``OSError``; then the next call rewrites them."""
        stored, self._stored = self._stored, None
        if stored is None:
            folder.write_small(name, self.to_bytes())
            folder.write_small(copy, self.to_copy())
        else:
            folder.append_small(name, b"".join(map(_packed, self._entries[stored:])))
            folder.append_small(copy, b"".join(map(_checked, self._entries[stored:])))
        self._stored = len(self._entries)

    def to_bytes(self) -> bytes:
        """As ``.txnindex`` holds them."""
        return b"".join(map(_packed, self._entries))

    def to_copy(self) -> bytes:
        """As the copy holds them."""
        return b"".join(map(_checked, self._entries))

    @classmethod
    def from_bytes(cls, content: bytes, before: int) -> AbortedTransactions | None:
        """Those in a ``.txnindex`` file whose markers lie before an offset, or ``None`` where it is none.

        An entry at its end that was not written whole is left out.
        """
        rows = list(_ENTRY.iter_unpack(content[: len(content) - len(content) % _ENTRY.size]))
        entries = [AbortedTransaction(*row[1:]) for row in rows]
        if any(row[0] != _VERSION for row in rows) or any(one.last_offset >= two.last_offset for one, two in pairwise(entries)):
            return None
        return cls(entry for entry in entries if entry.last_offset < before)

    @staticmethod
    def in_copy(copy: bytes, base_offset: int, limit: int | None) -> bytes | None:
        """What ``.txnindex`` has by its copy; ``None`` where an entry is damaged, or its marker is not between the base offset of
        the segment and that of the next one, ``limit``. An entry at the end that was not written whole is left out."""
        size = _ENTRY.size + _CHECKSUM.size
        rows = [copy[start : start + size] for start in range(0, len(copy) - size + 1, size)]
        if any(_with_checksum(row[: _ENTRY.size]) != row for row in rows):
            return None
        markers = [_ENTRY.unpack_from(row)[3] for row in rows]
        if any(marker < base_offset or (limit is not None and marker >= limit) for marker in markers):
            return None
        return b"".join(row[: _ENTRY.size] for row in rows)


def _packed(entry: AbortedTransaction) -> bytes:
    return _ENTRY.pack(_VERSION, *entry)


def _checked(entry: AbortedTransaction) -> bytes:
    return _with_checksum(_packed(entry))


def _with_checksum(packed: bytes) -> bytes:
    return packed + _CHECKSUM.pack(zlib.crc32(packed))
