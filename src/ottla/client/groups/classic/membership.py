"""The classic membership: the state machine of JoinGroup, SyncGroup, Heartbeat and LeaveGroup, with the liveness of KIP-62.

Owns the member's state and generation, and the partitions that the application must give up and take over. Must not know commits,
positions or user code: a notification tells the application what to do in a rebalance, and a command answers it. Invariants: all
transitions are those of ``TRANSITIONS``; JoinGroup is sent only after the application, inside ``poll()``, has committed and given
up its partitions; a response for an earlier generation has no effect; ``max.poll.interval.ms`` is the only deadline of the
application.

Eager: the member gives up all partitions before each join. Cooperative (KIP-429): it keeps them, continues to read, and lists them
in JoinGroup; it gives up those that the new assignment revokes (REVOKING), and then joins once more, so that others can get them.

A member that joins, from the first poll on::

    UNJOINED -- poll --> JOINING -- JoinGroup answered --> SYNCING -- SyncGroup answered --> STABLE
                                 \\- as leader --> ASSIGNING -- assigned --> SYNCING
    STABLE -- REBALANCE_IN_PROGRESS --> PREPARING -- the application is ready --> JOINING

``JoinSync``, ``Session`` and ``PendingLeave`` make the requests when the membership polls them. They call it only with the outcome
of a request.

Sources: KIP-62, KIP-429, KIP-394 (MEMBER_ID_REQUIRED), KIP-345 (static members), KIP-814 (skipAssignment), the protocol guide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ottla.assignors import MemberAssignment
from ottla.client.effects import AnySend, Poll
from ottla.client.events import Assigned, AssignmentReceived, ErrorNotification, RebalanceNeeded, Reply, UserData
from ottla.client.groups.classic.join_sync import JoinSync
from ottla.client.groups.classic.session import PendingLeave, Session
from ottla.client.groups.classic.states import (
    HEARTBEAT_REACTIONS,
    IN_GENERATION,
    JOIN_REACTIONS,
    REBALANCING,
    SYNC_REACTIONS,
    TRANSITIONS,
    ClassicReaction,
    Generation,
    Input,
    State,
    reaction_to,
)
from ottla.client.groups.membership import DEFAULT, NO_MEMBER, MemberIdentity, MembershipContext, MemberStatus, not_a_member
from ottla.client.poll_timer import PollTimer
from ottla.client.subscription import Mode, SubscriptionState
from ottla.errors import (
    BrokerError,
    FencedInstanceIdError,
    OttlaError,
    ProtocolError,
    RebalanceInProgressError,
    broker_error,
)
from ottla.protocol import ErrorCode
from ottla.protocol.messages import heartbeat_response, join_group_response, sync_group_response
from ottla.types import ConsumerGroupMetadata, GroupMembershipOperation, Now, TopicPartition

_log = logging.getLogger(__name__)


class ClassicMembership:
    """A member of a classic group (see the module)."""

    def __init__(self, context: MembershipContext) -> None:
        self.state = State.UNJOINED
        self.generation = Generation()
        self.failure: OttlaError | None = None
        self._config = config = context.config
        self._subscription = context.subscription
        self._coordinator = context.coordinator
        self._notify = context.notify
        self._polls = context.polls
        self._join_sync = JoinSync(context, self._on_joined, self._on_synced, self._on_join_failure)
        self._session = Session(config, context.coordinator, context.backoff, context.notify, self._on_heartbeat)
        self._leave = PendingLeave(config, context.coordinator, self._left)
        self._revocation = Revocation(context.subscription, context.notify, context.polls, cooperative=self._join_sync.cooperative)
        self._reason = ""
        """The reason of the rebalance, which JoinGroup contains (KIP-800)."""
        self._unsent: list[AnySend] = []
        """Heartbeats already noted as in flight. If the next step of a poll raises, the next poll returns them."""
        context.coordinator.on_fatal(self._on_lookup_failed)

    def __repr__(self) -> str:
        return f"<ClassicMembership {self.state.name} {self.generation}>"

    @property
    def group_topics(self) -> frozenset[str]:
        """See ``Membership``."""
        leader = self._join_sync.leader
        return frozenset() if leader is None else leader.topics

    @property
    def follows_all_topics(self) -> bool:
        """See ``Membership``."""
        return self._subscription.pattern is not None

    @property
    def status(self) -> MemberStatus:
        """See ``Membership``."""
        joined = self.generation.number >= 0 and self.state in IN_GENERATION
        assignor = (self.generation.protocol or "") if joined else ""
        return MemberStatus("classic", self.state.name, joined, self.state in REBALANCING, self._reason, assignor)

    @property
    def joins_as_new_member(self) -> bool:
        """See ``Membership``."""
        is_new = self.state is State.JOINING and not self.generation.member_id
        return is_new and not self._join_sync.in_flight and not self._leave.due

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        number, member_id, _ = self.generation
        return ConsumerGroupMetadata(self._config.group_id or "", number, member_id, self._config.group_instance_id)

    # -- commands of the application --------------------------------------------------------------------------------------

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self._polls.polled(now, self._config.poll_interval("classic"))
        if self._subscription.mode is not Mode.TOPICS:
            return
        if self.state is State.UNJOINED:
            self._join_sync.forget_refusals()
        if self.state in (State.UNJOINED, State.FAILED):
            self._move(Input.POLLED)
            self._join_sync.send_after_failures(now)
        elif self._join_sync.is_outdated:
            self._begin_rebalance("the subscription has changed")

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``. An answer to an older notification is ignored: the answer to the newer one follows."""
        if not self._revocation.is_answered_by(token) or self.state not in (State.PREPARING, State.REVOKING, State.FENCED):
            return
        self._revocation.give_up()
        if self.state is State.REVOKING:
            self._move(Input.PREPARED)
            self._hand_over()
        elif self.state is State.PREPARING:
            self._move(Input.PREPARED)
            self._join_sync.send_at(now.mono)

    def accepted(self, token: int) -> None:
        """See ``Membership``."""
        if not self._revocation.is_answered_by(token) or self.state is not State.STABLE:
            return
        if reason := self._revocation.accept():
            # The group is cooperative, and the application is inside poll(). It keeps its partitions, so it need not prepare.
            self._reason = reason
            self._join_sync.send_at(0)
            self._move(Input.REBALANCE)
            self._move(Input.PREPARED)

    def user_data(self, command: UserData) -> None:
        """See ``Membership``."""
        if command.protocol == "classic":
            self._join_sync.user_data(command)

    def assigned(self, command: Assigned) -> None:
        """See ``Membership``. A result for an earlier generation is ignored."""
        if self.state is not State.ASSIGNING or self._join_sync.leader is None or command.protocol != "classic":
            return
        if command.generation != self.generation.number:
            return
        try:
            self._join_sync.take_assignment(command)
        except OttlaError as error:
            self._fail(error)
        else:
            self._move(Input.ASSIGNED)

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """See ``Membership``. A member that remains is removed when its session expires."""
        self._subscription.set_partitions(())
        member_id = self.generation.member_id
        self._leave.wait(reply)
        if self.state is State.LEAVING:
            return
        if self._join_sync.in_flight:
            # 1. The coordinator parks the JoinGroup until the other members have joined.
            # 2. A broker processes the requests of one connection in order: LeaveGroup would wait for the end of the rebalance.
            # So the connection is closed, and LeaveGroup goes over a new one.
            self._coordinator.disconnect(f"leaving the group: {reason}", now)
        self._forget(Generation())
        self._move(Input.LEAVE)
        if self._coordinator.node_id is None or not self._leave.request(member_id, reason, operation):
            self._left()

    def identity(self) -> MemberIdentity:
        """See ``Membership``."""
        if self._subscription.mode is not Mode.TOPICS:
            return NO_MEMBER
        if self.failure is not None:
            raise self.failure.afresh()
        if self.state in (State.STABLE, State.REVOKING, State.PREPARING) and self.generation.number >= 0:
            return MemberIdentity(self.generation.number, self.generation.member_id, self._config.group_instance_id)
        if self.state in (State.JOINING, State.ASSIGNING, State.SYNCING):
            raise RebalanceInProgressError(f"group {self._config.group_id!r} is rebalancing, so nothing is committed now")
        raise not_a_member(self._config, expired=self._polls.expired_once)

    def reader(self) -> MemberIdentity:
        """See ``Membership``. Any client may fetch the offsets of a classic group."""
        return NO_MEMBER

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``."""
        what = f"committing offsets of group {self._config.group_id!r}"
        unchanged = (sent_by.generation, sent_by.member_id) == self.generation[:2]
        if sent_by == NO_MEMBER:
            return broker_error(code, what)
        if code == ErrorCode.rebalance_in_progress:
            self._begin_rebalance("the group is already rebalancing")
            return broker_error(code, what)
        if code == ErrorCode.fenced_instance_id and unchanged:
            return self._fence(what)
        if unchanged:
            self._lose_membership(
                HEARTBEAT_REACTIONS.get(code, ClassicReaction.OUTDATED), f"{broker_error(code).name} in answer to a commit"
            )
        elif self.state in (State.PREPARING, State.JOINING, State.ASSIGNING, State.SYNCING):
            # 1. The commit is sent in generation 5.
            # 2. The group rebalances, and the coordinator refuses the commit.
            # 3. The member can commit again after it has joined generation 6, so the caller gets a retriable error.
            return RebalanceInProgressError(what)
        return not_a_member(self._config, expired=self._polls.expired_once, cause=broker_error(code, what))

    # -- a RequestManager -------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Return the requests of the state, and heartbeats."""
        self._join_sync.refresh_topics()
        if self.state in (State.UNJOINED, State.FENCED) and not self._leave.due:
            return Poll()
        if self.state is not State.LEAVING:
            self._check_poll_interval(now)
            self._check_metadata()
        if self._in_session:
            self._unsent += self._session.poll(self.generation, now)
        requests = self._requests(now)
        sends, self._unsent = (*self._unsent, *requests), []
        return Poll(sends, self._wake_at(now))

    def _requests(self, now: Now) -> list[AnySend]:
        if self._leave.due:
            return self._leave.poll(awaited=self.state is State.LEAVING)
        if self.state is State.ASSIGNING and self._join_sync.assign(self.generation):
            self._move(Input.ASSIGNED)
        return self._join_sync.poll(self.state, self.generation, self._reason, now)

    def _wake_at(self, now: Now) -> int | None:
        times = self._join_sync.wake_at if self.state in (State.JOINING, State.SYNCING) else []
        if self._in_session:
            times += self._session.deadlines()
        times.append(self._polls.deadline)
        return min((at for at in times if at > now.mono), default=None)

    @property
    def _in_session(self) -> bool:
        """Whether heartbeats keep the member alive."""
        return self.state in IN_GENERATION and self.generation.number >= 0

    # -- causes of a rebalance --------------------------------------------------------------------------------------------

    def _on_heartbeat(self, sent_in: Generation, response: heartbeat_response.HeartbeatResponse, now: Now) -> None:
        reaction = self._session.on_answer(sent_in, response, self.generation if self.state in IN_GENERATION else None, now)
        if reaction is ClassicReaction.REJOIN:
            self._begin_rebalance("group is already rebalancing")
        elif reaction is ClassicReaction.FENCED:
            self._fence("a heartbeat was refused")
        elif reaction is not None:
            self._lose_membership(reaction, f"{broker_error(int(response.error_code)).name} in answer to a heartbeat")

    def _check_poll_interval(self, now: Now) -> None:
        """Leave the group if the application has not polled within ``max.poll.interval.ms`` (KIP-62), and log one line."""
        joined = self.generation.member_id != "" or self.state is State.JOINING
        if not joined or self._join_sync.in_flight or self.state in (State.FAILED, State.FENCED) or not self._polls.expired(now):
            return
        self._polls.explain(now)
        self._leave.request(self.generation.member_id, "consumer poll timeout has expired.")
        self._reason = "consumer pro-actively leaving the group"
        self._forget(Generation())
        self._move(Input.EXPIRED)
        self._revocation.ask_to_prepare(lost=True)

    def _check_metadata(self) -> None:
        """As the leader, rebalance if the partitions of the group's topics have changed: no other member does."""
        leader = self._join_sync.leader
        if leader is not None and self.state is State.STABLE and leader.is_outdated():
            self._begin_rebalance("the partitions of the group's topics have changed")

    def _begin_rebalance(self, reason: str) -> None:
        """Ask the application to prepare for a join; until it has, heartbeats keep the member in the group.

        In a cooperative group an assignment is completed first:

        1. Another member has given up a partition for this one, and SyncGroup has brought it.
        2. Before the application has taken it over, the next rebalance begins.
        3. The other members rely on the partition being read here, or given up again. So the application takes it over, and then
           the member joins.
        """
        if self.state in (State.REVOKING, State.STABLE) and self._revocation.is_unfinished:
            self._revocation.rejoin_afterwards(reason)
        elif self.state is State.STABLE:
            self._reason = reason
            self._move(Input.REBALANCE)
            self._revocation.ask_to_prepare(lost=False)

    # -- responses --------------------------------------------------------------------------------------------------------

    def _on_join_failure(self, error: OttlaError, now: Now) -> None:
        """Retry JoinGroup or SyncGroup without a response; member id and generation do not change."""
        if not error.retriable:
            self._fail(error)
            return
        self._join_sync.retry_later(now)
        if self.state is State.SYNCING:
            # The coordinator may have answered, and the group may be in a later generation by now. Only another join can tell.
            self._move(Input.REJOIN)

    def _on_joined(self, response: join_group_response.JoinGroupResponse, now: Now) -> None:
        if response.error_code:
            self._refused(JOIN_REACTIONS, int(response.error_code), now, response.member_id)
            return
        try:
            self.generation = self._join_sync.joined(response, now)
        except BrokerError as mismatch:
            self._fail(mismatch)
            return
        self._session.begin(now)
        self._polls.joined()
        if response.leader != response.member_id:
            self._move(Input.JOINED)
            return
        try:
            self._join_sync.lead(response)
        except ProtocolError as error:
            self._fail(error)
            return
        self._move(Input.LEADS)
        if response.skip_assignment:
            self._move(Input.ASSIGNED)

    def _on_synced(self, response: sync_group_response.SyncGroupResponse, now: Now) -> None:
        if response.error_code:
            self._refused(SYNC_REACTIONS, int(response.error_code), now)
            return
        try:
            assignment = self._join_sync.synced(response, self.generation)
        except (BrokerError, ProtocolError) as error:
            self._fail(error)
            return
        if assignment is None:
            self._reason = "the subscription has changed"
            self._move(Input.REJOIN)
            return
        self._reason = ""
        if self._revocation.receive(assignment):
            self._move(Input.TAKEN)
        else:
            self._move(Input.SYNCED)
            self._hand_over()

    def _hand_over(self) -> None:
        self._revocation.hand_over(self.generation.protocol or "", self.metadata())

    def _refused(self, reactions: Mapping[int, ClassicReaction], code: int, now: Now, member_id: str = "") -> None:
        """Handle an error code of JoinGroup or SyncGroup. ``member_id``: the one in the response to JoinGroup."""
        what = f"joining group {self._config.group_id!r}"
        error = broker_error(code, what)
        reaction = reaction_to(error, reactions)
        self._reason = f"rebalance failed due to {error.name}"
        if reaction is ClassicReaction.FENCED:
            self._fence(what)
            return
        if reaction is ClassicReaction.FATAL:
            if error.code == ErrorCode.unsupported_version and self._config.group_instance_id is not None:
                error.hint = "the brokers may be too old for static members: leave group_instance_id out"
            self._fail(error, removed=True)
            return
        self._join_sync.refused(error, reaction, now)
        if reaction in (ClassicReaction.UNKNOWN, ClassicReaction.OUTDATED):
            self._lose_membership(reaction, error.name)
            return
        if reaction is ClassicReaction.ADOPT:
            # KIP-394: a new member first gets its id, so that a client whose first JoinGroup is lost leaves no member behind.
            self.generation = Generation(-1, member_id)
            self._reason = f"need to re-join with the given member-id: {member_id}"
        self._move(Input.REJOIN)

    def _left(self) -> None:
        if self.state is State.LEAVING:
            self._move(Input.LEFT)
        self._leave.end()

    # -- the end of a generation ------------------------------------------------------------------------------------------

    def _fail(self, error: OttlaError, *, removed: bool = False) -> None:
        """Report an error to the application; its next poll joins again.

        ``removed``: the coordinator refuses the member, so the group continues without it, and the partitions that it kept through
        the rebalance are lost. Otherwise it keeps them until the coordinator removes it.
        """
        self._join_sync.failed()
        self._notify(ErrorNotification(error))
        if removed and self._subscription.partitions:
            self._lose_membership(ClassicReaction.OUTDATED, str(error))
        else:
            self._move(Input.FAIL)

    def _lose_membership(self, reaction: ClassicReaction, why: str) -> None:
        """Handle the loss of the membership: the coordinator has removed the member or continued without it."""
        self._reason = f"rebalance failed due to {why}"
        member_id = "" if reaction is ClassicReaction.UNKNOWN else self.generation.member_id
        self._forget(Generation(-1, member_id))
        if not self._subscription.partitions and self.state in (State.JOINING, State.ASSIGNING, State.SYNCING, State.FAILED):
            if self.state is not State.FAILED:
                self._move(Input.REJOIN)
            return
        _log.warning("consumer of group %r lost its partitions: %s", self._config.group_id, why)
        self._move(Input.DROPPED)
        self._revocation.ask_to_prepare(lost=True)

    def _fence(self, what: str) -> OttlaError:
        """Fail for good, since another member has the instance id (KIP-345). Another join would fence that member in turn."""
        self.failure = FencedInstanceIdError(what)
        self.failure.fatal = True
        self._forget(Generation())
        self._move(Input.FENCE)
        self._subscription.version += 1
        self._revocation.ask_to_prepare(lost=True)
        return self.failure

    def _on_lookup_failed(self, error: OttlaError, now: Now) -> None:
        """Report a lookup of the coordinator that failed with a permanent error. Lookups go on."""
        del now
        if self.state is not State.UNJOINED:
            self._notify(ErrorNotification(error))
        if isinstance(error, BrokerError) and error.code == ErrorCode.group_authorization_failed and self.generation.number >= 0:
            # Without a coordinator no heartbeats can be sent. The group continues without this member when its session expires, and
            # no response reports that: so the partitions count as lost now.
            self._lose_membership(ClassicReaction.OUTDATED, str(error))

    def _forget(self, generation: Generation) -> None:
        """Change the identity, and ignore the responses to earlier requests."""
        self.generation = generation
        self._unsent.clear()
        self._join_sync.abandon()
        self._revocation.forget()

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a classic member in state {self.state.name} has no transition for {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        if state is State.JOINING:
            self._join_sync.begin()
        self.state = state
        self._subscription.version += 1


class Revocation:
    """The partitions that the application must give up and take over.

    It writes the partitions of the subscription and notifies the application; it reads the deadline of the application's next poll.
    Only the answer to the latest notification counts. New partitions are owned after all others were given up, and read after the
    application has taken them over. ``cooperative``: whether partitions are kept through a rebalance.
    """

    def __init__(
        self, subscription: SubscriptionState, notify: Callable[[object], None], polls: PollTimer, *, cooperative: bool
    ) -> None:
        self._subscription = subscription
        self._notify = notify
        self._polls = polls
        self._cooperative = cooperative
        self._token = 0
        self._revoked: frozenset[TopicPartition] = frozenset()
        self._assignment: MemberAssignment | None = None
        """The leader's assignment, until the application has taken it over."""
        self._rejoin = ""
        """The reason to join once more after the application has taken over the assignment; empty: none."""

    @property
    def is_unfinished(self) -> bool:
        """Whether the application has not taken over a cooperative assignment yet."""
        return self._cooperative and self._assignment is not None

    def rejoin_afterwards(self, reason: str) -> None:
        """Join once more after the application has taken over the assignment. The first reason counts."""
        self._rejoin = self._rejoin or reason

    def is_answered_by(self, token: int) -> bool:
        """Whether an answer is for the latest notification."""
        return token == self._token

    def ask_to_prepare(self, *, lost: bool) -> None:
        """Ask the application to give up all partitions; in a cooperative group, those of unsubscribed topics."""
        partitions = frozenset(self._subscription.partitions)
        if self._cooperative and not lost:
            partitions = frozenset(tp for tp in partitions if tp.topic not in self._subscription.topics)
        self._ask_to_give_up(partitions, lost=lost)

    def give_up(self) -> None:
        """Remove the partitions that the application has given up."""
        self._subscription.set_partitions(self._subscription.partitions.keys() - self._revoked)

    def receive(self, assignment: MemberAssignment) -> bool:
        """Store the leader's assignment. If it revokes partitions, ask the application to give them up first; return whether."""
        self._assignment = assignment
        taken = self._subscription.partitions.keys() - frozenset(assignment.partitions)
        if taken:
            self._rejoin = "need to revoke partitions and re-join"
            self._ask_to_give_up(frozenset(taken), lost=False)
        return bool(taken)

    def hand_over(self, assignor: str, group: ConsumerGroupMetadata) -> None:
        """Own the assigned partitions, and ask the application to take over the new ones."""
        assert self._assignment is not None
        added = self._subscription.set_partitions(self._assignment.partitions, await_acceptance=True)
        self._token += 1
        self._notify(AssignmentReceived(self._token, added, assignor, self._assignment, group))

    def accept(self) -> str:
        """Note that the application has taken over the assignment. Return the reason to join again at once; empty: none."""
        self._assignment = None
        self._subscription.accept()
        reason, self._rejoin = self._rejoin, ""
        return reason

    def forget(self) -> None:
        """Drop the assignment at the end of its generation."""
        self._assignment, self._rejoin = None, ""

    def _ask_to_give_up(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        self._revoked = partitions
        self._subscription.suspend(partitions)
        self._token += 1
        self._notify(RebalanceNeeded(self._token, partitions, lost, self._polls.deadline))
