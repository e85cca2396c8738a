"""The aborted transactions of a segment: what a reader of committed records must leave out.

Owns the list and its layout, that of Kafka's ``.txnindex`` files. Must not know segments, producers or readers. Invariant: the
entries stand in the order of their markers; what is read from bytes obeys that or is refused.

Source: KIP-98; the layout is that of Apache Kafka 4.3 (version 0).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from ottla.broker.ports import PinnedFolder

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


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

    def compare(self, content: bytes) -> None:
        """The content of the file; if it is anything else, the next ``store`` rewrites it."""
        self._stored = len(self._entries) if content == self.to_bytes() else None

    def store(self, folder: PinnedFolder, name: str) -> None:
        """Write what is not yet in the file. Raises ``OSError``; then the next call rewrites the file."""
        stored, self._stored = self._stored, None
        if stored is None:
            folder.write_small(name, self.to_bytes())
        else:
            folder.append_small(name, b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries[stored:]))
        self._stored = len(self._entries)

    def to_bytes(self) -> bytes:
        """As ``.txnindex`` holds them."""
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries)

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
