"""The lookup of a coordinator: that of a group, or that of a transactional id.

Owns when a look-up is made, and FindCoordinator, in whose place another question may be asked. Must not know the requests to the
coordinator. Invariants: at most one lookup is in flight; there is none
unless a manager has needed the coordinator since it was last found; a failed lookup is repeated only after its back-off.

A broker that answers NOT_COORDINATOR is not disconnected before the lookup names another broker:

1. The member sends a commit and a heartbeat to broker 1. The heartbeat is answered with NOT_COORDINATOR.
2. If the client closed the connection now, it would send the commit again over another one.
3. The lookup may name broker 1 again, which was only about to load the group. Then broker 1 may execute the first commit after
   the second, and restore an older offset.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping

from ottla.client.backoff import ExponentialBackoff
from ottla.client.effects import AnyNode, AnySend, Poll, Send, ToCoordinator
from ottla.errors import DisconnectedError, OttlaError, OttlaTimeoutError, ProtocolError, broker_error
from ottla.protocol import rpcs
from ottla.protocol.messages import find_coordinator_request, find_coordinator_response
from ottla.types import Node, Now

_log = logging.getLogger(__name__)

COORDINATOR = "the coordinator of the group"
"""The name of the coordinator in errors."""


class CoordinatorKind(enum.IntEnum):
    """What a coordinator coordinates. The values are the key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


_WORDS: Mapping[CoordinatorKind, str] = {CoordinatorKind.GROUP: "group", CoordinatorKind.TRANSACTION: "transactional id"}
"""Kind -> what its keys are, for errors."""


Question = Callable[[Callable[[Node, Now], None], Callable[[OttlaError, Now], None]], AnySend]
"""Makes the request of a look-up. One of the two functions is called with the outcome: the coordinator, or why there is none."""


class FindCoordinator:
    """The look-up in any group but a central one; ``request_timeout`` is in milliseconds."""

    def __init__(self, kind: CoordinatorKind, key: str, request_timeout: int) -> None:
        self.name = f"{_WORDS[kind]} {key!r}"
        """Whose coordinator it is, for errors."""
        self._kind = kind
        self._key = key
        self._request_timeout = request_timeout

    def __call__(self, on_named: Callable[[Node, Now], None], on_failure: Callable[[OttlaError, Now], None]) -> AnySend:
        """See ``Question``."""
        message = find_coordinator_request.FindCoordinatorRequest(key_type=self._kind, coordinator_keys=(self._key,))

        def on_response(response: find_coordinator_response.FindCoordinatorResponse, now: Now) -> None:
            answer = next((item for item in response.coordinators if item.key in (self._key, "")), None)
            if answer is None:
                return on_failure(ProtocolError(f"the answer to FindCoordinator does not name {self.name}"), now)
            if answer.error_code:
                what = f"looking up the coordinator of {self.name}"
                return on_failure(broker_error(int(answer.error_code), f"{what}: {answer.error_message or 'refused'}"), now)
            return on_named(Node(answer.node_id, answer.host, answer.port), now)

        return Send(rpcs.FIND_COORDINATOR, message, AnyNode(), self._request_timeout, on_response, on_failure)


class CoordinatorManager:
    """Looks up the coordinator for the managers that need it, and again when they report that it has changed or is unreachable.

    ``question`` is the look-up of the coordinator of ``name``.
    ``learn_node`` gets the address in a response; ``disconnect`` closes the connection to a former coordinator, so that the
    requests in flight there fail at once.
    """

    def __init__(
        self,
        question: Question,
        name: str,
        backoff: ExponentialBackoff,
        learn_node: Callable[[Node, Now], None],
        disconnect: Callable[[ToCoordinator, str, Now], None],
    ) -> None:
        self.node_id: int | None = None
        self.named: int | None = None
        """The node in the latest successful lookup, even if it has failed since."""
        self.found = 0
        """The number of successful lookups: timers that depend on the coordinator restart when it grows."""
        self.failure: OttlaError | None = None
        """The error of the latest lookup; ``None`` after a success."""
        self._question = question
        self._name = name
        self._backoff = backoff
        self._learn_node = learn_node
        self._disconnect = disconnect
        self._observers: list[Callable[[OttlaError, Now], None]] = []
        self._former: int | None = None
        """The node that has answered NOT_COORDINATOR, until the lookup has found the coordinator."""
        self._needed = self._in_flight = False
        self._attempts = 0
        self._not_before = 0

    def __repr__(self) -> str:
        return f"<CoordinatorManager of {self._name} at node {self.node_id}>"

    def on_fatal(self, observer: Callable[[OttlaError, Now], None]) -> None:
        """Call ``observer`` with each error of a lookup that a retry does not fix (no authorization). Lookups go on."""
        self._observers.append(observer)

    def target(self) -> ToCoordinator | None:
        """Return the target for requests. ``None``: unknown; a lookup follows, and its end wakes all managers."""
        if self.node_id is None:
            self._needed = True
            return None
        return ToCoordinator(self.node_id)

    def disconnect(self, reason: str, now: Now) -> None:
        """Close the connection, so that requests in flight fail; the node remains the coordinator."""
        if self.node_id is not None:
            self._disconnect(ToCoordinator(self.node_id), reason, now)

    def request_failed(self, error: OttlaError, now: Now) -> None:
        """Handle a request without a response. After a disconnect or a timeout the node may no longer be the coordinator."""
        if isinstance(error, DisconnectedError | OttlaTimeoutError):
            self.mark_unknown(str(error), now)

    def mark_unknown(self, reason: str, now: Now) -> None:
        """Look up the coordinator again, since it does not answer. Requests in flight there fail at once."""
        self.mark_moved(reason)
        self._disconnect_former(reason, now)

    def mark_moved(self, reason: str) -> None:
        """Look up the coordinator again, since the node has answered that it is not, or not yet. It will answer the requests in
        flight as well.
        """
        if self.node_id is not None:
            _log.debug("%s: node %d is not the coordinator: %s", self._name, self.node_id, reason)
            self._former, self.node_id = self.node_id, None

    def _disconnect_former(self, reason: str, now: Now) -> None:
        if self._former is not None:
            node_id, self._former = self._former, None
            self._disconnect(ToCoordinator(node_id), reason, now)

    def poll(self, now: Now) -> Poll:
        """Return the question if it is needed."""
        if self.node_id is not None or not self._needed or self._in_flight:
            return Poll()
        if now.mono < self._not_before:
            return Poll(wake_at=self._not_before)
        send = self._question(self._on_named, self._on_failure)
        self._in_flight = True
        return Poll((send,))

    def _on_named(self, node: Node, now: Now) -> None:
        """Use the node in the response."""
        self._in_flight = False
        if node.node_id != self._former:
            self._disconnect_former(f"node {node.node_id} is the coordinator now", now)
        self._former = None
        self._learn_node(node, now)
        self.node_id = self.named = node.node_id
        self.failure, self._attempts, self._needed = None, 0, False
        self._not_before = now.mono + self._backoff.delay(0)
        self.found += 1

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        """Retry after the back-off."""
        self._in_flight = False
        self.failure = error
        self._not_before = now.mono + self._backoff.delay(self._attempts)
        self._attempts += 1
        if not error.retriable:
            for observer in self._observers:
                observer(error, now)
