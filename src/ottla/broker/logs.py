"""All partition logs of a broker: found by topic and partition, loaded, expired, forced to disk, given up.

Owns the map of logs and the jobs that belong to them. Must not know requests or replies. Invariants: a log exists for every
requested partition, with or without files; each job's outcome reaches its log; a log whose files fail does not keep other logs from
their work, and is tried again the next time; what a checkpoint says of a deleted topic's log is never applied to another log.

Apache Kafka takes a whole log directory offline after one ``IOException``, and relies on other replicas. This broker has the only
copy, so it goes on: a failed request is answered with KAFKA_STORAGE_ERROR, background work is retried later.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

from ottla.broker.checkpoints import Checkpoint
from ottla.broker.cleaner import Cleaner
from ottla.broker.effects import JobTag, Outbox, RunJob, SetTimer
from ottla.broker.epochs import LeaderEpochs
from ottla.broker.log import Appended, PartitionLog, Sealing, prepared
from ottla.broker.ports import Job, Store
from ottla.broker.recovery import load_log, lost_log, offline_log
from ottla.broker.segment import Segment, file_name
from ottla.broker.setting import LONG_MAX
from ottla.broker.topics import Topic, Topics
from ottla.records import BatchHeader, InvalidBatchError
from ottla.types import Now, TopicPartition

SIZE = 100
"""Logs in one slice: about a millisecond of work if there is nothing to do."""


class Round:
    """One kind of work on all logs. A job with the tag ``(kind,)`` returns when it is time for the next slice."""

    def __init__(self, kind: str, outbox: Outbox) -> None:
        self._kind = kind
        self._outbox = outbox
        self._left: deque[PartitionLog] = deque()

    def begin(self, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
        """Begin a round, unless one is in progress; return the logs of the first slice."""
        if self._left:
            return []
        self._left.extend(logs)
        return self.next_slice()

    def next_slice(self) -> list[PartitionLog]:
        """The logs of the next slice. The following slice is scheduled before the work on these, which may raise."""
        slice_ = [self._left.popleft() for _ in range(min(SIZE, len(self._left)))]
        if self._left:
            self._outbox.put(RunJob((self._kind,), _nothing))
        return slice_


def _nothing() -> None:
    """No work: it only matters that the job has had its turn."""


RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
ENDS = "replication-offset-checkpoint"
"""The ends of the logs: Kafka's high watermarks. A log that ends earlier at the next start has lost records."""
EXPIRE, RESEAL, CHECK_TIMES, FLUSH_LOG = "expire", "reseal", "check-times", "flush-log"
"""The first elements of the tags of jobs; the last of them is also that of timer keys."""

_IF_LOST = {
    RECOVERY_POINTS: "after an unclean end all logs are scanned from their beginning",
    LOG_STARTS: "logs start with their first segments, so records deleted by DeleteRecords may be readable again",
    CLEANED: "compaction starts over at the beginning of each log",
}
"""What follows from the loss of a checkpoint. That of ``ENDS`` has no consequence by itself."""

_LEAST_PATIENCE_MS = 1_000
"""Milliseconds before a retry, if the topic's setting is shorter."""

_NEW = LeaderEpochs()
"""The epochs of a partition without records."""


class Logs:
    """The partition logs. Effects go into ``outbox``."""

    def __init__(self, store: Store, outbox: Outbox) -> None:
        self._store = store
        self._outbox = outbox
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._sealings: dict[JobTag, tuple[PartitionLog, Sealing]] = {}
        self._set_aside: dict[JobTag, tuple[PartitionLog, frozenset[int]]] = {}
        self._expiring, self._resealing = Round(EXPIRE, outbox), Round(RESEAL, outbox)
        self._checking: dict[JobTag, PartitionLog] = {}
        self._unflushed: set[TopicPartition] = set()
        """The logs whose timer of ``flush.ms`` is set."""
        self._flush_due: dict[TopicPartition, None] = {}
        self._flushing: tuple[PartitionLog, int] | None = None
        """The log being forced to disk because of ``flush.ms``, and its end at that time. One at a time, since each needs
        descriptors."""
        self._jobs = 0
        self._recovery_points = Checkpoint(RECOVERY_POINTS, store)
        self._starts = Checkpoint(LOG_STARTS, store)
        self._clean_points = Checkpoint(CLEANED, store)
        self._ends = Checkpoint(ENDS, store)
        self._checkpoints: dict[Checkpoint, Callable[[], Mapping[TopicPartition, int]]] = {
            self._recovery_points: lambda: {log.topic_partition: log.recovery_point for log in self if log.segments or log.offline},
            self._starts: lambda: {log.topic_partition: log.start_offset for log in self if log.starts_late or log.offline},
            self._clean_points: lambda: {log.topic_partition: log.clean_point for log in self if log.clean_point},
            self._ends: lambda: {
                log.topic_partition: log.known_end if log.offline else log.high_watermark
                for log in self
                if log.segments or log.offline
            },
        }
        """The checkpoints, and their current content."""
        self._cleaner = Cleaner(lambda log: self._logs.get(log.topic_partition) is log, outbox)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def get(self, topic: Topic, partition: int) -> PartitionLog:
        """The log of a partition, which need not have been written to."""
        log = self._logs.get((topic.name, partition))
        if log is None:
            topic_partition = TopicPartition(topic.name, partition)
            files = self._store.log_files(topic.name, topic.topic_id, partition)
            log = self._logs[topic_partition] = PartitionLog(topic_partition, topic.config, files)
        return log

    def leader_epoch(self, topic: Topic, partition: int) -> int:
        """The leader epoch of a partition. This creates no log for a partition that has none."""
        log = self._logs.get((topic.name, partition))
        return _NEW.current if log is None else log.epochs.current

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

    def forget_earlier(self, topic: str, partitions: int) -> None:
        """Before a topic gets so many partitions: replace the checkpoints with an offset of an earlier topic of its name. Raises
        ``OSError``.

        After a kill, an end would make the log begin there, and a start offset would hide its first records. This happens once for
        all topics deleted in a minute, the interval between checkpoints.
        """
        for checkpoint, content in self._checkpoints.items():
            if checkpoint.is_outdated(topic, partitions):
                checkpoint.replace_now(content())

    def load(self, topics: Topics, now: Now) -> list[str]:
        """Bring back all logs that have files; returns what was damaged, lost or cut, in words. Raises ``OSError``."""
        stored = [checkpoint.read() for checkpoint in self._checkpoints]
        found = [line for topic in topics for partition in topic.partitions for line in self._load(topic, partition, stored, now)]
        lost: list[str] = []
        for checkpoint, offsets in zip(self._checkpoints, stored, strict=True):
            checkpoint.forget_others(log.topic_partition for log in self)
            if offsets is None:
                self._begin_write(checkpoint)  # a new directory has all of them at once, so one that is missing later was lost
                if self._logs and checkpoint.name in _IF_LOST and not self._store.is_earlier:
                    lost.append(f"{checkpoint.name} is missing or damaged: {_IF_LOST[checkpoint.name]}")
        return [*lost, *found]

    def _load(self, topic: Topic, partition: int, stored: Sequence[Mapping[TopicPartition, int] | None], now: Now) -> list[str]:
        """Bring back a log, if it has files; returns what was damaged, lost or cut. A log that cannot be loaded is offline: one bad
        folder does not keep the broker from serving the others."""
        place = TopicPartition(topic.name, partition)
        recovery_point, log_start, clean_point, known_end = ((offsets or {}).get(place, 0) for offsets in stored)
        known_end = max(known_end, recovery_point)
        exists = self._store.log_files(topic.name, topic.topic_id, partition).exists()
        if not exists and not known_end:
            return []
        log = self.get(topic, partition)
        try:
            if not exists:
                return lost_log(log, known_end)
            found = load_log(
                log,
                recovery_point=recovery_point,
                log_start=log_start,
                known_end=known_end,
                clean_point=clean_point,
                clean_point_lost=stored[2] is None,
                clean=self._store.clean and (recovery_point > 0 or place not in (stored[0] or ())),  # 0: it was offline
                now=now.wall,
            )
        except (OSError, InvalidBatchError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # this says nothing about the partition
            reason = f"{place} is offline until the next start, since its files cannot be read: {error}"
            points = {"recovery_point": recovery_point, "log_start": log_start, "clean_point": clean_point}
            self._logs[place] = offline_log(log, reason, known_end=known_end, **points)
            return [reason]
        if log.config.flush_ms != LONG_MAX and log.recovery_point < log.end_offset:
            self._set_flush(log, now.mono + log.config.flush_ms)
        return found

    def append(self, log: PartitionLog, batch: bytes, header: BatchHeader, now: Now) -> Appended:
        """Write a validated batch; if it raises ``OSError``, nothing was written."""
        try:
            appended = log.append(batch, header, now.wall)
        finally:
            self._seal_rolled(log)
        if log.config.flush_ms != LONG_MAX and log.topic_partition not in self._unflushed:
            self._set_flush(log, now.mono + log.config.flush_ms)
        return appended

    def flush(self, topic_partition: TopicPartition) -> None:
        """Records have been in a log for ``flush.ms``: force it to disk when its turn comes, unless that has already happened."""
        self._unflushed.discard(topic_partition)
        self._flush_due[topic_partition] = None
        self._flush_next()

    def on_flushed(self, outcome: object, now: Now) -> None:
        """A log was forced to disk, or that failed and is retried; the next one has its turn."""
        assert self._flushing is not None
        (log, end), self._flushing = self._flushing, None
        is_live = self._logs.get(log.topic_partition) is log
        if not isinstance(outcome, Exception):
            log.flushed(end)
        elif is_live and log.config.flush_ms != LONG_MAX:
            self._set_flush(log, now.mono + max(_LEAST_PATIENCE_MS, log.config.flush_ms))
        self._flush_next()

    def drop(self, topic: Topic) -> list[PartitionLog]:
        """Give up the logs of a deleted topic."""
        known = [TopicPartition(topic.name, partition) for partition in topic.partitions if (topic.name, partition) in self._logs]
        dropped = [self._logs.pop(topic_partition) for topic_partition in known]
        for log in dropped:
            log.files.give_up()
        for checkpoint in self._checkpoints:
            checkpoint.forget(known)
        job = self._store.set_aside_topic(topic.name, topic.topic_id, [partition for _, partition in known])
        if job is not None:
            self._outbox.put(RunJob(("delete-topic", topic.name), job))
        return dropped

    def expire(self, now: Now, producer_expiration: int) -> None:
        """Begin to drop what retention does not keep, and producers that were idle for long."""
        self._expire(self._expiring.begin(self._logs.values()), now, producer_expiration)

    def go_on_expiring(self, now: Now, producer_expiration: int) -> None:
        """Do the next slice of retention."""
        self._expire(self._expiring.next_slice(), now, producer_expiration)

    def _expire(self, logs: Iterable[PartitionLog], now: Now, producer_expiration: int) -> None:
        for log in logs:
            if self._logs.get(log.topic_partition) is not log:
                continue  # deleted since the round began
            log.producers.expire(now.wall - producer_expiration)
            if unchecked := self._drop_expired(log, now):
                self._check_times(log, unchecked)

    def _drop_expired(self, log: PartitionLog, now: Now) -> Sequence[Segment]:
        """Drop what retention does not keep; returns the segments of which the batches have to be read before that."""
        swap, unchecked = log.swap, list[Segment]()
        try:
            log.drop_expired(now.wall)
            unchecked = log.unchecked_times(now.wall)
        except (OSError, InvalidBatchError) as error:
            log.complain(f"retention of {log.topic_partition} failed and will be tried again the next time: {error}")
        if log.swap is not swap:  # its old files were renamed
            self._remove_later(log, now)
        self._seal_rolled(log)
        if log.surplus:
            tag = self._tag("set-aside")
            self._set_aside[tag] = (log, frozenset(log.surplus))
            self._outbox.put(RunJob(tag, log.set_surplus_aside()))
        return unchecked

    def _check_times(self, log: PartitionLog, segments: Sequence[Segment]) -> None:
        """Read the batches of segments before retention drops them: a damaged index must not cost records that are kept."""
        if log not in self._checking.values():
            self._checking[tag := self._tag(CHECK_TIMES)] = log
            self._outbox.put(RunJob(tag, partial(_times_of, [(segment, segment.size) for segment in segments])))

    def on_times_checked(self, tag: JobTag, outcome: object, now: Now) -> None:
        """Batches have been read, and retention goes on with what their headers say; a failure is retried the next time."""
        log = self._checking.pop(tag)
        if self._logs.get(log.topic_partition) is not log:
            return
        if isinstance(outcome, Exception):
            log.complain(f"retention of {log.topic_partition} failed and will be tried again the next time: {outcome}")
            return
        for (segment, size), (timestamp, offset) in cast("dict[tuple[Segment, int], tuple[int, int]]", outcome).items():
            if segment.size != size:
                continue  # the newest has got batches meanwhile, and they may be the latest
            if timestamp != segment.max_timestamp:
                index = file_name(segment.base_offset, "timeindex")
                stated = segment.max_timestamp
                log.complain(
                    f"{log.topic_partition}: {index} is damaged: it says {stated} for the largest timestamp, which is {timestamp}"
                )
            segment.max_timestamp, segment.offset_of_max_timestamp, segment.is_time_from_file = timestamp, offset, False
        log.find_damage()
        self._drop_expired(log, now)

    def clean(self, memory: int, now: Now) -> None:
        """Begin to compact the log that needs it most, in ``memory`` bytes, unless one is being compacted."""
        self._cleaner.look(self._logs.values(), memory, now)

    def on_clean_step(self, outcome: object, memory: int, now: Now) -> None:
        """A part of a compaction is done. After the last, another log has its turn."""
        if self._cleaner.on_step(outcome, now):
            self._begin_write(self._clean_points)
            self.clean(memory, now)

    def on_set_aside(self, tag: JobTag, outcome: object, now: Now) -> None:
        """The files of dropped segments were renamed; a failure is retried with the next retention."""
        log, base_offsets = self._set_aside.pop(tag)
        if not isinstance(outcome, Exception):
            log.surplus_gone(base_offsets)
            self._remove_later(log, now)

    def _remove_later(self, log: PartitionLog, now: Now) -> None:
        self._outbox.put(SetTimer(("remove-files", log.topic_partition), now.mono + log.config.file_delete_delay_ms))

    def remove_set_aside(self, topic_partition: TopicPartition) -> None:
        """Now remove the files that were given up a while ago."""
        log = self._logs.get(topic_partition)
        if log is not None:
            self._outbox.put(RunJob(("remove-files", topic_partition), prepared(log.files.remove_set_aside)))

    def on_removed(self, topic_partition: TopicPartition, outcome: object, now: Now) -> None:
        """Renamed files have been removed; a failure is retried."""
        log = self._logs.get(topic_partition)
        if log is not None and isinstance(outcome, Exception):
            delay = max(_LEAST_PATIENCE_MS, log.config.file_delete_delay_ms)
            self._outbox.put(SetTimer(("remove-files", topic_partition), now.mono + delay))

    def checkpoint(self) -> None:
        """Record up to which offset logs are safe on disk, where they start and what was compacted; failed sealings are retried."""
        for checkpoint in self._checkpoints:
            self._begin_write(checkpoint)
        self._reseal(self._resealing.begin([log for log in self._logs.values() if log.is_unsealed]))

    def go_on_resealing(self) -> None:
        """Retry the next slice of failed sealings."""
        self._reseal(self._resealing.next_slice())

    def _reseal(self, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            if self._logs.get(log.topic_partition) is log and log.is_unsealed:
                self._run(log, log.seal(end=log.segments[-1].base_offset))

    def checkpoint_starts(self) -> Job:
        """Note where logs start, unless the files say so."""
        return self._write(self._starts)

    def on_checkpoint(self, name: str, number: int, outcome: object) -> None:
        """A checkpoint was replaced, or that failed."""
        for checkpoint in self._checkpoints:
            if checkpoint.name == name:
                checkpoint.on_written(number, outcome)

    def close(self) -> Iterator[list[Job]]:
        """Everything that must be done, so that the next start needs no scan. The jobs of a list may be done at the same time; the
        next list is asked for when they are done: each holds the indexes of a log."""
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
        """A sealing ended."""
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

    def _write(self, checkpoint: Checkpoint) -> Job:
        return checkpoint.write(self._checkpoints[checkpoint]())

    def _begin_write(self, checkpoint: Checkpoint) -> None:
        self._outbox.put(checkpoint.begin_write(self._checkpoints[checkpoint]()))


def _times_of(segments: Iterable[tuple[Segment, int]]) -> dict[tuple[Segment, int], tuple[int, int]]:
    """The largest timestamp of each of these segments, with their sizes, up to one that cannot be read. Raises ``OSError`` if that
    is the first."""
    found: dict[tuple[Segment, int], tuple[int, int]] = {}
    for one in segments:
        try:
            found[one] = one[0].check_time()
        except OSError:
            if not found:
                raise
            break
    return found
