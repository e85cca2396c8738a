"""The look-up of the central coordinator: any broker of the cluster knows it.

Owns Consult. Must not know when it is sent, nor the groups. Invariants: each response teaches the client all brokers of the
cluster, so that these can be consulted when those of the settings are gone; the brokers are consulted in turn, since one may be
wrong:

1. A broker is cut off from ZooKeeper. 2. It goes on to name the coordinator that it knew, or names none. 3. It remains the broker
with the fewest requests in flight, as it does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.effects import AnyNode, AnySend, Send
from ottla.errors import OttlaError, UnsupportedApiError, broker_error
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.messages import consult_request, consult_response
from ottla.types import Node, Now

NOT_ELECTED_HINT = "do the brokers reach ZooKeeper? /consumers/coordinator has the id of the broker that is elected"
NO_COORDINATOR_HINT = (
    "only Ottla's brokers with ZooKeeper have a central coordinator: start the brokers with zookeeper=..., or choose another"
    " group_protocol"
)
"""The hint for a broker that does not serve Consult or Register."""


class Consultation:
    """See ``coordinator.Question``. ``request_timeout`` is in milliseconds; ``learn_node`` gets each broker of the cluster."""

    def __init__(self, request_timeout: int, learn_node: Callable[[Node, Now], None]) -> None:
        self._request_timeout = request_timeout
        self._learn_node = learn_node

    def __call__(self, on_named: Callable[[Node, Now], None], on_failure: Callable[[OttlaError, Now], None]) -> AnySend:
        """See ``coordinator.Question``."""

        def on_response(response: consult_response.ConsultResponse, now: Now) -> None:
            brokers = {item.broker_id: Node(item.broker_id, item.host, item.port) for item in response.brokers}
            for broker in brokers.values():
                self._learn_node(broker, now)
            code, found = int(response.error_code), brokers.get(response.coordinator_id)
            if code or found is None:
                text = response.error_message or ("no broker is elected" if code else "the elected broker is not registered")
                error = broker_error(code or ErrorCode.coordinator_not_available, f"looking up the central coordinator: {text}")
                error.hint = NOT_ELECTED_HINT
                return on_failure(error, now)
            return on_named(found, now)

        def on_no_response(error: OttlaError, now: Now) -> None:
            if isinstance(error, UnsupportedApiError):
                error.hint = NO_COORDINATOR_HINT
            on_failure(error, now)

        return Send(
            rpcs.CONSULT,
            consult_request.ConsultRequest(),
            AnyNode(in_turn=True),
            self._request_timeout,
            on_response,
            on_no_response,
        )
