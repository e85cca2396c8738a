"""The interface of a group membership, the same for all protocols.

Owns the interface between a membership and the other managers (commits, positions, the application's calls), the context of a
membership, and the count of refused requests. Must not know the implementations. Invariants: only the membership itself changes the
member's identity and partitions; all implementations get the same context, so the choice of a protocol changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.cluster.coordinator import CoordinatorManager
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.effects import Poll
from ottla.client.events import Assigned, ErrorNotification, Reply, UserData
from ottla.client.poll_timer import PollTimer
from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import BrokerError, CommitFailedError, OttlaError
from ottla.types import ConsumerGroupMetadata, GroupMembershipOperation, Now


class MemberIdentity(NamedTuple):
    """The identity in a request to the coordinator. The default is none: the partitions come from ``assign()``."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


NO_MEMBER = MemberIdentity()

DEFAULT = GroupMembershipOperation.DEFAULT


class MemberStatus(NamedTuple):
    """The status of a member, for health and for the record of rebalances, which only read it."""

    protocol: str
    """``classic``, ``consumer``, ``zookeeper`` or ``central``; empty while that is not decided."""
    state: str
    """The name of its state."""
    joined: bool = False
    """Whether it is in the group, as far as the client knows."""
    rebalancing: bool = False
    """Whether its partitions are about to change; also while only the application must act."""
    reason: str = ""
    """The reason of the rebalance."""
    assignor: str = ""
    """The assignor with which a member computed the assignment; empty: the coordinator computed it, or there is none."""
    obstacle: str = ""
    """What keeps the member from its partitions now, if it knows."""


class MembershipContext(NamedTuple):
    """The objects that a membership uses. ``notify`` puts a notification into the application's queue."""

    config: ConsumerConfig
    subscription: SubscriptionState
    coordinator: CoordinatorManager
    metadata: MetadataManager
    notify: Callable[[object], None]
    backoff: ExponentialBackoff
    polls: PollTimer


class Refusals:
    """Counts consecutive refusals of a member's requests.

    While they last, the error is reported once per ``patience`` (milliseconds), and the next ``poll()`` raises it.
    """

    def __init__(self, patience: int, notify: Callable[[object], None]) -> None:
        self.count = 0
        """Refusals since the last request that was accepted."""
        self._patience = patience
        self._notify = notify
        self._since = 0

    def refused(self, error: OttlaError, now: Now, patience: int = 0) -> None:
        """Count a request that was refused and is sent again. ``patience``: the time for which that is normal, if it is longer."""
        self.count += 1
        if self.count == 1:
            self._since = now.mono
        elif now.mono - self._since >= max(patience, self._patience):
            self._since = now.mono
            self._notify(ErrorNotification(error))

    def accepted(self) -> None:
        """Reset the count, since a request was accepted."""
        self.count = 0


class Membership(Protocol):
    """One member of one group. Also a ``RequestManager``."""

    @property
    def failure(self) -> OttlaError | None:
        """The permanent error of the membership; ``None`` if the consumer can still join."""

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics whose metadata the member needs besides its own: those of the whole group if it is the leader."""

    @property
    def follows_all_topics(self) -> bool:
        """Whether the member needs the metadata of all topics, to match a pattern."""

    @property
    def status(self) -> MemberStatus:
        """The status of the member now."""

    @property
    def joins_as_new_member(self) -> bool:
        """Whether the member is about to join without an identity yet: it could still use the other protocol."""

    def metadata(self) -> ConsumerGroupMetadata:
        """Return the group metadata for a transactional producer."""

    def polled(self, now: Now) -> None:
        """The application has polled: join if necessary, and restart ``max.poll.interval.ms``."""

    def prepared(self, token: int, now: Now) -> None:
        """The application has committed and run its listener for the rebalance with this token."""

    def accepted(self, token: int) -> None:
        """The application has run ``on_assign`` for the assignment with this token."""

    def user_data(self, command: UserData) -> None:
        """Store the user data of the application's assignors. That of the other protocol is ignored."""

    def assigned(self, command: Assigned) -> None:
        """Take the result of the application's assignor. One for the other protocol is ignored."""

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """Leave the group, or remain in it; ``reply`` is called after the coordinator's response, or at once if there is no
        request.
        """

    def identity(self) -> MemberIdentity:
        """Return the identity for a commit. Raises the error that the commit would get if it were sent."""

    def reader(self) -> MemberIdentity:
        """Return the identity for an OffsetFetch; ``NO_MEMBER`` if the member needs none, or has none yet."""

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """Handle a commit that the coordinator refused because of its identity, and return the error for the caller.

        If the error is retriable, the commit may be sent again with the new ``identity()``.
        """

    def poll(self, now: Now) -> Poll:
        """See ``RequestManager``."""


def new_member_id(config: ConsumerConfig, host: str, random: RandomPort) -> str:
    """Return the id of a member whose name is in ZooKeeper: Java's, with a random number instead of the time."""
    unique = config.consumer_id or f"{host}-{int(random.random() * 2**32):08x}"
    return f"{config.group_id}_{unique}"


def leaves(config: ConsumerConfig, operation: GroupMembershipOperation) -> bool:
    """Whether a member leaves the group when its consumer is closed; otherwise its membership lasts until its session expires."""
    return operation is GroupMembershipOperation.LEAVE_GROUP or (operation is DEFAULT and config.group_instance_id is None)


def not_a_member(config: ConsumerConfig, *, expired: bool, cause: BrokerError | None = None) -> CommitFailedError:
    """Return the error of a commit after the end of the membership; ``expired``: because the application did not poll."""
    text = f"this consumer is no longer a member of group {config.group_id!r}, so it commits nothing"
    hint = (
        "it did not poll() within max_poll_interval, or a processing() block was silent beyond its limit: poll() to rejoin,"
        " and handle fewer records per poll, announce long work, or raise the limit"
    )
    return CommitFailedError(text, hint=hint if expired else None, cause=cause)
