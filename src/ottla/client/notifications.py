"""The notifications of the network thread to the application thread, as values.

Owns the notifications that any client may get, and those of the consumer. Must not know who reads them.
Invariant: a notification carries all that its reader needs; it never refers back into the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.assignors import Cluster, MemberAssignment, MemberSubscription
from ottla.client.commands import Completion
from ottla.client.subscription import Snapshot
from ottla.errors import OttlaError
from ottla.types import ConsumerGroupMetadata, TopicPartition


@dataclass(frozen=True, slots=True)
class ErrorNotification:
    """Something failed that no call is waiting for: the application's next call raises it."""

    error: OttlaError


@dataclass(frozen=True, slots=True)
class TopicErrorNotification:
    """The brokers refuse to describe a topic: its name is invalid or the principal may not see it. Said again with each refusal."""

    topic: str
    error: OttlaError


@dataclass(frozen=True, slots=True)
class Completed:
    """A command came to its end: the application settles ``completion`` when it reads this."""

    completion: Completion
    value: object = None
    error: OttlaError | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The subscription changed: this is what it looks like from now on."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What one response holds of one partition: whole batches, of which the first may begin before ``offset``.

    ``epoch`` is that of the position it was fetched for; ``aborted`` lists (producer id, first offset) of aborted transactions.
    ``end`` is up to where this consumer could read when the broker answered: the high watermark, or the last stable offset;
    ``begin`` is where the log begins (-1: the broker is too old to say).
    """

    tp: TopicPartition
    epoch: int
    offset: int
    data: bytes | memoryview
    end: int
    aborted: tuple[tuple[int, int], ...] = ()
    begin: int = -1


@dataclass(frozen=True, slots=True)
class FetchedResponse:
    """One answer of one broker. ``number`` names it, ``size`` is the bytes of records it holds."""

    number: int
    node_id: int
    partitions: tuple[FetchedPartition, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A broker sent records."""

    response: FetchedResponse


@dataclass(frozen=True, slots=True)
class RebalanceNeeded:
    """These partitions have to go before the member can join again.

    Commit, run ``on_revoke``, or ``on_lost`` where the membership is lost already, and answer with ``RebalancePrepared(token)``.
    ``deadline`` (monotonic ms) is when the group will not wait any longer.
    """

    token: int
    partitions: frozenset[TopicPartition]
    lost: bool
    deadline: int


@dataclass(frozen=True, slots=True)
class AssignmentReceived:
    """A rebalance is through. Run ``on_assign`` with the partitions that are new, and answer with ``AssignmentAccepted(token)``.

    Where a member of the group has assigned: ``assignment`` is all that this one has now, in ``group``, by the assignor of that
    name.
    """

    token: int
    added: frozenset[TopicPartition]
    assignor: str = ""
    assignment: MemberAssignment | None = None
    group: ConsumerGroupMetadata | None = None
    protocol: str = "classic"


@dataclass(frozen=True, slots=True)
class AssignmentNeeded:
    """This member assigns for its group, which uses a user's assignor: call it, and answer with ``Assigned``.

    ``generation`` is that of a classic group; in a consumer group it is the unique number of the request.
    """

    generation: int
    assignor: str
    cluster: Cluster
    members: Mapping[str, MemberSubscription]
    protocol: str = "classic"


@dataclass(frozen=True, slots=True)
class WakeupRequested:
    """Another thread called ``wakeup()``."""
