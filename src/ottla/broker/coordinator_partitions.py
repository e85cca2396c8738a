"""The partitions of one coordinator's topic on this broker: taken over, read, given up because of a scripted fault.

Owns which of them the coordinator has, the reading of their logs, and the order in which the coordinator's effects are performed.
Must not know what is in a log, or what an effect means. Invariants: a partition is served only when all of its log has been read;
one that was given up is not being read for the coordinator any more; effects are performed in the order of the decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from ottla.broker.effects import NodeEndpoint, Outbox, RunJob, SetTimer
from ottla.broker.state_log import Appender, StateLog, StoredSegment
from ottla.types import Now

LOADING = "load"
"""The first element of the keys of timers after which an unreadable partition is read again."""

_LOAD_RETRY_BACKOFF_MS = 1_000

_OFFLINE = -1
"""In place of the number of a fault: the log of the partition cannot be read, so no broker has it."""

L = TypeVar("L")
"""What a log says."""
L_contra = TypeVar("L_contra", contravariant=True)
F = TypeVar("F")
"""An effect of the coordinator."""


class Coordinator(Appender[F], Protocol[L_contra, F]):
    """What the coordinators have in common."""

    def partition_for(self, key: str, /) -> int: ...
    def start_loading(self, partition: int, /) -> None: ...
    def load(self, partition: int, content: L_contra, now: Now, /) -> list[F]: ...
    def unload(self, partition: int, /) -> list[F]: ...


class LoadedLog(NamedTuple, Generic[L]):
    """What was read of a partition."""

    content: L
    keys: Collection[str]
    """The groups or transactional ids that it says something about."""
    damages: Sequence[str]
    """What of it could not be read, in words."""


class PartitionOwnership:
    """Who has the partitions: this broker, unless a fault has given one away or its log cannot be read."""

    def __init__(self) -> None:
        self._away: dict[int, tuple[int, NodeEndpoint | None]] = {}
        self._loading: set[int] = set()

    def endpoint_of(self, partition: int, here: NodeEndpoint) -> NodeEndpoint | None:
        """The owner of a partition: ``here``, unless a fault names another, or none (``None``)."""
        return self._away.get(partition, (0, here))[1]

    def is_away(self, partition: int) -> bool:
        """Whether it was given up."""
        return partition in self._away

    def is_loading(self, partition: int) -> bool:
        """Whether it is being read."""
        return partition in self._loading

    def give_up(self, partition: int, fault: int, to: NodeEndpoint | None) -> None:
        """Make ``to``, or no broker, the owner until the fault ends."""
        self._away[partition] = (fault, to)
        self._loading.discard(partition)

    def take_back(self, fault: int) -> list[int]:
        """The partitions that were given up because of a fault; this broker has them again."""
        partitions = [partition for partition, (cause, _) in self._away.items() if cause == fault]
        for partition in partitions:
            del self._away[partition]
        return partitions

    def start_loading(self, partition: int) -> None:
        """Its log is being read from now on."""
        self._loading.add(partition)

    def has_loaded(self, partition: int, outcome: object) -> bool:
        """Whether the partition is to be served: not if it was given up meanwhile. A partition that could not be read stays
        "loading", and is read again after a disk failure: no answer is better than an outdated one."""
        if isinstance(outcome, Exception) or partition not in self._loading:
            return False
        self._loading.remove(partition)
        return True


class CoordinatorPartitions(Generic[L, F]):
    """The partitions of ``log``, and the ``coordinator`` that serves them.

    ``name`` is the first element of the tags of its jobs. ``read`` reads a log, on the disk thread; ``empty`` is what an empty one
    says. ``perform`` performs one effect, and returns those that follow from it at once.
    """

    def __init__(
        self,
        coordinator: Coordinator[L, F],
        log: StateLog,
        outbox: Outbox,
        name: str,
        *,
        read: Callable[[Sequence[StoredSegment]], LoadedLog[L]],
        empty: L,
        perform: Callable[[F, Now], Iterable[F]],
    ) -> None:
        self.ownership = PartitionOwnership()
        self._coordinator = coordinator
        self._log = log
        self._outbox = outbox
        self._name = name
        self._read = read
        self._empty = empty
        self._perform = perform

    def take_over_all(self, now: Now) -> None:
        """Take over every partition: the empty ones at once, the others when the disk thread has read them."""
        for partition in range(self._log.partition_count):
            self.take_over(partition, now)

    def take_over(self, partition: int, now: Now) -> None:
        """Take over one partition, unless its log cannot be read."""
        if self._log.is_offline(partition):
            self.ownership.give_up(partition, _OFFLINE, None)
            return
        segments = self._log.stored(partition)
        if not segments:
            self._log.report(partition, (), ())
            self.execute(self._coordinator.load(partition, self._empty, now), now)
            return
        self._coordinator.start_loading(partition)
        self.ownership.start_loading(partition)
        self._outbox.put(RunJob((self._name, "load", partition), partial(self._read, segments)))

    def load_again(self, partition: int, now: Now) -> None:
        """Read a partition again that could not be read, if it is still waited for."""
        if self.ownership.is_loading(partition):
            self.take_over(partition, now)

    def on_loaded(self, partition: int, outcome: object, now: Now) -> None:
        """The disk thread has read a partition, or could not."""
        if isinstance(outcome, OSError):
            self._outbox.put(SetTimer((LOADING, self._name, partition), now.mono + _LOAD_RETRY_BACKOFF_MS))
        if not self.ownership.has_loaded(partition, outcome):
            return
        loaded = cast("LoadedLog[L]", outcome)
        self._log.report(partition, loaded.damages, loaded.keys)
        self.execute(self._coordinator.load(partition, loaded.content, now), now)

    def on_flushed(self, partition: int, batch: int, outcome: object, now: Now) -> None:
        """The disk thread has forced a batch to disk, or could not."""
        self.execute(self._log.flushed(self._coordinator, partition, batch, outcome, now), now)

    def move_away(self, fault: int, key: str | None, to: NodeEndpoint | None, now: Now) -> None:
        """Give up the partition of a key, or all; ``to`` is the new owner in answers."""
        every = range(self._log.partition_count)
        for partition in every if key is None else (self._coordinator.partition_for(key),):
            self.ownership.give_up(partition, fault, to)
            self.execute(self._coordinator.unload(partition), now)

    def come_back(self, fault: int, now: Now) -> None:
        """Take over again what was given up because of a fault."""
        for partition in self.ownership.take_back(fault):
            self.take_over(partition, now)

    def execute(self, effects: Iterable[F], now: Now) -> None:
        """Perform effects, and what follows from them."""
        todo = deque(effects)
        while todo:
            todo += self._perform(todo.popleft(), now)
