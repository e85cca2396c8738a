"""DescribeTopicPartitions (75): topics and their partitions, page by page (KIP-966)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.operations import TOPIC_OPERATIONS
from ottla.broker.topics import Topic, check_name
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_topic_partitions_request, describe_topic_partitions_response as _response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


MAX_PARTITIONS = 2_000
"""Partitions in one answer, whatever a client asks for: Kafka's ``max.request.partition.size.limit``."""


@serves(Api.DESCRIBE_TOPIC_PARTITIONS)
def describe_topic_partitions(
    state: BrokerState, context: RequestContext, request: describe_topic_partitions_request.DescribeTopicPartitionsRequest, now: Now
) -> list[Effect]:
    """Topics in the order of their names, from the cursor on, up to the limit; the cursor in the answer says where to go on."""
    names = sorted({one.name for one in request.topics} if request.topics else {topic.name for topic in state.catalog.topics})
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            refused = (_refused(name, ErrorCode.invalid_request) for name in names)
            return [_reply(context, tuple(refused), None)]
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    topics: list[_response.DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        topic = state.catalog.topics.get(name)
        if topic is None:
            topics.append(_refused(name, _why_absent(name)))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        last = min(topic.partition_count, first + left)
        if left:
            topics.append(_described(state, topic, range(first, last)))
            left -= max(0, last - first)
        if last < topic.partition_count:
            return [_reply(context, tuple(topics), _response.Cursor(topic_name=name, partition_index=last))]
    return [_reply(context, tuple(topics), None)]


def _why_absent(name: str) -> ErrorCode:
    try:
        check_name(name)
    except ApiError as api_error:
        return api_error.code
    return ErrorCode.unknown_topic_or_partition


def _described(state: BrokerState, topic: Topic, partitions: range) -> _response.DescribeTopicPartitionsResponseTopic:
    me = (state.catalog.node_id,)
    return _response.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(
            _response.DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.none,
                partition_index=partition,
                leader_id=state.catalog.node_id,
                leader_epoch=state.catalog.logs.leader_epoch(topic, partition),
                replica_nodes=me,
                isr_nodes=me,
                eligible_leader_replicas=(),
                last_known_elr=(),
            )
            for partition in partitions
        ),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _refused(name: str, code: ErrorCode) -> _response.DescribeTopicPartitionsResponseTopic:
    return _response.DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_id=None, partitions=())


def _reply(
    context: RequestContext, topics: tuple[_response.DescribeTopicPartitionsResponseTopic, ...], cursor: _response.Cursor | None
) -> Reply:
    response = _response.DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=topics, next_cursor=cursor)
    return Reply(context.ticket, response)
