"""The group's coordinator: the look-up, and doubts about it.

Owns FindCoordinator. Must not know what the coordinator is asked for. Invariants: at most one look-up is in flight; none is made
unless a manager needed the coordinator since the last one was found; a look-up that failed is not repeated before its back-off; a
broker that answers is not hung up on before another is known to be the coordinator: what it was sent it may still act upon, later
than upon what it is sent again over another connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.backoff import ExponentialBackoff
from ottla.client.effects import AnyNode, Poll, Send, ToCoordinator
from ottla.config import ConsumerConfig
from ottla.errors import DisconnectedError, OttlaError, OttlaTimeoutError, ProtocolError, broker_error
from ottla.protocol import rpcs
from ottla.protocol.messages import find_coordinator_request, find_coordinator_response
from ottla.types import Node, Now

_log = logging.getLogger(__name__)

COORDINATOR = "the coordinator of the group"
"""What errors call it."""

_GROUP = 0
"""The key type of a group in FindCoordinator."""


class CoordinatorManager:
    """Asked for the coordinator by the managers that talk to it; told by them when it turns out to be another.

    ``learn_node`` takes the address that an answer names; ``disconnect`` ends the connection to a coordinator that is none any
    more, so that what is in flight there fails at once.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        backoff: ExponentialBackoff,
        learn_node: Callable[[Node, Now], None],
        disconnect: Callable[[ToCoordinator, str, Now], None],
    ) -> None:
        assert config.group_id is not None
        self.node_id: int | None = None
        self.named: int | None = None
        """Whom the latest look-up that succeeded named, though it may have turned out to be of no use."""
        self.found = 0
        """How many times a coordinator was found: timers that depend on it are then restarted."""
        self.failure: OttlaError | None = None
        """Why the latest look-up failed; ``None`` once one succeeded."""
        self._group_id = config.group_id
        self._request_timeout = config.request_timeout_ms
        self._backoff = backoff
        self._learn_node = learn_node
        self._disconnect = disconnect
        self._observers: list[Callable[[OttlaError, Now], None]] = []
        self._former: int | None = None
        """The node that answered that it is not the coordinator, until the look-up has found the new one."""
        self._needed = self._in_flight = False
        self._attempts = 0
        self._not_before = 0

    def __repr__(self) -> str:
        return f"<CoordinatorManager {self._group_id!r} at node {self.node_id}>"

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """Call ``observer`` when a look-up fails for a permanent reason (no authorisation).

        The look-up goes on.
        """
        self._observers.append(observer)

    def target(self) -> ToCoordinator | None:
        """Where to send. ``None``: unknown; the look-up is in progress and its end wakes all managers."""
        if self.node_id is None:
            self._needed = True
            return None
        return ToCoordinator(self.node_id)

    def hang_up(self, reason: str, now: Now) -> None:
        """Give up what is in flight to the coordinator; it is the coordinator all the same."""
        if self.node_id is not None:
            self._disconnect(ToCoordinator(self.node_id), reason, now)

    def request_failed(self, error: OttlaError, now: Now) -> None:
        """A request to the coordinator has no response. If the node was lost or is silent, it may no longer be the coordinator."""
        if isinstance(error, DisconnectedError | OttlaTimeoutError):
            self.mark_unknown(str(error), now)

    def mark_unknown(self, reason: str, now: Now) -> None:
        """The coordinator does not answer. What is in flight there fails at once."""
        self.mark_moved(reason)
        self._let_go(reason, now)

    def mark_moved(self, reason: str) -> None:
        """The broker answered that it is not the coordinator, or not yet: it will answer the rest as well."""
        if self.node_id is not None:
            _log.debug("group %r: node %d is not the coordinator: %s", self._group_id, self.node_id, reason)
            self._former, self.node_id = self.node_id, None

    def _let_go(self, reason: str, now: Now) -> None:
        if self._former is not None:
            node_id, self._former = self._former, None
            self._disconnect(ToCoordinator(node_id), reason, now)

    def poll(self, now: Now) -> Poll:
        """One FindCoordinator when it is needed."""
        if self.node_id is not None or not self._needed or self._in_flight:
            return Poll()
        if now.mono < self._not_before:
            return Poll(wake_at=self._not_before)
        message = find_coordinator_request.FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=(self._group_id,))
        self._in_flight = True
        send = Send(rpcs.FIND_COORDINATOR, message, AnyNode(), self._request_timeout, self._on_response, self._on_failure)
        return Poll((send,))

    def _on_response(self, response: find_coordinator_response.FindCoordinatorResponse, now: Now) -> None:
        """Take the node, or back off."""
        self._in_flight = False
        answer = next((item for item in response.coordinators if item.key in (self._group_id, "")), None)
        if answer is None:
            return self._failed(ProtocolError(f"the answer to FindCoordinator does not name group {self._group_id!r}"), now)
        if answer.error_code:
            what = f"looking up the coordinator of group {self._group_id!r}"
            return self._failed(broker_error(int(answer.error_code), f"{what}: {answer.error_message or 'refused'}"), now)
        if answer.node_id != self._former:
            self._let_go(f"node {answer.node_id} is the coordinator now", now)
        self._former = None
        self._learn_node(Node(answer.node_id, answer.host, answer.port), now)
        self.node_id = self.named = answer.node_id
        self.failure, self._attempts, self._needed = None, 0, False
        self._not_before = now.mono + self._backoff.delay(0)
        self.found += 1
        return None

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        """Back off and try again."""
        self._in_flight = False
        self._failed(error, now)

    def _failed(self, error: OttlaError, now: Now) -> None:
        self.failure = error
        self._not_before = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1
        if not error.retriable:
            for observer in self._observers:
                observer(error, now)
