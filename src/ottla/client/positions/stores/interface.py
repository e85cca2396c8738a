"""The interface of an offset store.

Owns the values that a store gets and returns. Must not know the stores. Invariant: a store calls ``done`` once for each commit and
look-up, never inside the call itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ottla.client.effects import Poll
from ottla.client.events import Offsets
from ottla.client.groups.membership import MemberIdentity
from ottla.errors import OttlaError
from ottla.types import Now, OffsetAndMetadata, TopicPartition


class CommitRequest(NamedTuple):
    """Offsets to commit, and who commits them."""

    offsets: Offsets
    identity: MemberIdentity
    topic_ids: Mapping[TopicPartition, uuid.UUID]
    """The ids of the topics in which the positions were read, as far as they are known."""
    revoking: bool = False
    """Other members wait for the partitions, so a deleted topic is an error at once."""
    before: int = 0
    """The number of partitions that earlier attempts have committed."""


class CommitOutcome(NamedTuple):
    """The outcome of a commit. It has succeeded for the partitions in ``committed``, also if there is an ``error``."""

    committed: frozenset[TopicPartition] = frozenset()
    error: OttlaError | None = None
    retry: bool = True
    """Whether a retriable error may be retried."""


class FetchOutcome(NamedTuple):
    """The outcome of a look-up: the committed offset of each partition, or ``None``. After an ``error`` partitions are missing."""

    found: Mapping[TopicPartition, OffsetAndMetadata | None]
    error: OttlaError | None = None
    retry: bool = True
    """Whether a retriable error may be retried."""


def stored(committed: int, partitions: int, where: str = "") -> str:
    """How much of a commit was stored when it failed: the beginning of its error."""
    return f"{committed:,} of {partitions:,} partitions were committed{where}" if committed else f"nothing was committed{where}"


CommitDone = Callable[[CommitOutcome, Now], None]
FetchDone = Callable[[FetchOutcome, Now], None]


class Delay(NamedTuple):
    """Why a request was not answered in time, as far as it is known."""

    cut_off: OttlaError | None
    """Why the store cannot be reached."""
    failure: OttlaError | None
    """Why the store cannot be found."""
    silent: str
    """What to say if there is no error."""


class OffsetStore(Protocol):
    """See the module. Requests are returned by ``poll``; if ``commit`` or ``fetch`` raises, nothing was requested."""

    @property
    def knows_members(self) -> bool:
        """Whether it refuses a commit of a member that has given up the partitions since the commit was requested."""

    def is_ready(self, now: Now) -> bool:
        """Whether requests can be made now."""

    def may_commit(self, now: Now) -> bool:
        """Whether commits are allowed now; otherwise they wait."""

    def commit(self, request: CommitRequest, done: CommitDone) -> CommitOutcome | None:
        """Request a commit. Return the outcome, and do not call ``done``, if no request is needed."""

    def fetch(self, partitions: frozenset[TopicPartition], reader: MemberIdentity, done: FetchDone) -> None:
        """Request a look-up."""

    def is_about_topic(self, error: OttlaError) -> bool:
        """Whether a commit failed because a topic is missing, so that it fails for as long as the topic is assigned."""

    def delay(self) -> Delay:
        """Return why a request is not answered."""

    def poll(self, now: Now) -> Poll:
        """Return what was requested since the last call."""

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """Call ``observer`` with each error that makes waiting pointless."""
