"""The log of a coordinator, the internal topic that stores its state: its partitions are loaded, appended to and given up.

Owns the partitions that the coordinator serves, the order in which the coordinator's effects are performed, the queued appends, and
those that wait for a flush. Must not know the meaning of a record or of an effect. Invariants: a partition is served only after all
of its log was read; a load that ends after the partition was given up because of a scripted fault is ignored; effects are performed
in the order of the decisions; each ``Append`` is answered by exactly one ``on_appended`` or ``on_append_failed``, before a request
can read its records; the appends of one batch are written all or not at all.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.effects import NodeEndpoint, Outbox, RunJob, SetTimer
from ottla.broker.log import PartitionLog
from ottla.broker.ports import SegmentFile
from ottla.broker.scan import Damage, scan
from ottla.broker.segment import file_name
from ottla.coordinator.effects import ApiError, Append
from ottla.errors import CorruptRecordError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader, iter_entries, read_header
from ottla.types import Now

logger = logging.getLogger("ottla.broker")

Entry = tuple[bytes, bytes | None]
"""Key and value of one record; ``None`` is a tombstone."""

L = TypeVar("L")
"""The content of a log."""

L_contra = TypeVar("L_contra", contravariant=True)

F = TypeVar("F")
"""An effect of the coordinator."""

TopicIdentity = tuple[uuid.UUID, tuple[int, ...], bool]
"""The id of a topic, and the broker of each partition."""

LOADING = "load"
"""The first element of the keys of the timers that retry a failed load."""

_LOAD_RETRY_BACKOFF_MS = 1_000

_OFFLINE = -1
"""In place of the number of a fault: the log cannot be read, so no broker serves the partition."""

_NAMED = 50
"""The maximum number of groups or transactional ids in one log line."""

MAX_BATCH = 1 << 20
"""The size of keys and values, in bytes, at which a batch gets no more appends: Kafka's default limit of a message."""


class AppendListener(Protocol[F]):
    """A coordinator that gets the outcomes of its appends."""

    def on_appended(self, partition: int, batch: int, now: Now) -> list[F]: ...

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[F]: ...


class Coordinator(AppendListener[F], Protocol[L_contra, F]):
    """The interface of both coordinators."""

    def partition_for(self, key: str, /) -> int: ...
    def start_loading(self, partition: int, /) -> None: ...
    def load(self, partition: int, content: L_contra, now: Now, /) -> list[F]: ...
    def unload(self, partition: int, /) -> list[F]: ...
    @property
    def partition_count(self) -> int: ...


class LoadedLog(NamedTuple, Generic[L]):
    """The result of reading a partition."""

    content: L
    keys: Collection[str]
    """The groups or transactional ids that have records in it."""
    damages: Sequence[str]
    """A message for each part that could not be read."""


class PartitionOwnership:
    """The owners of the partitions: this broker, unless a fault has moved a partition or its log cannot be read."""

    def __init__(self) -> None:
        self._away: dict[int, dict[int, NodeEndpoint | None]] = {}
        """For each partition that was given up, the faults that have moved it, in order, and the owner that each names."""
        self._loading: dict[int, int] = {}
        """The partitions that are being read, with the number of the load."""
        self._loads = 0

    def endpoint_of(self, partition: int, leader: NodeEndpoint | None) -> NodeEndpoint | None:
        """Return the owner of a partition: its ``leader``, the broker that a fault names, or ``None`` if it has none."""
        owners = self._away.get(partition)
        return leader if owners is None else next(reversed(owners.values()))

    def is_away(self, partition: int) -> bool:
        """Whether the partition was given up."""
        return partition in self._away

    def is_loading(self, partition: int) -> bool:
        """Whether the partition is being read."""
        return partition in self._loading

    def give_up(self, partition: int, fault: int, to: NodeEndpoint | None) -> None:
        """Make ``to``, or no broker, the owner until the fault ends."""
        self._away.setdefault(partition, {})[fault] = to
        self._loading.pop(partition, None)

    def reclaim(self, fault: int) -> list[int]:
        """End a fault. Take back, and return, the partitions that were given up because of it and of no other."""
        for owners in self._away.values():
            owners.pop(fault, None)
        partitions = [partition for partition, owners in self._away.items() if not owners]
        for partition in partitions:
            del self._away[partition]
        return partitions

    def start_loading(self, partition: int) -> int:
        """Mark a partition as being read; return the number of the load."""
        self._loads += 1
        self._loading[partition] = self._loads
        return self._loads

    def is_current(self, partition: int, load: int) -> bool:
        """Whether this is the last load of the partition, which has not been given up since it began.

        1. The disk thread reads the log. 2. The partition is given up. 3. A transaction marker is appended. 4. The partition is
        taken back and read again. 5. The first load ends: it does not include the marker.
        """
        return self._loading.get(partition) == load

    def stop_loading(self, partition: int) -> None:
        """Ignore the outcome of a load, if there is one."""
        self._loading.pop(partition, None)

    def finish_loading(self, partition: int) -> None:
        """End a load; the partition is served from now on."""
        del self._loading[partition]


class CoordinatorPartitions(Generic[L, F]):
    """Loads the partitions of ``log`` into a coordinator, and unloads them.

    ``create`` makes a coordinator without partitions, for the partition count that the topic has then. ``name`` is the first
    element of the tags of its jobs. ``read`` reads a log, on the disk thread; ``empty`` is the content of an empty one.
    ``perform`` performs one effect, and returns the effects that follow from it at once.
    """

    def __init__(
        self,
        create: Callable[[], Coordinator[L, F]],
        log: CoordinatorLog,
        outbox: Outbox,
        name: str,
        *,
        read: Callable[[Sequence[StoredSegment]], LoadedLog[L]],
        empty: L,
        perform: Callable[[F, Now], Iterable[F]],
    ) -> None:
        self.ownership = PartitionOwnership()
        self._create = create
        self._coordinator = create()
        self._served_topic: TopicIdentity | None = None
        """The topic whose partitions were loaded."""
        self._log = log
        self._outbox = outbox
        self._name = name
        self._read = read
        self._empty = empty
        self._perform = perform

    def start(self, now: Now) -> None:
        """Load every partition: the empty ones at once, the others when the disk thread has read them."""
        self._coordinator = self._create()
        self._load_all(now)

    def follow_topic(self, now: Now) -> None:
        """Serve the partitions that this broker has now. With ZooKeeper any broker may have created or deleted the topic."""
        if self._log.identity == self._served_topic:
            return
        self._unload_all(now)
        if self._log.partition_count != self._coordinator.partition_count:
            self._coordinator = self._create()
        self._load_all(now)

    def _load_all(self, now: Now) -> None:
        self._served_topic = self._log.identity
        for partition in range(self._log.partition_count):
            self.load(partition, now)

    def load(self, partition: int, now: Now) -> None:
        """Load one partition, unless another broker has it or its log is offline."""
        if not self._log.is_mine(partition) or self.ownership.is_away(partition):
            return
        if self._log.is_offline(partition):
            self.ownership.give_up(partition, _OFFLINE, None)
            return
        segments = self._log.stored(partition)
        if not segments:
            self._log.report(partition, (), ())
            self.execute(self._coordinator.load(partition, self._empty, now), now)
            return
        self._coordinator.start_loading(partition)
        load = self.ownership.start_loading(partition)
        self._outbox.put(RunJob((self._name, "load", partition, load), partial(self._read, segments)))

    def retry_load(self, partition: int, now: Now) -> None:
        """Retry a failed load, unless the partition was given up meanwhile."""
        if self.ownership.is_loading(partition):
            self.load(partition, now)

    def on_loaded(self, partition: int, load: int, outcome: object, now: Now) -> None:
        """Handle the end of a load.

        A partition that could not be read stays in loading, and is read again later: COORDINATOR_LOAD_IN_PROGRESS is better than
        outdated state.
        """
        if not self.ownership.is_current(partition, load):
            return
        if isinstance(outcome, Exception):
            self._outbox.put(SetTimer((LOADING, self._name, partition), now.mono + _LOAD_RETRY_BACKOFF_MS))
            return
        self.ownership.finish_loading(partition)
        loaded = cast("LoadedLog[L]", outcome)
        self._log.report(partition, loaded.damages, loaded.keys)
        self.execute(self._coordinator.load(partition, loaded.content, now), now)

    def on_flushed(self, partition: int, batch: int, outcome: object, now: Now) -> None:
        """Handle the end of a flush."""
        self.execute(self._log.flushed(self._coordinator, partition, batch, outcome, now), now)

    def resign(self, fault: int, key: str | None, to: NodeEndpoint | None, now: Now) -> None:
        """Give up the partition of a key, or all; responses name ``to`` as the new owner."""
        every = range(self._log.partition_count)
        for partition in every if key is None else (self._coordinator.partition_for(key),):
            self.ownership.give_up(partition, fault, to)
            self.execute(self._coordinator.unload(partition), now)

    def reclaim(self, fault: int, now: Now) -> None:
        """Load the partitions again that were given up because of a fault."""
        for partition in self.ownership.reclaim(fault):
            self.load(partition, now)

    def endpoint_of(self, key: str) -> NodeEndpoint | None:
        """Return the coordinator of a key: this broker, the one that has the partition or that a scripted fault names, or
        ``None``."""
        partition = self._coordinator.partition_for(key)
        return self.ownership.endpoint_of(partition, self._log.leader(partition))

    def _unload_all(self, now: Now) -> None:
        """Give up every partition. What was to be appended is dropped, and its requests are refused."""
        for partition in range(self._coordinator.partition_count):
            self.ownership.stop_loading(partition)
            self.execute(self._coordinator.unload(partition), now)
        self.ownership.reclaim(_OFFLINE)
        self._log.drop_appends()

    def execute(self, effects: Iterable[F], now: Now) -> None:
        """Perform effects, and those that follow from them."""
        todo = deque(effects)
        while todo:
            todo += self._perform(todo.popleft(), now)


class _Flushing(NamedTuple):
    """A batch that is being forced to disk: its log, its end, and the appends in it."""

    log: PartitionLog
    end_offset: int
    numbers: tuple[int, ...]


class CoordinatorLog:
    """The partitions of ``topic``, which is created with ``partitions``; ``job`` is the first element of the tags of its jobs."""

    def __init__(self, catalog: BrokerCatalog, topic: str, partitions: int, job: str) -> None:
        self._catalog = catalog
        self._topic = topic
        self._partitions = partitions
        self._job = job
        self._queued: dict[int, list[Append]] = {}
        self._flushing: dict[tuple[int, int], _Flushing] = {}
        self._flush_numbers = itertools.count(1)

    @property
    def partition_count(self) -> int:
        """The partition count of the topic, also before it exists."""
        topic = self._catalog.topics.get(self._topic)
        return topic.partition_count if topic is not None else self._partitions

    def ensure_topic(self) -> None:
        """Create the topic if it does not exist. Raises ``ApiError``: COORDINATOR_NOT_AVAILABLE while it is being created."""
        try:
            self._catalog.get_or_create_topic(self._topic)
        except ApiError as error:
            if error.code is not ErrorCode.leader_not_available:
                raise
            raise ApiError(ErrorCode.coordinator_not_available, f"{self._topic} is being created.") from error

    @property
    def identity(self) -> TopicIdentity | None:
        """The topic in ZooKeeper, and whether this broker is displaced; ``None`` if there is none, or no ZooKeeper."""
        topic, cluster = self._catalog.topics.get(self._topic), self._catalog.cluster
        return None if topic is None or cluster.is_alone else (topic.topic_id, topic.replicas, cluster.is_displaced)

    def drop_appends(self) -> None:
        """Forget the queued appends, and those that are being flushed."""
        self._queued.clear()
        self._flushing.clear()

    def is_mine(self, partition: int) -> bool:
        """Whether this broker has a partition. One without ZooKeeper has all, also before the topic exists."""
        topic = self._catalog.topics.get(self._topic)
        cluster = self._catalog.cluster
        return cluster.is_alone or (topic is not None and cluster.is_mine(topic, partition) and not cluster.is_displaced)

    def leader(self, partition: int) -> NodeEndpoint | None:
        """Return the broker that leads a partition, if there is one."""
        topic = self._catalog.topics.get(self._topic)
        cluster = self._catalog.cluster
        if topic is None:
            return cluster.me if cluster.is_alone else None
        return cluster.leader_endpoint(topic, partition)

    def _log(self, partition: int) -> PartitionLog | None:
        topic = self._catalog.topics.get(self._topic)
        return self._catalog.logs.get(topic, partition) if topic is not None else None

    def is_offline(self, partition: int) -> bool:
        """Whether the log of a partition cannot be read."""
        log = self._log(partition)
        return log is not None and log.offline is not None

    def stored(self, partition: int) -> list[StoredSegment]:
        """Return the segments of a partition that are not empty, oldest first."""
        log = self._log(partition)
        segments = log.segments if log is not None else []
        limits = [*(segment.base_offset for segment in segments[1:]), None]
        return [StoredSegment(one.file, one.base_offset, limit) for one, limit in zip(segments, limits, strict=False) if one.size]

    def report(self, partition: int, damages: Sequence[str], keys: Collection[str]) -> None:
        """Log the damage and losses of a partition. ``keys``: the groups or transactional ids in the rest of it."""
        for damage in damages:
            logger.error("%s-%d: %s", self._topic, partition, damage)
        log = self._log(partition)
        if not damages and (log is None or not log.has_lost_records):
            return
        names = sorted(keys) or ["all that it had"]
        for first in range(0, len(names), _NAMED):
            named = ", ".join(names[first : first + _NAMED])
            logger.error("%s-%d is damaged: %s may be in an older state", self._topic, partition, named)

    def enqueue(self, append: Append) -> None:
        """Queue an append, to be written in one batch with others to its partition: a batch costs hardly more than a record."""
        self._queued.setdefault(append.partition, []).append(append)

    @property
    def has_queued(self) -> bool:
        """Whether appends are queued."""
        return bool(self._queued)

    def take_batch(self) -> list[Append]:
        """Return and remove the oldest appends to one partition that fit into one batch."""
        partition = next(iter(self._queued))
        appends = self._queued.pop(partition)
        size = 0
        for count, append in enumerate(appends, 1):
            size += sum([len(key) + len(value or b"") for key, value in append.records])
            if size >= MAX_BATCH and count < len(appends):
                self._queued[partition] = appends[count:]
                return appends[:count]
        return appends

    def append(self, coordinator: AppendListener[F], appends: Sequence[Append], encode: Callable[[], bytes], now: Now) -> list[F]:
        """Write appends to one partition as one batch, at most one of a transaction; return the coordinator's effects if the
        outcome is known at once."""
        partition, producer = appends[0].partition, appends[0].producer
        numbers = tuple([append.batch for append in appends])
        try:
            batch = encode()
            log = self._catalog.log(self._catalog.get_or_create_topic(self._topic).name, partition)
            if producer is not None:
                log.producers.check_epoch(producer.producer_id, producer.epoch)
            self._catalog.append(log, batch, read_header(batch), now)
        except ApiError as api_error:
            return _failed(coordinator, partition, numbers, api_error.code, now)
        except Exception:
            # A group whose append is open serves no request. So the append must end, whatever goes wrong.
            logger.exception("the broker failed to write to %s-%d", self._topic, partition)
            return _failed(coordinator, partition, numbers, ErrorCode.unknown_server_error, now)
        if log.flush_due():
            number = next(self._flush_numbers)
            self._flushing[partition, number] = _Flushing(log, log.end_offset, numbers)
            self._catalog.outbox.put(RunJob((self._job, "flush", partition, number), log.flush()))
            return []
        return _appended(coordinator, partition, numbers, now)

    def flushed(self, coordinator: AppendListener[F], partition: int, number: int, outcome: object, now: Now) -> list[F]:
        """Handle the end of the flush of a batch. No number is used twice, also if a new coordinator counts its appends from 1."""
        flushing = self._flushing.pop((partition, number), None)
        if flushing is None:  # dropped meanwhile
            return []
        if isinstance(outcome, Exception):
            return _failed(coordinator, partition, flushing.numbers, ErrorCode.kafka_storage_error, now)
        flushing.log.flushed(flushing.end_offset)
        return _appended(coordinator, partition, flushing.numbers, now)


def _appended(coordinator: AppendListener[F], partition: int, numbers: Sequence[int], now: Now) -> list[F]:
    return _each(numbers, lambda number: coordinator.on_appended(partition, number, now))


def _failed(coordinator: AppendListener[F], partition: int, numbers: Sequence[int], error: ErrorCode, now: Now) -> list[F]:
    return _each(numbers, lambda number: coordinator.on_append_failed(partition, number, error, now))


def _each(numbers: Sequence[int], report: Callable[[int], list[F]]) -> list[F]:
    """Report the outcome of each append to the coordinator. If it fails at one, the others are still reported."""
    effects: list[F] = []
    for number in numbers:
        try:
            effects += report(number)
        except Exception:
            logger.exception("the coordinator failed after its append %d", number)
    return effects


class StoredSegment(NamedTuple):
    """A segment for the disk thread to read. ``limit``: the base offset of the next one, if there is one."""

    file: SegmentFile
    base_offset: int
    limit: int | None


def read_entries(
    segments: Iterable[StoredSegment], damages: list[str]
) -> Iterator[tuple[BatchHeader, list[tuple[bytes | None, bytes | None]]]]:
    """Yield header and records of every intact batch; append a message to ``damages`` for each part that cannot be read. Raises
    ``OSError``."""
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
    """Return the latest record of each key, in log order, as after compaction; and a message for each damage. Raises
    ``OSError``."""
    latest: dict[bytes, bytes | None] = {}
    damages: list[str] = []
    for _, entries in read_entries(segments, damages):
        for key, value in entries:
            if key is not None:  # coordinators write no record without a key
                latest.pop(key, None)
                latest[key] = value
    return list(latest.items()), damages
