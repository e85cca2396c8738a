"""How a classic member leaves its group: LeaveGroup, once.

Owns the pending LeaveGroup, and the calls that wait for its answer. Must not know states. Invariants: it is sent only to a
coordinator that is known, and only once (if it is lost, the session times out); waiting calls get the outcome.
"""

from __future__ import annotations

import logging
from typing import Any

from ottla.client.commands import Reply
from ottla.client.effects import Send
from ottla.client.groups.classic import requests
from ottla.client.groups.classic.requests import Tag
from ottla.client.groups.classic.states import Generation
from ottla.client.groups.coordinator import CoordinatorManager
from ottla.client.groups.membership import DEFAULT, leaves
from ottla.config import ConsumerConfig
from ottla.errors import broker_error
from ottla.protocol.apis import Api
from ottla.types import GroupMembershipOperation

_log = logging.getLogger(__name__)


class Leaving:
    """See the module."""

    def __init__(self, config: ConsumerConfig, coordinator: CoordinatorManager) -> None:
        self._config = config
        self._coordinator = coordinator
        self._replies: list[Reply] = []
        self._farewell: tuple[str, str] | None = None

    @property
    def due(self) -> bool:
        """Whether the good-bye is still to be said."""
        return self._farewell is not None

    def owe(self, member_id: str, reason: str, operation: GroupMembershipOperation = DEFAULT) -> bool:
        """Send LeaveGroup as soon as possible. False if none is to be sent: a member that remains is removed when its session
        expires."""
        if not member_id or not leaves(self._config, operation):
            return False
        self._farewell = (member_id, reason)
        return True

    def wait(self, reply: Reply) -> None:
        """Tell when it is over."""
        self._replies.append(reply)

    def poll(self, generation: Generation, round_: int) -> list[Send]:
        """The LeaveGroup."""
        target = self._coordinator.target()
        if target is None or self._farewell is None:
            return []
        message = requests.leave_group(self._config, *self._farewell)
        self._farewell = None
        return [Send(Api.LEAVE_GROUP, message, target, Tag(Api.LEAVE_GROUP, generation, round_), self._config.request_timeout_ms)]

    def over(self, answer: Any = None) -> None:
        """Answered, or it cannot be."""
        if answer is not None:
            code = int(answer.error_code) or next((int(item.error_code) for item in answer.members if item.error_code), 0)
            if code:
                _log.info("%s", broker_error(code, f"leaving group {self._config.group_id!r}"))
        replies, self._replies = self._replies, []
        for reply in replies:
            reply(None, None)
