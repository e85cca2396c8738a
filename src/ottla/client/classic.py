"""The classic membership: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, with the liveness of KIP-62.

Owns the member's state, its generation and the timers of the session. Must not know commits, positions or user code: what the
application has to do in a rebalance it is told by a notification, and it answers with a command. Invariants: all transitions are
those of ``TRANSITIONS``; JoinGroup leaves only when the application, inside ``poll()``, has committed and given its partitions
up; an answer that belongs to an earlier generation changes nothing; ``max.poll.interval.ms`` is the only deadline that the
application has.

The eager protocol: all partitions are given up before each join (KIP-429's incremental way is another machine's business).

A member that joins, from the first poll on::

    UNJOINED -- poll --> JOINING -- JoinGroup answered --> SYNCING -- SyncGroup answered --> STABLE
                                 \\- as leader --> ASSIGNING -- metadata is fresh --> SYNCING
    STABLE -- heartbeat says: rebalance --> PREPARING -- the application is ready --> JOINING

Sources: KIP-62, KIP-394 (MEMBER_ID_REQUIRED), KIP-345 (static members), KIP-814 (skipAssignment), the protocol guide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.client import classic_requests as requests
from ottla.client.backoff import ExponentialBackoff
from ottla.client.classic_requests import PROTOCOL_TYPE, Tag
from ottla.client.classic_session import Session
from ottla.client.classic_states import (
    FENCED_INSTANCE_ID,
    HEARTBEAT_REACTIONS,
    IN_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    JOIN_REACTIONS,
    REBALANCE_IN_PROGRESS,
    REBALANCING,
    TRANSITIONS,
    Generation,
    Input,
    Reaction,
    State,
)
from ottla.client.coordinator import CoordinatorManager
from ottla.client.effects import Poll, Send, ToCoordinator
from ottla.client.leader import Leadership
from ottla.client.membership import NOBODY, MemberIdentity, Reply, Standing
from ottla.client.metadata import MetadataManager
from ottla.client.notifications import AssignmentReceived, ErrorNotification, RebalanceNeeded
from ottla.client.patterns import PatternTopics
from ottla.client.poll_watch import PollWatch
from ottla.client.subscription import Mode, Subscription
from ottla.config import ConsumerConfig
from ottla.errors import (
    BrokerError,
    CommitFailedError,
    DisconnectedError,
    OttlaError,
    OttlaTimeoutError,
    ProtocolError,
    broker_error,
)
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import decode_assignment
from ottla.types import ConsumerGroupMetadata, Now

_log = logging.getLogger(__name__)

JOIN_LAPSE = 5_000
"""Milliseconds that a JoinGroup is given beyond the rebalance timeout."""

_INT_MAX = 2**31 - 1


class _Farewell(NamedTuple):
    """A LeaveGroup that is still to be sent."""

    member_id: str
    reason: str


class ClassicMembership:
    """See the module."""

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        coordinator: CoordinatorManager,
        metadata: MetadataManager,
        notify: Callable[[object], None],
        backoff: ExponentialBackoff,
        polls: PollWatch,
    ) -> None:
        self.state = State.UNJOINED
        self.generation = Generation()
        self.failure: OttlaError | None = None
        self._config = config
        self._subscription = subscription
        self._coordinator = coordinator
        self._metadata = metadata
        self._notify = notify
        self._backoff = backoff
        self._session = Session(config, coordinator, backoff)
        self._liveness = self._session.liveness
        self._polls = polls
        self._round = 0
        self._in_flight = False
        self._attempts = 0
        self._retry_at = 0
        self._token = 0
        self._reason = ""
        self._joined_topics: frozenset[str] = frozenset()
        self._pattern = PatternTopics(config, subscription, metadata)
        self._leaves: list[Reply] = []
        self._farewell: _Farewell | None = None
        self._leadership: Leadership | None = None
        self._assignments: dict[str, bytes] = {}
        coordinator.on_fatal(self._lookup_failed)

    def __repr__(self) -> str:
        return f"<ClassicMembership {self.state.name} {self.generation}>"

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
        return Standing("classic", self.state.name, joined, self.state in REBALANCING, self._reason)

    @property
    def _in_session(self) -> bool:
        """Whether it is heartbeats that keep the member alive."""
        return self.state in IN_GENERATION and self.generation.number >= 0

    # -- what the application does ----------------------------------------------------------------------------------------

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        number, member_id, _ = self.generation
        return ConsumerGroupMetadata(self._config.group_id or "", number, member_id, self._config.group_instance_id)

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self._polls.polled(now)
        if self._subscription.mode is not Mode.TOPICS:
            return
        if self.state in (State.UNJOINED, State.FAILED):
            self._move(Input.POLLED)
            self._retry_at = now.mono + (self._backoff.delay(self._attempts - 1) if self._attempts else 0)
        elif self.state is State.STABLE and self._joined_topics != self._subscription.topics:
            self._begin_rebalance("the subscription has changed")

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``. An answer to an older notification is void: the newer one will be answered too."""
        if token != self._token or self.state not in (State.PREPARING, State.FENCED):
            return
        self._subscription.set_partitions(())
        if self.state is State.PREPARING:
            self._move(Input.PREPARED)
            self._retry_at = now.mono

    def accepted(self, token: int) -> None:
        """See ``Membership``."""
        if token == self._token and self.state is State.STABLE:
            self._subscription.accept()

    def leave(self, reason: str, reply: Reply, now: Now) -> None:
        """See ``Membership``. A static member stays a member until its session times out."""
        self._subscription.set_partitions(())
        member = self.generation.member_id
        if self.state is State.LEAVING:
            self._leaves.append(reply)
            return
        dynamic = member and self._config.group_instance_id is None
        if self._in_flight:
            # A parked JoinGroup would hold the LeaveGroup back on its connection.
            self._coordinator.hang_up(f"leaving the group: {reason}", now)
        self._forget(Generation())
        self._leaves.append(reply)
        self._move(Input.LEAVE)
        if dynamic and self._coordinator.node_id is not None:
            self._farewell = _Farewell(member, reason)
        else:
            self._left(None)

    def identity(self) -> MemberIdentity:
        """See ``Membership``."""
        if self._subscription.mode is not Mode.TOPICS:
            return NOBODY
        if self.failure is not None:
            raise self.failure
        if self.state in (State.STABLE, State.PREPARING) and self.generation.number >= 0:
            return MemberIdentity(self.generation.number, self.generation.member_id, self._config.group_instance_id)
        if self.state in (State.JOINING, State.ASSIGNING, State.SYNCING):
            raise broker_error(REBALANCE_IN_PROGRESS, f"group {self._config.group_id!r} is rebalancing: nothing was committed")
        raise _not_a_member(self._config, expired=self._polls.expired_once)

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``."""
        what = f"committing offsets of group {self._config.group_id!r}"
        unchanged = (sent_by.generation, sent_by.member_id) == self.generation[:2]
        if sent_by == NOBODY:
            return broker_error(code, what)
        if code == REBALANCE_IN_PROGRESS:
            self._begin_rebalance("the group is already rebalancing")
            return broker_error(code, what)
        if code == FENCED_INSTANCE_ID and unchanged:
            return self._fence(what)
        if unchanged:
            self._dropped(HEARTBEAT_REACTIONS[code], f"{broker_error(code).name} in answer to a commit")
        elif self.state in (State.PREPARING, State.JOINING, State.ASSIGNING, State.SYNCING):
            return broker_error(REBALANCE_IN_PROGRESS, what)
        return _not_a_member(self._config, expired=self._polls.expired_once, cause=broker_error(code, what))

    # -- the two shapes ---------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Send what the state calls for."""
        self._pattern.refresh()
        if self.state in (State.UNJOINED, State.FENCED) and self._farewell is None:
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
            self._ON_ANSWER[tag.api](self, tag, message, now)

    def on_failure(self, tag: Tag, error: OttlaError, now: Now) -> None:
        """No answer: look the coordinator up again, and try again; member id and generation stay."""
        if isinstance(error, DisconnectedError | OttlaTimeoutError):
            self._coordinator.mark_unknown(str(error), now)
        if tag.api is Api.HEARTBEAT:
            self._session.on_failure(now)
            return
        if tag.round != self._round:
            return
        self._in_flight = False
        if tag.api is Api.LEAVE_GROUP:
            self._left(None)
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
        """KIP-62: an application that does not poll gives its place up, and is told so in one line."""
        joined = self.generation.member_id != "" or self.state is State.JOINING
        if not joined or self._in_flight or self.state in (State.FAILED, State.FENCED) or not self._polls.expired(now):
            return
        self._polls.explain(now)
        member = self.generation.member_id
        if member and self._config.group_instance_id is None:
            self._farewell = _Farewell(member, "consumer poll timeout has expired.")
        self._reason = "consumer pro-actively leaving the group"
        self._forget(Generation())
        self._move(Input.EXPIRED)
        if self.state is State.PREPARING:
            self._ask_application(lost=True)

    def _watch_metadata(self, now: Now) -> None:
        """The leader answers for it that new partitions are read by somebody."""
        if self.state is State.STABLE and self._leadership is not None and self._leadership.outdated():
            self._begin_rebalance("the partitions of the group's topics have changed")

    # -- the dialogue: join, assign, sync, leave --------------------------------------------------------------------------

    def _dialogue(self, now: Now) -> list[Send]:
        if self._farewell is not None:
            return self._send_leave()
        if self._in_flight:
            return []
        if self.state is State.ASSIGNING and self._leadership is not None:
            assignments = self._leadership.assign()
            if assignments is not None:
                self._assignments = assignments
                self._move(Input.ASSIGNED)
        if self.state not in (State.JOINING, State.SYNCING) or self._retry_at > now.mono:
            return []
        target = self._coordinator.target()
        if target is None or (self.state is State.JOINING and self._pattern.awaits_metadata()):
            return []
        self._in_flight = True
        if self.state is State.SYNCING:
            return [self._send(Api.SYNC_GROUP, requests.sync_group(self._config, self.generation, self._assignments), target)]
        self._joined_topics = self._subscription.topics
        timeout = max(self._config.request_timeout_ms, min(self._config.max_poll_interval_ms + JOIN_LAPSE, _INT_MAX))
        message = requests.join_group(self._config, self.generation, self._joined_topics, self._reason)
        return [self._send(Api.JOIN_GROUP, message, target, timeout)]

    def _send(self, api: Api, message: Any, target: ToCoordinator, timeout: int | None = None) -> Send:
        return Send(api, message, target, Tag(api, self.generation, self._round), timeout or self._config.request_timeout_ms)

    def _on_joined(self, tag: Tag, message: Any, now: Now) -> None:
        code = int(message.error_code)
        if code:
            return self._refused(tag, JOIN_REACTIONS.get(code, Reaction.FATAL), code, message, now)
        if (mismatch := _unknown_protocol(message, self._config.partition_assignment_strategy)) is not None:
            return self._fail(mismatch)
        self.generation = Generation(message.generation_id, message.member_id, message.protocol_name)
        self._attempts, self._retry_at = 0, now.mono
        self._liveness.joined(now)
        self._polls.joined()
        self._assignments, self._leadership = {}, None
        if message.leader != message.member_id:
            return self._move(Input.JOINED)
        return self._lead(message)

    def _lead(self, message: Any) -> None:
        """This member assigns: it needs to know the topics of all the others."""
        try:
            self._leadership = Leadership(message.protocol_name, message.members, self._metadata)
        except ProtocolError as error:
            return self._fail(error)
        self._move(Input.LEADS)
        if message.skip_assignment:
            self._leadership.let_stand()
            self._move(Input.ASSIGNED)
        return None

    def _on_synced(self, tag: Tag, message: Any, now: Now) -> None:
        code = int(message.error_code)
        if code:
            return self._refused(tag, JOIN_REACTIONS.get(code, Reaction.FATAL), code, message, now)
        if (mismatch := _unknown_protocol(message, (None, self.generation.protocol))) is not None:
            return self._fail(mismatch)
        try:
            partitions = decode_assignment(message.assignment).partitions
        except ProtocolError as error:
            return self._fail(error)
        if not self._pattern.allows(partitions):
            self._reason = "the subscription has changed"
            return self._move(Input.REJOIN)
        self._reason, self._attempts = "", 0
        self._move(Input.SYNCED)
        added = self._subscription.set_partitions(partitions, await_acceptance=True)
        self._token += 1
        return self._notify(AssignmentReceived(self._token, added))

    def _send_leave(self) -> list[Send]:
        """Say good-bye: once, and only to a coordinator that is known. Who does not hear it notices when the session times out."""
        assert self._farewell is not None
        target = self._coordinator.target()
        if target is None:
            return []
        (member_id, reason), self._farewell = self._farewell, None
        # Only who waits in LEAVING wants to know the answer.
        self._in_flight = self.state is State.LEAVING
        tag = Tag(Api.LEAVE_GROUP, self.generation, self._round if self._in_flight else -1)
        message = requests.leave_group(self._config, member_id, reason)
        return [Send(Api.LEAVE_GROUP, message, target, tag, self._config.request_timeout_ms)]

    def _on_left(self, tag: Tag, message: Any, now: Now) -> None:
        code = int(message.error_code) or next((int(item.error_code) for item in message.members if item.error_code), 0)
        self._left(broker_error(code, f"leaving group {self._config.group_id!r}") if code else None)

    def _left(self, error: OttlaError | None) -> None:
        if error is not None:
            _log.info("%s", error)
        if self.state is State.LEAVING:
            self._move(Input.LEFT)
        replies, self._leaves = self._leaves, []
        for reply in replies:
            reply(None, None)

    _ON_ANSWER = {Api.JOIN_GROUP: _on_joined, Api.SYNC_GROUP: _on_synced, Api.LEAVE_GROUP: _on_left}  # noqa: RUF012

    # -- what goes wrong --------------------------------------------------------------------------------------------------

    def _refused(self, tag: Tag, reaction: Reaction, code: int, message: Any, now: Now) -> None:
        """JoinGroup or SyncGroup was answered with an error."""
        error = broker_error(code, f"joining group {self._config.group_id!r}")
        self._reason = f"rebalance failed due to {error.name}"
        if reaction is Reaction.FENCED:
            self._fence(f"joining group {self._config.group_id!r}")
            return
        if reaction is Reaction.FATAL:
            self._fail(error)
            return
        if reaction is Reaction.LOOK_UP:
            self._coordinator.mark_unknown(error.name, now)
        if reaction in (Reaction.LATER, Reaction.LOOK_UP):
            self._try_later(now)
        elif reaction is Reaction.ADOPT:
            self.generation = Generation(-1, message.member_id)
            self._reason = f"need to re-join with the given member-id: {message.member_id}"
        elif tag.generation == self.generation and reaction is Reaction.UNKNOWN:
            self.generation = Generation()
        elif tag.generation == self.generation and reaction is Reaction.OUTDATED:
            self.generation = Generation(-1, self.generation.member_id)
        self._move(Input.REJOIN)

    def _begin_rebalance(self, reason: str) -> None:
        """The application has to give its partitions up; until then the member keeps its place with heartbeats."""
        if self.state is not State.STABLE:
            return
        self._reason = reason
        self._move(Input.REBALANCE)
        self._ask_application(lost=False)

    def _dropped(self, reaction: Reaction, why: str) -> None:
        """The coordinator has removed the member, or gone on without it: the partitions are lost."""
        _log.warning("consumer of group %r lost its partitions: %s", self._config.group_id, why)
        self._reason = f"rebalance failed due to {why}"
        member_id = self.generation.member_id if reaction is Reaction.OUTDATED else ""
        before = self.state
        self._forget(Generation(-1, member_id))
        if before in (State.STABLE, State.PREPARING):
            self._move(Input.DROPPED)
            self._ask_application(lost=True)
        elif before in (State.ASSIGNING, State.SYNCING):
            self._move(Input.REJOIN)

    def _fence(self, what: str) -> OttlaError:
        """Another member has taken the instance id. To join again would throw it out in turn."""
        self.failure = broker_error(FENCED_INSTANCE_ID, what)
        self.failure.fatal = True
        self._forget(Generation())
        self._move(Input.FENCE)
        self._subscription.version += 1
        self._ask_application(lost=True)
        return self.failure

    def _fail(self, error: OttlaError) -> None:
        """Nothing is held in the states that can fail: tell the application, and let its next poll try again."""
        self._move(Input.FAIL)
        self._attempts += 1
        self._notify(ErrorNotification(error))

    def _lookup_failed(self, error: OttlaError, now: Now) -> None:
        """Nobody says who the coordinator is, and waiting does not help: the application has to know. The look-up goes on."""
        if self.state is not State.UNJOINED:
            self._notify(ErrorNotification(error))

    def _ask_application(self, *, lost: bool) -> None:
        self._subscription.suspend()
        self._token += 1
        held = frozenset(self._subscription.partitions)
        self._notify(RebalanceNeeded(self._token, held, lost, self._polls.deadline))

    def _try_later(self, now: Now) -> None:
        self._retry_at = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1

    def _forget(self, generation: Generation) -> None:
        """Be somebody else from now on: whatever is on its way concerns nobody."""
        self.generation = generation
        self._round += 1
        self._in_flight = False
        self._leadership = None

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a member that is {self.state.name} can not be moved by {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        if state is State.JOINING:
            self._pattern.look_again()
        self.state = state
        self._subscription.version += 1

    def _wake_at(self, now: Now) -> int | None:
        times = [self._retry_at] if self.state in (State.JOINING, State.SYNCING) and not self._in_flight else []
        if self._in_session:
            times += self._liveness.session_deadlines()
        times.append(self._polls.deadline)
        return min((at for at in times if at > now.mono), default=None)


def _unknown_protocol(message: Any, known: tuple[str | None, ...]) -> OttlaError | None:
    """An error where a JoinGroup or SyncGroup answer speaks of a protocol that this member did not offer."""
    if message.protocol_type in (None, PROTOCOL_TYPE) and message.protocol_name in known:
        return None
    chosen = f"{message.protocol_type or PROTOCOL_TYPE}/{message.protocol_name}"
    return broker_error(INCONSISTENT_GROUP_PROTOCOL, f"the group chose {chosen}, which this member did not offer")


def _not_a_member(config: ConsumerConfig, *, expired: bool, cause: BrokerError | None = None) -> CommitFailedError:
    text = f"nothing was committed: this consumer is no member of group {config.group_id!r} any more"
    hint = (
        "it did not poll() within max_poll_interval, or a processing() block was silent beyond its limit: poll() to rejoin,"
        " and handle fewer records a poll, announce long work, or raise the limit"
    )
    return CommitFailedError(text, hint=hint if expired else None, cause=cause)
