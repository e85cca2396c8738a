"""The commands of the application thread to the network thread, as values.

Owns the vocabulary of the command queue. Must not know the handlers of commands. Invariant: a command never changes after it was
sent; only the application thread settles its ``Completion``, when the outcome arrives as a ``Completed`` notification, so no object
is written by two threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.assignors import MemberAssignment
from ottla.errors import OttlaError
from ottla.types import GroupMembershipOperation, OffsetAndMetadata, TopicPartition

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

    ``positions`` are those after the processed records, that is, the records of a *previous* poll.
    """

    positions: Offsets


@dataclass(frozen=True, slots=True)
class Drained:
    """The application no longer needs these fetch responses. This matters only while a fetch waits for their memory."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Subscribe(Command):
    """Join the group for these topics, or for those that ``pattern`` matches. Done before the group has assigned partitions."""

    topics: frozenset[str]
    pattern: str | None = None


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
class Inspect:
    """Have the network thread call ``reply`` with a ``NetworkView``. Any thread may send this."""

    reply: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class ProcessingEnded:
    """The job has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Seek(Command):
    """Continue reading from these positions."""

    positions: Offsets


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
