"""DeleteTopics (20)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.api_errors import check_time_left
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.slices import SIZE, Slices
from ottla.broker.topics import Topic
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import delete_topics_request, delete_topics_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.DELETE_TOPICS)
def delete_topics(
    state: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest, now: Now
) -> list[Effect]:
    """Delete each topic, named by name or by id."""
    return state.sliced.begin(context, _slices(state, context, request), now)


def _slices(state: BrokerState, context: RequestContext, request: delete_topics_request.DeleteTopicsRequest) -> Slices:
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
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            check_time_left(request.timeout)
            topic = _find(state, wanted)
            state.catalog.delete_topic(topic)
            in_slice += topic.partition_count - 1
        except ApiError as api_error:
            results.append(_result(wanted, api_error))
        else:
            results.append(
                delete_topics_response.DeletableTopicResult(
                    name=topic.name, topic_id=topic.topic_id, error_code=ErrorCode.none, error_message=None
                )
            )
    response = delete_topics_response.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))
    return [Reply(context.ticket, response)]


def _find(state: BrokerState, wanted: delete_topics_request.DeleteTopicState) -> Topic:
    if not state.catalog.config.delete_topic_enable:
        raise ApiError(ErrorCode.topic_deletion_disabled, "Topic deletion is disabled.")
    if (wanted.name is None) == (wanted.topic_id is None):
        raise ApiError(ErrorCode.invalid_request, "Name a topic by name or by id, not by both or neither.")
    topic = state.catalog.topic(wanted.name) if wanted.name is not None else state.catalog.topic_by_id(wanted.topic_id)
    if topic.internal:
        raise ApiError(ErrorCode.invalid_request, f"Topic '{topic.name}' belongs to the broker: groups and offsets are in it.")
    return topic


def _result(wanted: delete_topics_request.DeleteTopicState, api_error: ApiError) -> delete_topics_response.DeletableTopicResult:
    return delete_topics_response.DeletableTopicResult(
        name=wanted.name, topic_id=wanted.topic_id, error_code=api_error.code, error_message=api_error.message
    )
