"""The two sparse indexes of a segment, in memory and as Kafka writes them.

Owns the entry layouts: ``.index`` maps the last offset of a batch to where the batch starts, ``.timeindex`` the largest timestamp
so far to the last offset of the batch that has it. Must not know files or batches. Invariants: offsets and positions never
decrease, timestamps strictly ascend; parsing rejects anything else.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise

_OFFSET_ENTRY, _TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")
OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE = _OFFSET_ENTRY.size, _TIME_ENTRY.size


class OffsetIndex:
    """Relative last offset of a batch -> position of the batch."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, offset: int, position: int) -> None:
        """Add an entry: the batch at ``position`` ends with ``offset`` (relative to the segment)."""
        self._offsets.append(offset)
        self._positions.append(position)

    def __getitem__(self, row: int) -> tuple[int, int]:
        """Return last offset and position of the batch of an entry."""
        return self._offsets[row], self._positions[row]

    def floor_row(self, offset: int) -> int:
        """Return the row of the last entry at or before the batch that contains ``offset``; -1 if there is none."""
        return bisect_right(self._offsets, offset) - 1

    def floor_position_row(self, position: int) -> int:
        """Return the row of the last entry whose batch starts at or before ``position``; -1 if there is none."""
        return bisect_right(self._positions, position) - 1

    def ceiling_row(self, position: int) -> int:
        """Return the row of the first entry whose batch starts at or after ``position``; the number of entries if there is none."""
        return bisect_left(self._positions, position)

    @property
    def last_position(self) -> int:
        """Where the batch of the last entry starts."""
        return self._positions[-1] if self._positions else 0

    def to_bytes(self) -> bytes:
        """Return the content of ``.index``."""
        both = array("i", bytes(OFFSET_ENTRY_SIZE * len(self)))
        both[0::2] = self._offsets
        both[1::2] = self._positions
        return _big_endian(both)

    @staticmethod
    def last_in(size: int, end: bytes) -> tuple[int, int]:
        """The last entry of a file of ``size`` bytes that ends with ``end``: (0, 0) if there is none, (-1, -1) if the size
        is wrong."""
        if size % OFFSET_ENTRY_SIZE:
            return -1, -1
        offset, position = _OFFSET_ENTRY.unpack(end) if size else (0, 0)
        return offset, position

    @classmethod
    def from_bytes(cls, content: bytes, log_size: int) -> OffsetIndex | None:
        """Parse a ``.index`` file; return ``None`` if it cannot be the index of a log of ``log_size`` bytes."""
        if len(content) % OFFSET_ENTRY_SIZE:
            return None
        both = array("i", content)
        if sys.byteorder == "little":
            both.byteswap()
        index = cls()
        index._offsets, index._positions = both[0::2], both[1::2]
        ascending = all(a < b for a, b in pairwise(index._offsets)) and all(a < b for a, b in pairwise(index._positions))
        inside = not both or (index._offsets[0] >= 0 and index._positions[0] > 0 and index.last_position < log_size)
        return index if ascending and inside else None


class TimeIndex:
    """Largest timestamp so far -> relative last offset of the batch that has it."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry, unless the last one has this timestamp or a later one."""
        if not self._timestamps or timestamp > self._timestamps[-1]:
            self._timestamps.append(timestamp)
            self._offsets.append(offset)

    def __getitem__(self, row: int) -> tuple[int, int]:
        """Return timestamp and relative offset of an entry."""
        return self._timestamps[row], self._offsets[row]

    def floor_row(self, timestamp: int) -> int:
        """Return the row of the last entry with an earlier timestamp than ``timestamp``; -1 if there is none."""
        return bisect_left(self._timestamps, timestamp) - 1

    @property
    def last(self) -> tuple[int, int]:
        """The largest timestamp and its relative offset; (-1, 0) if there is none."""
        return (self._timestamps[-1], self._offsets[-1]) if self._timestamps else (-1, 0)

    def to_bytes(self) -> bytes:
        """Return the content of ``.timeindex``."""
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps, self._offsets))

    @staticmethod
    def last_in(size: int, end: bytes) -> tuple[int, int]:
        """As ``OffsetIndex.last_in``; (-1, 0) if there is none."""
        if size % TIME_ENTRY_SIZE:
            return -1, -1
        timestamp, offset = _TIME_ENTRY.unpack(end) if size else (-1, 0)
        return timestamp, offset

    @classmethod
    def from_bytes(cls, content: bytes) -> TimeIndex | None:
        """Parse a ``.timeindex`` file; return ``None`` if it is invalid."""
        if len(content) % TIME_ENTRY_SIZE:
            return None
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(content):
            if index._timestamps and (timestamp <= index._timestamps[-1] or offset < index._offsets[-1]):
                return None
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
        return index


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
