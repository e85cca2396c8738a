"""InitProducerId (22): a producer id of its own for each idempotent producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.refusal import NO_TRANSACTIONS, Refusal
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import init_producer_id_request, init_producer_id_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore


@serves(Api.INIT_PRODUCER_ID)
def init_producer_id(
    core: BrokerCore, context: RequestContext, request: init_producer_id_request.InitProducerIdRequest, now: Now
) -> list[Effect]:
    """A fresh id with epoch 0, or a refusal: with a transactional id there would have to be transactions."""
    code, producer_id, epoch = ErrorCode.none, -1, -1
    try:
        if request.transactional_id is not None:
            raise Refusal(_refusal_of(request.transactional_id), "Transactions are not served by this broker.")
        producer_id, epoch = core.producer_ids.allocate(), 0
    except Refusal as refusal:
        code = refusal.code
    response = init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )
    return [Reply(context.ticket, response)]


def _refusal_of(transactional_id: str) -> ErrorCode:
    return NO_TRANSACTIONS if transactional_id else ErrorCode.invalid_request
