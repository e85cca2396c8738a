"""A scan of a segment file: its intact batches, and the damage between them.

Owns the rules by which bytes of a file are an intact batch. Must not know indexes, logs, topics or how files are kept. Invariants:
every intact batch of a file is found, wherever the damage is; a batch is intact if it is complete, its checksum matches, and its
offsets are between those of its neighbours; only a piece of the file, or one batch, is in memory.

Kafka's recovery truncates a log at its first damaged batch, and fetches the rest from another replica. This broker has the only
copy.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from ottla.broker.ports import Readable
from ottla.records import HEADER_SIZE, BatchHeader, InvalidBatchError, read_header
from ottla.records.batch import crc_matches
from ottla.records.header import CRC_START, LENGTH_OVERHEAD, MAGIC, MAGIC_OFFSET

PIECE = 1 << 20
"""Bytes that are read at once."""

_NEAR = 1 << 14
"""Bytes behind damage that are searched first for the next batch. Mostly it is there, in bytes that were already read."""

_PLACE = struct.Struct(">qi")
LAST_OFFSET = 2**63 - 1
"""An offset after all others, for a file without a next segment that limits its offsets."""

_MAX_RELATIVE = 2**31 - 1


class Batch(NamedTuple):
    """An intact batch, and where it lies in its file."""

    position: int
    header: BatchHeader
    content: memoryview


class Damage(NamedTuple):
    """The bytes of a file from ``position`` to ``end`` that hold no intact batch.

    Their records had offsets from ``first_offset`` to ``next_offset`` (exclusive), according to the batches around them.
    """

    position: int
    end: int
    first_offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        count = self.next_offset - self.first_offset
        records = f", at most {_records(count)}" if count else ""
        return f"byte {self.position}: {self.reason} ({self.end - self.position} bytes, {self.offsets}{records})"

    @property
    def offsets(self) -> str:
        """The offsets as text."""
        if self.next_offset == self.first_offset:
            return f"from offset {self.first_offset} on"
        return format_offsets(self.first_offset, self.next_offset)


def scan(
    file: Readable, base_offset: int, *, limit: int | None = None, gaps: bool = True, position: int = 0
) -> Iterator[Batch | Damage]:
    """Yield the batches and the damage of a segment file from ``position`` on, in order, without a gap.

    ``base_offset``: the smallest possible offset. ``limit``: the base offset of the next segment, if there is one. ``gaps``:
    whether offsets may be missing before the last batch, if there is no limit; before others they may always. Raises ``OSError`` if
    the disk cannot be read.
    """
    reader = _Reader(file, base_offset, limit, gaps)
    expected = base_offset
    while position < file.size:
        candidate = reader.batch_at(position, expected)
        if isinstance(candidate, Batch) and not reader.is_contradicted(candidate, expected):
            yield candidate
            position, expected = position + candidate.header.size, candidate.header.next_offset
            continue
        if isinstance(candidate, Batch):
            candidate = _InvalidBatch(
                f"a batch claims offset {candidate.header.base_offset} where {expected} was expected", candidate.header
            )
        end, next_offset = reader.end_of_damage(position, expected, candidate)
        reason = candidate.reason
        if next_offset == expected and candidate.header is not None:
            reason += f" and claims {_records(candidate.header.record_count)}"
        yield Damage(position, end, expected, next_offset, reason)
        position, expected = end, next_offset


class _InvalidBatch(NamedTuple):
    """Why there is no intact batch at a position; ``header``: if its length may still be right."""

    reason: str
    header: BatchHeader | None = None


class _Reader:
    """One file, a piece of it in memory."""

    def __init__(self, file: Readable, base_offset: int, limit: int | None, gaps: bool) -> None:
        self._file = file
        self._limit = limit
        self._last_possible = min(LAST_OFFSET if limit is None else limit - 1, base_offset + _MAX_RELATIVE)
        self._gaps = gaps
        self._piece, self._start = b"", 0
        self._last: tuple[int, int, Batch | _InvalidBatch] | None = None

    def batch_at(self, position: int, expected: int) -> Batch | _InvalidBatch:
        """Return the batch at ``position``, whose offsets must not be below ``expected``, or why there is none."""
        if self._last is None or self._last[:2] != (position, expected):
            self._last = (position, expected, self._read(position, expected))
        return self._last[2]

    def _read(self, position: int, expected: int) -> Batch | _InvalidBatch:
        front = self._bytes(position, HEADER_SIZE)
        if len(front) < HEADER_SIZE:
            return _InvalidBatch(f"{len(front)} bytes are left, fewer than the header of a batch has")
        if front[MAGIC_OFFSET] != MAGIC:
            return _InvalidBatch(f"magic byte {front[MAGIC_OFFSET]} instead of {MAGIC}")
        try:
            header = read_header(front, 0, position)
        except InvalidBatchError as error:
            return _InvalidBatch(str(error))
        left = self._file.size - position
        if header.size > left:
            return _InvalidBatch(
                f"a batch of {header.size} bytes with {_records(header.record_count)}, of which {left} bytes are there"
            )
        if not self._matches_checksum(position, header):
            return _InvalidBatch(f"the batch at offset {header.base_offset} fails its checksum", header)
        if header.base_offset < expected or header.last_offset > self._last_possible:
            return _InvalidBatch(f"a batch claims offset {header.base_offset} where {self._possible(expected)}", header)
        return Batch(position, header, self._bytes(position, header.size))

    def _matches_checksum(self, position: int, header: BatchHeader) -> bool:
        """Whether the checksum of a batch matches. A damaged length may span the rest of the file, which is not read at once."""
        if header.size <= PIECE:
            return crc_matches(self._bytes(position, header.size), 0, header)
        at, end, crc = position + CRC_START, position + header.size, 0
        while at < end:
            piece = self._file.read(at, min(PIECE, end - at))
            if not piece:
                return False
            at, crc = at + len(piece), crc32c.crc32c(piece, crc)
        return crc == header.crc

    def is_contradicted(self, batch: Batch, expected: int) -> bool:
        """Whether the next batch has offsets of this one, so that the base offset of this one, which no checksum covers, is wrong.

        Offsets may be missing before a batch: compaction has removed their records.
        """
        after = batch.position + batch.header.size
        if batch.header.base_offset == expected:
            return False
        if after >= self._file.size:
            return self._limit is None and not self._gaps
        following = self.batch_at(after, expected)
        return isinstance(following, Batch) and following.header.base_offset < batch.header.next_offset

    def end_of_damage(self, position: int, expected: int, fault: _InvalidBatch) -> tuple[int, int]:
        """Return the end of the damage at ``position``, and the next offset there."""
        size = self._file.size
        if fault.header is not None:
            end = position + fault.header.size
            if end == size:
                return end, self._end(expected)
            following = self.batch_at(end, expected)
            if isinstance(following, Batch):
                return end, following.header.base_offset
        for end in self._candidates(position + 1, expected):
            following = self.batch_at(end, expected)
            if isinstance(following, Batch):
                return end, following.header.base_offset
        return size, self._end(expected)

    def _candidates(self, start: int, expected: int) -> Iterator[int]:
        """Yield the positions from ``start`` on at which a batch may begin."""
        size, last = self._file.size, self._last_possible
        highs = range(expected >> 32, (max(expected, last) >> 32) + 1)
        either = b"|".join(re.escape(high.to_bytes(4, "big")) for high in highs)
        magic = re.escape(bytes([MAGIC]))
        # The pattern begins with the magic byte, since that is rare: it skips zeros fifty times as fast as one that begins with the
        # offset.
        pattern = re.compile(b"%b(?<=(?:%b).{12}%b)" % (magic, either, magic), re.DOTALL)
        piece: bytes | memoryview = self._bytes(start, _NEAR)
        while start + HEADER_SIZE <= size:
            if len(piece) < HEADER_SIZE:
                return
            for match in pattern.finditer(piece, 0, len(piece) - HEADER_SIZE + MAGIC_OFFSET + 1):
                at = match.start() - MAGIC_OFFSET
                if _is_plausible(piece[at : at + HEADER_SIZE], size - start - at, expected, last):
                    yield start + at
            start += len(piece) - HEADER_SIZE + 1
            piece = self._file.read(start, PIECE)

    def _bytes(self, position: int, size: int) -> memoryview:
        """Up to ``size`` bytes; fewer where the file ends."""
        if position < self._start or position + size > self._start + len(self._piece):
            self._piece, self._start = self._file.read(position, max(size, PIECE)), position
        return memoryview(self._piece)[position - self._start :][:size]

    def _possible(self, expected: int) -> str:
        return f"{expected} or more is possible" if self._limit is None else f"{expected} to {self._last_possible} are possible"

    def _end(self, expected: int) -> int:
        return expected if self._limit is None else max(expected, self._limit)


def format_offsets(first: int, end: int) -> str:
    """Return the offsets from ``first`` to ``end`` (exclusive) as text."""
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


def format_missing(first: int, end: int) -> str:
    """Return the text that these offsets are missing."""
    return f"{format_offsets(first, end)} {'is' if end == first + 1 else 'are'} missing"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _is_plausible(front: bytes | memoryview, left: int, expected: int, last: int) -> bool:
    """Whether 61 bytes may be a batch's header: a cheap check that other data rarely passes."""
    base_offset, length = _PLACE.unpack_from(front)
    if not (expected <= base_offset <= last and HEADER_SIZE <= length + LENGTH_OVERHEAD <= left):
        return False
    try:
        header = read_header(front)
    except InvalidBatchError:
        return False
    return header.record_count <= header.last_offset_delta + 1 and header.attributes >> 7 == 0
