"""The values that all packages use: frozen, hashable, without behaviour.

Owns the basic public types (topic-partition, offset, node, time), and helpers for arguments. Must not know any other module of the
package. Invariant: all values are immutable.
"""

from __future__ import annotations

import binascii
import enum
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import uuid

    from typing_extensions import TypeVar

    K_co = TypeVar("K_co", covariant=True, default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
else:  # Python 3.11 and 3.12 have no defaults (PEP 696), and they are not needed at run time
    from typing import TypeVar

    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)
"""The types of keys and values, apart from ``None``: bytes, unless deserializers return something else."""

_K = TypeVar("_K")
_V_co = TypeVar("_V_co", covariant=True)


class FrozenMapping(Mapping[_K, _V_co]):
    """A mapping that cannot change. Unlike ``types.MappingProxyType`` it can be pickled and copied."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[_K, _V_co] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, key: _K) -> _V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[_K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._items,)


MOST_STREAMS = 10_000
"""The streams that a consumer has at most for a topic or a pattern. Each has a thread; those beyond the partitions get nothing."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed position: always the *next* offset to read, never the last offset that was read.

    ``leader_epoch`` is the epoch of the last consumed batch, or ``None`` when it is not known. An epoch that the cluster
    does not have, as in offsets copied from another cluster, is dropped within seconds: reading continues at ``offset``.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OAuthToken(NamedTuple):
    """The result of a token provider. ``expires_at`` is in seconds since 1970; ``None``: get a new token for each login.

    ``extensions`` are sent to the broker with the token (KIP-342).
    """

    value: str
    expires_at: float | None = None
    extensions: Mapping[str, str] = FrozenMapping()

    def __repr__(self) -> str:
        return f"<OAuthToken of {len(self.value)} characters, expires at {self.expires_at}>"


class OffsetAndTimestamp(NamedTuple):
    """The first offset whose record has a timestamp at or after the requested time (milliseconds since 1970)."""

    offset: int
    timestamp: int
    leader_epoch: int | None = None


class RecordMetadata(NamedTuple):
    """Where a record was written. ``timestamp`` is in milliseconds since 1970: the record's own, or the broker's.

    ``offset`` is -1 if the broker recognized a batch that is sent again and did not say where it was written.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Node(NamedTuple):
    """A broker as in the cluster's metadata."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """The leader of a partition, and its epoch (``None``: the broker is too old to report it)."""

    node: Node
    epoch: int | None


class PartitionInfo(NamedTuple):
    """The metadata of one partition; ``leader`` is ``None`` while there is none."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ConsumerGroupMetadata(NamedTuple):
    """The identity of this consumer in its group, as a transactional producer needs it (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class GroupMembershipOperation(enum.StrEnum):
    """Whether a member leaves its group when its consumer is closed (KIP-1092)."""

    DEFAULT = "default"
    """It leaves; a static member (``group_instance_id``) remains."""
    LEAVE_GROUP = "leave_group"
    """It leaves, even a static member: its partitions go to others at once."""
    REMAIN_IN_GROUP = "remain_in_group"
    """It remains until its session expires: nothing moves if a static member returns before that."""


class TimestampType(enum.IntEnum):
    """The origin of a record's timestamp (the numbers are those of Spark's ``timestampType`` column)."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(enum.IntEnum):
    """Whether records of open and aborted transactions are delivered (the numbers are the protocol's)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Now(NamedTuple):
    """The current time for the cores, in whole milliseconds: ``mono`` for deadlines, ``wall`` for stored timestamps."""

    mono: int
    wall: int


def is_utf8(value: str) -> bool:
    """Return whether UTF-8 can encode a string. It cannot encode lone surrogates, which Python uses for undecodable bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_plain_string(value: str) -> str:
    """Convert an instance of a subclass of ``str``. ``str()`` would return ``"Topic.ORDERS"`` for a member of a string enum."""
    return str.__str__(value)


def as_integer(value: Any) -> int | None:
    """Convert an integer of any type to ``int``; return ``None`` for other values, such as ``True`` and 1.0."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def uuid_text(value: uuid.UUID) -> str:
    """Return an id as Kafka prints it: 22 characters of url-safe base64."""
    return binascii.b2a_base64(value.bytes, newline=False).decode().rstrip("=").replace("+", "-").replace("/", "_")


def parse_uuid(text: str) -> uuid.UUID | None:
    """Return the id that ``uuid_text`` has printed; ``None`` if the text is none."""
    import uuid  # here, since only brokers need it, and it takes 2 ms

    try:
        value = uuid.UUID(bytes=binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "==", strict_mode=True))
    except ValueError:
        return None
    return value if uuid_text(value) == text else None


_SHOWN_CHARACTERS = 200


def short_repr(value: object) -> str:
    """Return ``repr(value)`` for the text of an error, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def short_text(text: str) -> str:
    """Return a text that may come from anywhere, for a log: as it is if it is short and visible, else its ``short_repr``."""
    return text if text.isprintable() and len(text) <= _SHOWN_CHARACTERS else short_repr(text)


def short_list(items: Sequence[object], most: int) -> str:
    """Return the first ``most`` items for the text of an error, and how many more there are."""
    shown = ", ".join(map(str, items[:most]))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown
