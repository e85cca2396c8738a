"""What tests of the broker share: logs on real files, batches, and a core whose clock stands still until it is moved."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from ottla.broker.cleaner import Cleaner
from ottla.broker.config import broker_config
from ottla.broker.core import BrokerCore
from ottla.broker.effects import CancelTimer, Effect, Reply, RunJob, SetTimer
from ottla.broker.holdings import Endpoint
from ottla.broker.log import PartitionLog
from ottla.broker.outbox import Outbox
from ottla.broker.recovery import load_log
from ottla.broker.topic_config import TopicConfig
from ottla.errors import OttlaError
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader
from ottla.records import BatchHeader, NewRecord, encode_batch, read_header
from ottla.runtime.data_dir import DataDir
from ottla.runtime.log_files import OpenFiles, PartitionFolder
from ottla.runtime.timers import Timers
from ottla.types import Now, TopicPartition

TOPIC_ID = uuid.UUID(int=7)
START = Now(1_000_000, 1_700_000_000_000)


def batch(count: int = 1, *, size: int = 20, timestamp: int = START.wall, step: int = 0, **fields: Any) -> bytes:
    """A batch of ``count`` records of ``size`` bytes, the first stamped ``timestamp``, each ``step`` later."""
    records = [NewRecord(b"k%d" % number, b"v" * size, timestamp=timestamp + number * step) for number in range(count)]
    return encode_batch(records, **fields)


def header_of(data: bytes) -> BatchHeader:
    """The header of a batch."""
    return read_header(data)


def open_log(path: Path, *, durable: bool = False, **config: Any) -> PartitionLog:
    """A log on a folder, not loaded. Limits that settings refuse, such as tiny segments, are possible here.

    ``durable``: files are forced to disk, which takes long on a busy machine: for tests of that alone.
    """
    path.mkdir(parents=True, exist_ok=True)
    files = PartitionFolder(path / "t-0", TOPIC_ID, OpenFiles(), durable=durable)
    return PartitionLog(TopicPartition("t", 0), replace(TopicConfig(), **config), files)


def reload(
    log: PartitionLog,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    now: int = START.wall,
    clean_point: int = 0,
    durable: bool = False,
) -> tuple[PartitionLog, str | None]:
    """The log as another process finds it, and what was damaged or cut."""
    fresh = open_log(log.files.path.parent, durable=durable, **{name: getattr(log.config, name) for name in log.config.__slots__})  # type: ignore[attr-defined]
    lines = load_log(fresh, recovery_point=recovery_point, log_start=0, clean=clean, now=now, clean_point=clean_point)
    return fresh, "\n".join(lines) or None


def clean(log: PartitionLog, now: int = START.wall, *, memory: int = 1 << 20) -> bool:
    """Compact a log once, as the disk thread does it; whether it was due. What fails is raised."""
    outbox = Outbox()
    cleaner = Cleaner(lambda one: True, outbox)
    moment = Now(START.mono, now)
    cleaner.look([log], memory, moment)
    due = False
    while jobs := [effect.job for effect in outbox.take() if isinstance(effect, RunJob)]:
        due = True
        cleaner.on_step(jobs[0](), moment)
    return due


def append(log: PartitionLog, data: bytes, now: int = START.wall) -> int:
    """Append a batch and do the work that a roll leaves; returns its base offset."""
    appended = log.append(data, read_header(data), now)
    for sealing in log.take_sealings():
        sealing.job()
        log.sealed(sealing, None)
    return appended.base_offset


def stored(log: PartitionLog) -> list[BatchHeader]:
    """The headers of all batches in the log, by a walk through its files."""
    return [header for segment in log.segments for _, header in segment.walk(0)]


def content(found: Any) -> bytes:
    """The bytes of a range that a log gave out."""
    import os

    if isinstance(found, bytes):
        return found
    return os.pread(found.handle.fd, len(found), found.position)


class FixedIds:
    """Ids that count."""

    def __init__(self) -> None:
        self._last = 0

    def new_uuid(self) -> uuid.UUID:
        self._last += 1
        return uuid.UUID(int=self._last)

    def new_id(self) -> str:
        return str(self.new_uuid())


class CoreUnderTest:
    """A core on real files, with its timers, jobs and replies in reach: nothing happens until it is told to."""

    def __init__(self, path: Path, now: Now = START, *, loaded: bool = True, durable: bool = True, **settings: object) -> None:
        self.store = DataDir(path, int(settings.get("node.id", 1)), durable=durable)  # type: ignore[call-overload]
        try:
            self.core = BrokerCore(broker_config(settings), Endpoint("127.0.0.1", 9092), self.store, FixedIds())
            self.warnings, effects = self.core.start(now)
        except BaseException:
            self.store.release()
            raise
        self.now = now
        self.timers = Timers()
        self.replies: dict[int, Any] = {}
        self.jobs: list[RunJob] = []
        self.others: list[Effect] = []
        self._ticket = 0
        self.take(effects)
        if loaded:
            self.run_jobs()

    def take(self, effects: list[Effect], *, turn_ends: bool = True) -> None:
        """Keep effects where tests find them; then the loop's turn ends, unless more is to come in the same."""
        if turn_ends:
            effects = effects + self.core.write_decided(self.now)
        for effect in effects:
            match effect:
                case Reply(ticket, response):
                    assert ticket not in self.replies, "a request was answered twice"
                    self.replies[ticket] = response
                case RunJob():
                    self.jobs.append(effect)
                case SetTimer(key, at):
                    self.timers.set(key, at)
                case CancelTimer(key):
                    self.timers.cancel(key)
                case _:
                    self.others.append(effect)

    def send(self, api: Api, message: Any, *, version: int | None = None, connection: int = 1, turn_ends: bool = True) -> int:
        """A request in the newest version, or another; returns its ticket."""
        self._ticket += 1
        header = RequestHeader(api, SPOKEN[api].maximum if version is None else version, self._ticket, "test")
        effects = self.core.handle(header, message, self._ticket, connection, "127.0.0.1", self.now)
        self.take(effects, turn_ends=turn_ends)
        return self._ticket

    def ask(self, api: Api, message: Any, *, version: int | None = None) -> Any:
        """A request and its answer, which must be there when its slices and the jobs are done."""
        ticket = self.send(api, message, version=version)
        while ticket not in self.replies and (at := self.timers.next_at()) is not None and at <= self.now.mono + 1:
            self.pass_time(1)
        if ticket not in self.replies:
            self.run_jobs()
        return self.replies[ticket]

    def run_jobs(self) -> None:
        """Let the disk thread catch up."""
        while self.jobs:
            job = self.jobs.pop(0)
            try:
                outcome = job.job()
            except (OSError, OttlaError) as error:
                outcome = error
            self.take(self.core.on_job(job.tag, outcome, self.now))

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, timer by timer."""
        end = self.now.mono + milliseconds
        while (at := self.timers.next_at()) is not None and at <= end:
            self._move_to(max(at, self.now.mono))
            key = self.timers.pop_due(at)
            assert key is not None
            self.take(self.core.on_timer(key, self.now))
        self._move_to(end)

    def close(self) -> None:
        """End cleanly."""
        self.run_jobs()
        for jobs in self.core.close():
            for job in jobs:
                job()
        self.store.end_well()
        self.store.release()

    def kill(self) -> None:
        """End as kill -9 does: what was written to files stays, nothing else happens."""
        self.store.release()

    def _move_to(self, mono: int) -> None:
        self.now = Now(mono, self.now.wall + mono - self.now.mono)
