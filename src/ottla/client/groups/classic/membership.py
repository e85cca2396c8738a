"""The classic membership: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, with the liveness of KIP-62.

Owns the member's state, its generation and the timers of the session. Must not know commits, positions or user code: what the
application has to do in a rebalance comes in a notification, and it answers with a command. Invariants: all transitions are
those of ``TRANSITIONS``; JoinGroup leaves only when the application, inside ``poll()``, has committed and given its partitions
up; an answer that belongs to an earlier generation changes nothing; ``max.poll.interval.ms`` is the only deadline that the
application has.

Eager: all partitions are given up before each join. Cooperative (KIP-429): they are kept and read on, and said in the join; what
the new assignment takes away is given up then (REVOKING), and because of that the member joins once more.

A member that joins, from the first poll on::

    UNJOINED -- poll --> JOINING -- JoinGroup answered --> SYNCING -- SyncGroup answered --> STABLE
                                 \\- as leader --> ASSIGNING -- assigned --> SYNCING
    STABLE -- heartbeat says: rebalance --> PREPARING -- the application is ready --> JOINING

Sources: KIP-62, KIP-429, KIP-394 (MEMBER_ID_REQUIRED), KIP-345 (static members), KIP-814 (skipAssignment), the protocol guide.
"""

from __future__ import annotations

import logging
from typing import Any

from ottla.client.commands import Assigned, Reply, UserData
from ottla.client.effects import Poll
from ottla.client.groups.classic.dialogue import Dialogue
from ottla.client.groups.classic.requests import Tag
from ottla.client.groups.classic.states import (
    HEARTBEAT_REACTIONS,
    IN_GENERATION,
    REBALANCING,
    Generation,
    Input,
    Reaction,
    State,
)
from ottla.client.groups.membership import DEFAULT, NOBODY, MemberIdentity, Standing, not_a_member
from ottla.client.subscription import Mode
from ottla.errors import (
    DisconnectedError,
    OttlaError,
    OttlaTimeoutError,
    RebalanceInProgressError,
    broker_error,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import GroupMembershipOperation, Now

_log = logging.getLogger(__name__)


class ClassicMembership(Dialogue):
    """See the module."""

    @property
    def group_topics(self) -> frozenset[str]:
        """See ``Membership``."""
        return self._leadership.topics if self._leadership is not None else frozenset()

    @property
    def follows_all_topics(self) -> bool:
        """See ``Membership``."""
        return self._subscription.pattern is not None

    @property
    def standing(self) -> Standing:
        """See ``Membership``."""
        joined = self.generation.number >= 0 and self.state in IN_GENERATION
        assignor = (self.generation.protocol or "") if joined else ""
        return Standing("classic", self.state.name, joined, self.state in REBALANCING, self._reason, assignor)

    @property
    def joins_anew(self) -> bool:
        """See ``Membership``."""
        return self.state is State.JOINING and not self.generation.member_id and not self._in_flight and not self._leaving.due

    @property
    def _in_session(self) -> bool:
        """Whether it is heartbeats that keep the member alive."""
        return self.state in IN_GENERATION and self.generation.number >= 0

    # -- what the application does ----------------------------------------------------------------------------------------

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self._polls.polled(now, self._config.poll_interval("classic"))
        if self._subscription.mode is not Mode.TOPICS:
            return
        if self.state is State.UNJOINED:
            self._refusals.accepted()  # earlier refusals belong to another membership
        if self.state in (State.UNJOINED, State.FAILED):
            self._move(Input.POLLED)
            self._retry_at = now.mono + (self._backoff.delay(self._attempts - 1) if self._attempts else 0)
        elif self._joined_topics != self._subscription.topics:
            self._begin_rebalance("the subscription has changed")

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``. An answer to an older notification is void: the newer one will be answered too."""
        if not self._handover.answers(token) or self.state not in (State.PREPARING, State.REVOKING, State.FENCED):
            return
        self._handover.give_up()
        if self.state is State.REVOKING:
            self._move(Input.PREPARED)
            self._hand_over()
        elif self.state is State.PREPARING:
            self._move(Input.PREPARED)
            self._retry_at = now.mono

    def accepted(self, token: int) -> None:
        """See ``Membership``."""
        if not self._handover.answers(token) or self.state is not State.STABLE:
            return
        if reason := self._handover.accept():
            # The application is inside poll(), and what it kept it may go on reading: nothing has to be asked of it.
            self._reason, self._retry_at = reason, 0
            self._move(Input.REBALANCE)
            self._move(Input.PREPARED)

    def user_data(self, command: UserData) -> None:
        """See ``Membership``."""
        if command.protocol == "classic":
            self._told.update(command.by_assignor)

    def assigned(self, command: Assigned) -> None:
        """See ``Membership``. An answer about an earlier generation is void."""
        if self.state is not State.ASSIGNING or self._leadership is None or command.protocol != "classic":
            return
        if command.generation != self.generation.number:
            return
        try:
            if command.error is not None:
                raise command.error
            self._assignments = self._leadership.check(command.shares)
        except OttlaError as error:
            self._fail(error)
        else:
            self._move(Input.ASSIGNED)

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """See ``Membership``. A member that remains stays a member until its session times out."""
        self._subscription.set_partitions(())
        member = self.generation.member_id
        self._leaving.wait(reply)
        if self.state is State.LEAVING:
            return
        if self._in_flight:
            # A parked JoinGroup would hold the LeaveGroup back on its connection.
            self._coordinator.hang_up(f"leaving the group: {reason}", now)
        self._forget(Generation())
        self._move(Input.LEAVE)
        if self._coordinator.node_id is None or not self._leaving.owe(member, reason, operation):
            self._left()

    def identity(self) -> MemberIdentity:
        """See ``Membership``."""
        if self._subscription.mode is not Mode.TOPICS:
            return NOBODY
        if self.failure is not None:
            raise self.failure.afresh()
        if self.state in (State.STABLE, State.REVOKING, State.PREPARING) and self.generation.number >= 0:
            return MemberIdentity(self.generation.number, self.generation.member_id, self._config.group_instance_id)
        if self.state in (State.JOINING, State.ASSIGNING, State.SYNCING):
            raise RebalanceInProgressError(f"group {self._config.group_id!r} is rebalancing: nothing was committed")
        raise not_a_member(self._config, expired=self._polls.expired_once)

    def reader(self) -> MemberIdentity:
        """See ``Membership``. Any client may look up the commits of a classic group."""
        return NOBODY

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``."""
        what = f"committing offsets of group {self._config.group_id!r}"
        unchanged = (sent_by.generation, sent_by.member_id) == self.generation[:2]
        if sent_by == NOBODY:
            return broker_error(code, what)
        if code == ErrorCode.rebalance_in_progress:
            self._begin_rebalance("the group is already rebalancing")
            return broker_error(code, what)
        if code == ErrorCode.fenced_instance_id and unchanged:
            return self._fence(what)
        if unchanged:
            self._dropped(HEARTBEAT_REACTIONS.get(code, Reaction.OUTDATED), f"{broker_error(code).name} in answer to a commit")
        elif self.state in (State.PREPARING, State.JOINING, State.ASSIGNING, State.SYNCING):
            return RebalanceInProgressError(what)
        return not_a_member(self._config, expired=self._polls.expired_once, cause=broker_error(code, what))

    # -- the two shapes ---------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Send what the state calls for."""
        self._pattern.refresh()
        if self.state in (State.UNJOINED, State.FENCED) and not self._leaving.due:
            return Poll()
        if self.state is not State.LEAVING:
            self._watch_poll_interval(now)
            self._watch_metadata(now)
        heartbeat = self._session.poll(self.generation, now) if self._in_session else []
        return Poll((*heartbeat, *self._dialogue(now)), self._wake_at(now))

    def on_response(self, tag: Tag, message: Any, now: Now) -> None:
        """The answer to one of the four requests."""
        if tag.api is Api.HEARTBEAT:
            self._on_heartbeat(tag, message, now)
        elif tag.round == self._round:
            self._in_flight = False
            self._ON_ANSWER[tag.api](self, message, now)

    def on_failure(self, tag: Tag, error: OttlaError, now: Now) -> None:
        """No answer: look the coordinator up again, and try again; member id and generation stay."""
        if isinstance(error, DisconnectedError | OttlaTimeoutError):
            self._coordinator.mark_unknown(str(error), now)
        if tag.api is Api.HEARTBEAT:
            self._session.on_failure(error, now)
            return
        if tag.round != self._round:
            return
        self._in_flight = False
        if tag.api is Api.LEAVE_GROUP:
            self._left()
        elif error.retriable:
            self._try_later(now)
            if self.state is State.SYNCING:
                self._move(Input.REJOIN)
        else:
            self._fail(error)

    # -- session: heartbeats and the poll interval ------------------------------------------------------------------------

    def _on_heartbeat(self, tag: Tag, message: Any, now: Now) -> None:
        reaction = self._session.on_answer(tag, message, self.generation if self.state in IN_GENERATION else None, now)
        if reaction is Reaction.REJOIN:
            self._begin_rebalance("group is already rebalancing")
        elif reaction is Reaction.FENCED:
            self._fence("a heartbeat was refused")
        elif reaction is not None:
            self._dropped(reaction, f"{broker_error(int(message.error_code)).name} in answer to a heartbeat")

    def _watch_poll_interval(self, now: Now) -> None:
        """KIP-62: a member whose application does not poll leaves the group, and logs one line."""
        joined = self.generation.member_id != "" or self.state is State.JOINING
        if not joined or self._in_flight or self.state in (State.FAILED, State.FENCED) or not self._polls.expired(now):
            return
        self._polls.explain(now)
        self._leaving.owe(self.generation.member_id, "consumer poll timeout has expired.")
        self._reason = "consumer pro-actively leaving the group"
        self._forget(Generation())
        self._move(Input.EXPIRED)
        self._handover.prepare(lost=True)

    def _watch_metadata(self, now: Now) -> None:
        """The leader is responsible for assigning new partitions."""
        if self._leadership is not None and self.state is State.STABLE and self._leadership.outdated():
            self._begin_rebalance("the partitions of the group's topics have changed")

    def _begin_rebalance(self, reason: str) -> None:
        """The application is asked to get ready; until then the member keeps its place with heartbeats.

        In a cooperative group what is being taken over comes first: others count on it that it was given up or is read.
        """
        if self.state in (State.REVOKING, State.STABLE) and self._handover.must_be_finished:
            self._handover.again = self._handover.again or reason
        elif self.state is State.STABLE:
            self._reason = reason
            self._move(Input.REBALANCE)
            self._handover.prepare(lost=False)

    def _wake_at(self, now: Now) -> int | None:
        times = [self._retry_at] if self.state in (State.JOINING, State.SYNCING) and not self._in_flight else []
        if self._in_session:
            times += self._liveness.session_deadlines()
        times.append(self._polls.deadline)
        return min((at for at in times if at > now.mono), default=None)
