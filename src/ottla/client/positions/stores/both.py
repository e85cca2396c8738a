"""The offsets of a group in Kafka and in ZooKeeper, as with Kafka 0.8's ``dual.commit.enabled``.

Owns the combination of two outcomes. Must not know requests. Invariants: a commit has succeeded for a partition when both stores
have it; a look-up returns the larger offset, since one store may have missed the latest commit.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.effects import Poll
from ottla.client.groups.membership import MemberIdentity
from ottla.client.positions.stores.interface import CommitOutcome, CommitRequest, Delay, FetchOutcome, OffsetStore
from ottla.errors import OttlaError
from ottla.types import Now, OffsetAndMetadata, TopicPartition


class DualOffsetStore:
    """See the module."""

    knows_members = False
    """See ``OffsetStore``."""

    def __init__(self, kafka: OffsetStore, zookeeper: OffsetStore) -> None:
        self._kafka = kafka
        self._zookeeper = zookeeper

    def __repr__(self) -> str:
        return f"<DualOffsetStore {self._kafka} {self._zookeeper}>"

    def is_ready(self, now: Now) -> bool:
        """See ``OffsetStore``."""
        # Both are asked, since the question starts the look-up of a coordinator.
        return all([self._kafka.is_ready(now), self._zookeeper.is_ready(now)])

    def may_commit(self, now: Now) -> bool:
        """See ``OffsetStore``."""
        return self._kafka.may_commit(now) and self._zookeeper.may_commit(now)

    def is_about_topic(self, error: OttlaError) -> bool:
        """See ``OffsetStore``."""
        return self._kafka.is_about_topic(error)

    def delay(self) -> Delay:
        """See ``OffsetStore``."""
        zookeeper = self._zookeeper.delay()
        return zookeeper if zookeeper.cut_off is not None else self._kafka.delay()

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """See ``OffsetStore``."""
        self._kafka.on_fatal(observer)
        self._zookeeper.on_fatal(observer)

    def poll(self, now: Now) -> Poll:
        """See ``OffsetStore``."""
        return Poll((*self._zookeeper.poll(now).sends, *self._kafka.poll(now).sends))

    def commit(self, request: CommitRequest, done: Callable[[CommitOutcome, Now], None]) -> CommitOutcome | None:
        """See ``OffsetStore``."""
        outcomes: list[CommitOutcome] = []

        def ended(outcome: CommitOutcome, now: Now) -> None:
            outcomes.append(outcome)
            if len(outcomes) >= 2:  # more if ``done`` has raised, and is called again
                done(_combined(*outcomes[:2]), now)

        # First the store that refuses what the member does not own.
        refused = self._zookeeper.commit(request, ended)
        if refused is not None:
            return refused
        immediate = self._kafka.commit(request, ended)
        outcomes += [] if immediate is None else [immediate]
        return None

    def fetch(
        self, partitions: frozenset[TopicPartition], reader: MemberIdentity, done: Callable[[FetchOutcome, Now], None]
    ) -> None:
        """See ``OffsetStore``."""
        outcomes: list[FetchOutcome] = []

        def ended(outcome: FetchOutcome, now: Now) -> None:
            outcomes.append(outcome)
            if len(outcomes) >= 2:
                done(_larger(*outcomes[:2]), now)

        self._kafka.fetch(partitions, reader, ended)
        self._zookeeper.fetch(partitions, reader, ended)


def _combined(one: CommitOutcome, other: CommitOutcome) -> CommitOutcome:
    failed = [outcome for outcome in (one, other) if outcome.error is not None]
    final = next((outcome for outcome in failed if not outcome.retry), failed[0] if failed else None)
    committed = one.committed & other.committed
    return CommitOutcome(committed) if final is None else CommitOutcome(committed, final.error, final.retry)


def _larger(one: FetchOutcome, other: FetchOutcome) -> FetchOutcome:
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for tp in one.found.keys() & other.found.keys():
        offsets = [offset for offset in (one.found[tp], other.found[tp]) if offset is not None]
        found[tp] = max(offsets, key=lambda offset: offset.offset, default=None)
    failed = next((outcome for outcome in (one, other) if outcome.error is not None), None)
    return FetchOutcome(found) if failed is None else FetchOutcome(found, failed.error, failed.retry)
