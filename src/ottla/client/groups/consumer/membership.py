"""A member of a consumer group (KIP-848): the coordinator assigns, heartbeats say everything.

Owns the member's state, its id and epoch, and the time of its heartbeats. Must not know commits, positions or user code: what the
application has to do it is told by a notification, and it answers with a command. Invariants: all transitions are those of
``TRANSITIONS``; one heartbeat at most is in flight, but for the last one; heartbeats go on while the application takes its time,
until ``max.poll.interval.ms``, the only deadline that it has; an answer to an earlier incarnation changes nothing; the member joins
only inside ``poll()``.

A member that joins, from the first poll on::

    UNSUBSCRIBED -- poll --> JOINING -- heartbeat answered: partitions --> RECONCILING
    RECONCILING -- the application let go and took on --> ACKNOWLEDGING -- heartbeat sent --> STABLE
    STABLE -- heartbeat answered: other partitions --> RECONCILING

A reconciliation begins when the application polls: while it is busy, what it has stays what it has, and a newer assignment replaces
one that it has not heard of. Sources: KIP-848, KIP-1082 (member ids), KIP-1251 (commits of older epochs), KIP-345 (static members).
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from ottla.client.commands import Assigned, Reply, UserData
from ottla.client.effects import AnySend, Poll, Send
from ottla.client.groups.consumer.client_assignors import ClientAssignorManager
from ottla.client.groups.consumer.reconciliation import Reconciliation
from ottla.client.groups.consumer.requests import JOIN_GROUP_EPOCH, AssignmentSource, Heartbeats, new_member_id
from ottla.client.groups.consumer.states import (
    ASSIGNOR_HINT,
    BEATING,
    HEARTBEAT_REACTIONS,
    HINTS,
    REBALANCING,
    TRANSITIONS,
    UNKNOWN_HINT,
    ConsumerReaction,
    Input,
    State,
)
from ottla.client.groups.membership import (
    DEFAULT,
    NO_MEMBER,
    MemberIdentity,
    MembershipContext,
    MemberStatus,
    Refusals,
    not_a_member,
)
from ottla.client.notifications import ErrorNotification
from ottla.client.subscription import Mode
from ottla.errors import (
    AssignmentError,
    BrokerError,
    OttlaError,
    UnsupportedApiError,
    broker_error,
)
from ottla.protocol import ErrorCode, milliseconds, rpcs
from ottla.protocol.messages import consumer_group_heartbeat_response
from ottla.types import ConsumerGroupMetadata, GroupMembershipOperation, Now

_log = logging.getLogger(__name__)


_Response: TypeAlias = "consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse"


class ConsumerMembership:
    """See the module."""

    group_topics: frozenset[str] = frozenset()
    """See ``Membership``: the coordinator assigns, so no one else's topics matter."""

    def __init__(self, context: MembershipContext) -> None:
        config, subscription, coordinator, metadata, notify, backoff, polls = context
        self.state = State.UNSUBSCRIBED
        self.epoch = JOIN_GROUP_EPOCH
        self.member_id = new_member_id(backoff.random)
        """Made once: the member keeps it however often it joins."""
        self.failure: OttlaError | None = None
        self._config = config
        self._subscription = subscription
        self._coordinator = coordinator
        self._notify = notify
        self._backoff = backoff
        self._polls = polls
        self._assignors = ClientAssignorManager(context, self.member_id)
        self._heartbeats = Heartbeats(config, subscription, self.member_id, lambda: self._assignors.offers)
        self._partitions = Reconciliation(subscription, metadata, notify)
        self._incarnation = 0
        self._in_flight = False
        self._reason = ""
        self._assignor = ""
        """The assignor of a member that computed what is assigned in this epoch; empty: the coordinator computed it."""
        self._failed_in = JOIN_GROUP_EPOCH
        """The epoch in which the last failure of an assignor was received."""
        self._was_asked = False
        """Whether the coordinator may know this incarnation."""
        self._expelled = False
        self._failures = 0
        self._refusals = Refusals(config.default_api_timeout_ms, notify)
        self._beat_at = self._not_before = 0
        self._polled_at = self._given_at = 0
        self._leaves: list[Reply] = []
        self._operation = DEFAULT
        self._farewells = 0
        """How many last heartbeats are not answered yet."""
        coordinator.on_fatal(self._lookup_failed)

    def __repr__(self) -> str:
        return f"<ConsumerMembership {self.state.name} {self.member_id} epoch {self.epoch}>"

    @property
    def follows_all_topics(self) -> bool:
        """See ``Membership``. The coordinator matches a pattern, and names what it found by ids."""
        return self._subscription.pattern is not None and self._partitions.lacks_names

    @property
    def status(self) -> MemberStatus:
        """See ``Membership``."""
        return MemberStatus("consumer", self.state.name, self._is_member, self.state in REBALANCING, self._reason, self._assignor)

    @property
    def _is_member(self) -> bool:
        return self.state in BEATING and self.epoch > JOIN_GROUP_EPOCH

    @property
    def joins_as_new_member(self) -> bool:
        """See ``Membership``."""
        return self.state is State.JOINING and self.epoch == JOIN_GROUP_EPOCH and not self._in_flight

    # -- what the application does ----------------------------------------------------------------------------------------

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        group, instance = self._config.group_id or "", self._config.group_instance_id
        return (
            ConsumerGroupMetadata(group, self.epoch, self.member_id, instance)
            if self.epoch > JOIN_GROUP_EPOCH
            else ConsumerGroupMetadata(group, group_instance_id=instance)
        )

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self._polls.polled(now, self._config.poll_interval("consumer"))
        self._polled_at = now.mono
        if self._subscription.mode is not Mode.TOPICS:
            return
        if self.state is State.UNSUBSCRIBED:
            self._reason = ""
            self._move(Input.POLLED)
            self._begin(now)
        elif self.state in BEATING and self._heartbeats.has_news:
            self._beat_at = min(self._beat_at, now.mono)

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``."""
        if self.state is State.RECONCILING:
            self._partitions.prepared(token)
        elif self.state in (State.FENCED, State.STALE) and self._partitions.released(token):
            self._move(Input.RELEASED)
            self._begin(now)
        elif self.state is State.FATAL:
            self._partitions.released(token)

    def accepted(self, token: int) -> None:
        """See ``Membership``."""
        if self.state is State.RECONCILING and self._partitions.accepted(token):
            self._move(Input.RECONCILED)

    def user_data(self, command: UserData) -> None:
        """See ``Membership``."""
        if command.protocol == "consumer":
            self._assignors.user_data(command.by_assignor)

    def assigned(self, command: Assigned) -> None:
        """See ``Membership``."""
        if command.protocol == "consumer":
            self._assignors.assigned(command)

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """See ``Membership``. The partitions of a static member that remains wait for it."""
        del now
        self._operation = operation
        _log.debug("group %r: %s", self._config.group_id, reason)
        self._partitions.forget()
        self._subscription.set_partitions(())
        self._leaves.append(reply)
        if self.state in (State.FENCED, State.STALE):
            self._move(Input.LEAVE)
        elif self.state in BEATING:
            self._move(Input.LEAVE)
            self._retire()
            if not self._was_asked:
                self._move(Input.LEFT)
        if self.state is not State.LEAVING and not self._farewells:
            self._left()

    def identity(self) -> MemberIdentity:
        """See ``Membership``."""
        if self._subscription.mode is not Mode.TOPICS:
            return NO_MEMBER
        if self.failure is not None:
            raise self.failure.afresh()
        if self._is_member:
            return MemberIdentity(self.epoch, self.member_id, self._config.group_instance_id)
        raise not_a_member(self._config, expired=self._polls.expired_once)

    def reader(self) -> MemberIdentity:
        """See ``Membership``."""
        return MemberIdentity(self.epoch, self.member_id) if self._is_member else NO_MEMBER

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``. The next heartbeat may bring the current epoch, so a commit with an old one may be retried."""
        error = broker_error(code, f"committing offsets of group {self._config.group_id!r}")
        if sent_by == NO_MEMBER:
            return error
        if code == ErrorCode.fenced_instance_id and self._is_member:
            self._fail(error)
            return error
        self._beat_at = min(self._beat_at, now.mono)
        if code == ErrorCode.stale_member_epoch and self._is_member:
            error.retriable = True
            return error
        return not_a_member(self._config, expired=self._polls.expired_once, cause=error)

    # -- the two shapes ---------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Send the heartbeat that the state calls for."""
        if self.state in BEATING and self._polls.expired(now):
            self._expel(now)
        if self.state is State.LEAVING:
            return Poll(tuple(self._farewell()))
        if self.state not in BEATING:
            return Poll()
        self._reconcile()
        beats = self._heartbeat(now)
        if beats:
            self._reconcile()  # what was just acknowledged may be less than what was assigned meanwhile
        computing = self._assignors.poll(now)
        sends = (*beats, *computing.sends)
        times = (self._polls.deadline, computing.wake_at, None if self._in_flight else self._due_at())
        return Poll(sends, min((at for at in times if at is not None and at > now.mono), default=None))

    def _reconcile(self) -> None:
        """Begin to reconcile the assignment, if the application has polled since."""
        application_knows = self.state is State.RECONCILING and self._polled_at >= self._given_at
        if application_knows and self._partitions.begin(self._polls.deadline):
            self._move(Input.RECONCILED)

    # -- heartbeats -------------------------------------------------------------------------------------------------------

    def _due_at(self) -> int:
        """When the next heartbeat is due: at once to join or to acknowledge, but never within a back-off."""
        urgent = self.state is State.ACKNOWLEDGING or (self.state is State.JOINING and self.epoch == JOIN_GROUP_EPOCH)
        return self._not_before if urgent else max(self._beat_at, self._not_before)

    def _heartbeat(self, now: Now) -> list[AnySend]:
        target = self._coordinator.target()
        if target is None or self._in_flight or self._due_at() > now.mono:
            return []
        if self.epoch == JOIN_GROUP_EPOCH and self._assignors.undecided:
            return []  # otherwise the group would be assigned without this member's assignors
        if self.state is State.JOINING:
            self._heartbeats.forget()
        message = self._heartbeats.beat(self.epoch, self._partitions.held)
        self._in_flight = self._was_asked = True
        if self.state is State.ACKNOWLEDGING:
            self._move(Input.ACKNOWLEDGED if self._partitions.reached else Input.TARGET)
        incarnation, sent_at = self._incarnation, now.mono
        return [
            Send(
                rpcs.CONSUMER_GROUP_HEARTBEAT,
                message,
                target,
                self._config.request_timeout_ms,
                lambda response, now: self._on_response(incarnation, sent_at, response, now),
                lambda error, now: self._on_failure(incarnation, error, now),
            )
        ]

    def _on_failure(self, incarnation: int, error: OttlaError, now: Now) -> None:
        """No answer: look the coordinator up again, and say everything again."""
        self._coordinator.request_failed(error, now)
        if incarnation != self._incarnation:
            return None
        self._in_flight = False
        if isinstance(error, UnsupportedApiError):
            error.hint = HINTS[ErrorCode.unsupported_version] if error.hint == UnsupportedApiError.hint else error.hint
            return self._fail(error)
        if not error.retriable:
            self._notify(ErrorNotification(error))
        return self._try_later(error, now)

    def _on_response(self, incarnation: int, sent_at: int, response: _Response, now: Now) -> None:
        if incarnation != self._incarnation:
            return
        self._in_flight = False
        if response.error_code:
            self._refused(int(response.error_code), response.error_message or "", now)
        else:
            self._on_heartbeat(sent_at, response, now)

    def _on_heartbeat(self, sent_at: int, response: _Response, now: Now) -> None:
        """Take epoch, interval and partitions."""
        if self._failures:
            _log.info("group %r: heartbeats are answered again", self._config.group_id)
        self._failures = self._not_before = 0
        self._refusals.accepted()
        self._beat_at = sent_at + milliseconds(response.heartbeat_interval)
        if response.member_epoch <= JOIN_GROUP_EPOCH:
            return
        if self.epoch == JOIN_GROUP_EPOCH:
            self._polls.joined()
        moved = response.member_epoch != self.epoch
        if moved:
            self.epoch = response.member_epoch
            self._subscription.version += 1
            self._assignors.moved(self.epoch)
        if response.should_compute_assignment:
            self._assignors.asked(self.epoch, sent_at + self._config.max_poll_interval_ms)
        source = self._source(response, moved=moved)
        given = None
        if response.assignment is not None:
            items = response.assignment.topic_partitions
            given = {item.topic_id: frozenset(item.partitions) for item in items if item.topic_id is not None and item.partitions}
        if (given is not None or source is not None) and self._partitions.aim(given, source):
            self._given_at = now.mono
            who = "the coordinator" if source is None else f"the assignor {source.assignor!r}"
            self._reason = self._reason if self.state is State.JOINING else f"{who} has assigned again"
            self._move(Input.TARGET)

    def _source(self, response: _Response, *, moved: bool) -> AssignmentSource | None:
        """Which member's assignor computed the assignment, if the answer says so; its failure is reported to the application,
        too."""
        name = response.assignor_name
        self._assignor = name if moved or name else self._assignor
        if response.assignment_error:
            text = response.assignment_error_message or f"the assignor {name!r} failed with error {response.assignment_error}"
            if self._failed_in != self.epoch and self._assignors.heard(text, failed=True):
                self._notify(ErrorNotification(AssignmentError(text, hint=ASSIGNOR_HINT)))
            self._failed_in = self.epoch
            return None
        if moved or name:
            self._assignors.heard("", failed=False)
        return AssignmentSource(name, response.metadata or None, self.metadata()) if name else None

    def _refused(self, code: int, text: str, now: Now) -> None:
        error = broker_error(code, f"a heartbeat of group {self._config.group_id!r}{f': {text}' if text else ''}")
        unknown = ConsumerReaction.LATER if error.retriable else ConsumerReaction.FATAL
        reaction = HEARTBEAT_REACTIONS.get(code, unknown)
        if reaction is ConsumerReaction.GONE:
            reaction = self._of_group_gone()
        if reaction is ConsumerReaction.FENCED:
            return self._fence(error)
        if reaction is ConsumerReaction.FATAL:
            error.hint = HINTS.get(code) or error.hint or UNKNOWN_HINT
            return self._fail(error)
        if reaction is ConsumerReaction.LOOK_UP:
            self._coordinator.mark_moved(error.name)
        if reaction is ConsumerReaction.TELL:
            self._notify(ErrorNotification(error))
        else:
            self._refusals.refused(error, now)
        return self._try_later(error, now)

    def _of_group_gone(self) -> ConsumerReaction:
        """The group was deleted, or has become a classic one; a choice that came too late is made again before the next attempt."""
        if self.epoch > JOIN_GROUP_EPOCH:
            return ConsumerReaction.FENCED
        return ConsumerReaction.LATER if self._config.group_protocol == "auto" else ConsumerReaction.FATAL

    def _try_later(self, error: OttlaError, now: Now) -> None:
        """Said once, however often it is tried; the next heartbeat says everything, as this one may or may not have been heard."""
        if not self._failures:
            _log.warning("%s; heartbeats are tried again", error)
        self._heartbeats.forget()
        self._beat_at, self._not_before = 0, now.mono + self._backoff.delay(self._failures)
        self._failures += 1

    # -- ways out ---------------------------------------------------------------------------------------------------------

    def _farewell(self) -> list[AnySend]:
        """Said once, beside a heartbeat that is under way, and only to a coordinator that is known."""
        target = self._coordinator.target() if self._coordinator.node_id is not None else None
        message = self._heartbeats.farewell(self._operation)
        expelled, self._expelled = self._expelled, False
        self._move(Input.LEFT_STALE if expelled else Input.LEFT)
        if target is None or message is None:
            self._left()
            return []
        self._farewells += 1
        timeout = self._config.request_timeout_ms
        return [Send(rpcs.CONSUMER_GROUP_HEARTBEAT, message, target, timeout, self._on_farewell, self._on_farewell_failure)]

    def _on_farewell(self, response: _Response, now: Now) -> None:
        del now
        if response.error_code:
            error = broker_error(int(response.error_code), response.error_message or "")
            _log.info("leaving group %r: %s", self._config.group_id, error)
        self._farewells -= 1
        self._left()

    def _on_farewell_failure(self, error: OttlaError, now: Now) -> None:
        self._coordinator.request_failed(error, now)
        self._farewells -= 1
        self._left()

    def _left(self) -> None:
        replies, self._leaves = self._leaves, []
        for reply in replies:
            reply(None, None)

    def _expel(self, now: Now) -> None:
        """KIP-62: a member whose application does not poll leaves the group, and logs one line."""
        self._polls.explain(now)
        self._reason = "the application did not poll in time"
        self._move(Input.EXPIRED)
        self._partitions.lose(self._polls.deadline)
        self._retire()
        self._expelled = True

    def _fence(self, error: BrokerError) -> None:
        """The coordinator went on without the member. It joins again once the application knows."""
        _log.warning("consumer of group %r lost its partitions: %s", self._config.group_id, error)
        self._reason = f"the coordinator answered {error.name}"
        self._move(Input.FENCED)
        self._end()
        self._partitions.lose(self._polls.deadline)

    def _fail(self, error: OttlaError) -> None:
        """Nothing but a new consumer can help."""
        error.fatal = True
        self._reason = str(error)
        self.failure = error
        self._move(Input.FAIL)
        self._end()
        self._partitions.lose(self._polls.deadline)

    def _retire(self) -> None:
        """From PREPARE_LEAVING on, when nothing is held any more."""
        self._move(Input.RELEASED)
        self._end()

    def _begin(self, now: Now) -> None:
        """A new incarnation asks to be let in."""
        self._end()
        self._was_asked, self._operation = False, DEFAULT
        self._failures, self._not_before, self._beat_at = 0, 0, now.mono
        self._refusals.accepted()

    def _end(self) -> None:
        """Answers to earlier requests no longer matter."""
        self._incarnation += 1
        self._in_flight = False
        self.epoch = self._failed_in = JOIN_GROUP_EPOCH
        self._assignor = ""
        self._assignors.forget()

    def _lookup_failed(self, error: OttlaError, now: Now) -> None:
        """The coordinator cannot be found, and waiting does not help: the application has to know. The look-up goes on."""
        del now
        if self.state in BEATING:
            self._notify(ErrorNotification(error))
        if self._is_member and isinstance(error, BrokerError) and error.code == ErrorCode.group_authorization_failed:
            self._fence(error)  # no more heartbeats can be sent: the group goes on without this member, and nothing reports that

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a member that is {self.state.name} cannot be moved by {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state
        self._subscription.version += 1
