"""The values that every room passes around: frozen, hashable, without behaviour.

Owns the small public vocabulary (topic-partition, offset, node, time). Must not know any other module of the
package. Invariant: nothing here can change after it was made.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K_co = TypeVar("K_co", covariant=True, default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
else:  # Python 3.11 and 3.12 know no defaults (PEP 696), and nobody needs them at run time
    from typing import TypeVar

    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)
"""What keys and values are, ``None`` apart: bytes, unless deserializers make something else of them."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed position: always the *next* offset to read, never the last one that was read.

    ``leader_epoch`` is the epoch of the last consumed batch, or ``None`` when it is not known. One that is none of the cluster's,
    as in offsets copied from another cluster, is dropped within seconds: reading goes on from ``offset``.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OAuthToken(NamedTuple):
    """What a token provider gives. ``expires_at`` is in seconds since 1970; ``None``: ask for another one at each login.

    ``extensions`` are told to the broker beside the token (KIP-342).
    """

    value: str
    expires_at: float | None = None
    extensions: Mapping[str, str] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"<OAuthToken of {len(self.value)} characters, expires at {self.expires_at}>"


class OffsetAndTimestamp(NamedTuple):
    """The first offset whose record is stamped at or after the time that was asked for (milliseconds since 1970)."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class Node(NamedTuple):
    """A broker as the cluster's metadata names it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """Who leads a partition, and since which epoch (``None``: the broker is too old to say)."""

    node: Node
    epoch: int | None


class PartitionInfo(NamedTuple):
    """What the metadata says of one partition; ``leader`` is ``None`` while there is none."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ConsumerGroupMetadata(NamedTuple):
    """Who this consumer is inside its group, as a transactional producer needs it (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class GroupMembershipOperation(enum.StrEnum):
    """What becomes of a group's member when its consumer is closed (KIP-1092)."""

    DEFAULT = "default"
    """It leaves; a static member (``group_instance_id``) remains."""
    LEAVE_GROUP = "leave_group"
    """It leaves, a static member, too: its partitions go to others at once."""
    REMAIN_IN_GROUP = "remain_in_group"
    """It remains until its session is over: nothing moves if it comes back before (a static member as itself)."""


class TimestampType(enum.IntEnum):
    """Who stamped a record (the numbers are those of Spark's ``timestampType`` column)."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(enum.IntEnum):
    """Whether records of open and aborted transactions are delivered (the numbers are the protocol's)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Now(NamedTuple):
    """The time as the cores see it, in whole milliseconds: ``mono`` for deadlines, ``wall`` for what is stored."""

    mono: int
    wall: int
