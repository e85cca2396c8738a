"""The session of a classic member: the heartbeats that it sends while it belongs to a generation, and what is made of the answers.

Owns the dialogue of heartbeats and the clocks of the membership (KIP-62). Must not know what the member does about an answer.
Invariant: nothing that is about an earlier generation is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ottla.client.backoff import ExponentialBackoff
from ottla.client.effects import Send
from ottla.client.groups.classic import requests
from ottla.client.groups.classic.liveness import Liveness
from ottla.client.groups.classic.requests import Tag
from ottla.client.groups.classic.states import HEARTBEAT_REACTIONS, Generation, Reaction, reaction_to
from ottla.client.groups.coordinator import CoordinatorManager
from ottla.client.groups.refusals import Refusals
from ottla.client.notifications import ErrorNotification
from ottla.config import ConsumerConfig
from ottla.errors import OttlaError, broker_error
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import Now

_log = logging.getLogger(__name__)


class Session:
    """See the module. ``liveness`` holds the deadlines."""

    def __init__(
        self,
        config: ConsumerConfig,
        coordinator: CoordinatorManager,
        backoff: ExponentialBackoff,
        notify: Callable[[object], None],
    ) -> None:
        self.liveness = Liveness(config)
        self._config = config
        self._coordinator = coordinator
        self._backoff = backoff
        self._notify = notify
        self._refusals = Refusals(config.default_api_timeout_ms, notify)

    def begin(self, now: Now) -> None:
        """The member has joined a generation."""
        self.liveness.joined(now)
        self._refusals.accepted()

    def poll(self, generation: Generation, now: Now) -> list[Send]:
        """A heartbeat when it is due."""
        target = self._coordinator.target()
        if target is None:
            return []
        self.liveness.coordinator_found(self._coordinator.found, now)
        if self.liveness.session_expired(now):
            self._coordinator.mark_unknown("no heartbeat was answered within session.timeout.ms", now)
            self._coordinator.target()
            return []
        if not self.liveness.heartbeat_due(now):
            return []
        message, tag = requests.heartbeat(self._config, generation), Tag(Api.HEARTBEAT, generation)
        self.liveness.heartbeat_sent(now)
        return [Send(Api.HEARTBEAT, message, target, tag, self._config.request_timeout_ms)]

    def on_answer(self, tag: Tag, message: Any, generation: Generation | None, now: Now) -> Reaction | None:
        """What the member, now in ``generation``, has to do because of an answer."""
        code = int(message.error_code)
        if not code or code == ErrorCode.rebalance_in_progress:
            self.liveness.heartbeat_answered(now)
            self._refusals.accepted()
        else:
            self.liveness.heartbeat_failed(now, self._backoff)
        if not code:
            return None
        error = broker_error(code, f"a heartbeat of group {self._config.group_id!r}")
        reaction = reaction_to(error, HEARTBEAT_REACTIONS)
        if reaction is Reaction.LOOK_UP:
            self._coordinator.mark_moved(error.name)
        if tag.generation != generation:
            return None
        if reaction in (Reaction.LATER, Reaction.LOOK_UP):
            self._refusals.refused(error, now)
            if reaction is Reaction.LATER and self._refusals.count == 1:
                _log.warning("%s; heartbeats are retried", error)
            return None
        if reaction is Reaction.FATAL:
            self._notify(ErrorNotification(error))
        return reaction

    def on_failure(self, error: OttlaError, now: Now) -> None:
        """A heartbeat without an answer. Errors that are not retriable, such as a refused login, are reported to the
        application."""
        if not error.retriable:
            self._notify(ErrorNotification(error))
        self.liveness.heartbeat_failed(now, self._backoff)
