"""Which compacted log is cleaned next, and what becomes of the work: one log at a time, a step at a time.

Owns the choice and the cleaning under way. Must not know the rules of compaction. Invariants: only segments that were sealed and
hold nothing of an open transaction are cleaned, never the newest; a log that is damaged is left alone until the next start; what
a cleaning made takes the place of exactly what it was made of, or is thrown away; a log whose disk fails keeps no other log from
being cleaned, and is tried again the next time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from ottla.broker.compaction import Cleaned, Cleaning, Finished
from ottla.broker.effects import Outbox, RunJob, SetTimer
from ottla.broker.log import PartitionLog
from ottla.broker.segment import Segment
from ottla.errors import CorruptRecordError
from ottla.types import Now

TAG = ("clean",)


class Due(NamedTuple):
    """A log to be cleaned. Overdue ones come first, then those with the largest share of new records."""

    overdue: bool
    ratio: float
    log: PartitionLog
    segments: tuple[Segment, ...]


class Cleaner:
    """The cleaning of all compacted logs. ``is_live`` says whether a log still is one of the broker's."""

    def __init__(self, is_live: Callable[[PartitionLog], bool], outbox: Outbox) -> None:
        self._is_live = is_live
        self._outbox = outbox
        self._current: tuple[PartitionLog, Cleaning] | None = None
        self._broken: set[PartitionLog] = set()
        self._failures: Counter[PartitionLog] = Counter()
        """How often the cleaning of a log has failed since it last succeeded."""

    def look(self, logs: Iterable[PartitionLog], memory: int, now: Now) -> None:
        """Begin to clean the log that needs it most, unless one is being cleaned."""
        if self._current is not None:
            return
        due = list(self._all_due(logs, now))
        if not due:
            return
        # Logs that fail most come last; otherwise a failing log that needs it most would keep all others waiting.
        _, _, log, segments = max(due, key=lambda one: (-self._failures[one.log], one.overdue, one.ratio))
        cleaning = Cleaning(
            segments,
            log.segments[len(segments) :],
            max(log.clean_point, segments[0].base_offset),
            log.config,
            log.producers,
            log.files,
            now=now.wall,
            memory=memory,
        )
        self._go_on(log, cleaning)

    def on_step(self, outcome: object, now: Now) -> bool:
        """A step is done. Returns whether it was the last, so that another log has its turn."""
        assert self._current is not None
        # If anything below raises, this cleaning has ended and the next look begins another one.
        (log, cleaning), self._current = self._current, None
        if isinstance(outcome, Exception) or not self._is_live(log):
            damaged = isinstance(outcome, CorruptRecordError)
            if damaged and self._is_live(log):
                _say_damaged(log, outcome)
            self._give_up(log, damaged=damaged)
            return False
        if isinstance(outcome, Finished):
            log.clean_point = max(log.clean_point, outcome.offset)
            del self._failures[log]
            return True
        if isinstance(outcome, Cleaned) and not self._swap(log, outcome, now):
            self._give_up(log)
            return False
        self._go_on(log, cleaning)
        return False

    def _go_on(self, log: PartitionLog, cleaning: Cleaning) -> None:
        self._current = (log, cleaning)
        self._outbox.put(RunJob(TAG, cleaning.step))

    def _all_due(self, logs: Iterable[PartitionLog], now: Now) -> Iterator[Due]:
        for log in logs:
            if log.swap is None and (len(log.segments) < 2 or not log.config.compacted):
                continue  # all logs are looked at in one turn: one of which nothing can be compacted has to cost little
            if log in self._broken or log.is_damaged or not self._finish_swap(log, now):
                continue
            try:
                due = _due(log, now.wall)
            except OSError as error:
                log.complain(f"{log.topic_partition} could not be compacted: {error}")
            except CorruptRecordError as error:
                _say_damaged(log, error)
                self._give_up(log, damaged=True)
            else:
                if due is not None:
                    yield due

    def _swap(self, log: PartitionLog, cleaned: Cleaned, now: Now) -> bool:
        """Whether the cleaned segment replaced those that it was made of, including the files."""
        try:
            return log.replace(*cleaned) and self._finish_swap(log, now)
        except OSError as error:
            log.complain(f"{log.topic_partition} could not be compacted: {error}")
            return False

    def _finish_swap(self, log: PartitionLog, now: Now) -> bool:
        """Complete the swap that a log has begun; return whether none is left. A failed swap is tried again with the next look."""
        if log.swap is None:
            return True
        try:
            log.finish_swap()
        except OSError as error:
            log.complain(f"{log.topic_partition} could not be compacted: {error}")
            return False
        self._outbox.put(SetTimer(("remove-files", log.topic_partition), now.mono + log.config.file_delete_delay_ms))
        return True

    def _give_up(self, log: PartitionLog, *, damaged: bool = False) -> None:
        """Remove what was written; a log that is not ``damaged`` may be tried again the next time."""
        if self._is_live(log):
            self._broken |= {log} if damaged else set()
            self._failures[log] += 1
            with suppress(OSError):
                log.files.discard_drafts()
        self._broken = {one for one in self._broken if self._is_live(one)}
        self._failures = Counter({one: count for one, count in self._failures.items() if self._is_live(one)})


def _say_damaged(log: PartitionLog, outcome: object) -> None:
    log.complain(f"{log.topic_partition} is not compacted any more: {outcome}")
    log.find_damage()


def _due(log: PartitionLog, now: int) -> Due | None:
    """Whether a log is to be cleaned (``now``: milliseconds since 1970)."""
    if not log.config.compacted:
        return None
    segments = _cleanable(log, now)
    dirty = [segment for segment in segments if segment.next_offset > log.clean_point]
    dirty_size = sum(segment.size for segment in dirty)
    if not dirty_size:
        return None
    ratio = dirty_size / sum(segment.size for segment in segments)
    oldest = next((segment.first_timestamp for segment in dirty if segment.first_timestamp >= 0), now)
    overdue = now - oldest > log.config.max_compaction_lag_ms
    return Due(overdue, ratio, log, segments) if overdue or ratio > log.config.min_cleanable_dirty_ratio else None


def _cleanable(log: PartitionLog, now: int) -> tuple[Segment, ...]:
    """The segments at the beginning of a log that may be rewritten."""
    end = min(log.last_stable_offset, log.recovery_point)
    youngest = now - log.config.min_compaction_lag_ms
    segments: list[Segment] = []
    for segment in log.segments[:-1]:
        young = log.config.min_compaction_lag_ms > 0 and segment.max_timestamp > youngest
        if segment.next_offset > end or young:
            break
        segments.append(segment)
    return tuple(segments)
