"""The transaction index of a segment: the aborted transactions that a ``read_committed`` reader skips.

Owns the list, and the layouts of Kafka's ``.txnindex`` files and of their copies. Must not know segments, producers or readers.
Invariant: entries are in the order of their markers; parsing rejects any other order.

The copy, ``.txnindex.copy``, exists because Kafka's format has no checksum and a segment without entries has no file: if a file
were lost or a bit in it flipped, ``read_committed`` consumers would receive aborted records. In the copy, a checksum follows each
entry.

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
    """``last_offset`` is the offset of the marker; ``last_stable_offset``, the last stable offset after the marker was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers are in one segment (Kafka's ``TransactionIndex``)."""

    __slots__ = ("_entries", "_stored")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)
        self._stored: int | None = len(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose abort marker was just written."""
        self._entries.append(aborted)

    def collect_aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the transactions with records from ``start`` to ``end`` (exclusive) whose markers are in this segment."""
        first = bisect_left(self._entries, start, key=lambda entry: entry.last_offset)
        return [entry for entry in self._entries[first:] if entry.first_offset < end]

    @property
    def is_stored(self) -> bool:
        """Whether the files contain all entries."""
        return self._stored == len(self._entries)

    def compare_with_files(self, content: bytes, copy: bytes) -> None:
        """Compare the entries with the content of the files; if these differ, the next ``store`` rewrites them."""
        is_right = content == self.to_bytes() and copy == self.to_copy()
        self._stored = len(self._entries) if is_right else None

    def store(self, folder: PinnedFolder, name: str, copy: str) -> None:
        """Append new entries to the files. Raises ``OSError``; then the next call rewrites the files."""
        stored, self._stored = self._stored, None
        if stored is None:
            folder.write_small(name, self.to_bytes())
            folder.write_small(copy, self.to_copy())
        else:
            folder.append_small(name, b"".join(map(_packed, self._entries[stored:])))
            folder.append_small(copy, b"".join(map(_checked, self._entries[stored:])))
        self._stored = len(self._entries)

    def to_bytes(self) -> bytes:
        """Return the content of ``.txnindex``."""
        return b"".join(map(_packed, self._entries))

    def to_copy(self) -> bytes:
        """Return the content of ``.txnindex.copy``."""
        return b"".join(map(_checked, self._entries))

    @classmethod
    def from_bytes(cls, content: bytes, before: int) -> TransactionIndex | None:
        """Parse a ``.txnindex`` file; return the entries whose markers are before an offset, or ``None`` if the file is invalid.

        An incomplete last entry is ignored.
        """
        rows = list(_ENTRY.iter_unpack(content[: len(content) - len(content) % _ENTRY.size]))
        entries = [AbortedTransaction(*row[1:]) for row in rows]
        if any(row[0] != _VERSION for row in rows) or any(one.last_offset >= two.last_offset for one, two in pairwise(entries)):
            return None
        return cls(entry for entry in entries if entry.last_offset < before)

    @staticmethod
    def read_copy(copy: bytes, base_offset: int, limit: int | None) -> bytes | None:
        """Return the content of ``.txnindex`` according to its copy; ``None`` if an entry is damaged or its marker is not in the
        segment, which ends before ``limit``, the base offset of the next segment. An incomplete last entry is ignored."""
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
