"""One segment of a log: its batches, its indexes, the lookups in it, and when it is full.

Owns the indexes of one ``.log`` file and the lookups in it by offset, by size and by time. Must not know other segments, topics or
readers. Invariants: a range that is read begins and ends at the border of a batch, and has no known damage; a lookup through the
indexes has the result of a scan from the beginning, whatever is in the index files.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ottla.broker.indexes import OFFSET_ENTRY_SIZE, OffsetIndex, TimeIndex
from ottla.broker.ports import Readable, SegmentFile
from ottla.broker.scan import Batch, Damage, scan
from ottla.broker.transaction_index import TransactionIndex
from ottla.records import HEADER_SIZE, BatchHeader, InvalidBatchError, find_timestamp, iter_records, read_header
from ottla.records.batch import crc_matches
from ottla.records.header import MAGIC, MAGIC_OFFSET

_WALK = 4096
"""Bytes read at once while walking from batch to batch: between two index entries there is rarely more."""

NO_TIMESTAMP = -1
_MAX_RELATIVE = 2**31 - 1
_END = 2**63
"""A position after every byte of a file."""

Indexes = tuple[OffsetIndex, TimeIndex]
StoredIndexes = Callable[[int], Indexes | None]
"""Reads the index files of a segment whose ``.log`` has so many bytes; ``None`` if they are missing or invalid."""


def file_name(offset: int, suffix: str) -> str:
    """The name of a segment's file: its base offset in 20 digits."""
    return f"{offset:020d}.{suffix}"


class Gap(NamedTuple):
    """Offsets from ``start`` to ``end`` (exclusive) that no batch has. The batch at ``position`` begins with ``end``."""

    start: int
    end: int
    position: int


class Segment:
    """A segment (Kafka's ``LogSegment``). ``next_offset`` is the offset after its last batch.

    The indexes of a segment before the active one are loaded when they are first needed.
    """

    __slots__ = (
        "_first_timestamp",
        "_from_file",
        "_index",
        "_last_batch",
        "_since_entry",
        "_stored",
        "_time_index",
        "_verified",
        "base_offset",
        "damages",
        "file",
        "has_bad_sector",
        "has_wrong_entries",
        "interval",
        "is_index_dropped",
        "is_max_timestamp_from_file",
        "is_suspect",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
        "transaction_index",
    )

    def __init__(self, base_offset: int, file: SegmentFile, interval: int, *, stored: StoredIndexes | None = None) -> None:
        """``stored`` reads the indexes when they are first needed."""
        self.base_offset = base_offset
        self.file = file
        self.next_offset = base_offset
        self.interval = interval
        self._stored = stored
        self.transaction_index = TransactionIndex()
        self.damages: list[Damage] = []
        """The known damaged parts of the file. Readers skip them."""
        self.is_suspect = False
        """Whether a walk met damage that is not in ``damages``: ``rescan`` locates it."""
        self.has_bad_sector = False
        """Whether a search for damage has met a part of the file that cannot be read."""
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self._since_entry = 0
        self._last_batch: tuple[range, int] = (range(0), 0)
        """The last batch: its offsets that are not in earlier batches, and its position."""
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._from_file = 0
        """The number of entries of the offset index that come from its file; these are verified when they are used."""
        self._verified: list[tuple[int, int]] | None = None if stored is None else []
        """The parts of the file that were verified since the segment was loaded; ``None``: all of it."""
        self.is_max_timestamp_from_file = False
        """Whether ``max_timestamp`` comes from an index file, and not from the batches."""
        self.has_wrong_entries = self.is_index_dropped = False
        """Whether an entry of an index file was wrong, and whether the files were removed because of that."""

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
        """Append one batch. Raises ``OSError``; then nothing was written or indexed."""
        position = self.file.size
        self.file.append(pieces)
        self.index_batch_at(position, size, last_offset, max_timestamp)

    def index_batch_at(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Index a batch that is in the file, live and in recovery. The indexes are written nowhere else.

        Raises ``InvalidBatchError`` for an offset that this segment cannot have.
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
        # In recovery, the first batch indexed may have others before it: only its last offset is certainly not theirs.
        first = self.next_offset if position == 0 or self._last_batch[0] else last_offset
        self._last_batch = (range(first, last_offset + 1), position)
        self.next_offset = last_offset + 1

    def index_batch(self, position: int, header: BatchHeader) -> None:
        """As ``index_batch_at``, by a batch's header. One without records, after compaction, has no timestamp."""
        self.index_batch_at(
            position, header.size, header.last_offset, header.max_timestamp if header.record_count else NO_TIMESTAMP
        )

    def load_indexes(self, index: OffsetIndex, time_index: TimeIndex) -> int:
        """Use the stored indexes; return the position from which batches must be indexed again.

        That is the batch of the last entry: the rest about it and the batches after it is read from the log.
        """
        self._index, self._time_index, self._from_file = index, time_index, len(index)
        self.max_timestamp, relative = time_index.last
        self.is_max_timestamp_from_file = len(time_index) > 0
        self._verified = [(index.last_position, _END)]
        self.offset_of_max_timestamp = self.base_offset + relative
        return index.last_position

    def should_roll(self, size: int, last_offset: int, max_timestamp: int, *, limit: int, age: int, index_limit: int) -> bool:
        """Whether a batch needs a new segment, because of the size, the age by timestamps, or the size of an index."""
        if last_offset - self.base_offset > _MAX_RELATIVE:
            return True
        if self.size == 0:
            return False
        if self.size + size > limit or (len(self.index) + 1) * OFFSET_ENTRY_SIZE > index_limit:
            return True
        try:
            first = self.first_timestamp
        except InvalidBatchError:
            return True  # leave the damaged segment as it is, and continue in a new one
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return True  # the same for a bad sector
        return first >= 0 and max_timestamp - first > age

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, from which a segment's age counts; -1 if there is none."""
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
        """Complete and return the indexes of a segment that gets no more batches: the last entry has the largest timestamp."""
        index, time_index = self._indexes()
        if self.max_timestamp >= 0:
            time_index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
        return index, time_index

    def locate(self, offset: int) -> int | None:
        """Return the position of the batch that contains ``offset``, or of the first one after it; ``None`` if neither is here.

        Raises ``InvalidBatchError`` for an offset that was in a damaged part.
        """
        for damage in self.damages:
            if damage.first_offset <= offset < damage.next_offset:
                raise InvalidBatchError(f"{self.name} at {damage}; the next offset that can be read is {damage.next_offset}")
        newest, position = self._last_batch
        if offset in newest:
            return position  # the usual offset of readers at the end of the log
        start = self._start_position(self.index.floor_row(offset - self.base_offset))
        return next((position for position, header in self.walk(start) if header.last_offset >= offset), None)

    def locate_end(self, offset: int) -> int | None:
        """As ``locate``, for the end of a range. If ``offset`` was in a damaged part, the range ends where the damage begins."""
        damaged = (damage.position for damage in self.damages if damage.first_offset <= offset < damage.next_offset)
        found = next(damaged, None)
        return self.locate(offset) if found is None else found

    def fit_batches(self, position: int, max_bytes: int, *, at_least_one: bool) -> int:
        """Return the size of the whole batches from ``position`` on that fit into ``max_bytes``.

        A large range may end up to one index interval earlier than necessary, so that no header needs to be read. With
        ``at_least_one`` the first batch is included even if it does not fit.
        """
        stop = next((damage.position for damage in self.damages if damage.position > position), self.size)
        available = stop - position
        if available <= max_bytes:
            return available
        end = self._start_position(self.index.floor_position_row(position + max_bytes))
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

    def verify_range(self, position: int, end: int) -> None:
        """Verify the headers in a part of the file, before its first read since the segment was loaded.

        The base offset of a batch is not covered by its checksum, so a flipped bit there would make readers skip records silently.
        Raises ``InvalidBatchError``.
        """
        if self._verified is None:
            return
        row = bisect_right(self._verified, (position, _END)) - 1
        if row >= 0 and end <= self._verified[row][1]:
            return
        start = self._start_position(self.index.floor_position_row(position))
        following = self.next_offset
        for at, header in self.walk(start):
            if at >= end:
                break
            following = header.next_offset
        if following > self.next_offset:
            self.is_suspect = True
            raise InvalidBatchError(f"a batch before byte {end} claims offset {following - 1} in {self!r}")
        self._note_verified(start, end)

    def _note_verified(self, start: int, end: int) -> None:
        assert self._verified is not None
        merged: list[tuple[int, int]] = []
        for one in sorted([*self._verified, (start, end)]):
            if merged and one[0] <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], one[1]))
            else:
                merged.append(one)
        self._verified = merged

    def upper_bound_offset(self, position: int) -> int:
        """Return an offset at or after those of all batches that end at or before ``position``, not the exact one: the index is
        sparse."""
        index = self.index
        for row in range(index.ceiling_row(position), len(index)):
            if self._is_valid_entry(row):
                return self.base_offset + index[row][0]
        return self.next_offset

    def find_offset_by_timestamp(self, timestamp: int, from_offset: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after ``timestamp`` and not before ``from_offset``."""
        for position, header in self.walk(self._start_of_time(timestamp)):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                found = self._find_timestamp_in_batch(position, header, timestamp, from_offset)
                if found is not None:
                    return found
        return None

    def _find_timestamp_in_batch(
        self, position: int, header: BatchHeader, timestamp: int, from_offset: int
    ) -> tuple[int, int] | None:
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
        """Yield position and header of each batch from ``position``, a batch's beginning, on; skip ``damages``.

        Raises ``InvalidBatchError`` at other damage: an invalid header, an incomplete batch, an offset that an earlier batch has.
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
        """Read the header at ``position``, and the bytes behind it unless they are in a bad sector. Raises ``OSError``."""
        try:
            return self.file.read(position, _WALK)
        except OSError:
            return self.file.read(position, HEADER_SIZE)

    def batches(self, file: Readable, limit: int | None) -> Iterator[Batch]:
        """Yield all batches with their records, on any thread. ``limit``: the base offset of the next segment, if there is one.

        Raises ``InvalidBatchError`` at any damage, known or not.
        """
        for found in scan(file, self.base_offset, limit=limit):
            if isinstance(found, Damage):
                self.is_suspect = not self.damages
                raise InvalidBatchError(f"{self.name} is damaged at {found}")
            yield found

    def rescan(self, limit: int | None, *, gaps: bool = True, missing: list[Gap] | None = None) -> int:
        """Scan the whole file, to locate its damage and to rebuild the indexes (as Kafka's ``LogSegment.recover``).

        ``limit``: the base offset of the next segment, if there is one; ``gaps``: as for ``scan``. The gaps between batches that
        are not damage are added to ``missing``. Return the offset after the last batch or damage.
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
                fresh.index_batch(found.position, found.header)
                expected = fresh.next_offset
        end = fresh.next_offset
        if damages and damages[-1].end == self.size:
            end = max(damages[-1].next_offset, self.next_offset)
            damages[-1] = damages[-1]._replace(next_offset=end)
        # Assigned last: an exception above leaves the indexes and the known damage as they were.
        self._stored, self._index, self._time_index, self._from_file = None, fresh._index, fresh._time_index, 0
        self._verified = None
        self.max_timestamp, self.offset_of_max_timestamp = fresh.max_timestamp, fresh.offset_of_max_timestamp
        self._last_batch, self._since_entry, self._first_timestamp = fresh._last_batch, fresh._since_entry, fresh._first_timestamp
        self.damages, self.is_suspect, self.is_max_timestamp_from_file = damages, False, False
        self.next_offset = max(self.next_offset, fresh.next_offset)
        return end

    def scan_max_timestamp(self) -> tuple[int, int]:
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

    def _start_position(self, row: int) -> int:
        """Return the position of the entry in this row of the offset index; if it is wrong, of the nearest right one before it."""
        while row >= 0:
            if self._is_valid_entry(row):
                return self._index[row][1]
            row -= 1
        return 0

    def _start_of_time(self, timestamp: int) -> int:
        """Return a position before which all records are earlier than ``timestamp``."""
        times, index = self.time_index, self.index
        for row in range(times.floor_row(timestamp), -1, -1):
            stamped, offset = times[row]
            start = self._start_position(index.floor_row(offset))
            if not self._from_file or self._has_time(start, self.base_offset + offset, stamped):
                return start
            self.has_wrong_entries = True
        return 0

    def _has_time(self, position: int, offset: int, timestamp: int) -> bool:
        """Whether the batch that holds ``offset``, at ``position`` or after it, has this largest timestamp."""
        header = next((header for _, header in self.walk(position) if header.last_offset >= offset), None)
        return header is not None and header.base_offset <= offset and header.max_timestamp == timestamp

    def _is_valid_entry(self, row: int) -> bool:
        """Whether a batch begins at the position of an entry of the offset index, with offsets after the entry before and up to its
        own.

        A flipped bit in an index file would otherwise hide a batch, or make an offset unreadable. In files of Kafka an entry may
        name a later offset than that of its batch: that of the last of several batches appended together.
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
    """Describe the damage at ``position``. Batches of older formats are not stored, so their magic bytes are damage."""
    if len(front) > MAGIC_OFFSET and front[MAGIC_OFFSET] != MAGIC:
        return f"magic byte {front[MAGIC_OFFSET]} instead of {MAGIC} at byte {position}"
    return str(error)
