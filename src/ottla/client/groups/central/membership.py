"""A member of a group of the central coordinator: it registers, and does what the coordinator sends on its channel.

Owns the member's state, and what it holds. Must not know connections, commits or user code: a notification tells the application
what to do in a rebalance, and a command answers it. Invariants: all transitions are those of ``TRANSITIONS``; partitions of a
generation are taken over only after those of an earlier one were given up; a Stop is answered after the application, inside
``poll()``, has committed and given up its partitions, and never after that channel is lost; after the lease, or in a newer
generation than its own, the member has lost its partitions; ``max.poll.interval.ms`` is the only deadline of the application.

A member that joins, from the first poll on::

    UNSUBSCRIBED -- poll --> JOINING -- Register; Start --> STABLE
    STABLE -- Stop --> STOPPING -- the application is ready; the Stop is answered --> STOPPED -- Start --> STABLE

If the channel is lost, the state remains, and the application reads on: the member registers again with what it holds, at the same
coordinator or at the next one. Sources: Kafka's draft of a consumer coordinator (2012), with epochs, generations and the lease.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.client.cluster.consultation import NO_COORDINATOR_HINT
from ottla.client.effects import Poll, ToChannel
from ottla.client.events import Assigned, AssignmentReceived, RebalanceNeeded, Reply, UserData
from ottla.client.groups.central.channel import Channel, State as ChannelState
from ottla.client.groups.central.frames import NOTHING, CoordinatorRequest, Frames, Held, Share, interest_of, share_of, why_stopped
from ottla.client.groups.central.retries import Retries
from ottla.client.groups.central.states import (
    HINTS,
    HOLDING,
    REBALANCING,
    REGISTER_REACTIONS,
    REGISTERED,
    TRANSITIONS,
    UNKNOWN_HINT,
    Input,
    RegisterReaction,
    State,
)
from ottla.client.groups.membership import (
    DEFAULT,
    NO_MEMBER,
    MemberIdentity,
    MembershipContext,
    MemberStatus,
    not_a_member,
)
from ottla.client.subscription import Mode
from ottla.errors import BrokerError, OttlaError, ProtocolError, RebalanceInProgressError, UnsupportedApiError, broker_error
from ottla.protocol import ErrorCode
from ottla.protocol.connection import Pushed
from ottla.protocol.messages import start_request, stop_request
from ottla.types import ConsumerGroupMetadata, FrozenMapping, GroupMembershipOperation, Now, TopicPartition

_log = logging.getLogger(__name__)

_IDENTITY_REFUSED = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})


class _Request(NamedTuple):
    """A Stop or Start of the present channel without an answer."""

    request: CoordinatorRequest
    correlation_id: int


class CentralMembership:
    """See the module. ``hang_up`` closes the channel's connection, ``position_of`` returns how far a partition was read."""

    group_topics: frozenset[str] = frozenset()
    """See ``Membership``: the coordinator assigns."""
    follows_all_topics = False
    """See ``Membership``: the coordinator matches a pattern, and a Start has names."""
    joins_as_new_member = False
    """See ``Membership``: a central group has no other protocol."""

    def __init__(
        self,
        context: MembershipContext,
        frames: Frames,
        hang_up: Callable[[ToChannel, str, Now], None],
        position_of: Callable[[TopicPartition], int | None],
    ) -> None:
        self.state = State.UNSUBSCRIBED
        self.member_id = frames.member_id
        """The member keeps its id however often it joins."""
        self.held = Held()
        """What it holds: in another state than those of ``HOLDING``, nothing. After a Stop it keeps the generation, which a new
        coordinator may not know (``RegisterRequest``)."""
        self.failure: OttlaError | None = None
        """See ``Membership``."""
        self._config = config = context.config
        self._subscription = context.subscription
        self._coordinator = context.coordinator
        self._notify = context.notify
        self._polls = context.polls
        self._position_of = position_of
        self.channel = Channel(config, frames, context.coordinator, hang_up, self)
        self._retries = Retries(config, context.backoff, context.notify)
        self._waiting: deque[_Request] = deque()
        """Requests that are handled when the application has acted, in order."""
        self._stop: _Request | None = None
        """The Stop that is answered when the application has given up its partitions."""
        self._outdated = False
        """Whether the latest Register said that the member holds what it has given up, or had another subscription."""
        self._reason = ""
        self._token = 0
        self._leaves: list[Reply] = []
        context.coordinator.on_fatal(self._on_lookup_failed)

    def __repr__(self) -> str:
        return f"<CentralMembership {self.state.name} {self.member_id} generation {self.held.generation} {self.channel}>"

    @property
    def status(self) -> MemberStatus:
        """See ``Membership``."""
        joined = self.state in HOLDING or (self.state in REGISTERED and self.is_registered)
        rebalancing = self.state in REBALANCING
        obstacle = self._retries.obstacle if rebalancing else ""
        return MemberStatus("central", self.state.name, joined, rebalancing, self._reason, obstacle=obstacle)

    @property
    def is_registered(self) -> bool:
        """Whether the member has a channel."""
        return self.channel.state is ChannelState.OPEN

    @property
    def lease_until(self) -> int:
        """Until when no other member can have the partitions of this one (monotonic ms); 0: they may have them now."""
        return (self.channel.lease_until or 0) if self.state in REGISTERED else 0

    # -- commands of the application --------------------------------------------------------------------------------------

    def metadata(self) -> ConsumerGroupMetadata:
        """See ``Membership``."""
        generation = self.held.generation if self.state in HOLDING else -1
        return ConsumerGroupMetadata(self._config.group_id or "", generation, self.member_id)

    def polled(self, now: Now) -> None:
        """See ``Membership``."""
        self._polls.polled(now, self._config.poll_interval("central"))
        if self._subscription.mode is not Mode.TOPICS:
            return
        if self.state is State.UNSUBSCRIBED:
            self._reason = ""
            self._retries.reset()
            self._move(Input.POLLED)
        elif self.channel.interest not in (None, interest_of(self._subscription)):
            self._outdated = True

    def prepared(self, token: int, now: Now) -> None:
        """See ``Membership``. An answer to an older notification is ignored: the answer to the newer one follows."""
        if token != self._token or self.state not in (State.STOPPING, State.LOST, State.STALE, State.FATAL):
            return
        is_stopping = self.state is State.STOPPING
        positions = self._positions() if is_stopping else NOTHING
        try:
            self._subscription.set_partitions(())
        except Exception:
            self._ask_to_give_up(lost=not is_stopping)  # the answer to this is handled again
            raise
        if self.state is State.FATAL:
            return
        self._move(Input.PREPARED)
        self.held, stop, self._stop = Held(self.held.generation), self._stop, None
        if stop is not None:
            self.channel.answer(*stop, positions)
        elif is_stopping and not self._waiting:
            # 1. The channel is lost before the answer. 2. The member registers with what it holds. 3. It gives that up.
            self._outdated = True
        self._handle_waiting(now)

    def accepted(self, token: int) -> None:
        """See ``Membership``."""
        if token == self._token and self.state is State.STABLE:
            self._subscription.accept()

    def user_data(self, command: UserData) -> None:
        """See ``Membership``: the coordinator's assignors have no user data."""

    def assigned(self, command: Assigned) -> None:
        """See ``Membership``: the coordinator runs the assignor."""

    def leave(self, reason: str, reply: Reply, now: Now, operation: GroupMembershipOperation = DEFAULT) -> None:
        """See ``Membership``. A member that remains is removed when its session expires."""
        _log.debug("group %r: %s", self._config.group_id, reason)
        self._token += 1
        self._leaves.append(reply)
        self._subscription.set_partitions(())
        if self.state in (State.UNSUBSCRIBED, State.FATAL):
            self._reply()
        elif self.state is not State.LEAVING:
            self._drop()
            self._move(Input.LEAVE)
            if operation is GroupMembershipOperation.REMAIN_IN_GROUP:
                self.channel.close(reason, now)
            else:
                self.channel.leave(reason, now)
            self.on_left(now)

    def identity(self) -> MemberIdentity:
        """See ``Membership``. A consumer that assigns by hand has a member id, and no generation."""
        if self._subscription.mode is not Mode.TOPICS:
            return MemberIdentity(member_id=self.member_id)
        if self.failure is not None:
            raise self.failure.afresh()
        if self.state in HOLDING:
            return MemberIdentity(self.held.generation, self.member_id)
        if self.state in REGISTERED:
            raise RebalanceInProgressError(f"group {self._config.group_id!r} is rebalancing, so nothing is committed now")
        raise not_a_member(self._config, expired=self._polls.expired_once)

    def reader(self) -> MemberIdentity:
        """See ``Membership``. Partitions are looked up after all members have given them up, so no one else commits them."""
        return NO_MEMBER

    def commit_refused(self, code: int, sent_by: MemberIdentity, now: Now) -> OttlaError:
        """See ``Membership``.

        1. The coordinator fails, and the commit reaches its successor before this member has registered there. 2. The member
        registers with what it holds, and the commit is retried; or it learns that it has lost its partitions.
        """
        error = broker_error(code, f"committing offsets of group {self._config.group_id!r}")
        if sent_by.generation < 0:
            return error
        is_current = self.state in HOLDING and sent_by == MemberIdentity(self.held.generation, self.member_id)
        if code not in _IDENTITY_REFUSED or not is_current:
            return not_a_member(self._config, expired=self._polls.expired_once, cause=error)
        if self.is_registered:
            self.channel.close(f"a commit was refused: {error}", now)
            self.on_channel_lost(f"a commit was refused with {error.name}", now)
        error.retriable = True
        return error

    # -- what the core reports --------------------------------------------------------------------------------------------

    def on_pushed(self, target: ToChannel, pushed: Pushed, now: Now) -> None:
        """Take a request of the coordinator."""
        self.channel.on_pushed(target, pushed, now)

    def on_channel_closed(self, target: ToChannel, reason: str, now: Now) -> None:
        """Note that the connection of a channel is gone."""
        self.channel.on_closed(target, reason, now)

    # -- the request manager ----------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Check the deadlines, register if there is no channel, and return what is to be sent."""
        if self.state in REGISTERED and self._polls.expired(now):
            self._leave_after_poll_timeout(now)
        self.channel.check(now)
        if self.held.generation >= 0 and now.mono >= self.lease_until:
            self._on_lease_over(now)
        if self.state is State.LEAVING:
            self._finish_leaving(now)
        self._register(now)
        return Poll(self.channel.take(), min((at for at in self._deadlines() if at > now.mono), default=None))

    def _register(self, now: Now) -> None:
        channel = self.channel
        if self.state not in REGISTERED or channel.in_flight:
            return
        if channel.state is ChannelState.OPEN:
            may_register = self._outdated and now.mono >= self._retries.not_before
        else:  # also while it waits, it looks for another coordinator
            target = self._coordinator.target() if channel.state is ChannelState.CLOSED else None
            may_register = target is not None and self._retries.may_register(target.node_id, now)
        if may_register:
            channel.register(interest_of(self._subscription), self.held, now)
            self._outdated = False

    def _deadlines(self) -> list[int]:
        times = [] if self.channel.silent_at is None else [self.channel.silent_at]
        times += [self._polls.deadline, self._retries.not_before] if self.state in REGISTERED else []
        return times + ([self.lease_until] if self.state in HOLDING else [])

    # -- what the channel reports -----------------------------------------------------------------------------------------

    def on_registered(self, generation: int, now: Now) -> None:
        """See ``channel.Member``. In another generation than its own, the member is not the owner of what it holds."""
        self._retries.accepted()
        self._polls.joined()
        if self.state in HOLDING and generation != self.held.generation and self._subscription.partitions:
            self._lose(f"the group has generation {generation}, and this member holds partitions of {self.held.generation}")

    def on_request(self, request: CoordinatorRequest, correlation_id: int, now: Now) -> None:
        """See ``channel.Member``."""
        item = _Request(request, correlation_id)
        is_stop = isinstance(request, stop_request.StopRequest)
        if is_stop and self.state is State.STOPPING and self._stop is None and not self._waiting:
            self._stop = item  # the Stop for which the application prepares was lost with its channel
            return
        self._waiting.append(item)
        self._handle_waiting(now)

    def on_channel_lost(self, reason: str, now: Now) -> None:
        """See ``channel.Member``. What the member holds remains, until the lease is over."""
        self._drop_requests()
        if self.state in REGISTERED:
            self._retries.lost(reason, self.channel.node_id, now)

    def on_refused(self, error: OttlaError, now: Now) -> None:
        """See ``channel.Member``."""
        self._drop_requests()
        if isinstance(error, UnsupportedApiError):
            error.hint = NO_COORDINATOR_HINT
            return self._fail(error, now)
        if isinstance(error, BrokerError):
            return self._on_refused_by_broker(error, now)
        if not error.retriable:
            self._retries.report(error, now)
        return self._retries.failed(error, self.channel.node_id, now)

    def _on_refused_by_broker(self, error: BrokerError, now: Now) -> None:
        unknown = RegisterReaction.LATER if error.retriable else RegisterReaction.FATAL
        reaction = REGISTER_REACTIONS.get(error.code, unknown)
        error.hint = HINTS.get(error.code, error.hint)
        if reaction is RegisterReaction.FATAL:
            error.hint = error.hint or UNKNOWN_HINT
            return self._fail(error, now)
        if reaction is RegisterReaction.LOOK_UP:
            self._coordinator.mark_moved(error.name)
        if reaction is RegisterReaction.GIVE_UP and self.state in HOLDING:
            self._lose(str(error.args[0]))
        elif reaction is RegisterReaction.GIVE_UP:
            self.held = Held()
        if reaction is RegisterReaction.REPORT:
            self._retries.report(error, now)
        else:
            self._retries.refused(error, now)
        return self._retries.failed(error, self.channel.node_id, now)

    def on_left(self, now: Now) -> None:
        """See ``channel.Member``."""
        del now
        if self.state is State.LEAVING and self.channel.state is ChannelState.CLOSED:
            self._move(Input.LEFT)
            self._reply()

    # -- a rebalance ------------------------------------------------------------------------------------------------------

    def _handle_waiting(self, now: Now) -> None:
        """Handle requests in order, until one requires that the application acts first."""
        while self._waiting and self.state in REGISTERED and self.state is not State.STOPPING:
            item = self._waiting.popleft()
            try:
                if isinstance(item.request, start_request.StartRequest):
                    self._on_start(item, item.request)
                else:
                    self._on_stop(item)
            except Exception as error:
                # Without an answer the coordinator would wait, so it has to learn that there is none.
                self.channel.close(f"a request of the coordinator could not be handled: {error}", now)
                self.on_channel_lost(str(error), now)
                if not isinstance(error, ProtocolError):
                    raise
                self._retries.report(error, now)

    def _on_stop(self, item: _Request) -> None:
        if self.state is State.STABLE and self._subscription.partitions:
            if item.request.generation != self.held.generation:
                return self._act_first(item)
            self._stop, self._reason = item, why_stopped(item.request)
            self._ask_to_give_up(lost=False)
            return self._move(Input.STOP)
        if self.state is State.STABLE:  # without partitions there is nothing to wait for
            self._token += 1
            self._move(Input.STOP)
            self._move(Input.PREPARED)
        else:
            self._move(Input.STOP)
        self.held, self._reason = Held(item.request.generation), why_stopped(item.request)
        return self.channel.answer(*item)

    def _on_start(self, item: _Request, request: start_request.StartRequest) -> None:
        share = share_of(request)
        if self.state is State.STABLE and (request.generation, share) != self.held and self._subscription.partitions:
            return self._act_first(item)
        if self.state is not State.STABLE or (request.generation, share) != self.held:
            self._take_over(Held(request.generation, share))
        self._retries.reset()
        return self.channel.answer(*item)

    def _act_first(self, item: _Request) -> None:
        """Lose what belongs to another generation, then handle the request.

        1. The coordinator has removed the member, and given its partitions to others. 2. The member registers again. 3. It gets a
        request of the next generation, without a Stop of its own.
        """
        self._waiting.appendleft(item)
        generation = item.request.generation
        self._lose(f"the group has generation {generation}, and this member holds other partitions of {self.held.generation}")

    def _take_over(self, held: Held) -> None:
        self._follow(held.share)
        self._subscription.threads = FrozenMapping(held.share)
        added = self._subscription.set_partitions(held.share, await_acceptance=True)
        if any(tp.topic not in self._subscription.topics for tp in held.share):
            # The subscription has changed since the coordinator has assigned: the rest is not delivered.
            self._subscription.subscribe(self._subscription.topics, self._subscription.pattern)
        self._token += 1
        self.held, self.channel.own_generation, self._reason = held, held.generation, ""
        self._move(Input.START)
        self._notify(AssignmentReceived(self._token, added))

    def _follow(self, share: Share) -> None:
        """Note the topics that a pattern matches, as the coordinator has told."""
        if self._subscription.pattern is not None:
            self._subscription.subscribe(frozenset(tp.topic for tp in share), self._subscription.pattern)

    def _positions(self) -> Mapping[TopicPartition, int]:
        positions = {tp: self._position_of(tp) for tp in self.held.share}
        return {tp: position for tp, position in positions.items() if position is not None}

    # -- the end of a membership ------------------------------------------------------------------------------------------

    def _on_lease_over(self, now: Now) -> None:
        """Hold nothing, and send nothing that says otherwise, also not in a Register that waits for a connection: others may have
        the partitions."""
        reason = "the coordinator has not confirmed the membership within the session time-out"
        if self.state in HOLDING or self.channel.state is not ChannelState.CLOSED:
            self.channel.close(reason, now)
            self._drop_requests()
            self._coordinator.mark_unknown(reason, now)
        if self.state in HOLDING:
            self._lose(reason)
        self.held = Held()

    def _lose(self, why: str) -> None:
        """Go on after ``on_lost`` only: others may have the partitions."""
        self._reason, self._stop, self.held = why, None, Held()
        self._move(Input.LOSE)
        if self._subscription.partitions:
            _log.warning("consumer of group %r lost its partitions: %s", self._config.group_id, why)
            self._ask_to_give_up(lost=True)
        else:
            self._token += 1
            self._move(Input.PREPARED)

    def _leave_after_poll_timeout(self, now: Now) -> None:
        """Leave the group since the application has not polled within ``max.poll.interval.ms`` (KIP-62), and log one line."""
        self._polls.explain(now)
        self._drop()
        self._reason = "the application did not poll in time"
        self._move(Input.EXPIRED)
        self._ask_to_give_up(lost=True)
        self.channel.leave(self._reason, now)

    def _finish_leaving(self, now: Now) -> None:
        """Leave as soon as possible, also if an exception has interrupted the first attempt."""
        if self.channel.state is ChannelState.DEPARTING and not self.channel.in_flight:
            self.channel.close("leaving the group", now)
        elif self.channel.state is ChannelState.OPEN:
            self.channel.leave("leaving the group", now)
        self.on_left(now)

    def _fail(self, error: OttlaError, now: Now) -> None:
        """Fail for good."""
        error.fatal = True
        self.failure, self._reason = error, str(error)
        self.channel.close(str(error), now)
        self._drop()
        self._move(Input.FAIL)
        self._ask_to_give_up(lost=True)

    def _on_lookup_failed(self, error: OttlaError, now: Now) -> None:
        """Report a look-up of the coordinator that failed with a permanent error; without a coordinator ever, it is final."""
        if self.state not in REGISTERED:
            return
        if isinstance(error, UnsupportedApiError) and not self._coordinator.found:
            self._fail(error, now)
        else:
            self._retries.report(error, now)

    def _drop(self) -> None:
        """Hold nothing, and answer nothing."""
        self.held, self._outdated = Held(), False
        self._drop_requests()

    def _drop_requests(self) -> None:
        self._waiting.clear()
        self._stop = None

    def _reply(self) -> None:
        leaves, self._leaves = self._leaves, []
        for reply in leaves:
            reply(None, None)

    def _ask_to_give_up(self, *, lost: bool) -> None:
        self._subscription.suspend()
        self._token += 1
        self._notify(RebalanceNeeded(self._token, frozenset(self._subscription.partitions), lost, self._polls.deadline))

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            text = f"a member of a central group in state {self.state.name} has no transition for {cause.name}"
            raise RuntimeError(text) from None
        _log.debug("group %r: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state
        self._subscription.version += 1
