"""The choice of the next compacted log to clean, and the progress of its cleaning: one log at a time, in steps.

Owns the choice and the cleaning in progress. Must not know the rules of compaction. Invariants: only sealed segments without
records of an open transaction are cleaned, never the active segment; a damaged log is not cleaned until the next start; a cleaned
segment replaces exactly its source segments, or is discarded; a log whose disk fails does not block the cleaning of others, and is
retried at the next check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from ottla.broker.cleaner import CleanedSegment, Cleaner, Finished
from ottla.broker.effects import Outbox, RunJob, SetTimer
from ottla.broker.log import PartitionLog
from ottla.broker.segment import Segment
from ottla.errors import CorruptRecordError
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
