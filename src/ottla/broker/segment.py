"""One segment of a log: where its batches lie, how it is searched, when it is full.

Owns the indexes of one ``.log`` file and the search in it by offset, by size and by time. Must not know other segments, topics
or who reads. Invariants: a range that is read begins and ends at the border of a batch, and holds no damage that is known; lookups
through the indexes find what a scan from the beginning would find, whatever is in the index files.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ottla.broker.aborted import AbortedTransactions
from ottla.broker.indexes import OFFSET_ENTRY_SIZE, OffsetIndex, TimeIndex
from ottla.broker.ports import Readable, SegmentFile
from ottla.broker.scan import Batch, Damage, scan
from ottla.records import HEADER_SIZE, BatchHeader, InvalidBatchError, find_timestamp, iter_records, read_header
from ottla.records.batch import crc_matches
from ottla.records.header import MAGIC, MAGIC_OFFSET

_WALK = 4096
"""Bytes read at once while walking from batch to batch: between two index entries there is rarely more."""

NO_TIMESTAMP = -1
_MAX_RELATIVE = 2**31 - 1
_END = 2**63
"""After every byte of a file."""

Indexes = tuple[OffsetIndex, TimeIndex]
StoredIndexes = Callable[[int], Indexes | None]
"""Reads the index files of a segment whose ``.log`` has so many bytes; ``None`` where they are missing or make no sense."""


def file_name(offset: int, suffix: str) -> str:
    """The name of a segment's file: its base offset in 20 digits."""
    return f"{offset:020d}.{suffix}"


class Gap(NamedTuple):
    """Offsets from ``start`` on and before ``end`` that no batch has. The batch at ``position`` begins with ``end``."""

    start: int
    end: int
    position: int


class Segment:
    """A segment. ``next_offset`` is the offset after its last batch.

    The indexes of a segment that is not written to any more are loaded when they are first needed.
    """

    __slots__ = (
        "_checked",
        "_first_timestamp",
        "_from_file",
        "_index",
        "_newest",
        "_since_entry",
        "_stored",
        "_time_index",
        "aborted",
        "base_offset",
        "damages",
        "file",
        "has_bad_sector",
        "has_wrong_entries",
        "interval",
        "is_index_dropped",
        "is_suspect",
        "is_time_from_file",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
    )

    def __init__(self, base_offset: int, file: SegmentFile, interval: int, *, stored: StoredIndexes | None = None) -> None:
        """``stored``: where the indexes are read from when they are first needed."""
        self.base_offset = base_offset
        self.file = file
        self.next_offset = base_offset
        self.interval = interval
        self._stored = stored
        self.aborted = AbortedTransactions()
        self.damages: list[Damage] = []
        """The parts of the file that hold no intact batch, as far as that is known. They are not read."""
        self.is_suspect = False
        """Whether a walk came upon damage that is not in ``damages``: ``rescan`` finds it."""
        self.has_bad_sector = False
        """Whether a search for damage has met a part of the file that cannot be read."""
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self._since_entry = 0
        self._newest: tuple[range, int] = (range(0), 0)
        """The newest batch: the offsets up to its last one that are not in those before it, and its position."""
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._from_file = 0
        """Entries of the offset index that come from its file, and are checked when they are used."""
        self._checked: list[tuple[int, int]] | None = None if stored is None else []
        """The parts of the file that were walked through since the segment was loaded; ``None``: all of it."""
        self.is_time_from_file = False
        """Whether ``max_timestamp`` comes from an index file, and not from the batches."""
        self.has_wrong_entries = self.is_index_dropped = False
        """Whether an entry of an index file proved to be wrong, and whether the files were removed therefore."""

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset}..{self.next_offset - 1}, {self.file.size} bytes>"

    @property
    def name(self) -> str:
        """The name of its ``.log`` file."""
        return file_name(self.base_offset, "log")

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
        self._index, self._time_index, self._from_file = index, time_index, len(index)
        self.max_timestamp, relative = time_index.last
        self.is_time_from_file = len(time_index) > 0
        self._checked = [(index.last_position, _END)]
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
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return True  # the same for what is in a bad sector
        return first >= 0 and max_timestamp - first > age

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 where there is none: what a segment's age counts from."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            front = self.file.read(0, HEADER_SIZE)
            try:
                self._first_timestamp = read_header(front).max_timestamp
            except InvalidBatchError as error:
                self.is_suspect = not self.damages
                raise InvalidBatchError(f"{self.name} is damaged: {_fault(error, front, 0)}") from None
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
        """Position of the batch that holds ``offset``, or of the first one after it; ``None`` where neither is here.

        Raises ``InvalidBatchError`` for an offset that was in a damaged part.
        """
        for damage in self.damages:
            if damage.first_offset <= offset < damage.next_offset:
                raise InvalidBatchError(f"{self.name} at {damage}; the next offset that can be read is {damage.next_offset}")
        newest, position = self._newest
        if offset in newest:
            return position  # what readers at the end of the log ask for, one after the other
        start = self._start(self.index.floor_row(offset - self.base_offset))
        return next((position for position, header in self.walk(start) if header.last_offset >= offset), None)

    def locate_end(self, offset: int) -> int | None:
        """As ``locate``, for what ends before ``offset``. If that was in a damaged part, it ends where the damage begins."""
        damaged = (damage.position for damage in self.damages if damage.first_offset <= offset < damage.next_offset)
        found = next(damaged, None)
        return self.locate(offset) if found is None else found

    def cut(self, position: int, max_bytes: int, *, at_least_one: bool) -> int:
        """The largest number of bytes from ``position`` on, up to ``max_bytes``, that are whole batches.

        A large answer may end up to one index interval earlier than it could, so that no header needs to be read. With
        ``at_least_one`` the first batch is counted even where it is larger than allowed.
        """
        stop = next((damage.position for damage in self.damages if damage.position > position), self.size)
        available = stop - position
        if available <= max_bytes:
            return available
        end = self._start(self.index.floor_position_row(position + max_bytes))
        if end > position:
            return end - position
        taken = 0
        for _, header in self.walk(position):
            if taken + header.size > max_bytes and (taken or not at_least_one):
                break
            taken += header.size
            if taken >= max_bytes:
                break
        return taken

    def check(self, position: int, end: int) -> None:
        """Walk through a part of the file before it is read for the first time since the segment was loaded.

        The base offset of a batch is not covered by its checksum, so a flipped bit there would make readers skip records without
        noticing it. Raises ``InvalidBatchError``.
        """
        if self._checked is None:
            return
        row = bisect_right(self._checked, (position, _END)) - 1
        if row >= 0 and end <= self._checked[row][1]:
            return
        start = self._start(self.index.floor_position_row(position))
        following = self.next_offset
        for at, header in self.walk(start):
            if at >= end:
                break
            following = header.next_offset
        if following > self.next_offset:
            self.is_suspect = True
            raise InvalidBatchError(f"a batch before byte {end} claims offset {following - 1} in {self!r}")
        self._note_checked(start, end)

    def _note_checked(self, start: int, end: int) -> None:
        assert self._checked is not None
        merged: list[tuple[int, int]] = []
        for one in sorted([*self._checked, (start, end)]):
            if merged and one[0] <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], one[1]))
            else:
                merged.append(one)
        self._checked = merged

    def bound(self, position: int) -> int:
        """An offset at or after those of all batches that end at or before ``position``; near by, as the index is sparse."""
        index = self.index
        for row in range(index.ceiling_row(position), len(index)):
            if self._is_right(row):
                return self.base_offset + index[row][0]
        return self.next_offset

    def find_time(self, timestamp: int, from_offset: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after ``timestamp`` and not before ``from_offset``."""
        for position, header in self.walk(self._start_of_time(timestamp)):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                found = self._time_in(position, header, timestamp, from_offset)
                if found is not None:
                    return found
        return None

    def _time_in(self, position: int, header: BatchHeader, timestamp: int, from_offset: int) -> tuple[int, int] | None:
        batch = self.file.read(position, header.size)
        if not crc_matches(batch, 0, header):
            self.is_suspect = True
            raise InvalidBatchError(f"the batch at byte {position}, offset {header.base_offset}, fails its checksum")
        found = find_timestamp(batch, 0, timestamp)
        if found is None or found[0] >= from_offset:
            return found
        # DeleteRecords may have made the log begin in the middle of the batch.
        later = (one for one in iter_records(batch) if one.offset >= from_offset and one.timestamp >= timestamp)
        return next(((one.offset, one.timestamp) for one in later), None)

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from a batch's beginning on, without those in ``damages``.

        Raises ``InvalidBatchError`` at other damage: a header that makes no sense, a batch that is not whole, an offset that was
        there before.
        """
        chunk, start = b"", position
        end, damaged, expected = self.size, {damage.position: damage.end for damage in self.damages}, self.base_offset
        while position < end:
            if position in damaged:
                position = damaged[position]
                continue
            if position + HEADER_SIZE > start + len(chunk):
                chunk, start = self._front(position), position
            try:
                header = read_header(chunk, position - start, start)
                if position + header.size > end:
                    raise InvalidBatchError(
                        f"a batch of {header.size} bytes at byte {position}, of which {end - position} are there"
                    )
                if header.base_offset < expected:
                    raise InvalidBatchError(f"the batch at byte {position} claims offset {header.base_offset} after {expected - 1}")
            except InvalidBatchError as error:
                self.is_suspect = True
                raise InvalidBatchError(_fault(error, chunk[position - start :], position)) from None
            yield position, header
            position, expected = position + header.size, header.next_offset

    def _front(self, position: int) -> bytes:
        """The header at ``position``, with what follows it unless that is in a bad sector. Raises ``OSError``."""
        try:
            return self.file.read(position, _WALK)
        except OSError:
            return self.file.read(position, HEADER_SIZE)

    def batches(self, file: Readable, limit: int | None) -> Iterator[Batch]:
        """All batches with their records, on any thread. ``limit``: the base offset of the next segment, if there is one.

        Raises ``InvalidBatchError`` at any damage, known or not.
        """
        for found in scan(file, self.base_offset, limit=limit):
            if isinstance(found, Damage):
                self.is_suspect = not self.damages
                raise InvalidBatchError(f"{self.name} is damaged at {found}")
            yield found

    def rescan(self, limit: int | None, *, gaps: bool = True, missing: list[Gap] | None = None) -> int:
        """Read the whole file, to know its damage and to make the indexes again.

        ``limit``: the base offset of the next segment, if there is one; ``gaps``: as for ``scan``. The gaps between batches that
        are not damage are added to ``missing``. Returns the offset after what is in the file.
        """
        fresh = Segment(self.base_offset, self.file, self.interval)
        damages: list[Damage] = []
        expected = self.base_offset
        with self.file.reader() as file:
            for found in scan(file, self.base_offset, limit=limit, gaps=gaps):
                if isinstance(found, Damage):
                    damages.append(found)
                    expected = found.next_offset
                    continue
                if missing is not None and found.header.base_offset > expected:
                    missing.append(Gap(expected, found.header.base_offset, found.position))
                fresh.note_batch(found.position, found.header)
                expected = fresh.next_offset
        end = fresh.next_offset
        if damages and damages[-1].end == self.size:
            end = max(damages[-1].next_offset, self.next_offset)
            damages[-1] = damages[-1]._replace(next_offset=end)
        # Nothing above may leave this segment without an index, or without what it knows of its damage.
        self._stored, self._index, self._time_index, self._from_file = None, fresh._index, fresh._time_index, 0
        self._checked = None
        self.max_timestamp, self.offset_of_max_timestamp = fresh.max_timestamp, fresh.offset_of_max_timestamp
        self._newest, self._since_entry, self._first_timestamp = fresh._newest, fresh._since_entry, fresh._first_timestamp
        self.damages, self.is_suspect, self.is_time_from_file = damages, False, False
        self.next_offset = max(self.next_offset, fresh.next_offset)
        return end

    def check_time(self) -> tuple[int, int]:
        """The largest timestamp of the batches and its offset, by a scan; for a full segment, on any thread. Raises ``OSError``."""
        largest, offset = NO_TIMESTAMP, self.base_offset
        with self.file.reader() as file:
            for found in scan(file, self.base_offset, limit=self.next_offset):
                if isinstance(found, Damage):
                    self.is_suspect = not self.damages
                elif found.header.record_count and found.header.max_timestamp > largest:
                    largest, offset = found.header.max_timestamp, found.header.last_offset
        return largest, offset

    def _indexes(self) -> Indexes:
        if self._stored is not None:
            found = self._stored(self.size)
            if found is None:
                self.rescan(self.next_offset)
            else:
                self._index, self._time_index = found
                self._from_file = len(self._index)
                self._stored = None
        return self._index, self._time_index

    def _start(self, row: int) -> int:
        """The position of the entry in this row of the offset index; if that is wrong, of the nearest before it that is right."""
        while row >= 0:
            if self._is_right(row):
                return self._index[row][1]
            row -= 1
        return 0

    def _start_of_time(self, timestamp: int) -> int:
        """A position before which nothing is stamped at or after ``timestamp``."""
        times, index = self.time_index, self.index
        for row in range(times.floor_row(timestamp), -1, -1):
            stamped, offset = times[row]
            start = self._start(index.floor_row(offset))
            if not self._from_file or self._has_time(start, self.base_offset + offset, stamped):
                return start
            self.has_wrong_entries = True
        return 0

    def _has_time(self, position: int, offset: int, timestamp: int) -> bool:
        """Whether the batch that holds ``offset``, at ``position`` or after it, has this largest timestamp."""
        header = next((header for _, header in self.walk(position) if header.last_offset >= offset), None)
        return header is not None and header.base_offset <= offset and header.max_timestamp == timestamp

    def _is_right(self, row: int) -> bool:
        """Whether a batch begins where an entry of the offset index says, with offsets after the entry before and up to its own.

        A flipped bit in an index file would otherwise hide a batch, or make an offset unreadable. An entry of Kafka's may name a
        later offset than that of the batch: of the last of several batches that were appended together.
        """
        if row >= self._from_file:
            return True
        offset, position = self._index[row]
        try:
            header = read_header(self.file.read(position, HEADER_SIZE))
        except InvalidBatchError:
            header = None
        previous = self._index[row - 1][0] if row else -1
        if header is None or not previous < header.base_offset - self.base_offset <= offset:
            self.has_wrong_entries = True
            return False
        return True


def _fault(error: InvalidBatchError, front: bytes, position: int) -> str:
    """What is wrong with the bytes at ``position``. Batches of older formats are not stored, so their magic bytes are damage."""
    if len(front) > MAGIC_OFFSET and front[MAGIC_OFFSET] != MAGIC:
        return f"magic byte {front[MAGIC_OFFSET]} instead of {MAGIC} at byte {position}"
    return str(error)
