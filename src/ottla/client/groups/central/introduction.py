"""How the central coordinator gets to know a group whose consumers assign partitions by hand.

Owns the Register without topics that precedes their commits and look-ups. Must not know these, nor channels. Invariants: each
coordinator gets one Register before anything else is asked of it, and not if the consumer is a registered member; it gets another
one after a commit was refused because it does not know the group any more.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.effects import Poll, Send
from ottla.client.groups.central.frames import Frames, Held
from ottla.client.groups.central.states import HINTS, REGISTER_REACTIONS, RegisterReaction
from ottla.client.groups.membership import MembershipContext
from ottla.errors import BrokerError, OttlaError, broker_error
from ottla.protocol import rpcs
from ottla.protocol.messages import register_response
from ottla.types import Now


class Introduction:
    """See the module. ``is_registered`` tells whether the consumer is a member with a channel, ``registers`` whether it becomes one
    again, with what it holds: then its commits wait for that.
    """

    def __init__(
        self, context: MembershipContext, frames: Frames, is_registered: Callable[[], bool], registers: Callable[[], bool]
    ) -> None:
        self.failure: OttlaError | None = None
        """Why the latest attempt has failed; ``None`` after a success."""
        self.count = 0
        """The number of Registers that have succeeded."""
        self._config = context.config
        self._coordinator = context.coordinator
        self._backoff = context.backoff
        self._frames = frames
        self._is_registered, self._registers = is_registered, registers
        self._observers: list[Callable[[OttlaError, Now], None]] = []
        self._told = -1
        """The look-up that has found the coordinator which knows the group."""
        self._needed = self._in_flight = False
        self._is_repeated = False
        """Whether a commit was refused, and none has succeeded since."""
        self._attempts = self._not_before = 0

    def __repr__(self) -> str:
        return f"<Introduction {'needed' if self._needed else 'not needed'}>"

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """Call ``observer`` with each error that a retry does not fix."""
        self._observers.append(observer)

    def is_done(self) -> bool:
        """Whether the present coordinator, which is known, knows the group. If not, the next poll tells it."""
        if self._is_registered():
            return True
        if self._registers():
            return False
        self._needed = self._needed or self._told != self._coordinator.found
        return not self._needed

    def worked(self, count: int) -> None:
        """See ``Introducer``."""
        self._is_repeated = self._is_repeated and count != self.count

    def again(self, count: int) -> bool:
        """See ``Introducer``. It does not help if the latest Register was made for the same reason: the group has members."""
        if self._needed or count != self.count:
            return True
        helps, self._is_repeated, self._told = not self._is_repeated, True, -1
        return helps

    def poll(self, now: Now) -> Poll:
        """Return the Register if it is needed."""
        if not self._needed or self._in_flight:
            return Poll()
        if self._not_before > now.mono:
            return Poll(wake_at=self._not_before)
        target = self._coordinator.target()
        if target is None:
            return Poll()
        found = self._coordinator.found
        send = Send(
            rpcs.REGISTER,
            self._frames.register(None, Held(), -1),
            target,
            self._config.request_timeout_ms,
            lambda response, now: self._on_response(found, response, now),
            self._on_failure,
        )
        self._in_flight = True
        return Poll((send,))

    def _on_response(self, found: int, response: register_response.RegisterResponse, now: Now) -> None:
        self._in_flight = False
        if not response.error_code:
            self._told, self._needed, self._attempts, self.failure = found, False, 0, None
            self.count += 1
            return None
        what = f"announcing group {self._config.group_id!r} to the central coordinator"
        error = broker_error(int(response.error_code), f"{what}: {response.error_message or 'refused'}")
        return self._failed(error, now)

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        self._in_flight = False
        self._coordinator.request_failed(error, now)
        self._failed(error, now)

    def _failed(self, error: OttlaError, now: Now) -> None:
        self.failure = error
        self._not_before = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1
        code = error.code if isinstance(error, BrokerError) else 0
        reaction = REGISTER_REACTIONS.get(code, RegisterReaction.LATER if error.retriable else RegisterReaction.FATAL)
        if reaction is RegisterReaction.LOOK_UP:
            self._coordinator.mark_moved(str(error))
        elif reaction is not RegisterReaction.LATER:
            error.hint = HINTS.get(code, error.hint)
            self._needed = False
            for observer in self._observers:
                observer(error, now)
