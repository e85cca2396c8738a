"""A partition's log: where its batches go, which offsets it holds, what may be dropped.

Owns the segments of one partition, the order of their offsets, and the decisions to roll and to drop. Must not know topics'
names, requests, threads or how files are kept. Invariants: ``start_offset <= last_stable_offset <= high_watermark ==
end_offset`` (one replica, so that what is written is committed); no open transaction has a record before the last stable
offset; offsets only grow; a batch is stored as it came, but for the two fields that no checksum covers.
"""

from __future__ import annotations

import errno
import logging
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import crc32c

from ottla.broker.aborted import TXNINDEX, TXNINDEX_COPY, AbortedTransaction
from ottla.broker.epochs import LeaderEpochs
from ottla.broker.markers import read_marker
from ottla.broker.ports import Job, LogFiles, PinnedFolder
from ottla.broker.producers import Producers
from ottla.broker.scan import Damage
from ottla.broker.segment import Segment, file_name
from ottla.broker.topic_config import TopicConfig
from ottla.coordinator.api_error import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.framing import FileRange
from ottla.records import HEADER_SIZE, BatchHeader, ControlType, InvalidBatchError
from ottla.records.header import CRC_OFFSET, CRC_START, LOG_APPEND_TIME_BIT, pack_header
from ottla.types import TopicPartition

R = TypeVar("R")

logger = logging.getLogger("ottla.broker")

_PLACE = struct.Struct(">qii")
_NO_TIMESTAMP, _NO_EPOCH = -1, -1
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


class Sealing(NamedTuple):
    """Work that makes the records between two offsets readable without a scan: forced to disk, with their indexes."""

    start: int
    end: int
    job: Job


class Appended(NamedTuple):
    """The place of a batch. ``append_time`` is -1 unless the broker sets timestamps."""

    base_offset: int
    last_offset: int
    append_time: int = _NO_TIMESTAMP


class Swap(NamedTuple):
    """A rewritten segment that readers already use, and the base offsets of the segments whose files it must still replace."""

    segment: Segment
    replaced: tuple[int, ...]


class PartitionLog:
    """The log of one partition. It has no files until something is written to it."""

    def __init__(self, topic_partition: TopicPartition, config: TopicConfig, files: LogFiles) -> None:
        self.topic_partition = topic_partition
        self.config = config
        self.files = files
        self.segments: list[Segment] = []
        self.start_offset = 0
        self.recovery_point = 0
        """Everything before this offset is known to be on disk."""
        self.clean_point = 0
        """Everything before this offset was compacted: there may be holes."""
        self.seal_point = 0
        """Segments before this offset have their indexes on disk, or work on its way that will see to it."""
        self.surplus: list[int] = []
        """Base offsets of dropped segments whose files have not been renamed yet."""
        self.swap: Swap | None = None
        """The swap that compaction has begun; such a log is read as usual."""
        self._sealings: list[Sealing] = []
        self._under_way: list[Sealing] = []
        """The sealings whose outcome is not known yet."""
        self.epochs = LeaderEpochs()
        self.producers = Producers()
        self.told_at_end: dict[bool, Any] = {}
        """The cached answer to readers at the end of the log, for committed records or for all."""
        self._complaint: str | None = None
        self.has_lost = False
        """Whether the start found that batches are missing or cut it off at its end: damage that is in no file any more."""
        self.offline: str | None = None
        """Why the partition cannot be served until the next start, if so."""
        self.known_end = 0
        """Where an offline log had ended."""

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic_partition} {self.start_offset}..{self.end_offset}>"

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.segments[-1].next_offset if self.segments else self.start_offset

    @property
    def high_watermark(self) -> int:
        """The offset up to which records may be read."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which every transaction has ended: the end of what readers of committed records are given."""
        first_open = self.producers.first_open_offset
        return self.end_offset if first_open is None else max(first_open, self.start_offset)

    @property
    def starts_late(self) -> bool:
        """Whether there are files of records before the start of the log, so that these do not say where it is."""
        if not self.segments or (self.start_offset <= self.segments[0].base_offset and not self.surplus):
            return False
        return self.start_offset > min([self.segments[0].base_offset, *self.surplus])

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    def append(self, batch: bytes, header: BatchHeader, now: int) -> Appended:
        """Write a validated batch (``now``: milliseconds since 1970). If it raises ``OSError``, nothing was written.

        The log may have rolled in either case: ``take_sealings`` then returns the resulting work.
        """
        if self.offline is not None:
            raise OSError(errno.EIO, self.offline)
        base_offset = self.end_offset
        last_offset = base_offset + header.last_offset_delta
        append_time = _NO_TIMESTAMP
        rest: Sequence[bytes | memoryview] = (memoryview(batch)[_PLACE.size :],)
        if self.config.message_timestamp_type == "LogAppendTime":
            append_time = now
            header, rest = _stamped(batch, header, now)
        self._roll_if_full(header, last_offset)
        place = _PLACE.pack(base_offset, header.batch_length, self.epochs.current)
        self.segments[-1].append((place, *rest), header.size, last_offset, header.max_timestamp)
        if header.producer_id >= 0:
            self.note_producer(self.segments[-1], batch, header._replace(base_offset=base_offset), now)
            self.store_aborted(self.segments[-1])
        self._complaint = None
        return Appended(base_offset, last_offset, append_time)

    def take_sealings(self) -> list[Sealing]:
        """The work of rolls since the last call."""
        sealings, self._sealings = self._sealings, []
        return sealings

    def note_producer(self, segment: Segment, batch: bytes, header: BatchHeader, now: int) -> None:
        """Take note of who wrote a batch that lies in ``segment``, and of the transaction that it may end; live and in recovery."""
        if not header.is_control:
            self.producers.record(header, header.base_offset, now)
            return
        marker = read_marker(batch)
        if marker is None:
            return
        ended = self.producers.end(header, header.base_offset, marker.coordinator_epoch, now)
        if ended is not None and marker.kind is ControlType.ABORT:
            first_open = self.producers.first_open_offset
            stable = header.next_offset if first_open is None else first_open
            segment.aborted.append(AbortedTransaction(*ended, stable))

    def store_aborted(self, segment: Segment) -> None:
        """Write the aborted transactions to the segment's file. A failure does no harm: the log has them, and the next call writes
        them."""
        if segment.aborted.whole:
            return
        name, copy = (file_name(segment.base_offset, suffix) for suffix in (TXNINDEX, TXNINDEX_COPY))
        try:
            segment.aborted.store(self.files.pin(), name, copy)
        except OSError as error:
            logger.error("%s of %s could not be written: %s", name, self.topic_partition, error)

    def store_epochs(self, *, forced: bool = False) -> None:
        """Write the leader epochs to their checkpoint, ``forced``: also to disk. Raises ``OSError``."""
        self.files.pin().write_small(EPOCH_CHECKPOINT, self.epochs.to_bytes(), forced=forced)

    def failed(self, code: ErrorCode, reason: str) -> ApiError:
        """The error for clients after a disk failure."""
        self.complain(reason)
        return ApiError(code, reason)

    def complain(self, reason: str) -> None:
        """Log a disk failure: one line, not one per attempt."""
        if reason != self._complaint:
            logger.error("%s", reason)
        self._complaint = reason

    def flush_due(self) -> bool:
        """Whether so much is not known to be on disk that it must be forced there before it is acknowledged."""
        return self.end_offset - self.recovery_point >= self.config.flush_messages

    def flush(self) -> Job:
        """Force everything to disk that is not known to be there, up to the current end.

        That is the newest segment, and older ones until their sealing has succeeded.
        """
        bases = [segment.base_offset for segment in self.segments if segment.next_offset > self.recovery_point]
        return self.files.job(partial(_flush_each, bases))

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool, end: int | None = None) -> FileRange | None:
        """Whole batches from the one that holds ``offset`` on; ``None`` where there is nothing to read or no batch fits.

        ``offset`` must lie between ``start_offset`` and ``high_watermark``; nothing at or after ``end`` is read. Raises
        ``ApiError`` where disk or bytes are damaged.
        """
        end = self.end_offset if end is None else end
        if offset >= end:
            return None
        return self._served(lambda: self._read(offset, max_bytes, end, at_least_one))

    def _read(self, offset: int, max_bytes: int, end: int, at_least_one: bool) -> FileRange | None:
        for row in range(self._row_of(offset), len(self.segments)):
            segment = self.segments[row]
            position = segment.locate(offset)
            if position is not None:
                stop = segment.locate_end(end) if end < segment.next_offset else None
                if stop is not None:
                    max_bytes = min(max_bytes, stop - position)
                    at_least_one = at_least_one and stop > position
                size = segment.cut(position, max_bytes, at_least_one=at_least_one)
                data = _range(segment, position, size) if size else None
                self._drop_wrong_index(segment)
                return data
        return None

    def read_committed(
        self, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> tuple[FileRange | None, list[AbortedTransaction]]:
        """As ``read``, up to the last stable offset, with the aborted transactions that have records in what was read."""
        data = self.read(offset, max_bytes, at_least_one=at_least_one, end=self.last_stable_offset)
        segments = self.segments[self._row_of(offset) :]
        if data is None or not any(len(segment.aborted) for segment in segments):
            return data, []

        def end_of() -> int:
            places = ((segment, segment.locate(offset)) for segment in segments)
            return next(segment.bound(position + len(data)) for segment, position in places if position is not None)

        end = self._served(end_of)
        return data, [entry for segment in segments for entry in segment.aborted.between(offset, end)]

    def check_epoch(self, epoch: int) -> None:
        """Whether a client's idea of the leader epoch is the present one, or -1, none; raises ``ApiError``."""
        if epoch not in (_NO_EPOCH, self.epochs.current):
            older = epoch < self.epochs.current
            code = ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
            raise ApiError(code, f"The leader epoch of {self.topic_partition} is {self.epochs.current}, the request says {epoch}.")

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record stamped at or after ``timestamp``; raises ``ApiError`` as ``read`` does."""
        return self._served(lambda: self._find_time(timestamp))

    def _find_time(self, timestamp: int) -> tuple[int, int] | None:
        for segment in self.segments:
            if segment.max_timestamp >= timestamp and segment.size:
                found = segment.find_time(timestamp, self.start_offset)
                self._drop_wrong_index(segment)
                if found is not None:
                    return found
        return None

    def find_largest_time(self) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp; ``None`` in a log without records. Raises
        ``ApiError``."""
        stamped = [segment for segment in self.segments if segment.max_timestamp >= 0]
        if not stamped:
            return None
        largest = max(segment.max_timestamp for segment in stamped)
        found = self.find_time(largest)
        if found is not None:
            return found
        for segment in stamped:  # if it is not that of a deleted record, an index file claims a timestamp that no record has
            deleted = segment.offset_of_max_timestamp < self.start_offset
            segment.is_suspect |= segment.max_timestamp == largest and segment.is_time_from_file and not deleted
        if self.find_damage():
            return self.find_largest_time()
        unread = [segment for segment in stamped if segment.is_suspect]
        if not unread:
            return None
        reason = f"{self.topic_partition} could not be read: {unread[0].name} has timestamps that cannot be checked"
        raise self.failed(ErrorCode.kafka_storage_error, reason)

    def start_at(self, offset: int) -> None:
        """Give up the records before ``offset``, not after ``high_watermark``; their segments go with retention."""
        self.start_offset = offset

    def drop_expired(self, now: int) -> list[Segment]:
        """Drop the segments that retention does not keep (``now``: milliseconds since 1970), and return them.

        Their files are ``surplus`` from now on. The newest segment is dropped, too, if nothing in it is kept: an empty one replaces
        it, so that offsets continue. What ``unchecked_times`` returns is not dropped because of its age. If it raises ``OSError``,
        nothing was dropped.
        """
        self.finish_swap()
        by_time = self._expired_by_time(now)
        by_time = next((row for row in range(by_time) if self.segments[row].is_time_from_file), by_time)
        count = max(by_time, self._expired_by_size(), self._given_up())
        if not count:
            return []
        if count == len(self.segments):
            self._roll()
        dropped, self.segments = self.segments[:count], self.segments[count:]
        self.surplus += [segment.base_offset for segment in dropped]
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        return dropped

    def unchecked_times(self, now: int) -> list[Segment]:
        """The segments that retention would drop because of a timestamp in an index file."""
        return [segment for segment in self.segments[: self._expired_by_time(now)] if segment.is_time_from_file]

    def set_surplus_aside(self) -> Job:
        """Rename the files of dropped segments; call ``surplus_gone`` when that is done."""
        return prepared(partial(self.files.set_aside, tuple(self.surplus)))

    def surplus_gone(self, base_offsets: Collection[int]) -> None:
        """The files of these segments were renamed."""
        self.surplus = [one for one in self.surplus if one not in base_offsets]

    def replace(self, replaced: tuple[Segment, ...], segment: Segment) -> bool:
        """Replace the segments that a rewritten segment was made of, if they all still exist, and none of them is being sealed
        again: that would write its old indexes over the new ones.

        ``finish_swap`` does the rest. If it raises ``OSError``, nothing was replaced.
        """
        row = next((row for row, one in enumerate(self.segments) if one is replaced[0]), 0)
        if tuple(self.segments[row : row + len(replaced)]) != replaced:
            return False
        if any(sealing.start < replaced[-1].next_offset for sealing in self._under_way):
            return False
        segment.file = self.files.begin_swap(segment.base_offset)
        self.segments[row : row + len(replaced)] = [segment]
        self.swap = Swap(segment, tuple(one.base_offset for one in replaced))
        return True

    def finish_swap(self) -> None:
        """Complete the swap that ``replace`` has begun, if any. Raises ``OSError``; then it can be retried."""
        if self.swap is None:
            return
        segment, replaced = self.swap
        segment.file = self.files.finish_swap(segment.base_offset, replaced)
        self.swap = None

    @property
    def is_unsealed(self) -> bool:
        """Whether a full segment is not sealed and no sealing is pending: the earlier one has failed."""
        return bool(self.segments) and self.seal_point < self.segments[-1].base_offset

    def seal(self, end: int | None = None) -> Sealing:
        """Write the indexes of all unsealed segments to disk, and the current producers.

        ``end``: the base offset of the newest segment, to leave that one out; then the producers are left out, too, as they are
        those of the end of the log.
        """
        start, end = self.seal_point, self.end_offset if end is None else end
        job = prepared(partial(self._seal_job, start, end))
        self.seal_point = end
        self._under_way.append(sealing := Sealing(start, end, job))
        return sealing

    def _seal_job(self, start: int, end: int) -> Job:
        snapshot = self.producers.snapshot() if end == self.end_offset else None
        rows = range(self._row_of(start), bisect_left(self.segments, end, key=lambda segment: segment.base_offset))
        segments = [self.segments[row] for row in rows if start < self.segments[row].next_offset]
        for segment in segments:
            self.store_aborted(segment)
        aborted_stored = all(segment.aborted.whole for segment in segments)
        parts = [(segment.base_offset, *segment.seal()) for segment in segments]

        def work(folder: PinnedFolder) -> None:
            for base, index, time_index in parts:
                folder.write_small(file_name(base, "index"), index.to_bytes(), forced=True)
                folder.write_small(file_name(base, "timeindex"), time_index.to_bytes(), forced=True)
                folder.flush(base)
            if not aborted_stored:
                raise OSError(errno.EIO, "what was aborted is not stored: a snapshot would say too little")
            if snapshot is not None:
                folder.write_small(file_name(end, "snapshot"), snapshot, forced=True)
                for name in folder.snapshots_before(start):
                    folder.remove_small(name)

        return self.files.job(work)

    def sealed(self, sealing: Sealing, error: Exception | None) -> None:
        """Take note of how a sealing ended. One that failed is done again with the next."""
        self._under_way = [one for one in self._under_way if one is not sealing]
        if error is None and sealing.start <= self.recovery_point:
            self.flushed(sealing.end)
        else:
            self.seal_point = min(self.seal_point, sealing.start)

    def flushed(self, offset: int) -> None:
        """Everything before ``offset`` was forced to disk."""
        self.recovery_point = max(self.recovery_point, offset)

    def _served(self, read: Callable[[], R]) -> R:
        """The result of ``read``. If it meets damage, the damage is found first, and what is intact behind it is read. Raises
        ``ApiError``."""
        try:
            try:
                return read()
            except InvalidBatchError:
                if not self.find_damage():
                    raise
                return read()
        except InvalidBatchError as error:
            raise self.failed(ErrorCode.corrupt_message, f"{self.topic_partition} is damaged: {error}") from error
        except OSError as error:
            raise self.failed(ErrorCode.kafka_storage_error, f"{self.topic_partition} could not be read: {error}") from error

    def find_damage(self) -> bool:
        """Scan the segments in which damage was met, so that readers get what is intact behind it; whether any was found."""
        found = False
        for segment in self.segments:
            if not segment.is_suspect or segment.has_bad_sector:
                continue
            try:
                segment.rescan(segment.next_offset)
            except OSError as error:  # the next reader tries it again, unless that would come to the same
                segment.has_bad_sector = error.errno == errno.EIO
                continue
            for damage in segment.damages:
                logger.error("%s", self.damage_in(segment, damage))
            found = True
        return found

    def _drop_wrong_index(self, segment: Segment) -> None:
        """Remove the index files of a segment with a wrong entry. The next start makes them again; until then the entries around it
        are used."""
        if not segment.has_wrong_entries or segment.is_index_dropped:
            return
        segment.is_index_dropped = True
        names = [file_name(segment.base_offset, suffix) for suffix in ("index", "timeindex")]
        what = "has wrong entries; the next start makes both again from the batches"
        logger.warning("%s: %s or %s %s", self.topic_partition, *names, what)
        with suppress(OSError):
            folder = self.files.pin()
            for name in names:
                folder.remove_small(name)

    @property
    def is_damaged(self) -> bool:
        """Whether a part of it is known to be unreadable."""
        return any(segment.damages for segment in self.segments)

    def damage_in(self, segment: Segment, damage: Damage) -> str:
        """What is damaged, and what follows from it, in words."""
        return (
            f"{self.topic_partition}: {segment.name} is damaged at {damage}. The rest of it is served, and the log is not compacted"
        )

    def _roll_if_full(self, header: BatchHeader, last_offset: int) -> None:
        if not self.segments:
            self.files.make()
            first = self._new_segment(self.start_offset)
            self.store_epochs()
            self.segments.append(first)
            return
        config = self.config
        limits = {"limit": config.segment_bytes, "age": self._roll_age(), "index_limit": config.segment_index_bytes}
        if self.segments[-1].full(header.size, last_offset, header.max_timestamp, **limits):
            self._roll()

    def _roll_age(self) -> int:
        """The age at which the newest segment is full. ``segment.jitter.ms`` reduces it by an amount that differs between logs and
        segments, but is not random: the same segment is always full at the same age."""
        age, jitter = self.config.roll_ms, self.config.segment_jitter_ms
        if not jitter:
            return age
        return age - crc32c.crc32c(f"{self.topic_partition}@{self.segments[-1].base_offset}".encode()) % min(jitter, age)

    def _roll(self) -> None:
        # The code that may raise comes first: a failed roll changes nothing, and a successful one never loses its sealing.
        self.segments[-1].file.repair()
        fresh = self._new_segment(self.end_offset)
        self._sealings.append(self.seal())
        self.segments.append(fresh)

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment(base_offset, self.files.create(base_offset), self.config.index_interval_bytes)

    def _row_of(self, offset: int) -> int:
        return max(0, bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1)

    def _expired_by_time(self, now: int) -> int:
        if self.config.retention_ms < 0 or not self.config.expiring:
            return 0
        oldest = now - self.config.retention_ms
        for count, segment in enumerate(self.segments):
            if self._is_fresh(segment):
                return count
            if not segment.size:
                continue  # all of it was compacted away
            newest = segment.max_timestamp
            if newest < 0 or segment.damages:  # how old a damaged batch is cannot be read
                newest = max(newest, self.files.modified(segment.base_offset))
            if newest >= oldest:
                return count
        return len(self.segments)

    def _is_fresh(self, segment: Segment) -> bool:
        """Whether nothing was written yet to the segment in which the log goes on."""
        return not segment.size and segment is self.segments[-1]

    def _given_up(self) -> int:
        """Segments that end before the log begins. The newest stays: it is where the log goes on."""
        return sum(segment.next_offset <= self.start_offset for segment in self.segments[:-1])

    def _expired_by_size(self) -> int:
        if self.config.retention_bytes < 0 or not self.config.expiring:
            return 0
        surplus = self.size - self.config.retention_bytes
        for count, segment in enumerate(self.segments):
            surplus -= segment.size
            if surplus < 0 or self._is_fresh(segment):
                return count
        return len(self.segments)


def _range(segment: Segment, position: int, size: int) -> FileRange:
    """Whole batches of a segment. If a part of them cannot be read, the first alone, so that readers get what is before a bad
    sector. Raises ``InvalidBatchError`` or ``OSError``."""
    try:
        segment.check(position, position + size)
        return segment.file.range(position, size)
    except OSError:
        first = segment.cut(position, 0, at_least_one=True)
        if first >= size:
            raise
        segment.check(position, position + first)
        return segment.file.range(position, first)


def prepared(prepare: Callable[[], Job]) -> Job:
    """The job that ``prepare`` returns; if that raises, a job that raises the same.

    So there is always a job, one place handles its outcome, and no state has to be restored.
    """
    try:
        return prepare()
    except (OSError, InvalidBatchError) as error:
        return partial(_fail, error)


def _flush_each(base_offsets: Sequence[int], folder: PinnedFolder) -> None:
    for base_offset in base_offsets:
        folder.flush(base_offset)


def _fail(error: Exception) -> None:
    raise error


def _stamped(batch: bytes, header: BatchHeader, now: int) -> tuple[BatchHeader, Sequence[bytes | memoryview]]:
    """The batch with the broker's time in its header: the one change that needs a new checksum."""
    header = header._replace(attributes=header.attributes | LOG_APPEND_TIME_BIT, max_timestamp=now)
    front = pack_header(header)
    records = memoryview(batch)[HEADER_SIZE:]
    crc = crc32c.crc32c(records, crc32c.crc32c(front[CRC_START:]))
    return header, (front[_PLACE.size : CRC_OFFSET], crc.to_bytes(4, "big"), front[CRC_START:], records)
