"""The cleaning of compacted logs: the choice of the next log, its cleaning in steps, and the records that are retained.

Owns the rules of compaction, the order in which a log is read and rewritten, and the cleaning in progress, of one log at a time.
Must not know how files are stored. Invariants: the latest record of each key is retained, a tombstone for ``delete.retention.ms``;
offsets do not change; a producer's last batch is retained, if only as a header; a marker outlives the records of its transaction;
the log is readable before, during and after, with the same latest record for every key. Only sealed segments without records of an
open transaction are cleaned, never the active segment; a damaged log is not cleaned until the next start; a cleaned segment
replaces exactly its source segments, or is discarded; a log whose disk fails does not block the cleaning of others, and is retried
at the next check.

``LogCleaner`` runs on the event loop, the steps of a ``Cleaner`` on the disk thread.

Source: "Log Compaction" in Kafka's documentation, KIP-98, KIP-534.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ottla.broker.effects import Outbox, RunJob, SetTimer
from ottla.broker.log import PartitionLog
from ottla.broker.markers import read_marker
from ottla.broker.ports import LogFiles
from ottla.broker.producer_state import ProducerStateManager
from ottla.broker.scan import LAST_OFFSET
from ottla.broker.segment import Segment
from ottla.broker.topic_config import TopicConfig
from ottla.broker.transaction_index import TXNINDEX, TXNINDEX_COPY, TransactionIndex
from ottla.errors import CorruptRecordError
from ottla.records import BatchHeader, ControlType, NewRecord, encode_compacted, iter_records
from ottla.types import Now

TAG = ("clean",)


class LogToClean(NamedTuple):
    """A log that needs cleaning. Overdue logs come first, then those with the largest share of new records (the dirty ratio)."""

    overdue: bool
    ratio: float
    log: PartitionLog
    segments: tuple[Segment, ...]


class LogCleaner:
    """Cleans all compacted logs. ``is_live`` returns whether the broker still has a log."""

    def __init__(self, is_live: Callable[[PartitionLog], bool], outbox: Outbox) -> None:
        self._is_live = is_live
        self._outbox = outbox
        self._current: tuple[PartitionLog, Cleaner] | None = None
        self._damaged: set[PartitionLog] = set()
        self._failures: Counter[PartitionLog] = Counter()
        """How often the cleaning of a log has failed since it last succeeded."""

    def clean_filthiest(self, logs: Iterable[PartitionLog], memory: int, now: Now) -> None:
        """Begin to clean the log that needs it most, unless one is being cleaned."""
        if self._current is not None:
            return
        due = list(self._logs_to_clean(logs, now))
        if not due:
            return
        # Logs that fail most come last; otherwise a failing log that needs it most would keep all others waiting.
        _, _, log, segments = max(due, key=lambda one: (-self._failures[one.log], one.overdue, one.ratio))
        cleaning = Cleaner(
            segments,
            log.segments[len(segments) :],
            max(log.first_dirty_offset, segments[0].base_offset),
            log.config,
            log.producers,
            log.files,
            now=now.wall,
            memory=memory,
        )
        self._go_on(log, cleaning)

    def on_step(self, outcome: object, now: Now) -> bool:
        """Handle the end of a step; return whether it was the last, so that the next log can follow."""
        assert self._current is not None
        # If anything below raises, this cleaning has ended and the next check begins another one.
        (log, cleaning), self._current = self._current, None
        if isinstance(outcome, Exception) or not self._is_live(log):
            damaged = isinstance(outcome, CorruptRecordError)
            if damaged and self._is_live(log):
                _log_damage(log, outcome)
            self._abort(log, damaged=damaged)
            return False
        if isinstance(outcome, Finished):
            log.first_dirty_offset = max(log.first_dirty_offset, outcome.offset)
            del self._failures[log]
            return True
        if isinstance(outcome, CleanedSegment) and not self._swap(log, outcome, now):
            self._abort(log)
            return False
        self._go_on(log, cleaning)
        return False

    def _go_on(self, log: PartitionLog, cleaning: Cleaner) -> None:
        self._current = (log, cleaning)
        self._outbox.put(RunJob(TAG, cleaning.step))

    def _logs_to_clean(self, logs: Iterable[PartitionLog], now: Now) -> Iterator[LogToClean]:
        for log in logs:
            if log.swap is None and (len(log.segments) < 2 or not log.config.compacted):
                continue  # one turn of the event loop checks all logs: one with nothing to compact must cost little
            if log in self._damaged or log.is_damaged or not self._finish_swap(log, now):
                continue
            try:
                due = _log_to_clean(log, now.wall)
            except OSError as error:
                log.log_once(f"{log.topic_partition} could not be compacted: {error}")
            except CorruptRecordError as error:
                _log_damage(log, error)
                self._abort(log, damaged=True)
            else:
                if due is not None:
                    yield due

    def _swap(self, log: PartitionLog, cleaned: CleanedSegment, now: Now) -> bool:
        """Replace the source segments with the cleaned one, including the files; return whether that is complete."""
        try:
            return log.replace_segments(*cleaned) and self._finish_swap(log, now)
        except OSError as error:
            log.log_once(f"{log.topic_partition} could not be compacted: {error}")
            return False

    def _finish_swap(self, log: PartitionLog, now: Now) -> bool:
        """Complete the pending swap of a log; return whether none is pending. The next check retries a failed swap."""
        if log.swap is None:
            return True
        try:
            log.finish_swap()
        except OSError as error:
            log.log_once(f"{log.topic_partition} could not be compacted: {error}")
            return False
        self._outbox.put(SetTimer(("remove-files", log.topic_partition), now.mono + log.config.file_delete_delay_ms))
        return True

    def _abort(self, log: PartitionLog, *, damaged: bool = False) -> None:
        """Remove the ``.cleaned`` files. A log that is not ``damaged`` is retried at a later check."""
        if self._is_live(log):
            self._damaged |= {log} if damaged else set()
            self._failures[log] += 1
            with suppress(OSError):
                log.files.discard_all_cleaned()
        self._damaged = {one for one in self._damaged if self._is_live(one)}
        self._failures = Counter({one: count for one, count in self._failures.items() if self._is_live(one)})


def _log_damage(log: PartitionLog, outcome: object) -> None:
    log.log_once(f"{log.topic_partition} is not compacted any more: {outcome}")
    log.find_damage()


def _log_to_clean(log: PartitionLog, now: int) -> LogToClean | None:
    """Return a log with the segments to clean; ``None`` if it needs no cleaning (``now``: milliseconds since 1970)."""
    if not log.config.compacted:
        return None
    segments = _cleanable(log, now)
    dirty = [segment for segment in segments if segment.next_offset > log.first_dirty_offset]
    dirty_size = sum(segment.size for segment in dirty)
    if not dirty_size:
        return None
    ratio = dirty_size / sum(segment.size for segment in segments)
    oldest = next((segment.first_timestamp for segment in dirty if segment.first_timestamp >= 0), now)
    overdue = now - oldest > log.config.max_compaction_lag_ms
    return LogToClean(overdue, ratio, log, segments) if overdue or ratio > log.config.min_cleanable_dirty_ratio else None


def _cleanable(log: PartitionLog, now: int) -> tuple[Segment, ...]:
    """Return the segments at the beginning of a log that may be rewritten."""
    end = min(log.last_stable_offset, log.recovery_point)
    youngest = now - log.config.min_compaction_lag_ms
    segments: list[Segment] = []
    for segment in log.segments[:-1]:
        young = log.config.min_compaction_lag_ms > 0 and segment.max_timestamp > youngest
        if segment.next_offset > end or young:
            break
        segments.append(segment)
    return tuple(segments)


STEP = 4 << 20
"""Bytes read in one step. Other jobs can run between two steps."""

_ENTRY_COST = 150
"""Bytes of memory that a key takes in the offset map, besides its own."""

_MAX_RELATIVE = 2**31 - 1


class CleanedSegment(NamedTuple):
    """A rewritten segment that is ready to replace its source segments, ``replaced``."""

    replaced: tuple[Segment, ...]
    segment: Segment


class Finished(NamedTuple):
    """Everything before ``offset`` is compacted."""

    offset: int


Step = CleanedSegment | Finished | None
"""The result of one step; ``None``: there is more to do."""

_Batches = Iterator[tuple[BatchHeader, bytes] | None]


class Cleaner:
    """Cleans one log. ``step`` does a part of it, on any thread, one call at a time."""

    def __init__(
        self,
        segments: Sequence[Segment],
        tail: Sequence[Segment],
        first_dirty_offset: int,
        config: TopicConfig,
        producers: ProducerStateManager,
        files: LogFiles,
        *,
        now: int,
        memory: int,
    ) -> None:
        """``segments`` are rewritten; ``tail``, the rest of the log, may have the markers of their transactions. ``now``:
        milliseconds."""
        self._segments = segments
        self._tail = tail
        # Read here, on the event loop's thread: the active segment may grow while the disk thread works.
        self._limits = {segment: segment.next_offset for segment in (*segments, *tail[:-1])}
        self._first_dirty_offset = first_dirty_offset
        self._config = config
        self._last_batches = {
            producer_id: (producer.epoch, producer.batches[-1].last_offset if producer.batches else None)
            for producer_id, producer in producers.entries.items()
        }
        self._files = files
        self._now = now
        self._memory = memory
        self._steps = self._run()

    def step(self) -> Step:
        """Do the next step. Raises ``OSError`` or ``CorruptRecordError``, which ends the cleaning."""
        return next(self._steps)

    def _run(self) -> Generator[Step, None, None]:
        transactions = CleanedTransactionMetadata()
        for batch in self._batches((*self._segments, *self._tail)):
            if batch is None:
                yield None
            elif batch[0].is_control:
                transactions.add_marker(*batch)
        offset_map: dict[bytes, int] = {}
        end = self._first_dirty_offset
        for batch in self._batches(segment for segment in self._segments if segment.next_offset > self._first_dirty_offset):
            if batch is None:
                yield None
            elif batch[0].next_offset > end and self._memory > 0:
                self._add_to_offset_map(batch[0], batch[1], offset_map, transactions)
                end = batch[0].next_offset
        rules = RecordFilter(offset_map, end, transactions, self._last_batches, self._now, self._config.delete_retention_ms)
        for group in self._groups(end):
            yield from self._rewrite(group, rules)
        yield Finished(end if self._memory <= 0 else self._segments[-1].next_offset)

    def _batches(self, segments: Iterable[Segment]) -> _Batches:
        """Yield header and bytes of each batch in order, and ``None`` between two steps.

        Raises ``InvalidBatchError`` at any damage: the rewritten segment would lack the records that cannot be read, without a
        trace.
        """
        since = 0
        for segment in segments:
            with segment.file.reader() as file:
                for _, header, content in segment.batches(file, self._limits.get(segment)):
                    yield header, bytes(content)
                    since += header.size
                    if since > STEP:
                        since = 0
                        yield None
        yield None

    def _add_to_offset_map(
        self, header: BatchHeader, batch: bytes, offset_map: dict[bytes, int], transactions: CleanedTransactionMetadata
    ) -> None:
        """Add a batch to the offset map: key -> offset of its latest record. Aborted records do not count."""
        if header.is_control or transactions.is_aborted(header):
            return
        for record in iter_records(batch):
            if record.key is not None and record.offset >= self._first_dirty_offset:
                if record.key not in offset_map:
                    self._memory -= len(record.key) + _ENTRY_COST
                offset_map[record.key] = record.offset

    def _groups(self, end: int) -> Iterator[tuple[Segment, ...]]:
        """Group neighbouring segments that fit into one, so that cleaning does not leave many small segments."""
        group: list[Segment] = []
        size = 0
        for segment in self._segments:
            if segment.base_offset >= end:
                break
            fits = size + segment.size <= self._config.segment_bytes
            if group and not (fits and segment.next_offset - group[0].base_offset <= _MAX_RELATIVE):
                yield tuple(group)
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield tuple(group)

    def _rewrite(self, group: tuple[Segment, ...], rules: RecordFilter) -> Generator[Step, None, None]:
        base = group[0].base_offset
        segment = Segment(base, self._files.create_cleaned(base), self._config.index_interval_bytes)
        untouched = len(group) == 1
        for batch in self._batches(group):
            if batch is None:
                yield None
                continue
            header, content = batch
            kept = rules.apply(header, content)
            untouched &= kept is content
            if kept is not None:
                position = segment.size
                segment.file.append((kept,))
                segment.index_batch(position, rules.header)
        if untouched:
            self._files.discard_cleaned(base)
            return
        segment.next_offset = group[-1].next_offset
        segment.transaction_index = TransactionIndex(
            entry
            for one in group
            for entry in one.transaction_index.collect_aborted(0, LAST_OFFSET)
            if entry.last_offset in rules.transactions.kept_markers
        )
        index, time_index = segment.seal()
        small = {"index": index.to_bytes(), "timeindex": time_index.to_bytes()}
        if len(segment.transaction_index):
            small |= {TXNINDEX: segment.transaction_index.to_bytes(), TXNINDEX_COPY: segment.transaction_index.to_copy()}
        self._files.finish_cleaned(base, small)
        yield CleanedSegment(group, segment)


class CleanedTransactionMetadata:
    """The aborted transactional batches, and the markers without remaining batches (Kafka's ``CleanedTransactionMetadata``)."""

    def __init__(self) -> None:
        self._markers: dict[int, tuple[list[int], list[ControlType]]] = {}
        self._seen: set[int] = set()
        self.kept_markers: set[int] = set()

    def add_marker(self, header: BatchHeader, batch: bytes) -> None:
        """Add a control batch. Call in log order."""
        marker = read_marker(batch)
        if marker is not None:
            offsets, kinds = self._markers.setdefault(header.producer_id, ([], []))
            offsets.append(header.base_offset)
            kinds.append(marker.kind)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to a transaction that was aborted."""
        if not header.is_transactional or header.producer_id not in self._markers:
            return False
        offsets, kinds = self._markers[header.producer_id]
        row = bisect_right(offsets, header.base_offset)
        return row < len(kinds) and kinds[row] is ControlType.ABORT

    def is_discardable(self, header: BatchHeader) -> bool:
        """Whether the records of this batch can be discarded. Call once per batch, in log order."""
        if not header.is_control:
            if header.is_transactional:
                self._seen.add(header.producer_id)
            return self.is_aborted(header)
        if header.record_count and header.producer_id in self._seen:
            self._seen.discard(header.producer_id)
            self.kept_markers.add(header.base_offset)
            return False
        return True


class RecordFilter:
    """Decides which records of each batch are retained. Call ``apply`` in log order; ``header`` is that of its last result."""

    def __init__(
        self,
        offset_map: Mapping[bytes, int],
        end: int,
        transactions: CleanedTransactionMetadata,
        last_batches: Mapping[int, tuple[int, int | None]],
        now: int,
        delete_retention: int,
    ) -> None:
        self._offset_map = offset_map
        self._end = end
        self.transactions = transactions
        self._last_batches = last_batches
        self._now = now
        self._horizon = now + delete_retention

    def apply(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """Return the batch as it is (the same object), a smaller batch, or ``None``."""
        self.header = header
        needless = self.transactions.is_discardable(header)
        horizon = header.base_timestamp if header.has_delete_horizon else None
        expired = horizon is not None and horizon <= self._now
        records = list(iter_records(batch)) if header.record_count else []
        if header.is_control:
            kept = [] if needless and expired else records
            will_expire = needless
        else:
            kept = [] if needless else [one for one in records if self._is_retained(one.offset, one.key, one.value, expired)]
            will_expire = any(one.value is None for one in kept)
        if not kept and not self._is_retained_empty(header):
            return None
        if len(kept) == len(records) and (horizon is not None or not (will_expire and kept)):
            return batch
        if horizon is None and will_expire and kept:
            # KIP-534: the first cleaning that meets a tombstone, or a marker without records, stamps the batch with a delete
            # horizon. A cleaning after that time removes it.
            horizon = self._horizon
        rows = [(one.offset, NewRecord(one.key, one.value, one.headers, one.timestamp)) for one in kept]
        self.header, written = encode_compacted(header, rows, delete_horizon=horizon)
        return written

    def _is_retained(self, offset: int, key: bytes | None, value: bytes | None, expired: bool) -> bool:
        if offset >= self._end:
            return True
        return key is not None and self._offset_map.get(key, offset) <= offset and (value is not None or not expired)

    def _is_retained_empty(self, header: BatchHeader) -> bool:
        """Whether a batch is retained even without records: the last one of a producer, or of the cleaned part."""
        if header.next_offset == self._end:
            return True
        epoch, last_offset = self._last_batches.get(header.producer_id, (None, None))
        if last_offset is None:
            return header.is_control and header.producer_epoch == epoch
        return header.last_offset == last_offset
