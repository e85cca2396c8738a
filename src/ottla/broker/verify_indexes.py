"""Index files compared with the batches of their segment, entry by entry, while these are scanned.

Owns the rules for wrong entries. Must not know the names of files, or the consequences. Invariants: nothing that Apache Kafka
writes counts as wrong, also where Ottla would write something else; only a piece of an index is in memory.

Kafka's entries may name the last of several batches that were appended together, and the index of its newest segment has zeros
behind its entries until the broker ends cleanly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ottla.broker.ports import Readable
from ottla.broker.scan import PIECE, Damage
from ottla.records import BatchHeader

_OFFSET_ENTRY, _TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")
_NOTHING = (0, 0)
_MAX_WRONG = 1000
"""The number of wrong entries after which reading stops."""


class IndexCheck:
    """The entries of one index file. ``in_use``: the broker may have been killed while it wrote to the segment."""

    layout: struct.Struct
    offset_at: int
    """Where in an entry the offset is."""

    def __init__(self, file: Readable, base_offset: int, *, in_use: bool) -> None:
        self._base = base_offset
        self._in_use = in_use
        self._file = file
        self._entries = self._read()
        self._next = next(self._entries, None)
        self.count = 0
        """Entries that were compared so far."""
        self.wrong = 0
        self.first_error = ""
        """What is wrong with the first of them."""
        self.behind = -1
        """The largest offset of entries behind the last batch; -1 if there are none."""
        if file.size % self.layout.size:
            self.add_error(f"its size of {file.size} bytes is not a multiple of {self.layout.size}")

    def add_error(self, what: str) -> None:
        """Count an error, and keep the text of the first."""
        self.wrong += 1
        self.first_error = self.first_error or what

    def _read(self) -> Iterator[tuple[int, int]]:
        whole = self._file.size - self._file.size % self.layout.size
        step = PIECE - PIECE % self.layout.size
        for position in range(0, whole, step):
            piece = bytes(self._file.read(position, min(step, whole - position)))
            for first, second in self.layout.iter_unpack(piece[: len(piece) - len(piece) % self.layout.size]):
                if self._in_use and (first, second) == _NOTHING:
                    return
                yield first, second

    def _advance(self) -> None:
        self.count += 1
        self._next = next(self._entries, None) if self.wrong < _MAX_WRONG else None

    def _skip_rest(self, what: str) -> None:
        while self._next is not None:
            if self._next != _NOTHING:
                self.behind = max(self.behind, self._base + self._next[self.offset_at])
            if not self._in_use:
                self.add_error(what)
            self._advance()


class OffsetIndexCheck(IndexCheck):
    """``.index``: a batch begins at each position, and its offsets are at most the one in the entry."""

    layout = _OFFSET_ENTRY
    offset_at = 0
    _previous = -1
    _pending: int | None = None
    """The offset of the latest entry, until the batch that ends with it has come."""

    def batch(self, position: int, header: BatchHeader) -> None:
        """Compare the next intact batch."""
        first, last = header.base_offset - self._base, header.last_offset - self._base
        while self._next is not None and self._next[1] <= position:
            offset, at = self._next
            if at == position and at and self._previous < first <= offset:
                self._pending = offset
            else:
                self.add_error(f"entry {self.count + 1} says that offset {self._base + offset} is at byte {at}")
            self._previous = max(self._previous, offset)
            self._advance()
        if self._pending is not None and last >= self._pending:
            if last != self._pending:
                self.add_error(
                    f"entry {self.count} says {self._base + self._pending} for the batch that ends at {header.last_offset}"
                )
            self._pending = None

    def damage(self, damage: Damage, *, is_last: bool) -> None:
        """Skip the next damaged part. Its entries cannot be compared with anything."""
        while self._next is not None and (is_last or self._next[1] < damage.end):
            if self._next[1] < damage.position:
                self.add_error(f"entry {self.count + 1} points at byte {self._next[1]}, where no batch begins")
            self._advance()
        self._pending = None

    def finish(self, size: int) -> None:
        """Compare the rest: there are no more batches in the segment of ``size`` bytes."""
        self._skip_rest(f"entry {self.count + 1} points behind the last batch; the segment has {size} bytes")


class TimeIndexCheck(IndexCheck):
    """``.timeindex``: each entry has the largest timestamp up to its offset; the last one, that of the segment."""

    layout = _TIME_ENTRY
    offset_at = 1

    def __init__(self, file: Readable, base_offset: int, *, in_use: bool) -> None:
        super().__init__(file, base_offset, in_use=in_use)
        self._stamped, self._largest, self._with_empty = -1, -1, -1
        self._is_damaged = False

    def batch(self, header: BatchHeader) -> None:
        """Compare the next intact batch."""
        first, last = header.base_offset - self._base, header.last_offset - self._base
        self._with_empty = max(self._with_empty, header.max_timestamp)
        if header.record_count:
            self._largest = max(self._largest, header.max_timestamp)
        while self._next is not None and self._next[1] <= last:
            stamped, offset = self._next
            if offset < first or stamped != header.max_timestamp or stamped < self._largest or stamped <= self._stamped:
                self.add_error(
                    f"entry {self.count + 1} says that {stamped} is the largest timestamp up to offset {self._base + offset}"
                )
            self._stamped = stamped
            self._advance()

    def damage(self, damage: Damage, *, is_last: bool) -> None:
        """Skip the next damaged part. The next offset after the last one may not be known."""
        self._is_damaged = True
        while self._next is not None and (is_last or self._base + self._next[1] < damage.next_offset):
            if self._base + self._next[1] < damage.first_offset:
                self.add_error(f"entry {self.count + 1} names offset {self._base + self._next[1]}, which no batch has")
            self._stamped = self._next[0]
            self._advance()

    def finish(self) -> None:
        """Compare the rest: there are no more batches in the segment."""
        self._skip_rest(f"entry {self.count + 1} names an offset behind the last batch")
        if self._in_use or self.wrong:
            return
        is_right = self._largest <= self._stamped and (self._is_damaged or self._stamped <= self._with_empty)
        if not is_right:
            says = f"its last entry says {self._stamped}" if self.count else "it is empty"
            self.add_error(f"the largest timestamp of the segment is {self._largest}, and {says}")
