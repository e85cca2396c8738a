"""The partitions of a coordinator's topic: loading them, and giving them up because of a scripted fault.

Owns the set of partitions that the coordinator serves, the loading of their logs, and the order in which the coordinator's effects
are performed. Must not know the content of a log, or the meaning of an effect. Invariants: a partition is served only after all of
its log was read; a load that ends after the partition was given up is ignored; effects are performed in the order of the decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from ottla.broker.coordinator_log import AppendListener, CoordinatorLog, StoredSegment
from ottla.broker.effects import NodeEndpoint, Outbox, RunJob, SetTimer
from ottla.types import Now

LOADING = "load"
"""The first element of the keys of the timers that retry a failed load."""

_LOAD_RETRY_BACKOFF_MS = 1_000

_OFFLINE = -1
"""In place of the number of a fault: the log cannot be read, so no broker serves the partition."""

L = TypeVar("L")
"""The content of a log."""
L_contra = TypeVar("L_contra", contravariant=True)
F = TypeVar("F")
"""An effect of the coordinator."""


class Coordinator(AppendListener[F], Protocol[L_contra, F]):
    """The interface of both coordinators."""

    def partition_for(self, key: str, /) -> int: ...
    def start_loading(self, partition: int, /) -> None: ...
    def load(self, partition: int, content: L_contra, now: Now, /) -> list[F]: ...
    def unload(self, partition: int, /) -> list[F]: ...


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
        self._away: dict[int, tuple[int, NodeEndpoint | None]] = {}
        self._loading: set[int] = set()

    def endpoint_of(self, partition: int, here: NodeEndpoint) -> NodeEndpoint | None:
        """Return the owner of a partition: ``here``, the broker that a fault names, or ``None`` if it has none."""
        return self._away.get(partition, (0, here))[1]

    def is_away(self, partition: int) -> bool:
        """Whether the partition was given up."""
        return partition in self._away

    def is_loading(self, partition: int) -> bool:
        """Whether the partition is being read."""
        return partition in self._loading

    def give_up(self, partition: int, fault: int, to: NodeEndpoint | None) -> None:
        """Make ``to``, or no broker, the owner until the fault ends."""
        self._away[partition] = (fault, to)
        self._loading.discard(partition)

    def reclaim(self, fault: int) -> list[int]:
        """Take back the partitions that were given up because of a fault, and return them."""
        partitions = [partition for partition, (cause, _) in self._away.items() if cause == fault]
        for partition in partitions:
            del self._away[partition]
        return partitions

    def start_loading(self, partition: int) -> None:
        """Mark a partition as being read."""
        self._loading.add(partition)

    def finish_loading(self, partition: int, outcome: object) -> bool:
        """End a load; return whether the partition can be served.

        That is not so if it was given up while the disk thread read it. A partition that could not be read stays in loading, and is
        read again later: COORDINATOR_LOAD_IN_PROGRESS is better than outdated state.
        """
        if isinstance(outcome, Exception) or partition not in self._loading:
            return False
        self._loading.remove(partition)
        return True


class CoordinatorPartitions(Generic[L, F]):
    """Loads the partitions of ``log`` into the ``coordinator``, and unloads them.

    ``name`` is the first element of the tags of its jobs. ``read`` reads a log, on the disk thread; ``empty`` is the content of an
    empty one. ``perform`` performs one effect, and returns the effects that follow from it at once.
    """

    def __init__(
        self,
        coordinator: Coordinator[L, F],
        log: CoordinatorLog,
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

    def load_all(self, now: Now) -> None:
        """Load every partition: the empty ones at once, the others when the disk thread has read them."""
        for partition in range(self._log.partition_count):
            self.load(partition, now)

    def load(self, partition: int, now: Now) -> None:
        """Load one partition, unless its log is offline."""
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

    def retry_load(self, partition: int, now: Now) -> None:
        """Retry a failed load, unless the partition was given up meanwhile."""
        if self.ownership.is_loading(partition):
            self.load(partition, now)

    def on_loaded(self, partition: int, outcome: object, now: Now) -> None:
        """Handle the end of a load."""
        if isinstance(outcome, OSError):
            self._outbox.put(SetTimer((LOADING, self._name, partition), now.mono + _LOAD_RETRY_BACKOFF_MS))
        if not self.ownership.finish_loading(partition, outcome):
            return
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

    def execute(self, effects: Iterable[F], now: Now) -> None:
        """Perform effects, and those that follow from them."""
        todo = deque(effects)
        while todo:
            todo += self._perform(todo.popleft(), now)
