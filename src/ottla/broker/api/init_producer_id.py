"""InitProducerId (22): a producer id of its own for each idempotent producer, an epoch of its own for each transactional one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import init_producer_id_request, init_producer_id_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1


@serves(Api.INIT_PRODUCER_ID)
def init_producer_id(
    state: BrokerState, context: RequestContext, request: init_producer_id_request.InitProducerIdRequest, now: Now
) -> list[Effect]:
    """A fresh id with epoch 0; with a transactional id, whatever the transaction coordinator says."""
    if request.transactional_id is not None:
        state.transactions.handle(context, request, now)
        return []
    code, producer_id, epoch = ErrorCode.none, -1, -1
    try:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            raise ApiError(ErrorCode.invalid_request, "A producer id and a producer epoch must be given together.")
        producer_id, epoch = state.catalog.producer_ids.allocate(), 0
    except ApiError as api_error:
        code = api_error.code
    response = init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )
    return [Reply(context.ticket, response)]
