"""A partition's log: appending, reading, rolling, and the deletion of old segments.

Owns the segments of one partition, the order of their offsets, and the decisions to roll and to delete. Must not know requests,
threads or how files are stored. Invariants: ``start_offset <= last_stable_offset <= high_watermark == end_offset`` (there is one
replica, so written records are committed); no open transaction has a record before the last stable offset; offsets only grow; a
batch is stored as received, except for base offset and leader epoch, which no checksum covers.
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

from ottla.broker.leader_epochs import LeaderEpochCache
from ottla.broker.markers import read_marker
from ottla.broker.ports import DiskJob, LogFiles, PinnedFolder
from ottla.broker.producer_state import ProducerStateManager
from ottla.broker.scan import Damage
from ottla.broker.segment import Segment, file_name
from ottla.broker.topic_config import TopicConfig
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY, AbortedTransaction
from ottla.coordinator.effects import ApiError
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
    """The job that makes the records between two offsets loadable without a scan: it forces them and their indexes to disk."""

    start: int
    end: int
    job: DiskJob


class LogAppendInfo(NamedTuple):
    """The offsets of an appended batch. ``append_time`` is -1 unless the broker sets timestamps."""

    base_offset: int
    last_offset: int
    append_time: int = _NO_TIMESTAMP


class Swap(NamedTuple):
    """A rewritten segment that readers already use, and the base offsets of the segments whose files it must still replace."""

    segment: Segment
    replaced: tuple[int, ...]


class PartitionLog:
    """The log of one partition (Kafka's ``UnifiedLog``). It has no files until something is written to it."""

    def __init__(self, topic_partition: TopicPartition, config: TopicConfig, files: LogFiles) -> None:
        self.topic_partition = topic_partition
        self.config = config
        self.files = files
        self.segments: list[Segment] = []
        self.start_offset = 0
        self.recovery_point = 0
        """Everything before this offset is known to be on disk."""
        self.first_dirty_offset = 0
        """Everything before this offset was compacted: there may be holes."""
        self.seal_point = 0
        """Segments before this offset are sealed: their indexes are on disk, or a pending job writes them."""
        self.pending_deletes: list[int] = []
        """Base offsets of deleted segments whose files are not renamed to ``.deleted`` yet."""
        self.swap: Swap | None = None
        """The swap that compaction has begun and not completed; such a log is read as usual."""
        self._sealings: list[Sealing] = []
        self._pending_sealings: list[Sealing] = []
        """The sealings whose outcome is not known yet."""
        self.leader_epochs = LeaderEpochCache()
        self.producers = ProducerStateManager()
        self.responses_at_end: dict[bool, Any] = {}
        """The cached response to fetches at the end of the log, for ``read_committed`` (True) and for others."""
        self._last_logged: str | None = None
        self.has_lost_records = False
        """Whether the start found missing batches or truncated the log: losses that no file shows any more."""
        self.offline: str | None = None
        """Why the partition cannot be served until the next start, if so."""
        self.last_known_end = 0
        """The offset at which an offline log had ended."""

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic_partition} {self.start_offset}..{self.end_offset}>"

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self.segments[-1].next_offset if self.segments else self.start_offset

    @property
    def high_watermark(self) -> int:
        """The offset up to which records may be read."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which every transaction has ended: the end of the log for ``read_committed`` readers."""
        first_open = self.producers.first_unstable_offset
        return self.end_offset if first_open is None else max(first_open, self.start_offset)

    @property
    def needs_start_checkpoint(self) -> bool:
        """Whether the files have records before the start offset, so that only the checkpoint has this offset."""
        if not self.segments or (self.start_offset <= self.segments[0].base_offset and not self.pending_deletes):
            return False
        return self.start_offset > min([self.segments[0].base_offset, *self.pending_deletes])

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    def append(self, batch: bytes, header: BatchHeader, now: int) -> LogAppendInfo:
        """Append a validated batch (``now``: milliseconds since 1970). If it raises ``OSError``, nothing was written.

        The log may have rolled in either case: ``take_sealings`` then returns the resulting sealing.
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
        place = _PLACE.pack(base_offset, header.batch_length, self.leader_epochs.current)
        self.segments[-1].append((place, *rest), header.size, last_offset, header.max_timestamp)
        if header.producer_id >= 0:
            self.update_producers(self.segments[-1], batch, header._replace(base_offset=base_offset), now)
            self.store_transaction_index(self.segments[-1])
        self._last_logged = None
        return LogAppendInfo(base_offset, last_offset, append_time)

    def take_sealings(self) -> list[Sealing]:
        """Return the sealings of the segments rolled since the last call."""
        sealings, self._sealings = self._sealings, []
        return sealings

    def update_producers(self, segment: Segment, batch: bytes, header: BatchHeader, now: int) -> None:
        """Update the producer state for a batch in ``segment``; a marker also ends its transaction. For appends and for loading."""
        if not header.is_control:
            self.producers.append(header, header.base_offset, now)
            return
        marker = read_marker(batch)
        if marker is None:
            return
        ended = self.producers.complete_transaction(header, header.base_offset, marker.coordinator_epoch, now)
        if ended is not None and marker.kind is ControlType.ABORT:
            first_open = self.producers.first_unstable_offset
            stable = header.next_offset if first_open is None else first_open
            segment.transaction_index.append(AbortedTransaction(*ended, stable))

    def store_transaction_index(self, segment: Segment) -> None:
        """Write the transaction index of a segment. A failure loses nothing: the log has the markers, and the next call writes
        them."""
        if segment.transaction_index.is_stored:
            return
        name, copy = (file_name(segment.base_offset, suffix) for suffix in (TXNINDEX, TXNINDEX_COPY))
        try:
            segment.transaction_index.store(self.files.pin(), name, copy)
        except OSError as error:
            logger.error("%s of %s could not be written: %s", name, self.topic_partition, error)

    def store_leader_epochs(self, *, forced: bool = False) -> None:
        """Write the leader epochs to their checkpoint; ``forced``: also force it to disk. Raises ``OSError``."""
        self.files.pin().write_small(EPOCH_CHECKPOINT, self.leader_epochs.to_bytes(), forced=forced)

    def storage_error(self, code: ErrorCode, reason: str) -> ApiError:
        """Log a disk failure, and return the error for clients."""
        self.log_once(reason)
        return ApiError(code, reason)

    def log_once(self, reason: str) -> None:
        """Log a failure once, not for each attempt."""
        if reason != self._last_logged:
            logger.error("%s", reason)
        self._last_logged = reason

    def flush_due(self) -> bool:
        """Whether ``flush.messages`` requires a flush before the next acknowledgement."""
        return self.end_offset - self.recovery_point >= self.config.flush_messages

    def flush(self) -> DiskJob:
        """Return the job that forces everything to disk that is not known to be there, up to the current end.

        That is the active segment, and older ones until their sealing has succeeded.
        """
        bases = [segment.base_offset for segment in self.segments if segment.next_offset > self.recovery_point]
        return self.files.job(partial(_flush_each, bases))

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool, end: int | None = None) -> FileRange | None:
        """Return whole batches from the one that contains ``offset`` on; ``None`` if there is nothing to read or no batch fits.

        ``offset`` must lie between ``start_offset`` and ``high_watermark``; nothing at or after ``end`` is read. Raises
        ``ApiError`` if the disk fails or the batches are damaged.
        """
        end = self.end_offset if end is None else end
        if offset >= end:
            return None
        return self._read_around_damage(lambda: self._read(offset, max_bytes, end, at_least_one))

    def _read(self, offset: int, max_bytes: int, end: int, at_least_one: bool) -> FileRange | None:
        for row in range(self._row_of(offset), len(self.segments)):
            segment = self.segments[row]
            position = segment.locate(offset)
            if position is not None:
                stop = segment.locate_end(end) if end < segment.next_offset else None
                if stop is not None:
                    max_bytes = min(max_bytes, stop - position)
                    at_least_one = at_least_one and stop > position
                size = segment.fit_batches(position, max_bytes, at_least_one=at_least_one)
                data = _range(segment, position, size) if size else None
                self._drop_wrong_index(segment)
                return data
        return None

    def read_committed(
        self, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> tuple[FileRange | None, list[AbortedTransaction]]:
        """As ``read``, up to the last stable offset; also return the aborted transactions with records in that range."""
        data = self.read(offset, max_bytes, at_least_one=at_least_one, end=self.last_stable_offset)
        segments = self.segments[self._row_of(offset) :]
        if data is None or not any(len(segment.transaction_index) for segment in segments):
            return data, []

        def end_of() -> int:
            places = ((segment, segment.locate(offset)) for segment in segments)
            return next(segment.upper_bound_offset(position + len(data)) for segment, position in places if position is not None)

        end = self._read_around_damage(end_of)
        return data, [entry for segment in segments for entry in segment.transaction_index.collect_aborted(offset, end)]

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise ``ApiError`` unless the leader epoch in a request is the current one, or -1 (none)."""
        if epoch not in (_NO_EPOCH, self.leader_epochs.current):
            older = epoch < self.leader_epochs.current
            code = ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
            raise ApiError(
                code, f"The leader epoch of {self.topic_partition} is {self.leader_epochs.current}, the request says {epoch}."
            )

    def find_offset_by_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with this or a later timestamp. Raises ``ApiError`` as ``read`` does."""
        return self._read_around_damage(lambda: self._find_offset_by_timestamp(timestamp))

    def _find_offset_by_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        for segment in self.segments:
            if segment.max_timestamp >= timestamp and segment.size:
                found = segment.find_offset_by_timestamp(timestamp, self.start_offset)
                self._drop_wrong_index(segment)
                if found is not None:
                    return found
        return None

    def find_max_timestamp(self) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with the largest timestamp; ``None`` for a log without records. Raises
        ``ApiError``."""
        stamped = [segment for segment in self.segments if segment.max_timestamp >= 0]
        if not stamped:
            return None
        largest = max(segment.max_timestamp for segment in stamped)
        found = self.find_offset_by_timestamp(largest)
        if found is not None:
            return found
        for segment in stamped:  # unless a deleted record has it, an index file claims a timestamp that no record has
            deleted = segment.offset_of_max_timestamp < self.start_offset
            segment.is_suspect |= segment.max_timestamp == largest and segment.is_max_timestamp_from_file and not deleted
        if self.find_damage():
            return self.find_max_timestamp()
        unread = [segment for segment in stamped if segment.is_suspect]
        if not unread:
            return None
        reason = f"{self.topic_partition} could not be read: {unread[0].name} has timestamps that cannot be checked"
        raise self.storage_error(ErrorCode.kafka_storage_error, reason)

    def increment_start_offset(self, offset: int) -> None:
        """Move the start of the log to ``offset``, ``high_watermark`` at most. Retention deletes the segments before it."""
        self.start_offset = offset

    def delete_old_segments(self, now: int) -> list[Segment]:
        """Delete the segments that have expired (``now``: milliseconds since 1970), and return them.

        Their files are ``pending_deletes`` from now on. If the active segment has expired, it is deleted, too: an empty one
        replaces it, so that offsets continue. The segments in ``unverified_timestamps`` are not deleted because of their age. If it
        raises ``OSError``, nothing was deleted.
        """
        self.finish_swap()
        by_time = self._count_past_retention_ms(now)
        by_time = next((row for row in range(by_time) if self.segments[row].is_max_timestamp_from_file), by_time)
        count = max(by_time, self._count_past_retention_bytes(), self._count_before_start())
        if not count:
            return []
        if count == len(self.segments):
            self._roll()
        dropped, self.segments = self.segments[:count], self.segments[count:]
        self.pending_deletes += [segment.base_offset for segment in dropped]
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        return dropped

    def unverified_timestamps(self, now: int) -> list[Segment]:
        """Return the segments that would expire because of a timestamp in an index file, which may be damaged."""
        return [segment for segment in self.segments[: self._count_past_retention_ms(now)] if segment.is_max_timestamp_from_file]

    def mark_segments_deleted(self) -> DiskJob:
        """Return the job that renames the files of deleted segments; call ``on_segments_marked_deleted`` after it."""
        return job_or_failure(partial(self.files.mark_deleted, tuple(self.pending_deletes)))

    def on_segments_marked_deleted(self, base_offsets: Collection[int]) -> None:
        """Handle that the files of these segments were renamed."""
        self.pending_deletes = [one for one in self.pending_deletes if one not in base_offsets]

    def replace_segments(self, replaced: tuple[Segment, ...], segment: Segment) -> bool:
        """Replace the segments that a rewritten segment was made of; return whether that was possible.

        All of them must still exist, and none may be waiting for a sealing: 1. A job that writes the old indexes is queued. 2. The
        swap installs the new indexes. 3. The job runs, and writes the old ones over them.

        ``finish_swap`` does the rest. If it raises ``OSError``, nothing was replaced.
        """
        row = next((row for row, one in enumerate(self.segments) if one is replaced[0]), 0)
        if tuple(self.segments[row : row + len(replaced)]) != replaced:
            return False
        if any(sealing.start < replaced[-1].next_offset for sealing in self._pending_sealings):
            return False
        segment.file = self.files.begin_swap(segment.base_offset)
        self.segments[row : row + len(replaced)] = [segment]
        self.swap = Swap(segment, tuple(one.base_offset for one in replaced))
        return True

    def finish_swap(self) -> None:
        """Complete the swap that ``replace_segments`` has begun, if any. Raises ``OSError``; then it can be retried."""
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
        """Return the work that writes the indexes of all unsealed segments to disk, and a snapshot of the producer state.

        ``end``: the base offset of the active segment, to leave that one out. Then there is no snapshot either, since the producer
        state is that of the end of the log.
        """
        start, end = self.seal_point, self.end_offset if end is None else end
        job = job_or_failure(partial(self._seal_job, start, end))
        self.seal_point = end
        self._pending_sealings.append(sealing := Sealing(start, end, job))
        return sealing

    def _seal_job(self, start: int, end: int) -> DiskJob:
        snapshot = self.producers.snapshot() if end == self.end_offset else None
        rows = range(self._row_of(start), bisect_left(self.segments, end, key=lambda segment: segment.base_offset))
        segments = [self.segments[row] for row in rows if start < self.segments[row].next_offset]
        for segment in segments:
            self.store_transaction_index(segment)
        aborted_stored = all(segment.transaction_index.is_stored for segment in segments)
        parts = [(segment.base_offset, *segment.seal()) for segment in segments]

        def work(folder: PinnedFolder) -> None:
            for base, index, time_index in parts:
                folder.write_small(file_name(base, "index"), index.to_bytes(), forced=True)
                folder.write_small(file_name(base, "timeindex"), time_index.to_bytes(), forced=True)
                folder.flush(base)
            if not aborted_stored:
                raise OSError(errno.EIO, "a transaction index is not stored, so the producer snapshot was not written")
            if snapshot is not None:
                folder.write_small(file_name(end, "snapshot"), snapshot, forced=True)
                for name in folder.snapshots_before(start):
                    folder.remove_small(name)

        return self.files.job(work)

    def sealed(self, sealing: Sealing, error: Exception | None) -> None:
        """Handle the end of a sealing. The next sealing repeats one that failed."""
        self._pending_sealings = [one for one in self._pending_sealings if one is not sealing]
        if error is None and sealing.start <= self.recovery_point:
            self.flushed(sealing.end)
        else:
            self.seal_point = min(self.seal_point, sealing.start)

    def flushed(self, offset: int) -> None:
        """Advance the recovery point: everything before ``offset`` is on disk."""
        self.recovery_point = max(self.recovery_point, offset)

    def _read_around_damage(self, read: Callable[[], R]) -> R:
        """Return the result of ``read``. If it meets damage, locate the damage by a scan, and read what is intact behind it. Raises
        ``ApiError``."""
        try:
            try:
                return read()
            except InvalidBatchError:
                if not self.find_damage():
                    raise
                return read()
        except InvalidBatchError as error:
            raise self.storage_error(ErrorCode.corrupt_message, f"{self.topic_partition} is damaged: {error}") from error
        except OSError as error:
            raise self.storage_error(ErrorCode.kafka_storage_error, f"{self.topic_partition} could not be read: {error}") from error

    def find_damage(self) -> bool:
        """Scan the segments in which readers met damage, so that they get what is intact behind it; return whether any was
        scanned."""
        found = False
        for segment in self.segments:
            if not segment.is_suspect or segment.has_bad_sector:
                continue
            try:
                segment.rescan(segment.next_offset)
            except OSError as error:  # the next reader retries, unless a bad sector would fail it again
                segment.has_bad_sector = error.errno == errno.EIO
                continue
            for damage in segment.damages:
                logger.error("%s", self.describe_damage(segment, damage))
            found = True
        return found

    def _drop_wrong_index(self, segment: Segment) -> None:
        """Remove the index files of a segment with a wrong entry. The next start rebuilds them; until then the entries around it
        are used."""
        if not segment.has_wrong_entries or segment.is_index_dropped:
            return
        segment.is_index_dropped = True
        names = [file_name(segment.base_offset, suffix) for suffix in ("index", "timeindex")]
        what = "has wrong entries; the next start rebuilds both from the batches"
        logger.warning("%s: %s or %s %s", self.topic_partition, *names, what)
        with suppress(OSError):
            folder = self.files.pin()
            for name in names:
                folder.remove_small(name)

    @property
    def is_damaged(self) -> bool:
        """Whether a part of it is known to be unreadable."""
        return any(segment.damages for segment in self.segments)

    def describe_damage(self, segment: Segment, damage: Damage) -> str:
        """Return the message about damage in a segment, and its consequence."""
        return (
            f"{self.topic_partition}: {segment.name} is damaged at {damage}. The rest of it is served, and the log is not compacted"
        )

    def _roll_if_full(self, header: BatchHeader, last_offset: int) -> None:
        if not self.segments:
            self.files.make()
            first = self._new_segment(self.start_offset)
            self.store_leader_epochs()
            self.segments.append(first)
            return
        config = self.config
        limits = {"limit": config.segment_bytes, "age": self._roll_age(), "index_limit": config.segment_index_bytes}
        if self.segments[-1].should_roll(header.size, last_offset, header.max_timestamp, **limits):
            self._roll()

    def _roll_age(self) -> int:
        """Return the age at which the active segment rolls. ``segment.jitter.ms`` reduces it by an amount that differs between logs
        and segments, but is not random: a segment always rolls at the same age."""
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

    def _count_past_retention_ms(self, now: int) -> int:
        if self.config.retention_ms < 0 or not self.config.expiring:
            return 0
        oldest = now - self.config.retention_ms
        for count, segment in enumerate(self.segments):
            if self._is_fresh(segment):
                return count
            if not segment.size:
                continue  # all of it was compacted away
            newest = segment.max_timestamp
            if newest < 0 or segment.damages:  # the age of a damaged batch is not known
                newest = max(newest, self.files.modified(segment.base_offset))
            if newest >= oldest:
                return count
        return len(self.segments)

    def _is_fresh(self, segment: Segment) -> bool:
        """Whether this is the active segment, and nothing was written to it."""
        return not segment.size and segment is self.segments[-1]

    def _count_before_start(self) -> int:
        """Count the segments that end before the start of the log, without the active one."""
        return sum(segment.next_offset <= self.start_offset for segment in self.segments[:-1])

    def _count_past_retention_bytes(self) -> int:
        if self.config.retention_bytes < 0 or not self.config.expiring:
            return 0
        surplus = self.size - self.config.retention_bytes
        for count, segment in enumerate(self.segments):
            surplus -= segment.size
            if surplus < 0 or self._is_fresh(segment):
                return count
        return len(self.segments)


def _range(segment: Segment, position: int, size: int) -> FileRange:
    """Return whole batches of a segment. If a part of them cannot be read, return only the first, so that readers get the batches
    before a bad sector. Raises ``InvalidBatchError`` or ``OSError``."""
    try:
        segment.verify_range(position, position + size)
        return segment.file.range(position, size)
    except OSError:
        first = segment.fit_batches(position, 0, at_least_one=True)
        if first >= size:
            raise
        segment.verify_range(position, position + first)
        return segment.file.range(position, first)


def job_or_failure(prepare: Callable[[], DiskJob]) -> DiskJob:
    """Return the job that ``prepare`` returns; if that raises, a job that raises the same error.

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
    """Return the batch with the broker's time in its header: the one change that needs a new checksum."""
    header = header._replace(attributes=header.attributes | LOG_APPEND_TIME_BIT, max_timestamp=now)
    front = pack_header(header)
    records = memoryview(batch)[HEADER_SIZE:]
    crc = crc32c.crc32c(records, crc32c.crc32c(front[CRC_START:]))
    return header, (front[_PLACE.size : CRC_OFFSET], crc.to_bytes(4, "big"), front[CRC_START:], records)
