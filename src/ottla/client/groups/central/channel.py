"""The channel of a member: the connection on which it has registered, and on which the coordinator sends requests.

Owns the channel's state, the epoch and generation that the member knows, the answers, and the lease. Must not know the member's
state, nor what a Stop or a Start means. Invariants:

- A request with a lower epoch or generation than the member knows has no effect but an answer with STALE_MEMBER_EPOCH.
- Every Ping is answered at once; every Stop and Start is passed on once, in order, and answered at most once, on this channel only.
- The lease never lasts longer than the member's session at the coordinator: it ends one session time-out after the *sending* of
  the latest answer, or Register, that has surely arrived.

Why a ping renews the lease::

    coordinator              member
        | -- Ping 1 ------------> |   answered at 1000
        | <------------ answer -- |
        | -- Ping 2 ------------> |   sent only after the answer to ping 1: the session lasts until 1000 + time-out at least

An answer that is sent between a Register and its response proves nothing, since the coordinator may forget a ping when it registers
the member. Only the Register itself renews the session there::

        | -- Ping 1 ------------> |
        | <---------- Register -- |   sent at 2000: the session begins again, and Ping 1 is forgotten
        | <------------ answer -- |   sent at 4000, without effect
        | -- response, Ping 2 --> |
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from ottla.client.cluster.coordinator import CoordinatorManager
from ottla.client.effects import Answer, AnySend, Send, ToChannel
from ottla.client.groups.central.frames import NOTHING, CoordinatorRequest, Frames, Held, Interest
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.apis import Api
from ottla.protocol.connection import Pushed
from ottla.protocol.messages import leave_response, ping_request, register_response, stop_request
from ottla.types import Now, TopicPartition

_log = logging.getLogger(__name__)

_SPARE = 6
"""A channel is silent if a ping is late by the session time-out divided by this: soon enough to find another coordinator before the
lease is over."""

_RegisterResponse: TypeAlias = "register_response.RegisterResponse"
_LeaveResponse: TypeAlias = "leave_response.LeaveResponse"


def response_timeout(config: ConsumerConfig, share: int) -> int:
    """Return for how long a broker may be silent before another one is consulted (ms): a ``share``-th of the session.

    It is never below a second. A session time-out that is far too short must be refused by the coordinator, which takes a round
    trip.
    """
    return min(config.request_timeout_ms, max(1_000, config.session_timeout_ms // share))


class State(enum.Enum):
    """The state of the channel."""

    CLOSED = "no channel"
    REGISTERING = "a Register was sent"
    OPEN = "the coordinator sends requests"
    DEPARTING = "a Register was sent, and a Leave follows its response"
    LEAVING = "a Leave was sent"


class Input(enum.Enum):
    """The causes of a change of state."""

    REGISTER = "the member needs a channel, and the coordinator is known"
    ACCEPTED = "the Register has succeeded"
    LEAVE = "the member leaves the group"
    CLOSED = "the connection is gone, or given up"


TRANSITIONS: Mapping[State, Mapping[Input, State]] = {
    State.CLOSED: {Input.REGISTER: State.REGISTERING},
    State.REGISTERING: {Input.ACCEPTED: State.OPEN, Input.LEAVE: State.DEPARTING, Input.CLOSED: State.CLOSED},
    State.OPEN: {Input.ACCEPTED: State.OPEN, Input.LEAVE: State.LEAVING, Input.CLOSED: State.CLOSED},
    State.DEPARTING: {Input.ACCEPTED: State.LEAVING, Input.CLOSED: State.CLOSED},
    State.LEAVING: {Input.CLOSED: State.CLOSED},
}
"""State -> input -> next state."""


class Member(Protocol):
    """What the channel tells its member. When one of the last three is called, the channel is closed."""

    def on_registered(self, generation: int, now: Now) -> None:
        """A Register has succeeded; the group has this generation."""

    def on_request(self, request: CoordinatorRequest, correlation_id: int, now: Now) -> None:
        """A Stop or Start that is not stale has arrived. It is answered by ``Channel.answer``."""

    def on_refused(self, error: OttlaError, now: Now) -> None:
        """A Register was refused, or not answered."""

    def on_channel_lost(self, reason: str, now: Now) -> None:
        """The channel was open, and is gone."""

    def on_left(self, now: Now) -> None:
        """The Leave was answered, or there is no coordinator to answer it."""


class Channel:
    """See the module. ``hang_up`` closes the connection; times are monotonic milliseconds."""

    def __init__(
        self,
        config: ConsumerConfig,
        frames: Frames,
        coordinator: CoordinatorManager,
        hang_up: Callable[[ToChannel, str, Now], None],
        member: Member,
    ) -> None:
        self.state = State.CLOSED
        self.epoch = self.generation = -1
        """The latest epoch of a coordinator, and generation of the group, of which the member knows; -1: none."""
        self.own_generation = -1
        """The latest generation in which the member was started, or has registered with an earlier one; -1: none. It stays true
        whatever happens, also when the lease is over."""
        self.interest: Interest | None = None
        """What the latest Register contained."""
        self.in_flight = False
        """Whether a Register has no outcome yet."""
        self._was_sent = False
        """Whether the latest Register was handed to the connection."""
        self._config = config
        self._session = config.session_timeout_ms
        self._frames = frames
        self._coordinator = coordinator
        self._hang_up = hang_up
        self._member = member
        self._target: ToChannel | None = None
        self.node_id: int | None = None
        """The broker of the latest Register."""
        self._number = 0
        """Distinguishes channels, and the Registers on one of them: late outcomes have no effect."""
        self._confirmed_at: int | None = None
        """When the latest answer, or Register, was sent that has surely arrived."""
        self._ping_answered_at: int | None = None
        """When the latest answer to a ping was sent on this channel, unless a Register was in flight."""
        self._heard_at = self._patience = 0
        self._reason = ""
        """Of the Leave."""
        self._unsent: list[AnySend | Answer] = []
        self._noted: set[str] = set()
        """The kinds of frames without effect that were logged once."""

    def __repr__(self) -> str:
        return f"<Channel {self.state.name} {self._target} epoch {self.epoch} generation {self.generation}>"

    @property
    def lease_until(self) -> int | None:
        """Until when the coordinator surely counts the member as alive; ``None``: it has never registered."""
        return None if self._confirmed_at is None else self._confirmed_at + self._session

    @property
    def silent_at(self) -> int | None:
        """When an open channel counts as lost, if nothing arrives until then."""
        return self._heard_at + self._patience if self.state is State.OPEN else None

    def take(self) -> tuple[AnySend | Answer, ...]:
        """Remove and return what is to be sent."""
        taken, self._unsent = self._unsent, []
        return tuple(taken)

    # -- the member's calls -----------------------------------------------------------------------------------------------

    def register(self, interest: Interest, held: Held, now: Now) -> None:
        """Register, on the open channel or at the coordinator, which is known."""
        target = self._target
        if target is None:
            node = self._coordinator.target()
            assert node is not None, "the coordinator is unknown"
            target = ToChannel(node.node_id)
        number, sent_at, asked = self._number, now.mono, target
        send = Send(
            rpcs.REGISTER,
            self._frames.register(interest, held, self.epoch, self.own_generation),
            target,
            response_timeout(self._config, 3),
            lambda response, now: self._on_response(number, asked, sent_at, held, response, now),
            lambda error, now: self._on_failure(number, error, now),
            on_sent=lambda: self._on_sent(number),
        )
        if self.state is State.CLOSED:
            self._move(Input.REGISTER)
        self._target, self.node_id = target, target.node_id
        self.interest, self.in_flight, self._was_sent = interest, True, False
        self._unsent.append(send)

    def answer(self, request: CoordinatorRequest, correlation_id: int, positions: Mapping[TopicPartition, int] = NOTHING) -> None:
        """Answer a Stop or a Start that came on this channel."""
        message = self._frames.answer_to(request, request.coordinator_epoch, request.generation, positions)
        self._send_answer(Api.STOP if isinstance(request, stop_request.StopRequest) else Api.START, correlation_id, message)

    def leave(self, reason: str, now: Now) -> None:
        """Send a Leave, after the response to a Register in flight. Without a channel, or before its Register was sent, there is
        nothing to leave.
        """
        self._reason = reason
        if self.state is State.OPEN:
            self._send_leave()
            self._move(Input.LEAVE)
        elif self.state is State.REGISTERING and not self._was_sent:
            self.close(reason, now)
        elif self.state is State.REGISTERING:
            self._move(Input.LEAVE)

    def close(self, reason: str, now: Now) -> None:
        """Close the connection, if there is one. The member is not told."""
        if self._target is not None:
            target = self._target
            self._forget()
            self._hang_up(target, reason, now)

    def check(self, now: Now) -> None:
        """Give up an open channel that is silent, or whose broker is not the coordinator any more."""
        if self.state is not State.OPEN or self._target is None:
            return
        silent_at, node_id = self.silent_at, self._coordinator.node_id
        if silent_at is not None and now.mono >= silent_at:
            reason = f"the coordinator has sent nothing for {(now.mono - self._heard_at) / 1000:g} s"
            self._coordinator.mark_unknown(reason, now)
        elif node_id is not None and node_id != self._target.node_id:
            reason = f"node {node_id} is the coordinator now"
        else:
            return
        self.close(reason, now)
        self._member.on_channel_lost(reason, now)

    # -- what arrives -----------------------------------------------------------------------------------------------------

    def on_pushed(self, target: ToChannel, pushed: Pushed, now: Now) -> None:
        """Take a request of the coordinator. One of an earlier channel has no effect."""
        if self.state is not State.OPEN or target != self._target:
            return
        request: CoordinatorRequest = pushed.message
        self._heard_at = now.mono
        if not self._frames.is_for_this_member(request):
            self._note("another member", f"a {pushed.api.name} for another member, which has no effect")
        elif request.coordinator_epoch < self.epoch or request.generation < self.generation:
            self._refuse(request, pushed)
        elif isinstance(request, ping_request.PingRequest):
            self.epoch = request.coordinator_epoch
            self._on_ping(request, pushed.correlation_id, now)
        else:
            self.epoch, self.generation = request.coordinator_epoch, request.generation
            self._member.on_request(request, pushed.correlation_id, now)

    def on_closed(self, target: ToChannel, reason: str, now: Now) -> None:
        """Note that the connection of a channel is gone."""
        if target != self._target or self.state not in (State.OPEN, State.LEAVING):
            return None
        was_leaving = self.state is State.LEAVING
        self._forget()
        if was_leaving:
            return self._member.on_left(now)
        self._coordinator.mark_moved(reason)
        return self._member.on_channel_lost(reason, now)

    def _on_ping(self, request: ping_request.PingRequest, correlation_id: int, now: Now) -> None:
        # With a later generation than the member knows, it says what it knows: it has had no Stop.
        message = self._frames.answer_to(request, self.epoch, self.generation)
        if self._ping_answered_at is not None:
            self._confirm(self._ping_answered_at)
        self._ping_answered_at = None if self.in_flight else now.mono
        self._send_answer(Api.PING, correlation_id, message)

    def _refuse(self, request: CoordinatorRequest, pushed: Pushed) -> None:
        known = f"epoch {self.epoch} and generation {self.generation}"
        what = f"epoch {request.coordinator_epoch} and generation {request.generation}"
        self._note("stale", f"a {pushed.api.name} with {what} is refused: the member knows {known}")
        message = self._frames.answer_to(request, self.epoch, self.generation, is_stale=True)
        self._send_answer(pushed.api, pushed.correlation_id, message)

    def _send_answer(self, api: Api, correlation_id: int, message: object) -> None:
        assert self._target is not None, "there is no channel"
        self._unsent.append(Answer(api, correlation_id, message, self._target))

    # -- Register and Leave -----------------------------------------------------------------------------------------------

    def _on_sent(self, number: int) -> None:
        self._was_sent = self._was_sent or number == self._number

    def _on_response(self, number: int, asked: ToChannel, sent_at: int, held: Held, response: _RegisterResponse, now: Now) -> None:
        if number != self._number:
            # It was given up when its response had already arrived.
            return self._hang_up(asked, "its member has given up this channel", now) if self.state is State.CLOSED else None
        self.in_flight = False
        code, text = int(response.error_code), response.error_message or ""
        if not code and response.coordinator_epoch < self.epoch:
            text = f"its epoch {response.coordinator_epoch} is lower than {self.epoch}"
            code = ErrorCode.not_coordinator
        if code:
            group = f"registering in group {self._config.group_id!r}{f': {text}' if text else ''}"
            return self._refused(broker_error(code, group), now)
        if self.state is State.LEAVING:
            return None
        self.epoch, self.generation = response.coordinator_epoch, response.generation
        if self.state is State.DEPARTING:
            self._send_leave()
            return self._move(Input.ACCEPTED)
        self._move(Input.ACCEPTED)
        if 0 <= held.generation < response.generation:  # the group has gone on meanwhile
            self.own_generation = response.generation
        self._heard_at, self._patience = now.mono, max(0, response.ping_interval_ms) + max(1, self._session // _SPARE)
        self._confirm(sent_at)
        return self._member.on_registered(response.generation, now)

    def _on_failure(self, number: int, error: OttlaError, now: Now) -> None:
        """Give up the connection: a late response would open a channel of which the member knows nothing."""
        if number != self._number:
            return
        self.in_flight = False
        self._coordinator.request_failed(error, now)
        self._refused(error, now)

    def _refused(self, error: OttlaError, now: Now) -> None:
        was_leaving = self.state in (State.DEPARTING, State.LEAVING)
        self.close(str(error), now)
        if was_leaving:
            self._member.on_left(now)
        else:
            self._member.on_refused(error, now)

    def _send_leave(self) -> None:
        assert self._target is not None, "there is no channel"
        number = self._number
        send = Send(
            rpcs.LEAVE,
            self._frames.leave(self.epoch, self.generation, self._reason),
            self._target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_leave_response(number, response, now),
            lambda error, now: self._on_leave_failure(number, error, now),
        )
        self._unsent.append(send)

    def _on_leave_response(self, number: int, response: _LeaveResponse, now: Now) -> None:
        if response.error_code:
            error = broker_error(int(response.error_code), response.error_message or "")
            _log.info("leaving group %r: %s", self._config.group_id, error)
        self._end_leave(number, now)

    def _on_leave_failure(self, number: int, error: OttlaError, now: Now) -> None:
        if number == self._number:
            self._coordinator.request_failed(error, now)
            self._end_leave(number, now)

    def _end_leave(self, number: int, now: Now) -> None:
        if number == self._number:
            self.close("the member has left", now)
            self._member.on_left(now)

    # -- helpers ----------------------------------------------------------------------------------------------------------

    def _confirm(self, sent_at: int) -> None:
        self._confirmed_at = sent_at if self._confirmed_at is None else max(self._confirmed_at, sent_at)

    def _note(self, kind: str, text: str) -> None:
        _log.log(logging.DEBUG if kind in self._noted else logging.WARNING, "group %r: %s", self._config.group_id, text)
        self._noted.add(kind)

    def _forget(self) -> None:
        """Forget the channel: nothing more is sent on it, and late outcomes have no effect."""
        self._number += 1
        self._target, self.in_flight, self._ping_answered_at = None, False, None
        self._unsent.clear()
        self._move(Input.CLOSED)

    def _move(self, cause: Input) -> None:
        try:
            state = TRANSITIONS[self.state][cause]
        except KeyError:
            raise RuntimeError(f"a channel in state {self.state.name} has no transition for {cause.name}") from None
        _log.debug("group %r: the channel: %s -> %s (%s)", self._config.group_id, self.state.name, state.name, cause.name)
        self.state = state
