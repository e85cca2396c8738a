"""LogManager on real files, and batches, for tests of the broker."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from ottla.broker.effects import Outbox, RunJob
from ottla.broker.log import PartitionLog
from ottla.broker.log_cleaner import LogCleaner
from ottla.broker.log_loader import load_log
from ottla.broker.topic_config import TopicConfig
from ottla.records import BatchHeader, NewRecord, encode_batch, read_header
from ottla.runtime.log_files import OpenFiles, PartitionFolder
from ottla.simulation.clock import START
from ottla.types import Now, TopicPartition

TOPIC_ID = uuid.UUID(int=7)


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
    first_dirty_offset: int = 0,
    durable: bool = False,
) -> tuple[PartitionLog, str | None]:
    """The log as another process finds it, and what was damaged or cut."""
    fresh = open_log(log.files.path.parent, durable=durable, **{name: getattr(log.config, name) for name in log.config.__slots__})  # type: ignore[attr-defined]
    lines = load_log(fresh, recovery_point=recovery_point, log_start=0, clean=clean, now=now, first_dirty_offset=first_dirty_offset)
    return fresh, "\n".join(lines) or None


def clean(log: PartitionLog, now: int = START.wall, *, memory: int = 1 << 20) -> bool:
    """Compact a log once, as the disk thread does it; whether it was due. What fails is raised."""
    outbox = Outbox()
    cleaner = LogCleaner(lambda one: True, outbox)
    moment = Now(START.mono, now)
    cleaner.clean_filthiest([log], memory, moment)
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
