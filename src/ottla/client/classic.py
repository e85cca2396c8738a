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

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.assignors import ASSIGNORS, MemberSubscription
from ottla.client.backoff import ExponentialBackoff
from ottla.client.coordinator import CoordinatorManager
from ottla.client.effects import Poll, Send
from ottla.client.membership import NOBODY, MemberIdentity, Reply
from ottla.client.metadata import Metadata, MetadataManager
from ottla.client.notifications import AssignmentReceived, ErrorNotification, RebalanceNeeded
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
from ottla.protocol import duration
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import (
    Assignment,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.consumer_protocol import (
    Subscription as MemberWish,
)
from ottla.types import ConsumerGroupMetadata, Now

_log = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"
JOIN_LAPSE = 5_000
"""Milliseconds that a JoinGroup is given beyond the rebalance timeout."""

_UNKNOWN_TOPIC_OR_PARTITION = 3
_ILLEGAL_GENERATION, _INCONSISTENT_GROUP_PROTOCOL, _UNKNOWN_MEMBER_ID = 22, 23, 25
_REBALANCE_IN_PROGRESS, _FENCED_INSTANCE_ID = 27, 82


class State(enum.Enum):
    """Where the member stands."""

    UNJOINED = "no member of the group"
    PREPARING = "the application has to commit and to give its partitions up"
    JOINING = "JoinGroup is sent, or about to be"
    ASSIGNING = "leader of the group: waits for fresh metadata of all its topics"
    SYNCING = "SyncGroup is sent, or about to be"
    STABLE = "has its partitions until the next rebalance"
    LEAVING = "LeaveGroup is sent, or about to be"
    FAILED = "an error that waiting does not mend: the next poll tries again"
    FENCED = "somebody else runs with this instance id: over"


class Input(enum.Enum):
    """What moves a member."""

    POLLED = "the application polls and wants to be a member"
    REBALANCE = "the group, or the subscription, has changed"
    DROPPED = "the coordinator does not know the member, or its generation, any more"
    EXPIRED = "the application did not poll in time"
    PREPARED = "the application has given its partitions up"
    JOINED = "JoinGroup succeeded"
    LEADS = "JoinGroup succeeded and made this member the leader"
    ASSIGNED = "the leader has assigned the partitions"
    SYNCED = "SyncGroup succeeded"
    REJOIN = "JoinGroup has to be sent again"
    LEAVE = "the application wants out"
    LEFT = "LeaveGroup was answered, or can not be"
    FAIL = "an error that waiting does not mend"
    FENCE = "the instance id belongs to another member"


_ANYWHERE = {Input.LEAVE: State.LEAVING, Input.FENCE: State.FENCED}
_MEMBER = {**_ANYWHERE, Input.REBALANCE: State.PREPARING, Input.DROPPED: State.PREPARING, Input.EXPIRED: State.PREPARING}

TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    State.UNJOINED: {**_ANYWHERE, Input.POLLED: State.JOINING},
    State.PREPARING: {**_MEMBER, Input.PREPARED: State.JOINING},
    State.JOINING: {
        **_ANYWHERE,
        Input.JOINED: State.SYNCING,
        Input.LEADS: State.ASSIGNING,
        Input.REJOIN: State.JOINING,
        Input.EXPIRED: State.UNJOINED,
        Input.FAIL: State.FAILED,
    },
    State.ASSIGNING: {
        **_ANYWHERE,
        Input.ASSIGNED: State.SYNCING,
        Input.REJOIN: State.JOINING,
        Input.EXPIRED: State.UNJOINED,
        Input.FAIL: State.FAILED,
    },
    State.SYNCING: {
        **_ANYWHERE,
        Input.SYNCED: State.STABLE,
        Input.REJOIN: State.JOINING,
        Input.EXPIRED: State.UNJOINED,
        Input.FAIL: State.FAILED,
    },
    State.STABLE: _MEMBER,
    State.LEAVING: {**_ANYWHERE, Input.LEFT: State.UNJOINED},
    State.FAILED: {**_ANYWHERE, Input.POLLED: State.JOINING},
    State.FENCED: {Input.LEAVE: State.FENCED, Input.FENCE: State.FENCED},
}
"""State -> input -> next state. What is not in here does not happen."""

IN_GENERATION = frozenset({State.PREPARING, State.ASSIGNING, State.SYNCING, State.STABLE})
"""States in which a member with a generation sends heartbeats; in JOINING its parked JoinGroup keeps it alive."""


class Reaction(enum.Enum):
    """What an error code calls for."""

    LATER = "send again after a while"
    LOOK_UP = "the coordinator is another one: look it up, then again"
    UNKNOWN = "forget the member id and join anew"
    OUTDATED = "forget the generation, keep the member id and join anew"
    REJOIN = "join again at once"
    ADOPT = "take the member id of the answer and join again at once"
    FENCED = "somebody else has the instance id"
    FATAL = "the application has to know"


_JOIN_REACTIONS: Mapping[int, Reaction] = {
    14: Reaction.LATER,
    15: Reaction.LOOK_UP,
    16: Reaction.LOOK_UP,
    _ILLEGAL_GENERATION: Reaction.OUTDATED,
    _UNKNOWN_MEMBER_ID: Reaction.UNKNOWN,
    _REBALANCE_IN_PROGRESS: Reaction.REJOIN,
    79: Reaction.ADOPT,
    _FENCED_INSTANCE_ID: Reaction.FENCED,
}
"""Error codes of JoinGroup and SyncGroup -> what to do; any other is fatal."""

_HEARTBEAT_REACTIONS: Mapping[int, Reaction] = {
    15: Reaction.LOOK_UP,
    16: Reaction.LOOK_UP,
    _ILLEGAL_GENERATION: Reaction.OUTDATED,
    _UNKNOWN_MEMBER_ID: Reaction.UNKNOWN,
    _REBALANCE_IN_PROGRESS: Reaction.REJOIN,
    _FENCED_INSTANCE_ID: Reaction.FENCED,
}
"""Error codes of Heartbeat -> what to do; after any other the next heartbeat is sent after a while."""


class Generation(NamedTuple):
    """Which incarnation of the group the member belongs to, as whom, and by which assignor."""

    number: int = -1
    member_id: str = ""
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class _Tag:
    """What a request was about, and who the member was when it was sent.

    ``round`` tells answers apart that nobody waits for any more.
    """

    api: Api
    generation: Generation
    round: int


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
    ) -> None:
        self.state = State.UNJOINED
        self.generation = Generation()
        self.failure: OttlaError | None = None
        self.group_topics: frozenset[str] = frozenset()
        self._config = config
        self._subscription = subscription
        self._coordinator = coordinator
        self._metadata = metadata
        self._notify = notify
        self._backoff = backoff
        self._timers = _Timers(config)
        self._round = 0
        self._in_flight = False
        self._attempts = 0
        self._retry_at = 0
        self._token = 0
        self._reason = ""
        self._joined_topics: frozenset[str] = frozenset()
        self._leaves: list[Reply] = []
        self._leave_target: tuple[Generation, str] | None = None
        self._members: dict[str, MemberSubscription] = {}
        self._assignments: dict[str, bytes] = {}
        self._partition_counts: dict[str, int] | None = None
        self._fresh_after = 0

    def __repr__(self) -> str:
        return f"<ClassicMembership {self.state.name} {self.generation}>"

    # -- what the application does ----------------------------------------------------------------------------------------

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        number, member_id, _ = self.generation
        return ConsumerGroupMetadata(self._config.group_id or "", number, member_id, self._config.group_instance_id)

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self._timers.polled(now)
        if self._subscription.mode is not Mode.TOPICS:
            return
        if self.state in (State.UNJOINED, State.FAILED):
            self._move(Input.POLLED)
            self._retry_at = now.mono + (self._backoff.delay(self._attempts - 1) if self._attempts else 0)
        elif self.state is State.STABLE and self._joined_topics != self._subscription.topics:
            self._begin_rebalance("the subscription has changed", now)

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
        if self._in_flight and self._coordinator.node_id is not None:
            # A parked JoinGroup would hold the LeaveGroup back on its connection.
            self._coordinator.mark_unknown(f"leaving the group: {reason}", now)
        self._forget(Generation())
        self._leaves.append(reply)
        self._move(Input.LEAVE)
        if dynamic:
            self._leave_target = (Generation(-1, member), reason)
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
            raise broker_error(_REBALANCE_IN_PROGRESS, f"group {self._config.group_id!r} is rebalancing: nothing was committed")
        raise self._not_a_member()

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``."""
        what = f"committing offsets of group {self._config.group_id!r}"
        unchanged = (sent_by.generation, sent_by.member_id) == self.generation[:2]
        if sent_by == NOBODY:
            return broker_error(code, what)
        if code == _REBALANCE_IN_PROGRESS:
            self._begin_rebalance("the group is already rebalancing", now)
            return broker_error(code, what)
        if code == _FENCED_INSTANCE_ID and unchanged:
            return self._fence(what, now)
        if unchanged:
            self._dropped(_HEARTBEAT_REACTIONS[code], f"{broker_error(code).name} in answer to a commit", now)
        elif self.state in (State.PREPARING, State.JOINING, State.ASSIGNING, State.SYNCING):
            return broker_error(_REBALANCE_IN_PROGRESS, what)
        return self._not_a_member(cause=broker_error(code, what))

    # -- the two shapes ---------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Send what the state calls for."""
        if self.state in (State.UNJOINED, State.FENCED) and self._leave_target is None:
            return Poll()
        if self.state is not State.LEAVING:
            self._watch_poll_interval(now)
            self._watch_metadata(now)
        sends = [*self._session(now), *self._dialogue(now)]
        return Poll(tuple(sends), self._wake_at(now))

    def on_response(self, tag: _Tag, message: Any, now: Now) -> None:
        """The answer to one of the four requests."""
        if tag.api is Api.HEARTBEAT:
            self._on_heartbeat(tag, message, now)
        elif tag.round == self._round:
            self._in_flight = False
            self._ON_ANSWER[tag.api](self, tag, message, now)

    def on_failure(self, tag: _Tag, error: OttlaError, now: Now) -> None:
        """No answer: look the coordinator up again, and try again; member id and generation stay."""
        if isinstance(error, DisconnectedError | OttlaTimeoutError):
            self._coordinator.mark_unknown(str(error), now)
        if tag.api is Api.HEARTBEAT:
            self._timers.heartbeat_failed(now, self._backoff)
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

    def _session(self, now: Now) -> list[Send]:
        """A heartbeat when it is due."""
        if self.state not in IN_GENERATION or self.generation.number < 0:
            return []
        target = self._coordinator.target()
        if target is None:
            return []
        self._timers.coordinator_found(self._coordinator.found, now)
        if self._timers.session_expired(now):
            self._coordinator.mark_unknown("no heartbeat was answered within session.timeout.ms", now)
            self._coordinator.target()
            return []
        if not self._timers.heartbeat_due(now):
            return []
        from ottla.protocol.messages import heartbeat_request

        self._timers.heartbeat_sent(now)
        message = heartbeat_request.HeartbeatRequest(
            group_id=self._config.group_id or "",
            generation_id=self.generation.number,
            member_id=self.generation.member_id,
            group_instance_id=self._config.group_instance_id,
        )
        tag = _Tag(Api.HEARTBEAT, self.generation, self._round)
        return [Send(Api.HEARTBEAT, message, target, tag, self._config.request_timeout_ms)]

    def _on_heartbeat(self, tag: _Tag, message: Any, now: Now) -> None:
        code = int(message.error_code)
        if not code or code == _REBALANCE_IN_PROGRESS:
            self._timers.heartbeat_answered(now)
        else:
            self._timers.heartbeat_failed(now, self._backoff)
        if not code:
            return
        reaction = _HEARTBEAT_REACTIONS.get(code, Reaction.LATER)
        if reaction is Reaction.LOOK_UP:
            self._coordinator.mark_unknown(broker_error(code).name, now)
        elif tag.generation != self.generation or self.state not in IN_GENERATION:
            return
        elif reaction is Reaction.REJOIN:
            if self.state is State.STABLE:
                self._begin_rebalance("group is already rebalancing", now)
        elif reaction is Reaction.FENCED:
            self._fence("a heartbeat was refused", now)
        elif reaction in (Reaction.UNKNOWN, Reaction.OUTDATED):
            self._dropped(reaction, f"{broker_error(code).name} in answer to a heartbeat", now)
        else:
            _log.warning("heartbeat of group %r failed: %s", self._config.group_id, broker_error(code))

    def _watch_poll_interval(self, now: Now) -> None:
        """KIP-62: an application that does not poll gives its place up, and is told so in one line."""
        joined = self.generation.member_id != "" or self.state is State.JOINING
        if not joined or self._in_flight or self.state in (State.FAILED, State.FENCED) or not self._timers.poll_expired(now):
            return
        interval = self._config.max_poll_interval_ms
        _log.warning(
            "consumer of group %r left the group: %.1f s since its last poll(), max_poll_interval is %.1f s. Its partitions go to"
            " others, and what was not committed will be delivered again. Handle fewer records a poll (max_poll_records is %d),"
            " handle them faster, or raise max_poll_interval. It joins again with the next poll().",
            self._config.group_id,
            self._timers.since_poll(now) / 1000,
            interval / 1000,
            self._config.max_poll_records,
        )
        member = self.generation.member_id
        if member and self._config.group_instance_id is None:
            self._leave_target = (Generation(-1, member), "consumer poll timeout has expired.")
        self._reason = "consumer pro-actively leaving the group"
        self._forget(Generation())
        self._move(Input.EXPIRED)
        if self.state is State.PREPARING:
            self._ask_application(lost=True)

    def _watch_metadata(self, now: Now) -> None:
        """The leader answers for it that new partitions are read by somebody."""
        if self.state is State.STABLE and self._partition_counts is not None:
            current = self._metadata.current
            counts = _partition_counts(current, self.group_topics)
            if counts != self._partition_counts and all(_is_settled(current, topic) for topic in self.group_topics):
                self._begin_rebalance("the partitions of the group's topics have changed", now)

    # -- the dialogue: join, assign, sync, leave --------------------------------------------------------------------------

    def _dialogue(self, now: Now) -> list[Send]:
        if self._leave_target is not None:
            return self._send_leave(now)
        if self._in_flight:
            return []
        if self.state is State.ASSIGNING:
            self._assign()
        if self.state not in (State.JOINING, State.SYNCING) or self._retry_at > now.mono:
            return []
        target = self._coordinator.target()
        if target is None:
            return []
        self._in_flight = True
        if self.state is State.JOINING:
            timeout = max(self._config.request_timeout_ms, min(self._config.max_poll_interval_ms + JOIN_LAPSE, 2**31 - 1))
            api, message = Api.JOIN_GROUP, self._join_request()
        else:
            timeout = self._config.request_timeout_ms
            api, message = Api.SYNC_GROUP, self._sync_request()
        return [Send(api, message, target, _Tag(api, self.generation, self._round), timeout)]

    def _join_request(self) -> Any:
        from ottla.protocol.messages import join_group_request

        self._joined_topics = self._subscription.topics
        topics = tuple(sorted(self._joined_topics))
        wish = encode_subscription(MemberWish(topics, generation=self.generation.number))
        return join_group_request.JoinGroupRequest(
            group_id=self._config.group_id or "",
            session_timeout=duration(self._config.session_timeout_ms),
            rebalance_timeout=duration(self._config.max_poll_interval_ms),
            member_id=self.generation.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(
                join_group_request.JoinGroupRequestProtocol(name=name, metadata=wish)
                for name in self._config.partition_assignment_strategy
            ),
            reason=self._reason[:255],
        )

    def _on_joined(self, tag: _Tag, message: Any, now: Now) -> None:
        code = int(message.error_code)
        if code:
            return self._refused(tag, _JOIN_REACTIONS.get(code, Reaction.FATAL), code, message, now)
        protocol = message.protocol_name
        if message.protocol_type not in (None, PROTOCOL_TYPE) or protocol not in self._config.partition_assignment_strategy:
            chosen = f"{message.protocol_type or PROTOCOL_TYPE}/{protocol}"
            text = f"group {self._config.group_id!r} chose {chosen}, which this member did not offer"
            return self._fail(broker_error(_INCONSISTENT_GROUP_PROTOCOL, text))
        self.generation = Generation(message.generation_id, message.member_id, protocol)
        self._attempts, self._retry_at = 0, now.mono
        self._timers.joined(now)
        self._assignments, self._partition_counts, self.group_topics = {}, None, frozenset()
        if message.leader != message.member_id:
            return self._move(Input.JOINED)
        return self._lead(message)

    def _lead(self, message: Any) -> None:
        """This member assigns: it needs to know the topics of all the others."""
        try:
            wishes = {item.member_id: (item.group_instance_id, decode_subscription(item.metadata)) for item in message.members}
        except ProtocolError as error:
            return self._fail(error)
        self._members = {
            member_id: MemberSubscription(wish.topics, instance_id, wish.rack, wish.owned, wish.generation, wish.user_data)
            for member_id, (instance_id, wish) in wishes.items()
        }
        self.group_topics = frozenset(topic for wish in self._members.values() for topic in wish.topics)
        self._move(Input.LEADS)
        if message.skip_assignment:
            # A static leader that came back: what was assigned stands (KIP-814), but new partitions are still its business.
            self._partition_counts = _partition_counts(self._metadata.current, self.group_topics)
            return self._move(Input.ASSIGNED)
        self._fresh_after = self._metadata.request_update()
        return None

    def _assign(self) -> None:
        """Once the metadata is newer than the join, and names every topic of the group."""
        current = self._metadata.current
        if current.version <= self._fresh_after:
            return
        if not all(topic in current.topics for topic in self.group_topics):
            self._fresh_after = self._metadata.request_update()
            return
        counts = _partition_counts(current, self.group_topics)
        assigned = ASSIGNORS[self.generation.protocol or ""].assign(self._members, counts)
        self._assignments = {member_id: encode_assignment(Assignment(partitions)) for member_id, partitions in assigned.items()}
        self._partition_counts = counts
        self._move(Input.ASSIGNED)

    def _sync_request(self) -> Any:
        from ottla.protocol.messages import sync_group_request

        return sync_group_request.SyncGroupRequest(
            group_id=self._config.group_id or "",
            generation_id=self.generation.number,
            member_id=self.generation.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.generation.protocol,
            assignments=tuple(
                sync_group_request.SyncGroupRequestAssignment(member_id=member_id, assignment=blob)
                for member_id, blob in self._assignments.items()
            ),
        )

    def _on_synced(self, tag: _Tag, message: Any, now: Now) -> None:
        code = int(message.error_code)
        if code:
            return self._refused(tag, _JOIN_REACTIONS.get(code, Reaction.FATAL), code, message, now)
        if message.protocol_type not in (None, PROTOCOL_TYPE) or message.protocol_name not in (None, self.generation.protocol):
            text = f"group {self._config.group_id!r} synchronised by {message.protocol_type}/{message.protocol_name}"
            return self._fail(broker_error(_INCONSISTENT_GROUP_PROTOCOL, text))
        try:
            partitions = decode_assignment(message.assignment).partitions
        except ProtocolError as error:
            return self._fail(error)
        if not all(tp.topic in self._subscription.topics for tp in partitions):
            self._reason = "the subscription has changed"
            return self._move(Input.REJOIN)
        self._reason, self._attempts = "", 0
        self._move(Input.SYNCED)
        added = self._subscription.set_partitions(partitions, await_acceptance=True)
        self._token += 1
        return self._notify(AssignmentReceived(self._token, added))

    def _send_leave(self, now: Now) -> list[Send]:
        """Say good-bye: once, and only to a coordinator that is known. Who does not hear it notices when the session times out."""
        from ottla.protocol.messages import leave_group_request

        assert self._leave_target is not None
        (generation, reason) = self._leave_target
        target = self._coordinator.target()
        if target is None:
            return []
        self._leave_target = None
        self._in_flight = self.state is State.LEAVING
        member = leave_group_request.MemberIdentity(member_id=generation.member_id, reason=reason[:255])
        message = leave_group_request.LeaveGroupRequest(group_id=self._config.group_id or "", members=(member,))
        round_ = self._round if self._in_flight else -1
        del now
        return [Send(Api.LEAVE_GROUP, message, target, _Tag(Api.LEAVE_GROUP, generation, round_), self._config.request_timeout_ms)]

    def _on_left(self, tag: _Tag, message: Any, now: Now) -> None:
        del tag, now
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

    def _refused(self, tag: _Tag, reaction: Reaction, code: int, message: Any, now: Now) -> None:
        """JoinGroup or SyncGroup was answered with an error."""
        error = broker_error(code, f"joining group {self._config.group_id!r}")
        self._reason = f"rebalance failed due to {error.name}"
        if reaction is Reaction.FENCED:
            self._fence(f"joining group {self._config.group_id!r}", now)
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

    def _begin_rebalance(self, reason: str, now: Now) -> None:
        """The application has to give its partitions up; until then the member keeps its place with heartbeats."""
        if self.state is not State.STABLE:
            return
        del now
        self._reason = reason
        self._move(Input.REBALANCE)
        self._ask_application(lost=False)

    def _dropped(self, reaction: Reaction, why: str, now: Now) -> None:
        """The coordinator has removed the member, or gone on without it: the partitions are lost."""
        del now
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

    def _fence(self, what: str, now: Now) -> OttlaError:
        """Another member has taken the instance id. To join again would throw it out in turn."""
        del now
        self.failure = broker_error(_FENCED_INSTANCE_ID, what)
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

    def _ask_application(self, *, lost: bool) -> None:
        self._subscription.suspend()
        self._token += 1
        held = frozenset(self._subscription.partitions)
        self._notify(RebalanceNeeded(self._token, held, lost, self._timers.poll_deadline))

    def _try_later(self, now: Now) -> None:
        self._retry_at = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1

    def _forget(self, generation: Generation) -> None:
        """Be somebody else from now on: whatever is on its way concerns nobody."""
        self.generation = generation
        self._round += 1
        self._in_flight = False
        self.group_topics, self._partition_counts = frozenset(), None

    def _not_a_member(self, cause: BrokerError | None = None) -> CommitFailedError:
        text = f"nothing was committed: this consumer is no member of group {self._config.group_id!r} any more"
        if self._timers.expired_once:
            hint = "it did not poll() within max_poll_interval: handle fewer records a poll, or raise it; poll() to rejoin"
            return CommitFailedError(text, hint=hint, cause=cause)
        return CommitFailedError(text, cause=cause)

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a member that is {self.state.name} can not be moved by {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state
        self._subscription.version += 1

    def _wake_at(self, now: Now) -> int | None:
        times = [self._retry_at] if self.state in (State.JOINING, State.SYNCING) and not self._in_flight else []
        if self.state in IN_GENERATION and self.generation.number >= 0:
            times += self._timers.session_deadlines()
        times.append(self._timers.poll_deadline)
        return min((at for at in times if at > now.mono), default=None)


class _Timers:
    """The clocks of one member: heartbeat, session, and the application's polls. Monotonic milliseconds."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._interval = config.heartbeat_interval_ms
        self._session = config.session_timeout_ms
        self._max_poll_interval = config.max_poll_interval_ms
        self._heartbeat_at = 0
        self._session_until = 0
        self._in_flight = False
        self._failures = 0
        self._found = 0
        self._last_poll = 0
        self.expired_once = False
        """Whether the latest membership ended because the application did not poll."""

    @property
    def poll_deadline(self) -> int:
        """When the application must have polled."""
        return self._last_poll + self._max_poll_interval

    def session_deadlines(self) -> list[int]:
        """When to look at the session again."""
        return [self._session_until] if self._in_flight else [self._heartbeat_at, self._session_until]

    def polled(self, now: Now) -> None:
        self._last_poll = now.mono

    def since_poll(self, now: Now) -> int:
        return now.mono - self._last_poll

    def poll_expired(self, now: Now) -> bool:
        expired = now.mono >= self.poll_deadline
        self.expired_once = self.expired_once or expired
        return expired

    def joined(self, now: Now) -> None:
        self.expired_once = False
        self._failures, self._in_flight = 0, False
        self._heartbeat_at = now.mono + self._interval
        self._session_until = now.mono + self._session

    def coordinator_found(self, count: int, now: Now) -> None:
        """A coordinator that was just found has not had a chance to answer yet."""
        if count != self._found:
            self._found, self._in_flight = count, False
            self._session_until = now.mono + self._session

    def session_expired(self, now: Now) -> bool:
        return now.mono >= self._session_until

    def heartbeat_due(self, now: Now) -> bool:
        return not self._in_flight and now.mono >= self._heartbeat_at

    def heartbeat_sent(self, now: Now) -> None:
        self._in_flight = True
        self._heartbeat_at = now.mono + self._interval

    def heartbeat_answered(self, now: Now) -> None:
        self._in_flight, self._failures = False, 0
        self._session_until = now.mono + self._session

    def heartbeat_failed(self, now: Now, backoff: ExponentialBackoff) -> None:
        self._in_flight = False
        self._heartbeat_at = now.mono + backoff.delay(self._failures)
        self._failures += 1


def _partition_counts(metadata: Metadata, topics: frozenset[str]) -> dict[str, int]:
    """How many partitions each topic has that exists."""
    return {topic: count for topic in sorted(topics) if (count := len(metadata.partitions_for(topic)))}


def _is_settled(metadata: Metadata, topic: str) -> bool:
    """Whether the latest metadata describes a topic, or says that it does not exist."""
    known = metadata.topics.get(topic)
    return known is not None and (known.error is None or known.error.code == _UNKNOWN_TOPIC_OR_PARTITION)
