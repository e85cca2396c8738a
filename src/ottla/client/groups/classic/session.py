"""The session of a classic member: Heartbeat and LeaveGroup.

Owns the heartbeats, the deadlines of the session (KIP-62), and the LeaveGroup that is still to be sent. Must not know the member's
states, nor its reaction to a response. Invariants: only an answered heartbeat extends the session; a heartbeat of an earlier
generation has no effect on the member; LeaveGroup is sent at most once, and only to a known coordinator (if it is lost, the session
expires).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.coordinator import CoordinatorManager
from ottla.client.effects import AnySend, Send
from ottla.client.events import ErrorNotification, Reply
from ottla.client.groups.classic.states import HEARTBEAT_REACTIONS, ClassicReaction, Generation, reaction_to
from ottla.client.groups.membership import DEFAULT, Refusals, leaves
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import heartbeat_request, heartbeat_response, leave_group_request, leave_group_response
from ottla.types import GroupMembershipOperation, Now

_log = logging.getLogger(__name__)

REASON_LENGTH = 255
"""The longest reason that brokers accept, in characters."""


class Session:
    """The heartbeats of one member. It reports to ``CoordinatorManager`` when the coordinator does not answer or has moved."""

    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: CoordinatorManager,
        backoff: ExponentialBackoff,
        notify: Callable[[object], None],
        on_response: Callable[[Generation, heartbeat_response.HeartbeatResponse, Now], None],
    ) -> None:
        """``on_response`` gets the response to each heartbeat, with the generation in which that was sent."""
        self._config = config
        self._coordinator = coordinator
        self._backoff = backoff
        self._notify = notify
        self._on_response = on_response
        self._refusals = Refusals(config.default_api_timeout_ms, notify)
        self._heartbeat_at = 0
        self._expires_at = 0
        self._in_flight = False
        self._failures = 0
        self._found = 0
        """The value of ``CoordinatorManager.found`` that the deadlines belong to."""

    def begin(self, now: Now) -> None:
        """Start the session of a generation that the member has joined."""
        self._failures, self._in_flight = 0, False
        self._heartbeat_at = now.mono + self._config.heartbeat_interval_ms
        self._expires_at = now.mono + self._config.session_timeout_ms
        self._refusals.accepted()

    def poll(self, generation: Generation, now: Now) -> list[AnySend]:
        """Return a heartbeat if one is due."""
        target = self._coordinator.target()
        if target is None:
            return []
        if self._coordinator.found != self._found:
            # 1. The coordinator fails, and the lookup takes longer than the session timeout.
            # 2. A new coordinator is found. It gives each member a whole session, so the deadline here starts again, too.
            #    Otherwise the client would give up the new coordinator before its first heartbeat.
            self._found, self._in_flight = self._coordinator.found, False
            self._expires_at = now.mono + self._config.session_timeout_ms
        if now.mono >= self._expires_at:
            self._coordinator.mark_unknown("no heartbeat was answered within session.timeout.ms", now)
            self._coordinator.target()
            return []
        if self._in_flight or now.mono < self._heartbeat_at:
            return []
        send = Send(
            rpcs.HEARTBEAT,
            heartbeat(self._config, generation),
            target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_response(generation, response, now),
            self._on_failure,
        )
        self._in_flight = True
        self._heartbeat_at = now.mono + self._config.heartbeat_interval_ms
        return [send]

    def deadlines(self) -> list[int]:
        """Return the times of the next polls."""
        return [self._expires_at] if self._in_flight else [self._heartbeat_at, self._expires_at]

    def on_answer(
        self, sent_in: Generation, response: heartbeat_response.HeartbeatResponse, generation: Generation | None, now: Now
    ) -> ClassicReaction | None:
        """Return the member's reaction to a response, ``None`` if there is none. The member is in ``generation`` now."""
        code = int(response.error_code)
        if not code or code == ErrorCode.rebalance_in_progress:
            self._in_flight, self._failures = False, 0
            self._expires_at = now.mono + self._config.session_timeout_ms
            self._refusals.accepted()
        else:
            self._retry_later(now)
        if not code:
            return None
        error = broker_error(code, f"a heartbeat of group {self._config.group_id!r}")
        reaction = reaction_to(error, HEARTBEAT_REACTIONS)
        if reaction is ClassicReaction.LOOK_UP:
            self._coordinator.mark_moved(error.name)
        if sent_in != generation:
            # 1. A heartbeat is sent in generation 5.
            # 2. A JoinGroup is answered: the member is in generation 6.
            # 3. The response to the heartbeat arrives. Its ILLEGAL_GENERATION is about generation 5, so it has no effect.
            return None
        if reaction in (ClassicReaction.LATER, ClassicReaction.LOOK_UP):
            self._refusals.refused(error, now)
            if reaction is ClassicReaction.LATER and self._refusals.count == 1:
                _log.warning("%s; heartbeats are retried", error)
            return None
        if reaction is ClassicReaction.FATAL:
            self._notify(ErrorNotification(error))
        return reaction

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        """Retry a heartbeat without a response. Only errors that a retry does not fix, such as a refused login, are reported."""
        self._coordinator.request_failed(error, now)
        if not error.retriable:
            self._notify(ErrorNotification(error))
        self._retry_later(now)

    def _retry_later(self, now: Now) -> None:
        self._in_flight = False
        self._heartbeat_at = now.mono + self._backoff.delay(self._failures)
        self._failures += 1


class PendingLeave:
    """The LeaveGroup of a member, and the calls that wait for its response."""

    def __init__(self, config: ConsumerConfig, coordinator: CoordinatorManager, on_end: Callable[[], None]) -> None:
        """``on_end`` is called after the response to, or the failure of, a request that the member waits for."""
        self._config = config
        self._coordinator = coordinator
        self._on_end = on_end
        self._replies: list[Reply] = []
        self._to_send: tuple[str, str] | None = None
        """The member id and the reason."""
        self._awaited = 0
        """The number of the request that the member waits for; 0: none."""
        self._sent = 0

    @property
    def due(self) -> bool:
        """Whether LeaveGroup is still to be sent."""
        return self._to_send is not None

    def request(self, member_id: str, reason: str, operation: GroupMembershipOperation = DEFAULT) -> bool:
        """Send LeaveGroup with the next poll. Return ``False`` if the member remains in the group: it is removed when its session
        expires. A static member remains by default.
        """
        if not member_id or not leaves(self._config, operation):
            return False
        self._to_send = (member_id, reason)
        return True

    def wait(self, reply: Reply) -> None:
        """Call ``reply`` when the member has left."""
        self._replies.append(reply)

    def poll(self, *, awaited: bool) -> list[AnySend]:
        """Return the LeaveGroup. Its response is ignored unless it is ``awaited``."""
        target = self._coordinator.target()
        if target is None or self._to_send is None:
            return []
        message = leave_group(self._config, *self._to_send)
        self._to_send = None
        self._sent = number = self._sent + 1
        self._awaited = number if awaited else 0
        return [
            Send(
                rpcs.LEAVE_GROUP,
                message,
                target,
                self._config.request_timeout_ms,
                lambda response, _: self._on_response(number, response),
                lambda error, now: self._on_failure(number, error, now),
            )
        ]

    def _on_response(self, number: int, response: leave_group_response.LeaveGroupResponse) -> None:
        if number != self._awaited:
            return
        code = int(response.error_code) or next((int(item.error_code) for item in response.members if item.error_code), 0)
        if code:
            _log.info("%s", broker_error(code, f"leaving group {self._config.group_id!r}"))
        self._on_end()

    def _on_failure(self, number: int, error: OttlaError, now: Now) -> None:
        self._coordinator.request_failed(error, now)
        if number == self._awaited:
            self._on_end()

    def end(self) -> None:
        """Reply to all callers: LeaveGroup was answered, or there will be no response."""
        self._awaited = 0
        replies, self._replies = self._replies, []
        for reply in replies:
            reply(None, None)


def heartbeat(config: ConsumerConfig, generation: Generation) -> heartbeat_request.HeartbeatRequest:
    """Return a Heartbeat."""
    return heartbeat_request.HeartbeatRequest(
        group_id=config.group_id or "",
        generation_id=generation.number,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
    )


def leave_group(config: ConsumerConfig, member_id: str, reason: str) -> leave_group_request.LeaveGroupRequest:
    """Return a LeaveGroup."""
    member = leave_group_request.MemberIdentity(
        member_id=member_id, group_instance_id=config.group_instance_id, reason=reason[:REASON_LENGTH]
    )
    return leave_group_request.LeaveGroupRequest(group_id=config.group_id or "", members=(member,))
