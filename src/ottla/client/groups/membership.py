"""What a group membership is to its surroundings, and what it gets from them, whichever protocol it speaks.

Owns the interface between a membership machine and the other managers (commits, positions, the application's calls), the context
that every machine is given, and the count of refused requests. Must not know any one machine. Invariants: only the machine itself
decides the member's identity and partitions; both machines get the same context, so the choice of a protocol changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.commands import Assigned, Reply, UserData
from ottla.client.effects import Poll
from ottla.client.groups.coordinator import CoordinatorManager
from ottla.client.notifications import ErrorNotification
from ottla.client.poll_timer import PollTimer
from ottla.client.subscription import Subscription
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
    """The status of a member, for health and for the record of rebalances, which decide nothing."""

    protocol: str
    """``classic`` or ``consumer``; empty while that is not decided."""
    state: str
    """The state of its machine, by name."""
    joined: bool = False
    """Whether it is in the group, as far as it knows."""
    rebalancing: bool = False
    """Whether it is on its way to other partitions, or to its first; also while only the application is waited for."""
    reason: str = ""
    """Why it is rebalancing."""
    assignor: str = ""
    """The assignor of a member that computed what is assigned; empty: the coordinator computed it, or nothing is assigned."""


class MembershipContext(NamedTuple):
    """What a membership works with. ``notify`` puts a notification into the application's queue."""

    config: ConsumerConfig
    subscription: Subscription
    coordinator: CoordinatorManager
    metadata: MetadataManager
    notify: Callable[[object], None]
    backoff: ExponentialBackoff
    polls: PollTimer


class Refusals:
    """How long the coordinator has repeatedly refused a member's requests.

    No refusal stays silent for ever: the error is reported once per ``patience`` (milliseconds), and the next ``poll()`` raises it.
    """

    def __init__(self, patience: int, notify: Callable[[object], None]) -> None:
        self.count = 0
        """Refusals since the last request that was accepted."""
        self._patience = patience
        self._notify = notify
        self._since = 0

    def refused(self, error: OttlaError, now: Now, patience: int = 0) -> None:
        """A request was refused and is sent again. ``patience``: how long that is normal, if longer than usual."""
        self.count += 1
        if self.count == 1:
            self._since = now.mono
        elif now.mono - self._since >= max(patience, self._patience):
            self._since = now.mono
            self._notify(ErrorNotification(error))

    def accepted(self) -> None:
        """A request was accepted."""
        self.count = 0


class Membership(Protocol):
    """One member of one group. Also a ``RequestManager``."""

    @property
    def failure(self) -> OttlaError | None:
        """Why this consumer can never be a member again; ``None``: it can."""

    @property
    def group_topics(self) -> frozenset[str]:
        """Topics whose metadata the member needs besides its own: those of the whole group, where it is the leader."""

    @property
    def follows_all_topics(self) -> bool:
        """Whether the member finds out by itself what a pattern matches, and so needs the metadata of all topics."""

    @property
    def status(self) -> MemberStatus:
        """The status of the member now."""

    @property
    def joins_as_new_member(self) -> bool:
        """Whether the member is about to join without an identity yet: it could still use the other protocol."""

    def metadata(self) -> ConsumerGroupMetadata:
        """The membership as a transactional producer needs it."""

    def polled(self, now: Now) -> None:
        """The application is alive: join if need be, and count ``max.poll.interval.ms`` from now on."""

    def prepared(self, token: int, now: Now) -> None:
        """The application has committed and run its listener for the rebalance that ``token`` names."""

    def accepted(self, token: int) -> None:
        """The application has run ``on_assign`` for the assignment that ``token`` names."""

    def user_data(self, command: UserData) -> None:
        """The user data of the application's assignors. That of another protocol is ignored."""

    def assigned(self, command: Assigned) -> None:
        """The application's assignor has answered. An answer for another protocol is ignored."""

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """Leave the group, or remain in it; ``reply`` is called when the coordinator has answered, or is not asked."""

    def identity(self) -> MemberIdentity:
        """The identity for a commit. Raises the error that the commit would get if it were sent."""

    def reader(self) -> MemberIdentity:
        """The identity to send when commits are fetched; ``NO_MEMBER`` if the member needs none, or has none yet."""

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """The coordinator refused a commit because of who signed it: do what has to be done and give the error for the caller.

        A retriable error means that the commit may be signed and sent again.
        """

    def poll(self, now: Now) -> Poll:
        """See ``RequestManager``."""


def leaves(config: ConsumerConfig, operation: GroupMembershipOperation) -> bool:
    """Whether a member goes for good when its consumer ends; else the coordinator waits for it until its session is over."""
    return operation is GroupMembershipOperation.LEAVE_GROUP or (operation is DEFAULT and config.group_instance_id is None)


def not_a_member(config: ConsumerConfig, *, expired: bool, cause: BrokerError | None = None) -> CommitFailedError:
    """Why a commit cannot be made any more; ``expired``: because the application did not poll."""
    text = f"nothing was committed: this consumer is no longer a member of group {config.group_id!r}"
    hint = (
        "it did not poll() within max_poll_interval, or a processing() block was silent beyond its limit: poll() to rejoin,"
        " and handle fewer records per poll, announce long work, or raise the limit"
    )
    return CommitFailedError(text, hint=hint if expired else None, cause=cause)
