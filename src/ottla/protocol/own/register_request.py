"""Register request: a consumer becomes a member of a group, and the connection its channel."""

from dataclasses import dataclass, field

from kio.static.primitive import i32

from ottla.protocol.own import of_draft, wire


@of_draft(20_004, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic that the member reads."""

    topic: str = field(metadata=wire("string"))
    streams: i32 = field(metadata=wire("int32"))
    """The number of its threads that read the topic."""


@of_draft(20_004, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPartition:
    """A partition that the member holds."""

    partition: i32 = field(metadata=wire("int32"))
    thread: i32 = field(metadata=wire("int32"))


@of_draft(20_004, "request")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTopic:
    """The partitions of one topic that the member holds."""

    topic: str = field(metadata=wire("string"))
    partitions: tuple[OwnedPartition, ...] = field(default=())


@of_draft(20_004, "request", whole=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    """The member, what it reads, and what it holds if it was a member before.

    Without topics and without a pattern the consumer becomes no member, but the coordinator serves its commits.
    """

    group_id: str = field(metadata=wire("string"))
    member_id: str = field(metadata=wire("string"))
    incarnation: str = field(metadata=wire("string"))
    """A random id of the consumer: another process may have the same ``member_id``. The coordinator remembers which one is an
    owner, also after an election."""
    session_timeout_ms: i32 = field(metadata=wire("int32"))
    """The member is evicted if it answers nothing for this time."""
    rebalance_timeout_ms: i32 = field(metadata=wire("int32"))
    """The member is evicted if it does not answer a Stop for this time."""
    assignor: str = field(metadata=wire("string"))
    """``range`` or ``roundrobin``, the same for all members."""
    topics: tuple[Subscription, ...] = field(default=())
    pattern: str | None = field(metadata=wire("string"), default=None)
    """The pattern of the topics that the member reads, in the syntax of RE2."""
    streams: i32 = field(metadata=wire("int32"), default=i32(1))
    """The number of threads that read each topic of the pattern."""
    coordinator_epoch: i32 = field(metadata=wire("int32"), default=i32(-1))
    """The epoch of the last coordinator; -1: it had none."""
    generation: i32 = field(metadata=wire("int32"), default=i32(-1))
    """The generation of what it holds, or has given up for a Stop since; -1: it has had none."""
    owned_topics: tuple[OwnedTopic, ...] = field(default=())
    own_generation: i32 = field(metadata=wire("int32"), default=i32(-1))
    """The latest generation in which it was started, or has registered with an earlier one, also if its lease is over; -1: none. A
    coordinator whose node of the generation is malformed goes on from the highest one."""
