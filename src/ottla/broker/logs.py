"""All partition logs of a broker: found by topic and partition, loaded, expired, forced to disk, given up.

Owns the map of logs and the jobs that belong to them. Must not know requests or replies. Invariant: a log exists for every
partition that was asked for, with or without files, and each job's outcome reaches the log that it was for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.broker.cleaner import Cleaner
from ottla.broker.effects import Effect, RunJob, SetTimer
from ottla.broker.epochs import LeaderEpochs
from ottla.broker.log import Appended, PartitionLog, Sealing
from ottla.broker.ports import Job, Store
from ottla.broker.recovery import load_log
from ottla.broker.topics import Topic, Topics
from ottla.records import BatchHeader
from ottla.types import Now, TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"

_NEW = LeaderEpochs()
"""The epochs of a partition that nothing was written to."""


class Logs:
    """The partition logs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._sealings: dict[tuple[object, ...], tuple[PartitionLog, Sealing]] = {}
        self._jobs = 0
        self._cleaner = Cleaner(lambda log: self._logs.get(log.topic_partition) is log)

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
        """The leader epoch of a partition; one without files needs no log to be made for that."""
        log = self._logs.get((topic.name, partition))
        return _NEW.current if log is None else log.epochs.current

    def reconfigure(self, topics: Iterable[Topic]) -> None:
        """Let the logs of these topics go by the settings that their topic has now."""
        for topic in topics:
            for partition in topic.partitions:
                log = self._logs.get((topic.name, partition))
                if log is not None:
                    log.config = topic.config

    def load(self, topics: Topics, now: Now) -> list[str]:
        """Bring back all logs that have files; returns what was cut, in words."""
        points, starts = self._store.read_checkpoint(RECOVERY_POINTS), self._store.read_checkpoint(LOG_STARTS)
        cleaned = self._store.read_checkpoint(CLEANED)
        warnings: list[str] = []
        for topic in topics:
            for partition in topic.partitions:
                if not self._store.log_files(topic.name, topic.topic_id, partition).exists():
                    continue
                log = self.get(topic, partition)
                cut = load_log(
                    log,
                    recovery_point=points.get(log.topic_partition, 0),
                    log_start=starts.get(log.topic_partition, 0),
                    clean_point=cleaned.get(log.topic_partition, 0),
                    clean=self._store.clean,
                    now=now.wall,
                )
                warnings += [cut] if cut is not None else []
        return warnings

    def append(self, log: PartitionLog, batch: bytes, header: BatchHeader, now: Now) -> tuple[Appended, list[Effect]]:
        """Write a validated batch; raises ``OSError`` with nothing written. The effects seal what a roll left behind."""
        appended = log.append(batch, header, now.wall)
        return appended, [self._run(log, appended.sealing)] if appended.sealing is not None else []

    def drop(self, topic: Topic) -> tuple[list[PartitionLog], Job | None]:
        """Give up the logs of a deleted topic; the job removes their files, if they have any."""
        known = [TopicPartition(topic.name, partition) for partition in topic.partitions if (topic.name, partition) in self._logs]
        dropped = [self._logs.pop(topic_partition) for topic_partition in known]
        job = self._store.set_aside_topic(topic.name, topic.topic_id, [partition for _, partition in known])
        return dropped, job

    def expire(self, now: Now, producer_expiration: int) -> list[Effect]:
        """Drop what retention does not keep, and producers that were silent for long. Raises ``OSError`` where a roll fails."""
        effects: list[Effect] = []
        for log in self._logs.values():
            log.producers.expire(now.wall - producer_expiration)
            dropped, sealing = log.drop_expired(now.wall)
            if sealing is not None:
                effects.append(self._run(log, sealing))
            if dropped:
                job = log.files.set_aside([segment.base_offset for segment in dropped])
                effects.append(RunJob(("set-aside", log.topic_partition), job))
                at = now.mono + log.config.file_delete_delay_ms
                effects.append(SetTimer(("remove-files", log.topic_partition), at))
        return effects

    def clean(self, memory: int, now: Now) -> list[Effect]:
        """Begin to compact the log that needs it most, in ``memory`` bytes, unless one is being compacted."""
        return self._cleaner.look(self._logs.values(), memory, now)

    def on_clean_step(self, outcome: object, memory: int, now: Now) -> list[Effect]:
        """A part of a compaction is done. After the last, another log has its turn."""
        effects, over = self._cleaner.on_step(outcome, now)
        if over:
            points = {log.topic_partition: log.clean_point for log in self._logs.values() if log.clean_point}
            effects += [RunJob(("checkpoint",), self._store.write_checkpoint(CLEANED, points)), *self.clean(memory, now)]
        return effects

    def remove_set_aside(self, topic_partition: TopicPartition) -> list[Effect]:
        """Now remove the files that were given up a while ago."""
        log = self._logs.get(topic_partition)
        return [RunJob(("remove-files", topic_partition), log.files.remove_set_aside())] if log is not None else []

    def checkpoint(self) -> list[Effect]:
        """Note up to where logs are safe on disk, and where they start."""
        return [RunJob(("checkpoint",), job) for job in self._checkpoints()]

    def checkpoint_starts(self) -> Job:
        """Note where logs start."""
        starts = {
            log.topic_partition: log.start_offset
            for log in self._logs.values()
            if log.segments and log.start_offset > log.segments[0].base_offset
        }
        return self._store.write_checkpoint(LOG_STARTS, starts)

    def close(self) -> Iterator[Job]:
        """Everything that must be done, so that the next start needs no scan. Each job is to be done before the next is asked for:
        it holds open files, and there may be more logs than files may be open."""
        for log in self._logs.values():
            if log.segments and log.seal_point < log.end_offset:
                sealing = log.seal()
                yield sealing.job
                log.recovery_point = sealing.end
        yield from self._checkpoints()

    def on_sealed(self, tag: tuple[object, ...], error: OSError | None) -> None:
        """A sealing ended."""
        log, sealing = self._sealings.pop(tag)
        log.sealed(sealing, error)

    def _run(self, log: PartitionLog, sealing: Sealing) -> Effect:
        self._jobs += 1
        tag = ("seal", self._jobs)
        self._sealings[tag] = (log, sealing)
        return RunJob(tag, sealing.job)

    def _checkpoints(self) -> list[Job]:
        points = {log.topic_partition: log.recovery_point for log in self._logs.values() if log.segments}
        return [self._store.write_checkpoint(RECOVERY_POINTS, points), self.checkpoint_starts()]
