"""A member of a consumer group (KIP-848): it joins, reconciles its assignment and leaves by heartbeats alone.

Owns the member's state, its id and epoch, and the time of its heartbeats. Must not know commits, positions or user code: a
notification tells the application what to do in a rebalance, and a command answers it. Invariants: all transitions are those of
``TRANSITIONS``; at most one heartbeat is in flight, besides one to leave; heartbeats go on while the application is busy, until
``max.poll.interval.ms``, its only deadline; a response to an earlier incarnation has no effect; the member joins only inside
``poll()``.

A member that joins, from the first poll on::

    UNSUBSCRIBED -- poll --> JOINING -- heartbeat answered: partitions --> RECONCILING
    RECONCILING -- the application gave up and took over --> ACKNOWLEDGING -- heartbeat sent --> STABLE
    STABLE -- heartbeat answered: other partitions --> RECONCILING

A reconciliation begins when the application polls. Until then its partitions do not change, and a newer assignment replaces one
that has not begun. Sources: KIP-848, KIP-1082 (member ids), KIP-1251 (commits of older epochs), KIP-345 (static members).
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from ottla.client.effects import AnySend, Poll, Send
from ottla.client.events import Assigned, ErrorNotification, Reply, UserData
from ottla.client.groups.consumer.client_assignors import ClientAssignorManager
from ottla.client.groups.consumer.heartbeats import JOIN_GROUP_EPOCH, AssignmentSource, Heartbeats, new_member_id
from ottla.client.groups.consumer.reconciliation import Reconciliation
from ottla.client.groups.consumer.states import (
    ASSIGNOR_HINT,
    HEARTBEAT_REACTIONS,
    HEARTBEAT_STATES,
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
    """A member of a consumer group (see the module)."""

    group_topics: frozenset[str] = frozenset()
    """See ``Membership``: the coordinator assigns, so topics of other members do not matter."""

    def __init__(self, context: MembershipContext) -> None:
        config, subscription, coordinator, metadata, notify, backoff, polls = context
        self.state = State.UNSUBSCRIBED
        self.epoch = JOIN_GROUP_EPOCH
        self.member_id = new_member_id(backoff.random)
        """The member keeps its id however often it joins."""
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
        """The client-side assignor that computed the assignment of this epoch; empty: the coordinator computed it."""
        self._failed_in = JOIN_GROUP_EPOCH
        """The epoch in which the last failure of a client-side assignor was reported."""
        self._was_sent = False
        """Whether a heartbeat of this incarnation was sent, so that the coordinator may know the member."""
        self._poll_timed_out = False
        self._failures = 0
        self._refusals = Refusals(config.default_api_timeout_ms, notify)
        self._heartbeat_at = self._not_before = 0
        self._polled_at = self._assigned_at = 0
        self._leaves: list[Reply] = []
        self._operation = DEFAULT
        self._leaves_in_flight = 0
        """The number of heartbeats to leave in flight."""
        self._unsent: list[AnySend] = []
        """Heartbeats already noted as in flight. If the next step of a poll raises, the next poll returns them."""
        coordinator.on_fatal(self._on_lookup_failed)

    def __repr__(self) -> str:
        return f"<ConsumerMembership {self.state.name} {self.member_id} epoch {self.epoch}>"

    @property
    def follows_all_topics(self) -> bool:
        """See ``Membership``. The coordinator matches a pattern, and its assignment has ids of topics that the client may not
        know.
        """
        return self._subscription.pattern is not None and self._partitions.lacks_names

    @property
    def status(self) -> MemberStatus:
        """See ``Membership``."""
        return MemberStatus("consumer", self.state.name, self._is_member, self.state in REBALANCING, self._reason, self._assignor)

    @property
    def _is_member(self) -> bool:
        return self.state in HEARTBEAT_STATES and self.epoch > JOIN_GROUP_EPOCH

    @property
    def joins_as_new_member(self) -> bool:
        """See ``Membership``."""
        return self.state is State.JOINING and self.epoch == JOIN_GROUP_EPOCH and not self._in_flight

    # -- commands of the application --------------------------------------------------------------------------------------

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
            self._begin_incarnation(now)
        elif self.state in HEARTBEAT_STATES and self._heartbeats.has_changes:
            self._heartbeat_at = min(self._heartbeat_at, now.mono)

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``."""
        if self.state is State.RECONCILING:
            self._partitions.prepared(token)
        elif self.state in (State.FENCED, State.STALE) and self._partitions.released(token):
            self._move(Input.RELEASED)
            self._begin_incarnation(now)
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
        """See ``Membership``. The coordinator keeps the partitions of a static member that remains."""
        del now
        self._operation = operation
        _log.debug("group %r: %s", self._config.group_id, reason)
        self._partitions.forget()
        self._subscription.set_partitions(())
        self._leaves.append(reply)
        if self.state in (State.FENCED, State.STALE):
            self._move(Input.LEAVE)
        elif self.state in HEARTBEAT_STATES:
            self._move(Input.LEAVE)
            self._start_leaving()
            if not self._was_sent:
                self._move(Input.LEFT)
        if self.state is not State.LEAVING and not self._leaves_in_flight:
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
        self._heartbeat_at = min(self._heartbeat_at, now.mono)
        if code == ErrorCode.stale_member_epoch and self._is_member:
            error.retriable = True
            return error
        return not_a_member(self._config, expired=self._polls.expired_once, cause=error)

    # -- the request manager ----------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Return the heartbeat of the state, and requests of a client-side assignor."""
        if self.state in HEARTBEAT_STATES and self._polls.expired(now):
            self._leave_after_poll_timeout(now)
        if self.state is State.LEAVING:
            return Poll(tuple(self._leave_group()))
        if self.state not in HEARTBEAT_STATES:
            return Poll()
        self._reconcile()
        heartbeats = self._heartbeat(now)
        self._unsent += heartbeats
        if heartbeats:
            # The heartbeat has acknowledged an assignment, and a newer one may have arrived during its reconciliation.
            self._reconcile()
        computing = self._assignors.poll(now)
        sends, self._unsent = (*self._unsent, *computing.sends), []
        times = (self._polls.deadline, computing.wake_at, None if self._in_flight else self._due_at())
        return Poll(sends, min((at for at in times if at is not None and at > now.mono), default=None))

    def _reconcile(self) -> None:
        """Start the reconciliation of an assignment if the application has polled since it arrived."""
        application_knows = self.state is State.RECONCILING and self._polled_at >= self._assigned_at
        if application_knows and self._partitions.begin(self._polls.deadline):
            self._move(Input.RECONCILED)

    # -- heartbeats -------------------------------------------------------------------------------------------------------

    def _due_at(self) -> int:
        """Return when the next heartbeat is due: at once to join or to acknowledge, but not within a back-off."""
        urgent = self.state is State.ACKNOWLEDGING or (self.state is State.JOINING and self.epoch == JOIN_GROUP_EPOCH)
        return self._not_before if urgent else max(self._heartbeat_at, self._not_before)

    def _heartbeat(self, now: Now) -> list[AnySend]:
        target = self._coordinator.target()
        if target is None or self._in_flight or self._due_at() > now.mono:
            return []
        if self.epoch == JOIN_GROUP_EPOCH and self._assignors.undecided:
            return []  # without its assignors in the first heartbeat, the group would be assigned without them
        if self.state is State.JOINING:
            self._heartbeats.reset()
        message = self._heartbeats.build(self.epoch, self._partitions.current)
        self._in_flight = self._was_sent = True
        if self.state is State.ACKNOWLEDGING:
            self._move(Input.ACKNOWLEDGED if self._partitions.has_reached_target else Input.TARGET)
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
        """Retry with all fields, and look up the coordinator again if it may have changed."""
        self._coordinator.request_failed(error, now)
        if incarnation != self._incarnation:
            return None
        self._in_flight = False
        if isinstance(error, UnsupportedApiError):
            error.hint = HINTS[ErrorCode.unsupported_version] if error.hint == UnsupportedApiError.hint else error.hint
            return self._fail(error)
        if not error.retriable:
            self._notify(ErrorNotification(error))
        return self._retry_later(error, now)

    def _on_response(self, incarnation: int, sent_at: int, response: _Response, now: Now) -> None:
        if incarnation != self._incarnation:
            return
        self._in_flight = False
        if response.error_code:
            self._refused(int(response.error_code), response.error_message or "", now)
        else:
            self._on_heartbeat(sent_at, response, now)

    def _on_heartbeat(self, sent_at: int, response: _Response, now: Now) -> None:
        """Take over the epoch, the interval and the assignment."""
        if self._failures:
            _log.info("group %r: heartbeats are answered again", self._config.group_id)
        self._failures = self._not_before = 0
        self._refusals.accepted()
        self._heartbeat_at = sent_at + milliseconds(response.heartbeat_interval)
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
        assigned = None
        if response.assignment is not None:
            items = response.assignment.topic_partitions
            assigned = {
                item.topic_id: frozenset(item.partitions) for item in items if item.topic_id is not None and item.partitions
            }
        if (assigned is not None or source is not None) and self._partitions.set_target(assigned, source):
            self._assigned_at = now.mono
            by = "the coordinator" if source is None else f"the assignor {source.assignor!r}"
            self._reason = self._reason if self.state is State.JOINING else f"{by} has made a new assignment"
            self._move(Input.TARGET)

    def _source(self, response: _Response, *, moved: bool) -> AssignmentSource | None:
        """Return the client-side assignor that computed the assignment, if the response names one, and report its failure."""
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
            reaction = self._reaction_to_missing_group()
        if reaction is ConsumerReaction.FENCED:
            return self._fence(error)
        if reaction is ConsumerReaction.FATAL:
            error.hint = HINTS.get(code) or error.hint or UNKNOWN_HINT
            return self._fail(error)
        if reaction is ConsumerReaction.LOOK_UP:
            self._coordinator.mark_moved(error.name)
        if reaction is ConsumerReaction.REPORT:
            self._notify(ErrorNotification(error))
        else:
            self._refusals.refused(error, now)
        return self._retry_later(error, now)

    def _reaction_to_missing_group(self) -> ConsumerReaction:
        """Return the reaction to GROUP_ID_NOT_FOUND: the group was deleted, or is a classic group that cannot be converted.

        1. ``auto`` finds no group and chooses the consumer protocol.
        2. Before the heartbeat arrives, a classic member creates the group.
        3. The coordinator answers GROUP_ID_NOT_FOUND, and the choice is made again before the next attempt.
        """
        if self.epoch > JOIN_GROUP_EPOCH:
            return ConsumerReaction.FENCED
        return ConsumerReaction.LATER if self._config.group_protocol == "auto" else ConsumerReaction.FATAL

    def _retry_later(self, error: OttlaError, now: Now) -> None:
        """Retry after the back-off, with all fields, since this heartbeat may have arrived or not. The first failure is logged."""
        if not self._failures:
            _log.warning("%s; heartbeats are retried", error)
        self._heartbeats.reset()
        self._heartbeat_at, self._not_before = 0, now.mono + self._backoff.delay(self._failures)
        self._failures += 1

    # -- the end of a membership ------------------------------------------------------------------------------------------

    def _leave_group(self) -> list[AnySend]:
        """Return the heartbeat to leave: once, even if another heartbeat is in flight, and only to a known coordinator."""
        target = self._coordinator.target() if self._coordinator.node_id is not None else None
        message = self._heartbeats.build_leave(self._operation)
        expelled, self._poll_timed_out = self._poll_timed_out, False
        self._move(Input.LEFT_STALE if expelled else Input.LEFT)
        if target is None or message is None:
            self._left()
            return []
        self._leaves_in_flight += 1
        timeout = self._config.request_timeout_ms
        return [Send(rpcs.CONSUMER_GROUP_HEARTBEAT, message, target, timeout, self._on_leave_response, self._on_leave_failure)]

    def _on_leave_response(self, response: _Response, now: Now) -> None:
        del now
        if response.error_code:
            error = broker_error(int(response.error_code), response.error_message or "")
            _log.info("leaving group %r: %s", self._config.group_id, error)
        self._leaves_in_flight -= 1
        self._left()

    def _on_leave_failure(self, error: OttlaError, now: Now) -> None:
        self._coordinator.request_failed(error, now)
        self._leaves_in_flight -= 1
        self._left()

    def _left(self) -> None:
        replies, self._leaves = self._leaves, []
        for reply in replies:
            reply(None, None)

    def _leave_after_poll_timeout(self, now: Now) -> None:
        """Leave the group since the application has not polled within ``max.poll.interval.ms`` (KIP-62), and log one line."""
        self._polls.explain(now)
        self._reason = "the application did not poll in time"
        self._move(Input.EXPIRED)
        self._partitions.lose(self._polls.deadline)
        self._start_leaving()
        self._poll_timed_out = True

    def _fence(self, error: BrokerError) -> None:
        """Lose all partitions, since the coordinator has removed the member. It joins again after ``on_lost``."""
        _log.warning("consumer of group %r lost its partitions: %s", self._config.group_id, error)
        self._reason = f"the coordinator answered {error.name}"
        self._move(Input.FENCED)
        self._end_incarnation()
        self._partitions.lose(self._polls.deadline)

    def _fail(self, error: OttlaError) -> None:
        """Fail for good."""
        error.fatal = True
        self._reason = str(error)
        self.failure = error
        self._move(Input.FAIL)
        self._end_incarnation()
        self._partitions.lose(self._polls.deadline)

    def _start_leaving(self) -> None:
        """Leave PREPARE_LEAVING: the partitions are given up already."""
        self._move(Input.RELEASED)
        self._end_incarnation()

    def _begin_incarnation(self, now: Now) -> None:
        """Start a new incarnation, which joins the group."""
        self._end_incarnation()
        self._was_sent, self._operation = False, DEFAULT
        self._failures, self._not_before, self._heartbeat_at = 0, 0, now.mono
        self._refusals.accepted()

    def _end_incarnation(self) -> None:
        """End the incarnation: responses to its requests are ignored."""
        self._incarnation += 1
        self._in_flight = False
        self._unsent.clear()
        self.epoch = self._failed_in = JOIN_GROUP_EPOCH
        self._assignor = ""
        self._assignors.forget()

    def _on_lookup_failed(self, error: OttlaError, now: Now) -> None:
        """Report a lookup of the coordinator that failed with a permanent error. Lookups go on."""
        del now
        if self.state in HEARTBEAT_STATES:
            self._notify(ErrorNotification(error))
        if self._is_member and isinstance(error, BrokerError) and error.code == ErrorCode.group_authorization_failed:
            # Without a coordinator no heartbeats can be sent: the group continues without this member, and no response reports
            # that.
            self._fence(error)

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a consumer group member in state {self.state.name} has no transition for {cause.name}") from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state
        self._subscription.version += 1
