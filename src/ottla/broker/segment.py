"""One segment of a log: where its batches lie, how it is searched, when it is full.

Owns the indexes of one ``.log`` file and the search in it by offset, by size and by time. Must not know other segments, topics
or who reads. Invariant: a range that is read begins and ends at the border of a batch, and lookups through the indexes find
what a scan from the beginning would find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ottla.broker.aborted import AbortedTransactions
from ottla.broker.indexes import OFFSET_ENTRY_SIZE, OffsetIndex, TimeIndex
from ottla.broker.ports import SegmentFile
from ottla.records import HEADER_SIZE, BatchHeader, InvalidBatchError, find_timestamp, read_header

_WALK = 4096
"""Bytes read at once while walking from batch to batch: between two index entries there is rarely more."""

NO_TIMESTAMP = -1
_MAX_RELATIVE = 2**31 - 1

Indexes = tuple[OffsetIndex, TimeIndex]


class Segment:
    """A segment. ``next_offset`` is the offset after its last batch.

    The indexes of a segment that is not written to any more are loaded when they are first needed.
    """

    __slots__ = (
        "_first_timestamp",
        "_index",
        "_load",
        "_newest",
        "_since_entry",
        "_time_index",
        "aborted",
        "base_offset",
        "file",
        "interval",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
    )

    def __init__(
        self,
        base_offset: int,
        file: SegmentFile,
        interval: int,
        *,
        load: Callable[[Segment], Indexes] | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.file = file
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self.interval = interval
        self._since_entry = 0
        self._newest: tuple[range, int] = (range(0), 0)
        """The newest batch: the offsets up to its last one that are not in those before it, and its position."""
        self._load = load
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self.aborted = AbortedTransactions()

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}..{self.next_offset - 1}, {self.file.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes of batches."""
        return self.file.size

    def append(self, pieces: Sequence[bytes | memoryview], size: int, last_offset: int, max_timestamp: int) -> None:
        """Write one batch; raises ``OSError`` with nothing written and nothing noted."""
        position = self.file.size
        self.file.append(pieces)
        self.note(position, size, last_offset, max_timestamp)

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Take note of a batch that lies in the file: the only writer of the indexes, live and in recovery.

        Raises ``InvalidBatchError`` for an offset that this segment cannot hold.
        """
        if not 0 <= last_offset - self.base_offset <= _MAX_RELATIVE:
            raise InvalidBatchError(f"offset {last_offset} cannot be in the segment that begins with {self.base_offset}")
        if position == 0:
            self._first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, last_offset
        if self._since_entry > self.interval:
            self._index.append(last_offset - self.base_offset, position)
            self._time_index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
            self._since_entry = 0
        self._since_entry += size
        # Of the first batch that is noted behind others, in recovery, only its last offset is known to be no other's.
        first = self.next_offset if position == 0 or self._newest[0] else last_offset
        self._newest = (range(first, last_offset + 1), position)
        self.next_offset = last_offset + 1

    def note_batch(self, position: int, header: BatchHeader) -> None:
        """As ``note``, by a batch's header. One that lost its records to compaction says nothing of time any more."""
        self.note(position, header.size, header.last_offset, header.max_timestamp if header.record_count else NO_TIMESTAMP)

    def resume(self, index: OffsetIndex, time_index: TimeIndex) -> int:
        """Take over the indexes that were stored; returns the position from which batches must be noted again.

        That is the batch of the last entry: what the index does not say of it and of those after it is read from the log.
        """
        self._index, self._time_index = index, time_index
        self.max_timestamp, relative = time_index.last
        self.offset_of_max_timestamp = self.base_offset + relative
        return index.last_position

    def full(self, size: int, last_offset: int, max_timestamp: int, *, limit: int, age: int, index_limit: int) -> bool:
        """Whether a batch must go into a new segment: by size, by age as the records are stamped, or by what an index can hold."""
        if last_offset - self.base_offset > _MAX_RELATIVE:
            return True
        if self.size == 0:
            return False
        if self.size + size > limit or (len(self.index) + 1) * OFFSET_ENTRY_SIZE > index_limit:
            return True
        try:
            first = self.first_timestamp
        except InvalidBatchError:
            return True  # what is damaged stays as it is, and the log goes on behind it
        return first >= 0 and max_timestamp - first > age

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 where there is none: what a segment's age counts from."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            self._first_timestamp = read_header(self.file.read(0, HEADER_SIZE)).max_timestamp
        return self._first_timestamp

    @property
    def index(self) -> OffsetIndex:
        """The offset index."""
        return self._indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        """The time index."""
        return self._indexes()[1]

    def seal(self) -> Indexes:
        """The indexes of a segment that gets no more batches, complete: the largest timestamp is always the last entry."""
        index, time_index = self._indexes()
        if self.max_timestamp >= 0:
            time_index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
        return index, time_index

    def locate(self, offset: int) -> int | None:
        """Position of the batch that holds ``offset``, or of the first one after it; ``None`` where neither is here."""
        newest, position = self._newest
        if offset in newest:
            return position  # what readers at the end of the log ask for, one after the other
        start = self.index.floor(offset - self.base_offset)
        return next((position for position, header in self.walk(start) if header.last_offset >= offset), None)

    def cut(self, position: int, max_bytes: int, *, at_least_one: bool) -> int:
        """The largest number of bytes from ``position`` on, up to ``max_bytes``, that are whole batches.

        A large answer may end up to one index interval earlier than it could, so that no header needs to be read. With
        ``at_least_one`` the first batch is counted even where it is larger than allowed.
        """
        available = self.size - position
        if available <= max_bytes:
            return available
        end = self.index.floor_position(position + max_bytes)
        if end > position:
            return end - position
        taken = 0
        for _, header in self.walk(position):
            if taken + header.size > max_bytes and (taken or not at_least_one):
                break
            taken += header.size
        return taken

    def bound(self, position: int) -> int:
        """An offset at or after those of all batches that end at or before ``position``; near by, as the index is sparse."""
        relative = self.index.ceiling(position)
        return self.next_offset if relative is None else self.base_offset + relative

    def find_time(self, timestamp: int, from_offset: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after ``timestamp`` and not before ``from_offset``."""
        start = self.index.floor(self.time_index.floor(timestamp))
        for position, header in self.walk(start):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                found = find_timestamp(self.file.read(position, header.size), 0, timestamp)
                if found is not None and found[0] >= from_offset:
                    return found
        return None

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from a batch's beginning on."""
        chunk, start = b"", position
        end = self.size
        while position + HEADER_SIZE <= end:
            if position + HEADER_SIZE > start + len(chunk):
                chunk, start = self.file.read(position, _WALK), position
            header = read_header(chunk, position - start)
            yield position, header
            position += header.size

    def _indexes(self) -> Indexes:
        if self._load is not None:
            self._index, self._time_index = self._load(self)
            self._load = None
        return self._index, self._time_index
