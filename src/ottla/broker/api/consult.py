"""Consult (20003): a consumer of a central group asks any broker for the central coordinator, and for all brokers.

Owns the answer. Must not know ZooKeeper. Invariants: it is answered from memory; a broker that is cut off from ZooKeeper names no
coordinator, since another one may be elected by now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import consult_request, consult_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.CONSULT)
def consult(state: BrokerState, context: RequestContext, request: consult_request.ConsultRequest, now: Now) -> list[BrokerEffect]:
    """Name the brokers, and which of them is elected."""
    assert state.central is not None, "a broker that is alone does not serve it"
    elected, cluster = state.central.endpoint(now), state.catalog.cluster
    response = consult_response.ConsultResponse(
        error_code=ErrorCode.coordinator_not_available if elected is None else ErrorCode.none,
        error_message=_why_unknown(state.central.election.is_in_touch(now)) if elected is None else None,
        coordinator_id=-1 if elected is None else elected.node_id,
        coordinator_epoch=state.central.election.epoch,
        brokers=tuple(
            consult_response.Broker(
                broker_id=broker.node_id,
                creator_id=f"{broker.host}-{cluster.started_at.get(broker.node_id, 0)}",
                host=broker.host,
                port=broker.port,
            )
            for broker in cluster.brokers.values()
        ),
    )
    return [Reply(context.ticket, response)]


def _why_unknown(is_in_touch: bool) -> str:
    return "no broker is elected as the central coordinator now" if is_in_touch else "this broker is cut off from ZooKeeper"
