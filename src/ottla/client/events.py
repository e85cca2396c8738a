"""The events that cross the two queues between the application thread and the network thread, as values.

Owns the vocabulary of both queues: first the commands of the application thread, then the notifications of the network thread. Must
not know their handlers. Invariants: an event never changes after it was sent; only the application thread settles the
``Completion`` of a command, when the outcome arrives as a ``Completed`` notification, so no object is written by two threads; a
notification contains everything that its handler needs, and never refers to an object of the core.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.assignors import Cluster, MemberAssignment, MemberSubscription
from ottla.client.subscription import Snapshot
from ottla.errors import OttlaError
from ottla.types import ConsumerGroupMetadata, FrozenMapping, GroupMembershipOperation, OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
"""Positions or commits: for each partition the next offset to read."""

Reply = Callable[[Any, OttlaError | None], None]
"""Called with the outcome of a request: a value, or an error."""


class GivenUp(NamedTuple):
    """The partitions that were passed to ``on_revoke`` or ``on_lost``, which of the two, and how long it took (ms)."""

    partitions: frozenset[TopicPartition] = frozenset()
    lost: bool = False
    in_listeners: int = 0


class Completion:
    """The outcome of a command. Only the application thread reads and writes it."""

    __slots__ = ("done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: OttlaError | None = None

    def __repr__(self) -> str:
        return f"<Completion {self.error or self.value!r}>" if self.done else "<Completion pending>"

    def settle(self, value: object, error: OttlaError | None) -> None:
        """Set the outcome, unless there is one already."""
        if not self.done:
            self.done, self.value, self.error = True, value, error

    def result(self) -> Any:
        """Return the value, or raise a copy of the error, of which the network thread may keep the original."""
        if self.error is not None:
            raise self.error.afresh()
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """A command whose outcome a call waits for."""

    completion: Completion = field(default_factory=Completion, kw_only=True)


@dataclass(frozen=True, slots=True)
class Polled:
    """The application is inside ``poll()``: the one sign of life.

    ``positions`` are those after the processed records, that is, the records of a *previous* poll. ``busy_since``: since when
    (monotonic ms) the longest unfinished record of a stream is processed: the polls of streams say nothing about the threads that
    process their records.
    """

    positions: Offsets
    busy_since: int | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    """The application no longer needs these fetch responses. This matters only while a fetch waits for their memory."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MovedToStreams:
    """Only streams have records of these fetch responses: others may use their memory. The positions of their partitions stay."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Subscribe(Command):
    """Join the group for these topics, or for those that ``pattern`` matches. Done before the group has assigned partitions."""

    topics: frozenset[str]
    pattern: str | None = None
    is_black_list: bool = False
    """Whether the subscription is to the topics that ``pattern`` does not match."""
    streams: Mapping[str, int] = FrozenMapping()
    """The number of streams of each topic, or of the pattern, where it is not one."""


@dataclass(frozen=True, slots=True, eq=False)
class Assign(Command):
    """Read exactly these partitions, independently of the group."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Unsubscribe(Command):
    """Leave the group, if the consumer is a member, and read no more. The listeners have run.

    Done when the coordinator has answered, or when no request is needed: see ``operation``.
    """

    reason: str
    given_up: GivenUp
    operation: GroupMembershipOperation = GroupMembershipOperation.DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class EndFetches(Command):
    """After an ``Unsubscribe``: done when the brokers have ended the fetch sessions, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class UserData:
    """The user data of each assignor, by name, for the member that assigns. A classic member sends it with its next join."""

    by_assignor: Mapping[str, bytes | None]
    protocol: str = "classic"


@dataclass(frozen=True, slots=True)
class Assigned:
    """The assignments that the user's assignor returned for the ``AssignmentNeeded`` of this generation, or its error."""

    generation: int
    shares: Mapping[str, MemberAssignment]
    error: OttlaError | None = None
    protocol: str = "classic"


@dataclass(frozen=True, slots=True)
class RebalancePrepared:
    """The commits are made and ``on_revoke`` or ``on_lost`` has run: other members may get the partitions."""

    token: int
    given_up: GivenUp


@dataclass(frozen=True, slots=True)
class AssignmentAccepted:
    """``on_assign`` has run, for ``in_listeners`` ms: the partitions may be fetched."""

    token: int
    added: frozenset[TopicPartition]
    in_listeners: int


@dataclass(frozen=True, slots=True)
class ProcessingBegan:
    """The application begins a long job, and does not poll for up to ``limit`` ms after this and after each report of progress."""

    limit: int


@dataclass(frozen=True, slots=True)
class ProcessingProgressed:
    """The job reports progress, perhaps from another thread than the one that begins and ends it.

    So it may come after ``ProcessingEnded``: 1. A thread finds that the job is running. 2. The application ends the job. 3. The
    thread submits this. It then has no effect, since otherwise the limit of the job would replace ``max_poll_interval``.
    """


@dataclass(frozen=True, slots=True)
class ProcessingEnded:
    """The job has ended."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Have the network thread call ``reply`` with a ``NetworkView``. Any thread may send this."""

    reply: Callable[[Any], object]


@dataclass(frozen=True, slots=True, eq=False)
class Seek(Command):
    """Continue reading from these positions. Of a partition in ``ends`` nothing is fetched from that offset on."""

    positions: Offsets
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Rewind(Command):
    """Fetch again the data that the application has dropped, from these positions, each with its epoch, of the same topics."""

    positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]


@dataclass(frozen=True, slots=True, eq=False)
class ResetPositions(Command):
    """Continue reading from the first offset (-2) or the end (-1) of these partitions."""

    partitions: frozenset[TopicPartition]
    timestamp: int


@dataclass(frozen=True, slots=True, eq=False)
class LookUpAgain(Command):
    """Look up again the committed offsets of partitions that had none, where no reset is configured: there may be some by now."""


@dataclass(frozen=True, slots=True, eq=False)
class Pause(Command):
    """Stop fetching these partitions. ``positions``: where to continue later, with the epoch, for partitions that have one."""

    partitions: frozenset[TopicPartition]
    positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]


@dataclass(frozen=True, slots=True, eq=False)
class Resume(Command):
    """Fetch these partitions again."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Commit(Command):
    """Commit these offsets; with ``retry`` until ``deadline`` (monotonic ms), without it once.

    ``revoking``: the partitions are being revoked, so a deleted topic is an error at once.
    """

    offsets: Offsets
    deadline: int
    retry: bool = True
    revoking: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FetchCommitted(Command):
    """Look up the group's commits of these partitions: a mapping to ``OffsetAndMetadata`` or ``None``."""

    partitions: frozenset[TopicPartition]
    deadline: int


@dataclass(frozen=True, slots=True, eq=False)
class ListOffsets(Command):
    """Look up the offset of each timestamp (-2: the first, -1: the end): a mapping to ``OffsetAndTimestamp`` or ``None``."""

    timestamps: Mapping[TopicPartition, int]
    deadline: int


@dataclass(frozen=True, slots=True, eq=False)
class DescribeTopics(Command):
    """Describe these topics (``None``: all): a mapping from topic to ``TopicMetadata``."""

    topics: frozenset[str] | None
    deadline: int


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
    offset. ``begin`` is the first offset of the log (-1: the broker is too old to send it). ``topic_id`` is that of the topic
    if the broker has compared it (``None``: the broker is too old, and knows topics by name).
    """

    tp: TopicPartition
    epoch: int
    offset: int
    data: bytes | memoryview
    end: int
    aborted: tuple[tuple[int, int], ...] = ()
    begin: int = -1
    topic_id: uuid.UUID | None = None


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
