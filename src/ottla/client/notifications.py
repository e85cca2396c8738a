"""The notifications of the network thread to the application thread, as values.

Owns the notifications of every client, and those of a consumer. Must not know their handlers. Invariant: a notification never
changes, contains everything that its handler needs, and never refers to an object of the core.
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
    """An error that no call waits for. The application's next poll raises it."""

    error: OttlaError


@dataclass(frozen=True, slots=True)
class TopicErrorNotification:
    """The brokers refuse to describe a topic: its name is invalid, or the principal may not see it. Sent with each refusal."""

    topic: str
    error: OttlaError


@dataclass(frozen=True, slots=True)
class Completed:
    """A command is done, or has failed. The application settles ``completion`` when it handles this."""

    completion: Completion
    value: object = None
    error: OttlaError | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The subscription has changed."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """The data of one partition in one response: whole batches, of which the first may begin before ``offset``.

    ``epoch`` is that of the position it was fetched for; ``aborted`` has (producer id, first offset) of each aborted transaction.
    ``end`` is the offset up to which this consumer could read when the broker answered: the high watermark or the last stable
    offset. ``begin`` is the first offset of the log (-1: the broker is too old to send it).
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
    """One response of one broker. ``number`` identifies it; ``size`` is its bytes of records."""

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
    """The member has to give up these partitions before it can join again.

    Commit, run ``on_revoke`` (``on_lost`` if the membership is lost), and answer with ``RebalancePrepared(token)``. The group does
    not wait longer than until ``deadline`` (monotonic ms).
    """

    token: int
    partitions: frozenset[TopicPartition]
    lost: bool
    deadline: int


@dataclass(frozen=True, slots=True)
class AssignmentReceived:
    """The member has a new assignment. Run ``on_assign`` with the added partitions, answer with ``AssignmentAccepted(token)``.

    If a member of the group has computed it, ``assignment`` is the complete assignment of this one, ``assignor`` the name of the
    assignor, and ``group`` the identity of this member.
    """

    token: int
    added: frozenset[TopicPartition]
    assignor: str = ""
    assignment: MemberAssignment | None = None
    group: ConsumerGroupMetadata | None = None
    protocol: str = "classic"


@dataclass(frozen=True, slots=True)
class AssignmentNeeded:
    """This member has to assign for its group, with a user's assignor. Call it, and answer with ``Assigned``.

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
