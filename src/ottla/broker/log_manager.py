"""All partition logs of a broker: their loading, retention, flushing, checkpoints and deletion.

Owns the map of logs and the jobs that belong to them. Must not know requests or replies. Invariants: a log exists for every
requested partition, with or without files; each job's outcome reaches its log; a log whose files fail does not block the work on
others, and is retried later; the checkpointed offset of a deleted topic's log is never applied to another log.

Apache Kafka takes a whole log directory offline after one ``IOException``, and relies on other replicas. This broker has the only
copy, so it goes on: a failed request is answered with KAFKA_STORAGE_ERROR, background work is retried later.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

from ottla.broker.checkpoints import OffsetCheckpoint
from ottla.broker.effects import JobTag, Outbox, RunJob, SetTimer
from ottla.broker.leader_epochs import LeaderEpochCache
from ottla.broker.log import LogAppendInfo, PartitionLog, Sealing, job_or_failure
from ottla.broker.log_cleaner import LogCleaner
from ottla.broker.log_loader import load_log, log_without_folder, offline_log
from ottla.broker.ports import DiskJob, Store
from ottla.broker.segment import Segment, file_name
from ottla.broker.setting import LONG_MAX
from ottla.broker.topics import Topic, Topics
from ottla.records import BatchHeader, InvalidBatchError
from ottla.types import Now, TopicPartition

SIZE = 100
"""Logs in one slice: about a millisecond of work if there is nothing to do."""


class IncrementalPass:
    """One kind of work on all logs, in slices, so that requests are served in between. An empty job with the tag ``(kind,)``
    triggers the next slice."""

    def __init__(self, kind: str, outbox: Outbox) -> None:
        self._kind = kind
        self._outbox = outbox
        self._left: deque[PartitionLog] = deque()

    def begin(self, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
        """Begin a pass, unless one is in progress; return the logs of the first slice."""
        if self._left:
            return []
        self._left.extend(logs)
        return self.next_slice()

    def next_slice(self) -> list[PartitionLog]:
        """Return the logs of the next slice. The slice after it is scheduled before the work on these, which may raise."""
        slice_ = [self._left.popleft() for _ in range(min(SIZE, len(self._left)))]
        if self._left:
            self._outbox.put(RunJob((self._kind,), _do_nothing))
        return slice_


def _do_nothing() -> None:
    """Do nothing: only the outcome of the job matters, which triggers the next slice."""


RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
"""The ends of the logs: Kafka's high watermarks. A log that ends earlier at the next start has lost records."""
EXPIRE, RESEAL, VERIFY_TIMESTAMPS, FLUSH_LOG = "expire", "reseal", "verify-timestamps", "flush-log"
"""The first elements of the tags of jobs; ``FLUSH_LOG`` is also that of timer keys."""

_IF_LOST = {
    RECOVERY_POINT_CHECKPOINT: "after an unclean end all logs are scanned from their beginning",
    LOG_START_CHECKPOINT: "logs start with their first segments, so records deleted by DeleteRecords may be readable again",
    CLEANER_CHECKPOINT: "compaction starts over at the beginning of each log",
}
"""The consequence of the loss of a checkpoint. That of ``HIGH_WATERMARK_CHECKPOINT`` has none by itself."""

_MIN_RETRY_BACKOFF_MS = 1_000
"""The minimum time before a retry, in milliseconds, if the topic's setting is shorter."""

_NEW = LeaderEpochCache()
"""The epochs of a partition without records."""


class LogManager:
    """The partition logs (Kafka's ``LogManager``). Effects go into ``outbox``."""

    def __init__(self, store: Store, outbox: Outbox) -> None:
        self._store = store
        self._outbox = outbox
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._sealings: dict[JobTag, tuple[PartitionLog, Sealing]] = {}
        self._marking_deleted: dict[JobTag, tuple[PartitionLog, frozenset[int]]] = {}
        self._retention_pass, self._resealing_pass = IncrementalPass(EXPIRE, outbox), IncrementalPass(RESEAL, outbox)
        self._verifying: dict[JobTag, PartitionLog] = {}
        self._unflushed: set[TopicPartition] = set()
        """The logs whose timer of ``flush.ms`` is set."""
        self._flush_due: dict[TopicPartition, None] = {}
        self._flushing: tuple[PartitionLog, int] | None = None
        """The log being forced to disk because of ``flush.ms``, and its end at that time. One at a time, since each needs
        descriptors."""
        self._jobs = 0
        self._recovery_points = OffsetCheckpoint(RECOVERY_POINT_CHECKPOINT, store)
        self._starts = OffsetCheckpoint(LOG_START_CHECKPOINT, store)
        self._first_dirty_offsets = OffsetCheckpoint(CLEANER_CHECKPOINT, store)
        self._ends = OffsetCheckpoint(HIGH_WATERMARK_CHECKPOINT, store)
        self._checkpoints: dict[OffsetCheckpoint, Callable[[], Mapping[TopicPartition, int]]] = {
            self._recovery_points: lambda: {log.topic_partition: log.recovery_point for log in self if log.segments or log.offline},
            self._starts: lambda: {
                log.topic_partition: log.start_offset for log in self if log.needs_start_checkpoint or log.offline
            },
            self._first_dirty_offsets: lambda: {
                log.topic_partition: log.first_dirty_offset for log in self if log.first_dirty_offset
            },
            self._ends: lambda: {
                log.topic_partition: log.last_known_end if log.offline else log.high_watermark
                for log in self
                if log.segments or log.offline
            },
        }
        """The checkpoints, and their current content."""
        self._cleaner = LogCleaner(lambda log: self._logs.get(log.topic_partition) is log, outbox)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def get(self, topic: Topic, partition: int) -> PartitionLog:
        """Return the log of a partition, which may not have been written to yet."""
        log = self._logs.get((topic.name, partition))
        if log is None:
            topic_partition = TopicPartition(topic.name, partition)
            files = self._store.log_files(topic.name, topic.topic_id, partition)
            log = self._logs[topic_partition] = PartitionLog(topic_partition, topic.config, files)
        return log

    def leader_epoch(self, topic: Topic, partition: int) -> int:
        """Return the leader epoch of a partition. This creates no log for a partition that has none."""
        log = self._logs.get((topic.name, partition))
        return _NEW.current if log is None else log.leader_epochs.current

    def reconfigure(self, topics: Iterable[Topic]) -> None:
        """Apply the current settings of these topics to their logs."""
        for topic in topics:
            for partition in topic.partitions:
                log = self._logs.get((topic.name, partition))
                if log is None:
                    continue
                flush_ms = log.config.flush_ms
                log.config = topic.config
                if log.config.flush_ms not in (flush_ms, LONG_MAX) and log.recovery_point < log.end_offset:
                    self._set_flush(log, 0)  # at once: it is not known how long its records have waited

    def replace_outdated_checkpoints(self, topic: str, partitions: int) -> None:
        """Replace the checkpoints that have an offset of a deleted topic with this name. Raises ``OSError``.

        1. A topic is deleted, and the checkpoints on disk still have its offsets. 2. A topic with the same name is created and
        written to. 3. The broker is killed. 4. The next start applies the old offsets to the new log: it begins at the old end, or
        the old start offset hides its first records.

        So this is called before step 2. It writes once for all topics deleted in a minute, the interval between checkpoints.
        """
        for checkpoint, content in self._checkpoints.items():
            if checkpoint.is_outdated(topic, partitions):
                checkpoint.replace_now(content())

    def drop_checkpoints(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the offsets of these partitions from the checkpoints on disk, before ``load``: their names are those of other
        topics now, or of none. Raises ``OSError``."""
        for checkpoint in self._checkpoints:
            offsets = checkpoint.read()
            if offsets is not None and not offsets.keys().isdisjoint(partitions):
                checkpoint.replace_now({place: offset for place, offset in offsets.items() if place not in partitions})

    def load(
        self,
        topics: Topics,
        now: Now,
        is_mine: Callable[[Topic, int], bool] = lambda topic, partition: True,
    ) -> list[str]:
        """Load all logs that have files; return a message for each damage, loss or truncation. Raises ``OSError``.

        ``is_mine``: whether this broker has a partition. Others that have a folder are loaded as well: they may come back.
        """
        stored = [checkpoint.read() for checkpoint in self._checkpoints]
        every = [(topic, partition) for topic in topics for partition in topic.partitions]
        found = [line for topic, partition in every for line in self._load(topic, partition, stored, is_mine, now)]
        lost: list[str] = []
        for checkpoint, offsets in zip(self._checkpoints, stored, strict=True):
            checkpoint.mark_others_outdated(log.topic_partition for log in self)
            if offsets is None:
                self._begin_write(checkpoint)  # a new directory has all of them at once, so one that is missing later was lost
                if self._logs and checkpoint.name in _IF_LOST and not self._store.is_from_earlier_release:
                    lost.append(f"{checkpoint.name} is missing or damaged: {_IF_LOST[checkpoint.name]}")
        return [*lost, *found]

    def _load(
        self,
        topic: Topic,
        partition: int,
        stored: Sequence[Mapping[TopicPartition, int] | None],
        is_mine: Callable[[Topic, int], bool],
        now: Now,
    ) -> list[str]:
        """Load a log, if it has files; return a message for each damage, loss or truncation. A log that cannot be loaded is
        offline, and the broker serves the others."""
        place = TopicPartition(topic.name, partition)
        recovery_point, log_start, first_dirty_offset, last_known_end = ((offsets or {}).get(place, 0) for offsets in stored)
        last_known_end = max(last_known_end, recovery_point)
        exists = self._store.log_files(topic.name, topic.topic_id, partition).exists()
        if not exists and not (last_known_end and is_mine(topic, partition)):
            return []
        log = self.get(topic, partition)
        try:
            if not exists:
                return log_without_folder(log, last_known_end)
            found = load_log(
                log,
                recovery_point=recovery_point,
                log_start=log_start,
                last_known_end=last_known_end,
                first_dirty_offset=first_dirty_offset,
                first_dirty_offset_lost=stored[2] is None,
                clean=self._store.clean and (recovery_point > 0 or place not in (stored[0] or ())),  # 0: it was offline
                now=now.wall,
            )
        except (OSError, InvalidBatchError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # this says nothing about the partition
            reason = f"{place} is offline until the next start, since its files cannot be read: {error}"
            points = {"recovery_point": recovery_point, "log_start": log_start, "first_dirty_offset": first_dirty_offset}
            self._logs[place] = offline_log(log, reason, last_known_end=last_known_end, **points)
            return [reason]
        if log.config.flush_ms != LONG_MAX and log.recovery_point < log.end_offset:
            self._set_flush(log, now.mono + log.config.flush_ms)
        return found

    def append(self, log: PartitionLog, batch: bytes, header: BatchHeader, now: Now) -> LogAppendInfo:
        """Append a validated batch; if it raises ``OSError``, nothing was written."""
        try:
            appended = log.append(batch, header, now.wall)
        finally:
            self._seal_rolled(log)
        if log.config.flush_ms != LONG_MAX and log.topic_partition not in self._unflushed:
            self._set_flush(log, now.mono + log.config.flush_ms)
        return appended

    def flush(self, topic_partition: TopicPartition) -> None:
        """Queue a flush of a log whose records have waited for ``flush.ms``, unless it was flushed meanwhile."""
        self._unflushed.discard(topic_partition)
        self._flush_due[topic_partition] = None
        self._flush_next()

    def on_flushed(self, outcome: object, now: Now) -> None:
        """Handle the end of a flush: retry it if it failed, then flush the next log."""
        assert self._flushing is not None
        (log, end), self._flushing = self._flushing, None
        is_live = self._logs.get(log.topic_partition) is log
        if not isinstance(outcome, Exception):
            log.flushed(end)
        elif is_live and log.config.flush_ms != LONG_MAX:
            self._set_flush(log, now.mono + max(_MIN_RETRY_BACKOFF_MS, log.config.flush_ms))
        self._flush_next()

    def delete_logs(self, topic: Topic) -> list[PartitionLog]:
        """Remove the logs of a deleted topic, and return them."""
        known = [TopicPartition(topic.name, partition) for partition in topic.partitions if (topic.name, partition) in self._logs]
        dropped = [self._logs.pop(topic_partition) for topic_partition in known]
        for log in dropped:
            log.files.mark_topic_deleted()
        for checkpoint in self._checkpoints:
            checkpoint.mark_outdated(known)
        self.delete_folders(topic, [partition for _, partition in known])
        return dropped

    def delete_folders(self, topic: Topic, partitions: Iterable[int] | None = None) -> None:
        """Remove the folders of these partitions of a deleted topic, or of all."""
        job = self._store.delete_topic_folders(topic.name, topic.topic_id, topic.partitions if partitions is None else partitions)
        if job is not None:
            self._outbox.put(RunJob(("delete-topic", topic.name), job))

    def start_retention(self, now: Now, producer_expiration: int) -> None:
        """Begin a pass of retention, which also removes idle producers."""
        self._apply_retention(self._retention_pass.begin(self._logs.values()), now, producer_expiration)

    def continue_retention(self, now: Now, producer_expiration: int) -> None:
        """Do the next slice of retention."""
        self._apply_retention(self._retention_pass.next_slice(), now, producer_expiration)

    def _apply_retention(self, logs: Iterable[PartitionLog], now: Now, producer_expiration: int) -> None:
        for log in logs:
            if self._logs.get(log.topic_partition) is not log:
                continue  # deleted since the pass began
            log.producers.remove_expired(now.wall - producer_expiration)
            if unchecked := self._delete_old_segments(log, now):
                self._verify_timestamps(log, unchecked)

    def _delete_old_segments(self, log: PartitionLog, now: Now) -> Sequence[Segment]:
        """Apply retention to a log; return the segments whose batches must be read before they expire."""
        swap, unchecked = log.swap, list[Segment]()
        try:
            log.delete_old_segments(now.wall)
            unchecked = log.unverified_timestamps(now.wall)
        except (OSError, InvalidBatchError) as error:
            log.log_once(f"retention of {log.topic_partition} failed; the next check retries it: {error}")
        if log.swap is not swap:  # its old files were renamed
            self._remove_later(log, now)
        self._seal_rolled(log)
        if log.pending_deletes:
            tag = self._tag("mark-deleted")
            self._marking_deleted[tag] = (log, frozenset(log.pending_deletes))
            self._outbox.put(RunJob(tag, log.mark_segments_deleted()))
        return unchecked

    def _verify_timestamps(self, log: PartitionLog, segments: Sequence[Segment]) -> None:
        """Read the batches of segments before they expire: a damaged time index must not delete records that have not expired."""
        if log not in self._verifying.values():
            self._verifying[tag := self._tag(VERIFY_TIMESTAMPS)] = log
            self._outbox.put(RunJob(tag, partial(_scan_max_timestamps, [(segment, segment.size) for segment in segments])))

    def on_timestamps_verified(self, tag: JobTag, outcome: object, now: Now) -> None:
        """Continue retention with the timestamps in the batches; the next check retries a failure."""
        log = self._verifying.pop(tag)
        if self._logs.get(log.topic_partition) is not log:
            return
        if isinstance(outcome, Exception):
            log.log_once(f"retention of {log.topic_partition} failed; the next check retries it: {outcome}")
            return
        for (segment, size), (timestamp, offset) in cast("dict[tuple[Segment, int], tuple[int, int]]", outcome).items():
            if segment.size != size:
                continue  # the active segment has grown meanwhile, and the new batches may have later timestamps
            if timestamp != segment.max_timestamp:
                index = file_name(segment.base_offset, "timeindex")
                stated = segment.max_timestamp
                log.log_once(
                    f"{log.topic_partition}: {index} is damaged: it says {stated} for the largest timestamp, which is {timestamp}"
                )
            segment.max_timestamp, segment.offset_of_max_timestamp, segment.is_max_timestamp_from_file = timestamp, offset, False
        log.find_damage()
        self._delete_old_segments(log, now)

    def clean(self, memory: int, now: Now) -> None:
        """Begin to compact the log that needs it most, in ``memory`` bytes, unless one is being compacted."""
        self._cleaner.clean_filthiest(self._logs.values(), memory, now)

    def on_clean_step(self, outcome: object, memory: int, now: Now) -> None:
        """Handle the end of a step of the cleaner. After the last one, begin with the next log."""
        if self._cleaner.on_step(outcome, now):
            self._begin_write(self._first_dirty_offsets)
            self.clean(memory, now)

    def on_marked_deleted(self, tag: JobTag, outcome: object, now: Now) -> None:
        """Handle the renaming of deleted segments' files; the next check of retention retries a failure."""
        log, base_offsets = self._marking_deleted.pop(tag)
        if not isinstance(outcome, Exception):
            log.on_segments_marked_deleted(base_offsets)
            self._remove_later(log, now)

    def _remove_later(self, log: PartitionLog, now: Now) -> None:
        self._outbox.put(SetTimer(("remove-files", log.topic_partition), now.mono + log.config.file_delete_delay_ms))

    def remove_deleted(self, topic_partition: TopicPartition) -> None:
        """Remove the ``.deleted`` files of a log, after ``file.delete.delay.ms``."""
        log = self._logs.get(topic_partition)
        if log is not None:
            self._outbox.put(RunJob(("remove-files", topic_partition), job_or_failure(log.files.remove_deleted)))

    def on_removed(self, topic_partition: TopicPartition, outcome: object, now: Now) -> None:
        """Handle the removal of ``.deleted`` files; a failure is retried."""
        log = self._logs.get(topic_partition)
        if log is not None and isinstance(outcome, Exception):
            delay = max(_MIN_RETRY_BACKOFF_MS, log.config.file_delete_delay_ms)
            self._outbox.put(SetTimer(("remove-files", topic_partition), now.mono + delay))

    def checkpoint(self) -> None:
        """Write all checkpoints, and begin a pass that retries failed sealings."""
        for checkpoint in self._checkpoints:
            self._begin_write(checkpoint)
        self._reseal(self._resealing_pass.begin([log for log in self._logs.values() if log.is_unsealed]))

    def continue_resealing(self) -> None:
        """Retry the next slice of failed sealings."""
        self._reseal(self._resealing_pass.next_slice())

    def _reseal(self, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            if self._logs.get(log.topic_partition) is log and log.is_unsealed:
                self._run(log, log.seal(end=log.segments[-1].base_offset))

    def checkpoint_starts(self) -> DiskJob:
        """Return the job that writes the checkpoint of start offsets."""
        return self._write(self._starts)

    def on_checkpoint(self, name: str, number: int, outcome: object) -> None:
        """Handle the end of a checkpoint's write."""
        for checkpoint in self._checkpoints:
            if checkpoint.name == name:
                checkpoint.on_written(number, outcome)

    def close(self) -> Iterator[list[DiskJob]]:
        """Yield lists of jobs, after which the next start needs no scan. The jobs of one list may run at the same time; request the
        next list when they are done, since each holds the indexes of a log."""
        for log in self._logs.values():
            # A sealing whose outcome is unknown may have failed.
            log.seal_point = min(log.seal_point, log.recovery_point)
        dirty = [log for log in self._logs.values() if log.segments and log.seal_point < log.end_offset]
        for first in range(0, len(dirty), SIZE):
            sealings = [(log, log.seal()) for log in dirty[first : first + SIZE]]
            yield [sealing.job for _, sealing in sealings]
            for log, sealing in sealings:
                log.recovery_point = sealing.end
        yield [self._write(checkpoint) for checkpoint in self._checkpoints]

    def on_sealed(self, tag: JobTag, outcome: object) -> None:
        """Handle the end of a sealing."""
        log, sealing = self._sealings.pop(tag)
        log.sealed(sealing, outcome if isinstance(outcome, Exception) else None)

    def _set_flush(self, log: PartitionLog, at: int) -> None:
        self._unflushed.add(log.topic_partition)
        self._outbox.put(SetTimer((FLUSH_LOG, log.topic_partition), at))

    def _flush_next(self) -> None:
        while self._flush_due and self._flushing is None:
            topic_partition = next(iter(self._flush_due))
            del self._flush_due[topic_partition]
            log = self._logs.get(topic_partition)
            if log is not None and log.recovery_point < log.end_offset:
                job = log.flush()
                self._flushing = (log, log.end_offset)
                self._outbox.put(RunJob((FLUSH_LOG,), job))

    def _seal_rolled(self, log: PartitionLog) -> None:
        for sealing in log.take_sealings():
            self._run(log, sealing)

    def _run(self, log: PartitionLog, sealing: Sealing) -> None:
        tag = self._tag("seal")
        self._sealings[tag] = (log, sealing)
        self._outbox.put(RunJob(tag, sealing.job))

    def _tag(self, kind: str) -> JobTag:
        self._jobs += 1
        return (kind, self._jobs)

    def _write(self, checkpoint: OffsetCheckpoint) -> DiskJob:
        return checkpoint.write(self._checkpoints[checkpoint]())

    def _begin_write(self, checkpoint: OffsetCheckpoint) -> None:
        self._outbox.put(checkpoint.begin_write(self._checkpoints[checkpoint]()))


def _scan_max_timestamps(segments: Iterable[tuple[Segment, int]]) -> dict[tuple[Segment, int], tuple[int, int]]:
    """Return the largest timestamp of each of these segments (with their sizes), up to one that cannot be read. Raises ``OSError``
    if that is the first."""
    found: dict[tuple[Segment, int], tuple[int, int]] = {}
    for one in segments:
        try:
            found[one] = one[0].scan_max_timestamp()
        except OSError:
            if not found:
                raise
            break
    return found
