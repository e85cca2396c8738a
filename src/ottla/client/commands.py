"""What the application thread may ask of the network thread, as values.

Owns the vocabulary of the command queue. Must not know who handles a command or how. Invariant: a command never changes after it
was sent, and only the application thread settles the ``Completion`` of a command, when the answer arrives as a
``Completed`` notification: nothing is written by two threads.
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
"""How the outcome of something asked for comes back: a value, or an error."""


class GivenUp(NamedTuple):
    """The partitions that a listener got as revoked, whether they were lost, and how long the listener took (ms)."""

    partitions: frozenset[TopicPartition] = frozenset()
    lost: bool = False
    in_listeners: int = 0


class Completion:
    """The place where the application finds the outcome of a command. Only the application thread touches it."""

    __slots__ = ("done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: OttlaError | None = None

    def __repr__(self) -> str:
        return f"<Completion {self.error or self.value!r}>" if self.done else "<Completion pending>"

    def settle(self, value: object, error: OttlaError | None) -> None:
        """Write the outcome down. The first one stands."""
        if not self.done:
            self.done, self.value, self.error = True, value, error

    def result(self) -> Any:
        """The value; raises the error, which the network thread may have kept."""
        if self.error is not None:
            raise self.error.afresh()
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """A command with an outcome that a call waits for."""

    completion: Completion = field(default_factory=Completion, kw_only=True)


@dataclass(frozen=True, slots=True)
class Polled:
    """The application is inside ``poll()``: the one sign of life.

    ``positions`` are what it has done with, that is what a *previous* poll handed out.
    """

    positions: Offsets


@dataclass(frozen=True, slots=True)
class Drained:
    """The application no longer needs these fetch responses. Matters only while a fetch waits for their memory."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Subscribe(Command):
    """Join the group for these topics, or for those that ``pattern`` matches; the partitions come by and by."""

    topics: frozenset[str]
    pattern: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Assign(Command):
    """Read exactly these partitions, independently of the group."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Unsubscribe(Command):
    """Leave the group, if it is joined, and read nothing any more.

    The listeners have run. Done when the coordinator has answered, or does not have to be asked: see ``operation``.
    """

    reason: str
    given_up: GivenUp
    operation: GroupMembershipOperation = GroupMembershipOperation.DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class EndFetches(Command):
    """After an ``Unsubscribe``: done when the brokers have ended the sessions of fetches, or cannot be asked to."""


@dataclass(frozen=True, slots=True)
class UserData:
    """The user data of each assignor, by name, for the member that assigns; of a classic member from the next join on."""

    by_assignor: Mapping[str, bytes | None]
    protocol: str = "classic"


@dataclass(frozen=True, slots=True)
class Assigned:
    """What the user's assignor has made of an ``AssignmentNeeded`` of this generation, or why it has made nothing."""

    generation: int
    shares: Mapping[str, MemberAssignment]
    error: OttlaError | None = None
    protocol: str = "classic"


@dataclass(frozen=True, slots=True)
class RebalancePrepared:
    """Commits are made and ``on_revoke`` or ``on_lost`` has run: the partitions may go."""

    token: int
    given_up: GivenUp


@dataclass(frozen=True, slots=True)
class AssignmentAccepted:
    """``on_assign`` has run, in ``in_listeners`` ms: the partitions may be fetched."""

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
    """A request, from any thread, for the state of the consumer: ``reply`` is called with a ``NetworkView``, on the network
    thread."""

    reply: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class ProcessingEnded:
    """The job has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Seek(Command):
    """Read on from these positions."""

    positions: Offsets


@dataclass(frozen=True, slots=True, eq=False)
class Rewind(Command):
    """Fetch again what the application has dropped: read on from these positions, each with its epoch, in the same topics."""

    positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]


@dataclass(frozen=True, slots=True, eq=False)
class ResetPositions(Command):
    """Read on from the first (-2) or behind the last (-1) offset of these partitions."""

    partitions: frozenset[TopicPartition]
    timestamp: int


@dataclass(frozen=True, slots=True, eq=False)
class LookUpAgain(Command):
    """If nothing was committed, and no reset is configured, another program may have committed since: look it up again."""


@dataclass(frozen=True, slots=True, eq=False)
class Pause(Command):
    """Fetch these partitions no more; ``positions`` is where to go on later, with its epoch, where the application has one."""

    partitions: frozenset[TopicPartition]
    positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]


@dataclass(frozen=True, slots=True, eq=False)
class Resume(Command):
    """Fetch these partitions again."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Commit(Command):
    """Commit these offsets; with ``retry`` until ``deadline`` (monotonic ms), without it once.

    ``revoking``: their partitions are about to be given up, so a deleted topic is an error at once.
    """

    offsets: Offsets
    deadline: int
    retry: bool = True
    revoking: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FetchCommitted(Command):
    """What the group has committed for these partitions: a mapping to ``OffsetAndMetadata`` or ``None``."""

    partitions: frozenset[TopicPartition]
    deadline: int


@dataclass(frozen=True, slots=True, eq=False)
class ListOffsets(Command):
    """The offset for each timestamp, -2 being the first and -1 the end: a mapping to ``OffsetAndTimestamp`` or ``None``."""

    timestamps: Mapping[TopicPartition, int]
    deadline: int


@dataclass(frozen=True, slots=True, eq=False)
class DescribeTopics(Command):
    """What the cluster says of these topics (``None``: of all): a mapping from topic to ``TopicMetadata``."""

    topics: frozenset[str] | None
    deadline: int
