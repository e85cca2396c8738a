"""The leader epochs of a partition that were seen, and those that its leader does not know (KIP-320).

Owns what a client asks a leader with, and the count of UNKNOWN_LEADER_EPOCH answers. Must not know requests. Invariants: the epoch
that leaders are asked with only moves up while they know it; it is given up only after its leader has refused it through
``REFRESHES`` metadata refreshes and for ``PATIENCE``.

A leader that the controller has just appointed may not know its epoch yet: it refuses until its own metadata catches up, within
milliseconds to a second. An epoch that it never learns does not come from this cluster: a committed offset may have been copied
from another one, or be newer than the backup that the cluster was restored from. Kafka's consumer waits for such an epoch for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.types import Now, TopicPartition

REFRESHES = 3
"""Metadata answers that have to come in between the first refusal and the last."""

PATIENCE = 2_000
"""Milliseconds between the first refusal and the last: three refreshes alone take a third of a second."""


class SeenEpochs(NamedTuple):
    """The leader epochs of one partition, as far as a client has heard of them."""

    last: int | None = None
    """The highest that the cluster, a committed offset or a seek has named."""
    unknown: int | None = None
    """One that the leader does not know. It, and higher ones, count again once the cluster itself has got there."""

    def current(self, told: int | None) -> int | None:
        """The epoch to ask the leader with, where the metadata says ``told``; ``None``: with none, and it does not check."""
        if told is None:
            return None
        epoch = told if self.last is None else max(told, self.last)
        return None if epoch == self.unknown else epoch

    def named(self, epoch: int) -> SeenEpochs:
        """After a committed offset or a seek has named an epoch."""
        if (self.last is not None and epoch <= self.last) or (self.unknown is not None and epoch >= self.unknown):
            return self
        return self._replace(last=epoch)

    def told(self, before: int | None, epoch: int) -> SeenEpochs:
        """After the cluster has said ``epoch``, where it had said ``before``."""
        if self.unknown is not None and epoch >= self.unknown and before != epoch:
            return SeenEpochs(epoch)
        return self._replace(last=epoch if self.last is None or self.last == self.unknown else max(self.last, epoch))

    def refused(self, epoch: int) -> SeenEpochs:
        """After the leader was found not to know an epoch."""
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
        """The leader refused ``epoch`` while metadata was at ``version``. Whether to give the epoch up."""
        first = self._refusals.get(tp)
        if first is None or first.epoch != epoch:
            self._refusals[tp] = _Refusals(epoch, version, now.mono)
            return False
        if version - first.version < REFRESHES or now.mono - first.since < PATIENCE:
            return False
        del self._refusals[tp]
        return True

    def accepted(self, tp: TopicPartition) -> None:
        """The leader has answered a request with the epoch."""
        self._refusals.pop(tp, None)
