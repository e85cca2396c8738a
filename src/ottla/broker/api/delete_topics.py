"""DeleteTopics (20)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.refusal import Refusal, check_time_left
from ottla.broker.slices import SIZE, Slices
from ottla.broker.topics import Topic
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import delete_topics_request, delete_topics_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.DELETE_TOPICS)
def delete_topics(
    core: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest, now: Now
) -> list[Effect]:
    """Delete each topic, named by name or by id."""
    return core.sliced.begin(context, _slices(core, context, request), now)


def _slices(core: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest) -> Slices:
    results = []
    times = Counter((wanted.name, wanted.topic_id) for wanted in request.topics)
    in_slice = 0
    for wanted in dict.fromkeys(request.topics):
        if in_slice >= SIZE:
            yield []
            in_slice = 0
        in_slice += 1
        try:
            if times[wanted.name, wanted.topic_id] > 1:
                raise Refusal(ErrorCode.invalid_request, "Duplicate topic name.")
            check_time_left(request.timeout)
            topic = _find(core, wanted)
            core.delete_topic(topic)
            in_slice += topic.partition_count - 1
        except Refusal as refusal:
            results.append(_result(wanted, refusal))
        else:
            results.append(
                delete_topics_response.DeletableTopicResult(
                    name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.none, error_message=None
                )
            )
    response = delete_topics_response.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))
    return [Reply(context.ticket, response)]


def _find(core: BrokerState, wanted: delete_topics_request.DeleteTopicState) -> Topic:
    if not core.config.delete_topic_enable:
        raise Refusal(ErrorCode.topic_deletion_disabled, "Topic deletion is disabled.")
    if (wanted.name is None) == (wanted.topic_id is None):
        raise Refusal(ErrorCode.invalid_request, "Name a topic by name or by id, not by both or neither.")
    topic = core.topic(wanted.name) if wanted.name is not None else core.topic_by_id(wanted.topic_id)
    if topic.internal:
        raise Refusal(ErrorCode.invalid_request, f"Topic '{topic.name}' belongs to the broker: groups and offsets are in it.")
    return topic


def _result(wanted: delete_topics_request.DeleteTopicState, refusal: Refusal) -> delete_topics_response.DeletableTopicResult:
    return delete_topics_response.DeletableTopicResult(
        name=wanted.name, topic_id=wanted.topic_id, error_code=refusal.code, error_message=refusal.message
    )
