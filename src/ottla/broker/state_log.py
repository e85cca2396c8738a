"""A topic in which one of the broker's coordinators stores its state: its appends go there, and it gets the outcome.

Owns the appends that wait to be written together, and those that are not forced to disk yet. Must not know what the records say.
Invariant: each ``Append`` is answered by exactly one ``on_appended`` or ``on_append_failed``, before its records can be seen by
anyone who would be told otherwise; it is written whole or not at all, with whatever is written together with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.effects import RunJob
from ottla.broker.log import PartitionLog
from ottla.broker.ports import SegmentFile
from ottla.broker.scan import Damage, scan
from ottla.broker.segment import file_name
from ottla.coordinator.api_error import ApiError
from ottla.coordinator.effects import Append
from ottla.errors import CorruptRecordError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader, iter_entries, read_header
from ottla.types import Now

Entry = tuple[bytes, bytes | None]
"""Key and value of one record; ``None`` is a tombstone."""

E = TypeVar("E")

logger = logging.getLogger("ottla.broker")

_NAMED = 50
"""Groups or transactional ids that one line in the log names."""

MAX_BATCH = 1 << 20
"""Bytes of keys and values from which on a batch takes no further append: the limit of a message in Kafka's default settings."""


class Appender(Protocol[E]):
    """A coordinator, as the log sees it: it gets the outcomes of its appends."""

    def on_appended(self, partition: int, batch: int, now: Now) -> list[E]: ...

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[E]: ...


class _Flushing(NamedTuple):
    """A batch that is being forced to disk: where it lies, and the appends that are in it."""

    log: PartitionLog
    end_offset: int
    numbers: tuple[int, ...]


class StateLog:
    """The partitions of ``topic``, of which a new one has ``partitions``; ``job`` is the first word of the tags of its jobs."""

    def __init__(self, catalog: BrokerCatalog, topic: str, partitions: int, job: str) -> None:
        self._catalog = catalog
        self._topic = topic
        self._partitions = partitions
        self._job = job
        self._gathered: dict[int, list[Append]] = {}
        self._flushing: dict[tuple[int, int], _Flushing] = {}

    @property
    def partition_count(self) -> int:
        """How many partitions there are, or will be."""
        topic = self._catalog.topics.get(self._topic)
        return topic.partition_count if topic is not None else self._partitions

    def ensure_topic(self) -> None:
        """Create the topic if it is not there yet; ``ApiError`` where that fails."""
        self._catalog.topic_or_new(self._topic)

    def _log(self, partition: int) -> PartitionLog | None:
        topic = self._catalog.topics.get(self._topic)
        return self._catalog.logs.get(topic, partition) if topic is not None else None

    def is_offline(self, partition: int) -> bool:
        """Whether the log of a partition cannot be read."""
        log = self._log(partition)
        return log is not None and log.offline is not None

    def stored(self, partition: int) -> list[StoredSegment]:
        """The segments of a partition, oldest first; nothing where it is empty."""
        log = self._log(partition)
        segments = log.segments if log is not None else []
        limits = [*(segment.base_offset for segment in segments[1:]), None]
        return [StoredSegment(one.file, one.base_offset, limit) for one, limit in zip(segments, limits, strict=False) if one.size]

    def report(self, partition: int, damages: Sequence[str], of: Collection[str]) -> None:
        """Log what of a partition could not be read, or is missing. ``of``: what the rest of it says something about."""
        for damage in damages:
            logger.error("%s-%d: %s", self._topic, partition, damage)
        log = self._log(partition)
        if not damages and (log is None or not log.has_lost):
            return
        names = sorted(of) or ["what was in it"]
        for first in range(0, len(names), _NAMED):
            named = ", ".join(names[first : first + _NAMED])
            logger.error("%s-%d is damaged: an older state may be in force of %s", self._topic, partition, named)

    def gather(self, append: Append) -> None:
        """Let an append wait for others to its partition: one batch for all of them costs little more than one for each."""
        self._gathered.setdefault(append.partition, []).append(append)

    @property
    def has_gathered(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._gathered)

    def take_batch(self) -> list[Append]:
        """The oldest appends to one partition that fit into one batch."""
        partition = next(iter(self._gathered))
        appends = self._gathered.pop(partition)
        size = 0
        for count, append in enumerate(appends, 1):
            size += sum([len(key) + len(value or b"") for key, value in append.records])
            if size >= MAX_BATCH and count < len(appends):
                self._gathered[partition] = appends[count:]
                return appends[:count]
        return appends

    def append(self, coordinator: Appender[E], appends: Sequence[Append], encode: Callable[[], bytes], now: Now) -> list[E]:
        """Write these appends to one partition as one batch, at most one of a transaction; return the coordinator's reaction to the
        outcome, if that is known at once."""
        partition, producer = appends[0].partition, appends[0].producer
        numbers = tuple([append.batch for append in appends])
        try:
            batch = encode()
            log = self._catalog.log(self._catalog.topic_or_new(self._topic).name, partition)
            if producer is not None:
                log.producers.check_epoch(producer.producer_id, producer.epoch)
            self._catalog.append(log, batch, read_header(batch), now)
        except ApiError as api_error:
            return _failed(coordinator, partition, numbers, api_error.code, now)
        except Exception:
            # Groups whose append is open serve no request: whatever goes wrong, the append has to end.
            logger.exception("the broker failed to write to %s-%d", self._topic, partition)
            return _failed(coordinator, partition, numbers, ErrorCode.unknown_server_error, now)
        if log.flush_due():
            self._flushing[partition, numbers[0]] = _Flushing(log, log.end_offset, numbers)
            self._catalog.outbox.put(RunJob((self._job, "flush", partition, numbers[0]), log.flush()))
            return []
        return _appended(coordinator, partition, numbers, now)

    def flushed(self, coordinator: Appender[E], partition: int, first: int, outcome: object, now: Now) -> list[E]:
        """The batch that begins with the append ``first`` has been forced to disk, or could not be."""
        flushing = self._flushing.pop((partition, first))
        if isinstance(outcome, Exception):
            return _failed(coordinator, partition, flushing.numbers, ErrorCode.kafka_storage_error, now)
        flushing.log.flushed(flushing.end_offset)
        return _appended(coordinator, partition, flushing.numbers, now)


def _appended(coordinator: Appender[E], partition: int, numbers: Sequence[int], now: Now) -> list[E]:
    return _each(numbers, lambda number: coordinator.on_appended(partition, number, now))


def _failed(coordinator: Appender[E], partition: int, numbers: Sequence[int], error: ErrorCode, now: Now) -> list[E]:
    return _each(numbers, lambda number: coordinator.on_append_failed(partition, number, error, now))


def _each(numbers: Sequence[int], tell: Callable[[int], list[E]]) -> list[E]:
    """Report the outcome of each append to the coordinator. If it fails at one, the others are still reported."""
    effects: list[E] = []
    for number in numbers:
        try:
            effects += tell(number)
        except Exception:
            logger.exception("the coordinator failed after its append %d", number)
    return effects


class StoredSegment(NamedTuple):
    """A segment as it is read by the disk thread. ``limit``: the base offset of the next one, if there is one."""

    file: SegmentFile
    base_offset: int
    limit: int | None


def read_entries(
    segments: Iterable[StoredSegment], damages: list[str]
) -> Iterator[tuple[BatchHeader, list[tuple[bytes | None, bytes | None]]]]:
    """The records of every intact batch; what cannot be read is described in ``damages``. Raises ``OSError``."""
    for segment in segments:
        name = file_name(segment.base_offset, "log")
        with segment.file.reader() as file:
            for found in scan(file, segment.base_offset, limit=segment.limit):
                if isinstance(found, Damage):
                    damages.append(f"{name} is damaged at {found}")
                    continue
                try:
                    yield from iter_entries(found.content)
                except CorruptRecordError as error:
                    damages.append(f"{name} is damaged at byte {found.position}, offset {found.header.base_offset}: {error}")


def latest_entries(segments: Sequence[StoredSegment]) -> tuple[list[Entry], list[str]]:
    """The latest record of each key, in the order of those records: what is left of a log that is compacted; and what is damaged.
    Raises ``OSError``."""
    latest: dict[bytes, bytes | None] = {}
    damages: list[str] = []
    for _, entries in read_entries(segments, damages):
        for key, value in entries:
            if key is not None:  # a coordinator writes none without
                latest.pop(key, None)
                latest[key] = value
    return list(latest.items()), damages
