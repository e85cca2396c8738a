"""A member of a group of Kafka 0.8: it registers in ZooKeeper, reads who else is there, and claims its share of the partitions.

Owns the member's state, its registration and the order of a rebalance. Must not know kazoo, commits, positions or user code: a
notification tells the application what to do in a rebalance, and a command answers it. Invariants: all transitions are those of
``TRANSITIONS``; a watch only sets a flag, so one rebalance runs at a time, and begins only in STABLE; owner nodes are created only
after the application, inside ``poll()``, has committed and given up its partitions and the member has deleted its own;
``max.poll.interval.ms`` is the only deadline of the application.

A member that joins, from the first poll on::

    UNSUBSCRIBED -- poll --> REGISTERING -- its node exists --> READING -- assigned --> CLAIMING -- one multi --> STABLE
    STABLE -- a watch has fired --> PREPARING -- the application is ready --> RELEASING -- owner nodes deleted --> READING
    CLAIMING -- another member owns a partition --> WAITING -- it is gone, or rebalance.backoff.ms is over --> READING

Sources: seed 004's design, Kafka 1.1.1's ``ZookeeperConsumerConnector``. Where this member differs from Java's: it claims all
partitions or none, waits for the conflicting owner instead of a fixed time, reads the committed offsets after it has claimed the
partitions, since another member may commit until it gives them up, and goes on trying after ``rebalance.max.retries``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.assignors.threads import THREAD_ASSIGNORS
from ottla.client.cluster.zookeeper_brokers import ZooKeeperBrokers
from ottla.client.effects import Poll
from ottla.client.events import Assigned, AssignmentReceived, ErrorNotification, RebalanceNeeded, Reply, UserData
from ottla.client.groups.membership import (
    DEFAULT,
    NO_MEMBER,
    MemberIdentity,
    MembershipContext,
    MemberStatus,
    Refusals,
    not_a_member,
)
from ottla.client.groups.zookeeper.claims import Claims
from ottla.client.groups.zookeeper.registration import Registrar, registration_of
from ottla.client.groups.zookeeper.registry import GroupReader, GroupView
from ottla.client.groups.zookeeper.states import MEMBER_STATES, OWNING, REBALANCING, TRANSITIONS, Input, State
from ottla.client.groups.zookeeper.waits import Waits
from ottla.client.subscription import Mode
from ottla.errors import ConfigError, OttlaError, RebalanceInProgressError, ZooKeeperError, broker_error
from ottla.types import ConsumerGroupMetadata, FrozenMapping, GroupMembershipOperation, Now, TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import is_missing
from ottla.zookeeper.nodes import ConsumerThread
from ottla.zookeeper.session import Session, SessionChanged, SessionState, WatchFired

_log = logging.getLogger(__name__)


class ZooKeeperMembership:
    """See the module. Without a broker in ``brokers`` there is nothing to read, so a rebalance waits for one."""

    group_topics: frozenset[str] = frozenset()
    """See ``Membership``: partitions of topics are read from ZooKeeper."""
    follows_all_topics = False
    """See ``Membership``."""
    joins_as_new_member = False
    """See ``Membership``: a ZooKeeper group has no other protocol."""
    failure: OttlaError | None = None
    """See ``Membership``: a member goes on trying whatever happens."""

    def __init__(self, context: MembershipContext, session: Session, member_id: str, brokers: ZooKeeperBrokers) -> None:
        config = context.config
        self.state = State.UNSUBSCRIBED
        self.member_id = member_id
        """The member keeps its id however often it joins."""
        self.epoch = -1
        """The number of changes of the group's members when the member last read them."""
        self.claims = Claims(config, member_id, session)
        self._config = config
        self._subscription = context.subscription
        self._notify = context.notify
        self._polls = context.polls
        self._backoff = context.backoff
        self._session = session
        self._brokers = brokers
        self._registrar = Registrar(config, member_id, session, self._on_registered, self._on_taken, self._retry_later)
        self._reader = GroupReader(
            config,
            member_id,
            self._on_read,
            self._on_unreadable,
            self._on_failure,
            reads_all_topics=self._assignor == "roundrobin",
        )
        self._refusals = Refusals(config.default_api_timeout_ms, context.notify)
        self._view: GroupView | None = None
        """The group as it was when the member computed its assignment."""
        self._wanted: Mapping[TopicPartition, ConsumerThread] = {}
        """Its share of that assignment."""
        self._changed = ""
        """What has changed since the last reading began; empty: nothing."""
        self._unwatched = False
        """Whether a disconnection has dropped the watches since the last reading began."""
        self._in_step = False
        """Whether operations of the present state are in flight."""
        self._failures = self._not_before = 0
        self._reported = ""
        """The latest error that was reported at once."""
        self._waits = Waits(config, member_id, context.backoff, lambda error: context.notify(ErrorNotification(error)))
        self._reason = ""
        self._token = 0
        self._leaves: list[Reply] = []

    def __repr__(self) -> str:
        return f"<ZooKeeperMembership {self.state.name} {self.member_id} epoch {self.epoch}>"

    @property
    def status(self) -> MemberStatus:
        """See ``Membership``. A member that waits for a broker is in a rebalance: it has no partitions yet."""
        joined = self.state in MEMBER_STATES and self._registrar.registered is not None
        rebalancing = self.state in REBALANCING
        return MemberStatus("zookeeper", self.state.name, joined, rebalancing, self._reason, self._assignor, self._waits.obstacle)

    @property
    def _assignor(self) -> str:
        return str(self._config.partition_assignment_strategy[0])

    # -- commands of the application --------------------------------------------------------------------------------------

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        return ConsumerGroupMetadata(self._config.group_id or "", self.epoch, self.member_id)

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self._polls.polled(now, self._config.poll_interval("zookeeper"))
        if self._subscription.mode is not Mode.TOPICS:
            return
        if self.state is State.UNSUBSCRIBED:
            self._reason = ""
            self._move(Input.POLLED)
        elif self.state is State.STABLE and self._registrar.is_outdated(registration_of(self._subscription, now)):
            self._changed = self._changed or "the subscription has changed"

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``. An answer to an older notification is ignored: the answer to the newer one follows."""
        del now
        if token == self._token and self.state in (State.PREPARING, State.LOST, State.STALE):
            self._abandon()
            try:
                self._subscription.set_partitions(())
            except Exception:
                self._ask_to_give_up(lost=self.state is not State.PREPARING)  # the answer to this is handled again
                raise
            self._move(Input.PREPARED)

    def accepted(self, token: int) -> None:
        """See ``Membership``."""
        if token == self._token and self.state is State.STABLE:
            self._subscription.accept()

    def user_data(self, command: UserData) -> None:
        """See ``Membership``: assignors of ZooKeeper groups have no user data."""

    def assigned(self, command: Assigned) -> None:
        """See ``Membership``: a member runs the assignor itself."""

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """See ``Membership``. The nodes of a member that remained in the group would disappear with its session all the same."""
        del now, operation
        _log.debug("group %r: %s", self._config.group_id, reason)
        self._token += 1
        self._subscription.set_partitions(())
        self._leaves.append(reply)
        if self.state not in (State.UNSUBSCRIBED, State.LEAVING):
            self._abandon()
            self._move(Input.LEAVE)
        if self.state is State.UNSUBSCRIBED or self._session.state is not SessionState.CONNECTED:
            # Without a connection the nodes disappear when the session ends, or are deleted when it is continued.
            self._reply()

    def identity(self) -> MemberIdentity:
        """See ``Membership``. There are no generations: the owner nodes and the lease fence commits."""
        if self._subscription.mode is Mode.TOPICS and self.state not in OWNING:
            if self.state in MEMBER_STATES:
                raise RebalanceInProgressError(f"group {self._config.group_id!r} is rebalancing, so nothing is committed now")
            raise not_a_member(self._config, expired=self._polls.expired_once)
        return NO_MEMBER

    def reader(self) -> MemberIdentity:
        """See ``Membership``."""
        return NO_MEMBER

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``. A coordinator that stores the offsets knows no member, so it refuses none."""
        del sent_by, now
        return broker_error(code, f"committing offsets of group {self._config.group_id!r}")

    # -- events of the session --------------------------------------------------------------------------------------------

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Note what has changed; the next poll acts on it."""
        del now
        if isinstance(event, SessionChanged):
            self._on_session_changed(event)
        elif self.claims.on_fired(event.path):
            self._waits.until = 0
        elif event.path in self._reader.watched:
            self._changed = self._changed or _cause(event)
        elif event.path == self._registrar.path and self.state is State.REGISTERING:
            self._not_before = self._waits.until = 0

    def _on_session_changed(self, event: SessionChanged) -> None:
        if event.state is SessionState.LOST or event.is_new:
            self._on_session_ended()
        if event.state is SessionState.CONNECTED:
            self._not_before, self._failures, self._unwatched = 0, 0, True
            if self.state is State.WAITING:
                self._changed = self._changed or "the connection to ZooKeeper was restored"

    def _on_session_ended(self) -> None:
        """The nodes of the member disappear with the session, so others may get its partitions."""
        was_member = self._registrar.registered is not None or self.state is not State.REGISTERING
        self._abandon()
        self.claims.forget()
        self._registrar.on_session_ended()
        if self.state is State.LEAVING:
            self._reply()
            if not self._registrar.may_exist:
                self._move(Input.LEFT)
        elif self.state in MEMBER_STATES and was_member:
            self._lose("the session with ZooKeeper has expired")

    # -- the request manager ----------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Return the operations of the state."""
        if self.state is State.UNSUBSCRIBED:
            return Poll()
        if self.state in MEMBER_STATES and self._polls.expired(now):
            self._leave_after_poll_timeout(now)
        if self._session.state is SessionState.CONNECTED and self._not_before <= now.mono:
            try:
                self._step(now)
            except Exception:
                # The core reports it and polls later. What the step has asked for already may come twice, but is not waited for.
                self._in_step = False
                raise
        asks = (*self._registrar.asks.take(), *self._reader.asks.take(), *self.claims.asks.take())
        times = [self._not_before, *([self._polls.deadline] if self.state in MEMBER_STATES else [])]
        times += [self._waits.until] if self.state is State.WAITING else []
        return Poll(asks, min((at for at in times if at > now.mono), default=None))

    def _step(self, now: Now) -> None:
        """Begin what the state requires, unless it is in flight."""
        if self.state is State.WAITING and (self._changed or self._waits.until <= now.mono):
            self._waits.end(now)
            self._move(Input.UNCERTAIN if self.claims.possible else Input.RETRY)
        if self._in_step:
            return
        match self.state:
            case State.REGISTERING:
                self._register(now)
            case State.READING if self._registrar.is_outdated(registration_of(self._subscription, now)):
                self._move(Input.OUTDATED)
                self._register(now)
            case State.READING if self._brokers.brokers:
                self._read(now)
            case State.CLAIMING:
                self._in_step = True
                self.claims.claim(self._wanted, self._on_claimed, self._on_conflict, self._on_failure)
            case State.STABLE if self._changed and self._brokers.brokers and self._session.has_lease(now):
                # Without the lease: 1. The process was stopped, and its session has expired. 2. It continues, and a watch that has
                # fired meanwhile arrives before the end of the session. 3. This is a loss, not a rebalance with a revocation.
                self._begin_rebalance()
            case State.STABLE if self._unwatched:
                self._read(now)
            case State.RELEASING:
                self._in_step = True
                self.claims.release((), self._on_released, self._on_failure)
            case State.LEAVING | State.STALE:
                self._delete_nodes(now)

    def _register(self, now: Now) -> None:
        self._in_step = True
        self._registrar.register(registration_of(self._subscription, now))

    def _read(self, now: Now) -> None:
        self._in_step, self._changed, self._unwatched = True, "", False
        self._reader.begin(registration_of(self._subscription, now))

    def _delete_nodes(self, now: Now) -> None:
        """Delete the owner nodes and the member's own node, in one multi, after a look at whose it is."""
        if self._registrar.may_exist:
            self._in_step = True
            done, failed = self._on_nodes_deleted, self._on_failure
            self._registrar.prepare_deletion(lambda last, now: self.claims.release(last, done, failed), failed)
        elif self.claims.possible:
            # Another client has deleted the member's node. With it, the owner nodes can be deleted as always.
            self._register(now)
        elif self.state is State.LEAVING:
            self._left()

    # -- a rebalance ------------------------------------------------------------------------------------------------------

    def _begin_rebalance(self) -> None:
        self._reason = self._changed
        self._ask_to_give_up(lost=False)
        self._move(Input.REBALANCE)

    def _on_registered(self, now: Now) -> None:
        del now
        self._succeeded()
        if self.state is State.REGISTERING:
            self._polls.joined()
            self._move(Input.UNCERTAIN if self.claims.possible else Input.REGISTERED)

    def _on_taken(self, now: Now) -> None:
        """Another session has the node of this member id, or the group has members of the central coordinator: wait for its end,
        without owner nodes, which would be in the way."""
        self._in_step = bool(self.claims.possible)
        if self.claims.possible:
            self.claims.release((), self._on_taken, self._on_failure)
        elif self.state is State.REGISTERING:
            self._not_before = self._waits.begin_for_other(self._registrar.taken_by, now)

    def _on_released(self, now: Now) -> None:
        del now
        self._succeeded()
        self._move(Input.RELEASED)

    def _on_read(self, view: GroupView, now: Now) -> None:
        self._succeeded()
        if self.member_id not in view.members:
            self._on_unregistered(now)
        elif self.state is State.STABLE:
            if self._view is None or not view.equals(self._view):
                self._changed = self._changed or "the group has changed while ZooKeeper was not connected"
        elif not self._changed and not self._unwatched:  # otherwise the group is read again
            self._take_view(view, now)

    def _take_view(self, view: GroupView, now: Now) -> None:
        """Compute the assignment of all members, and take this member's share."""
        self._view = view
        if view.epoch != self.epoch:
            self.epoch = view.epoch
            self._subscription.version += 1
        if self._subscription.pattern is not None:
            self._subscription.subscribe(view.topics, self._subscription.pattern)
        try:
            assignment = THREAD_ASSIGNORS[self._assignor](view.threads, view.partitions)
            self._wanted = {tp: thread for tp, thread in assignment.items() if thread.member_id == self.member_id}
            self.claims.check_size(self._wanted)
        except OttlaError as error:
            self._cannot_assign(error, now)
        else:
            self._move(Input.READ)

    def _on_unreadable(self, error: ConfigError, now: Now) -> None:
        self._succeeded()
        if self.state is State.READING:
            self._cannot_assign(error, now)
        else:
            self._changed = self._changed or str(error)

    def _cannot_assign(self, error: OttlaError, now: Now) -> None:
        self._move(Input.CONFLICT)
        self._waits.begin(str(error.args[0]), now, cause=error, hint=error.hint)

    def _on_claimed(self, now: Now) -> None:
        del now
        self._succeeded()
        self._waits.succeeded()
        self._reason = ""
        self._move(Input.CLAIMED)
        self._subscription.threads = FrozenMapping({tp: thread.thread for tp, thread in self._wanted.items()})
        added = self._subscription.set_partitions(self._wanted, await_acceptance=True)
        self._token += 1
        self._notify(AssignmentReceived(self._token, added))

    def _on_conflict(self, now: Now) -> None:
        """Wait until the other owners are gone; Java's member waits for the whole back-off."""
        self._succeeded()
        self._move(Input.CONFLICT)
        self._waits.begin_for(self.claims.blocked_by.values(), now, hint=self.claims.advice())

    def _succeeded(self) -> None:
        self._in_step, self._failures, self._reported = False, 0, ""
        self._refusals.accepted()

    # -- failures ---------------------------------------------------------------------------------------------------------

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        """Begin the step again after a back-off, or register again."""
        self._in_step = False
        if self.state is State.LEAVING:
            self._reply()
        if is_missing(error) and error.path in (self._registrar.path, paths.ids(self._config.group_id or "")):
            self._on_unregistered(now)
        else:
            self._retry_later(error, now)

    def _retry_later(self, error: OttlaError, now: Now) -> None:
        """Begin the step again after a back-off. An error that a retry does not fix is reported when it is a new one."""
        self._in_step = False
        if self.state is State.STABLE:
            self._unwatched = True
            if not isinstance(error, ZooKeeperError):
                # An exception has interrupted the end of a rebalance, so the application may not know its partitions.
                self._changed = self._changed or str(error)
        self._not_before = now.mono + self._backoff.delay(self._failures)
        self._failures += 1
        if error.retriable or str(error) == self._reported:
            self._refusals.refused(error, now)
        else:
            self._reported = str(error)
            self._notify(ErrorNotification(error))

    def _on_unregistered(self, now: Now) -> None:
        """Another client has deleted the node of this member, so the others do not count it any more."""
        self._registrar.forget()
        if self.state in MEMBER_STATES:
            self._lose(f"another client has deleted {self._registrar.path}")
        self._not_before = self._waits.back_off(now)

    def _lose(self, why: str) -> None:
        """Register again, after ``on_lost`` if the application has partitions."""
        self._abandon()
        self._reason = why
        if self._subscription.partitions:
            _log.warning("consumer of group %r lost its partitions: %s", self._config.group_id, why)
            self._move(Input.LOSE)
            self._ask_to_give_up(lost=True)
        else:
            self._move(Input.UNREGISTERED)

    def _leave_after_poll_timeout(self, now: Now) -> None:
        """Leave the group since the application has not polled within ``max.poll.interval.ms`` (KIP-62), and log one line."""
        self._polls.explain(now)
        self._abandon()
        self._reason = "the application did not poll in time"
        self._move(Input.EXPIRED)
        self._ask_to_give_up(lost=True)

    def _on_nodes_deleted(self, now: Now) -> None:
        del now
        self._succeeded()
        self._registrar.forget()
        if self.state is State.LEAVING:
            self._left()

    def _left(self) -> None:
        self._move(Input.LEFT)
        self._reply()

    def _reply(self) -> None:
        leaves, self._leaves = self._leaves, []
        for reply in leaves:
            reply(None, None)

    def _abandon(self) -> None:
        """Ignore the outcomes of what is in flight."""
        self._registrar.asks.abandon()
        self._reader.asks.abandon()
        self.claims.abandon()
        self._in_step, self._not_before, self._waits.until = False, 0, 0

    def _ask_to_give_up(self, *, lost: bool) -> None:
        self._subscription.suspend()
        self._token += 1
        self._notify(RebalanceNeeded(self._token, frozenset(self._subscription.partitions), lost, self._polls.deadline))

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            text = f"a member of a ZooKeeper group in state {self.state.name} has no transition for {cause.name}"
            raise RuntimeError(text) from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state
        self._subscription.version += 1


def _cause(event: WatchFired) -> str:
    """What a watch that has fired means."""
    if event.path == paths.TOPICS:
        return "a topic was created or deleted"
    if event.path.startswith(f"{paths.TOPICS}/"):
        return f"the partitions of {event.path.removeprefix(f'{paths.TOPICS}/')} have changed"
    return "a member has joined or left the group"
