"""The offsets of a central group: OffsetCommit and OffsetFetch at the central coordinator, which has to know the group.

Owns the wait until it does. Must not know how it learns that. Invariants: nothing is committed or looked up before the coordinator
has learned of the group; a commit that is refused because the coordinator does not know it any more is sent again once it does.

A deleted group may be taken for one of another kind all the same: 1. A consumer that assigns by hand has committed. 2. The group is
deleted, so it is not a central one any more. 3. Java's consumers, too, commit with a member id and without a generation once they
have left; so the broker accepts the next commit, for ``__consumer_offsets``, if it has that partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.client.cluster.coordinator import COORDINATOR
from ottla.client.effects import ToChannel
from ottla.client.positions.stores.interface import CommitDone, CommitOutcome, CommitRequest, Delay
from ottla.client.positions.stores.kafka import HAS_MEMBERS, KafkaOffsetStore
from ottla.errors import OttlaError, UnknownMemberIdError
from ottla.types import Now


class Introducer(Protocol):
    """Makes the coordinator know the group."""

    failure: OttlaError | None
    count: int
    """How often it has learned of the group."""

    def worked(self, count: int) -> None:
        """Note that something was committed after it had learned of the group for the time with this number."""

    def again(self, count: int) -> bool:
        """Make it known again, since a commit was refused that was sent after the time with this number. Return whether that may
        help.
        """

    def is_done(self) -> bool:
        """Whether it knows the group; if not, it will learn of it."""

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """Call ``observer`` with each error that a retry does not fix."""


class CentralOffsetStore(KafkaOffsetStore):
    """See the module. ``introduction`` is set before the first request."""

    introduction: Introducer

    def is_ready(self, now: Now) -> bool:
        """See ``OffsetStore``."""
        return super().is_ready(now) and self.introduction.is_done()

    def commit(self, request: CommitRequest, done: CommitDone) -> CommitOutcome | None:
        """See ``OffsetStore``."""
        if request.identity.generation >= 0:
            return super().commit(request, done)
        count = self.introduction.count
        return super().commit(request, lambda outcome, now: done(self._judge(outcome, count), now))

    def _judge(self, outcome: CommitOutcome, count: int) -> CommitOutcome:
        if outcome.error is None:
            self.introduction.worked(count)
        elif isinstance(outcome.error, UnknownMemberIdError):
            outcome.error.retriable = self.introduction.again(count)
            if not outcome.error.retriable:
                outcome.error.hint = HAS_MEMBERS
        return outcome

    def delay(self) -> Delay:
        """See ``OffsetStore``."""
        delay, named = super().delay(), self._coordinator.named
        # A commit waits while the member registers again, so the connection that fails may be the channel.
        channel = () if named is None else (ToChannel(named),)
        cut_off = delay.cut_off or self._unreachable(COORDINATOR, channel)
        return delay._replace(cut_off=cut_off, failure=delay.failure or self.introduction.failure)

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """See ``OffsetStore``."""
        super().on_fatal(observer)
        self.introduction.on_fatal(observer)
