"""The known leader epochs of a partition, and those that its leader does not know (KIP-320).

Owns the epoch that requests to a leader carry, and the count of UNKNOWN_LEADER_EPOCH answers. Must not know requests. Invariants:
that epoch only increases while leaders know it; it is dropped only after its leader has refused it through ``REFRESHES`` metadata
refreshes and for ``PATIENCE``.

A leader that the controller has just appointed may not know its epoch yet: it refuses until its own metadata catches up, within
milliseconds to a second. An epoch that it never learns does not come from this cluster: a committed offset may have been copied
from another one, or be newer than the backup that the cluster was restored from. Kafka's consumer waits for such an epoch for ever.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from ottla.types import Now, TopicPartition

REFRESHES = 3
"""The number of metadata answers that must arrive between the first refusal and the last."""

PATIENCE = 2_000
"""The minimum time between the first refusal and the last, in milliseconds: three refreshes alone take a third of a second."""


class SeenEpochs(NamedTuple):
    """The leader epochs of one partition that a client knows."""

    last: int | None = None
    """The highest epoch that the cluster, a committed offset or a seek has named."""
    unknown: int | None = None
    """An epoch that the leader does not know. It, and higher ones, count again once the cluster itself has reached it."""

    def current(self, told: int | None) -> int | None:
        """The epoch for requests to the leader, where the metadata has ``told``; ``None``: none, and the leader does not check."""
        if told is None:
            return None
        epoch = told if self.last is None else max(told, self.last)
        return None if epoch == self.unknown else epoch

    def named(self, epoch: int) -> SeenEpochs:
        """A committed offset or a seek has named an epoch."""
        if (self.last is not None and epoch <= self.last) or (self.unknown is not None and epoch >= self.unknown):
            return self
        return self._replace(last=epoch)

    def told(self, before: int | None, epoch: int) -> SeenEpochs:
        """The cluster's metadata has ``epoch``, where it had ``before``."""
        if self.unknown is not None and epoch >= self.unknown and before != epoch:
            return SeenEpochs(epoch)
        return self._replace(last=epoch if self.last is None or self.last == self.unknown else max(self.last, epoch))

    def refused(self, epoch: int) -> SeenEpochs:
        """The leader does not know an epoch."""
        return SeenEpochs(unknown=epoch)


class _Refusals(NamedTuple):
    epoch: int
    version: int
    since: int


class RefusedEpochs:
    """Counts refusals in a row, by partition."""

    def __init__(self) -> None:
        self._refusals: dict[TopicPartition, _Refusals] = {}

    def refused(self, tp: TopicPartition, epoch: int, version: int, now: Now) -> bool:
        """The leader refused ``epoch`` while metadata was at ``version``. Returns whether to drop the epoch."""
        first = self._refusals.get(tp)
        if first is None or first.epoch != epoch:
            self._refusals[tp] = _Refusals(epoch, version, now.mono)
            return False
        if version - first.version < REFRESHES or now.mono - first.since < PATIENCE:
            return False
        del self._refusals[tp]
        return True

    def accepted(self, tp: TopicPartition) -> None:
        """The leader has accepted a request with the epoch."""
        self._refusals.pop(tp, None)

    def keep(self, partitions: Container[TopicPartition]) -> None:
        """No other partitions are described any more: the count of those begins again if they come back."""
        for tp in [tp for tp in self._refusals if tp not in partitions]:
            del self._refusals[tp]
