"""Metadata and DescribeTopicPartitions: topics, their partitions, and the brokers.

Owns the selection of the topics, and the creation of missing ones. Must not know how topics are stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.api.cluster import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from ottla.broker.api.registry import serves
from ottla.broker.cluster import NO_LEADER
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.broker.slices import DESCRIBED, Slices
from ottla.broker.topics import Topic, check_name
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.messages import (
    describe_topic_partitions_request,
    describe_topic_partitions_response as _response,
    metadata_request,
    metadata_response,
)
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.METADATA)
def metadata(
    state: BrokerState, context: RequestContext, request: metadata_request.MetadataRequest, now: Now
) -> list[BrokerEffect]:
    """Describe all topics, or the requested ones. If a request has an id, names are ignored, as in Kafka."""
    return state.sliced_requests.begin(context, _slices(state, context, request), now)


def _slices(state: BrokerState, context: RequestContext, request: metadata_request.MetadataRequest) -> Slices:
    error = _request_error(context, request)
    topics: list[metadata_response.MetadataResponseTopic] = []
    in_slice = 0
    for topic in _topics(state, request, error):
        topics.append(topic)
        in_slice += max(1, len(topic.partitions))
        if in_slice >= DESCRIBED:
            yield []
            in_slice = 0
    if request.include_topic_authorized_operations:
        topics = [replace(topic, topic_authorized_operations=TOPIC_OPERATIONS) for topic in topics]
    response = metadata_response.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            metadata_response.MetadataResponseBroker(node_id=broker.node_id, host=broker.host, port=broker.port)
            for broker in state.catalog.cluster.brokers.values()
        ),
        cluster_id=state.catalog.cluster_id,
        controller_id=state.catalog.cluster.controller_id,
        topics=tuple(topics),
        error_code=error,
        cluster_authorized_operations=CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED,
    )
    return [Reply(context.ticket, response)]


def _topics(
    state: BrokerState, request: metadata_request.MetadataRequest, error: ErrorCode
) -> Iterator[metadata_response.MetadataResponseTopic]:
    """Yield each topic in its state at that moment."""
    if error is not ErrorCode.none:
        return (_metadata_refused(error, one.name or "", one.topic_id) for one in request.topics or ())
    if request.topics is None:
        there = (state.catalog.topics.by_id(topic.topic_id) for topic in list(state.catalog.topics))
        return (_metadata_described(state, topic) for topic in there if topic is not None)
    if any(one.topic_id is not None for one in request.topics):
        return (_by_id(state, one) for one in request.topics if one.topic_id is not None)
    create = request.allow_auto_topic_creation and state.catalog.config.auto_create_topics_enable
    return (_by_name(state, name, create) for name in dict.fromkeys(one.name or "" for one in request.topics))


def _request_error(context: RequestContext, request: metadata_request.MetadataRequest) -> ErrorCode:
    """Return the error for a topic without name and id, or with an id in a version without ids. As in Kafka, it fails the whole
    request."""
    topics = request.topics or ()
    if VersionRule.NAMES_TOPIC_ID not in context.version_rules:
        early = any(one.name is None or one.topic_id is not None for one in topics)
        return ErrorCode.invalid_request if early else ErrorCode.none
    nothing = any(one.name is None and one.topic_id is None for one in topics)
    return ErrorCode.unknown_server_error if nothing else ErrorCode.none


def _by_id(state: BrokerState, one: metadata_request.MetadataRequestTopic) -> metadata_response.MetadataResponseTopic:
    topic = state.catalog.topics.by_id(one.topic_id)
    if topic is not None:
        return _metadata_described(state, topic)
    return _metadata_refused(ErrorCode.unknown_topic_id, None, one.topic_id)


def _by_name(state: BrokerState, name: str, create: bool) -> metadata_response.MetadataResponseTopic:
    try:
        check_name(name)
        return _metadata_described(state, state.catalog.get_or_create_topic(name) if create else state.catalog.topic(name))
    except ApiError as api_error:
        return _metadata_refused(api_error.code, name, None)


def _metadata_refused(error: ErrorCode, name: str | None, topic_id: uuid.UUID | None) -> metadata_response.MetadataResponseTopic:
    return metadata_response.MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, partitions=())


def _metadata_described(state: BrokerState, topic: Topic) -> metadata_response.MetadataResponseTopic:
    places, replicas = _places(state, topic), topic.replicas or repeat(state.catalog.node_id)
    partitions = tuple(
        metadata_response.MetadataResponsePartition(
            error_code=(place := places[replica]).error,
            partition_index=partition,
            leader_id=place.leader,
            leader_epoch=state.catalog.leader_epoch(topic, partition),
            replica_nodes=place.replicas,
            isr_nodes=place.replicas,
            offline_replicas=place.offline,
        )
        for partition, replica in zip(topic.partitions, replicas, strict=False)
    )
    return metadata_response.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
    )


class _Place(NamedTuple):
    """Where a partition is: the registered broker that leads it, its one replica, and that replica if it is offline."""

    error: ErrorCode
    leader: int
    replicas: tuple[int, ...]
    offline: tuple[int, ...]


def _places(state: BrokerState, topic: Topic) -> dict[int, _Place]:
    """Return the place of a partition by the broker that has it: one for all partitions of a broker."""
    cluster = state.catalog.cluster
    there = {broker: _Place(ErrorCode.none, broker, (broker,), ()) for broker in cluster.brokers}
    gone = {*topic.replicas} - there.keys()
    return {**there, **{broker: _Place(ErrorCode.leader_not_available, NO_LEADER, (broker,), (broker,)) for broker in gone}}


MAX_PARTITIONS = 2_000
"""The maximum number of partitions in one response: Kafka's ``max.request.partition.size.limit``."""


@serves(Api.DESCRIBE_TOPIC_PARTITIONS)
def describe_topic_partitions(
    state: BrokerState, context: RequestContext, request: describe_topic_partitions_request.DescribeTopicPartitionsRequest, now: Now
) -> list[BrokerEffect]:
    """Describe topics in the order of their names, from the cursor on, up to the limit; the cursor in the response is where to
    continue."""
    names = sorted({one.name for one in request.topics} if request.topics else {topic.name for topic in state.catalog.topics})
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            refused = (_describe_topic_partitions_refused(name, ErrorCode.invalid_request) for name in names)
            return [_reply(context, tuple(refused), None)]
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    topics: list[_response.DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        topic = state.catalog.topics.get(name)
        if topic is None:
            topics.append(_describe_topic_partitions_refused(name, _why_absent(name)))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        last = min(topic.partition_count, first + left)
        if left:
            topics.append(_describe_topic_partitions_described(state, topic, range(first, last)))
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


def _describe_topic_partitions_described(
    state: BrokerState, topic: Topic, partitions: range
) -> _response.DescribeTopicPartitionsResponseTopic:
    places = _places(state, topic)
    return _response.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(
            _response.DescribeTopicPartitionsResponsePartition(
                error_code=(place := places[state.catalog.cluster.replica(topic, partition)]).error,
                partition_index=partition,
                leader_id=place.leader,
                leader_epoch=state.catalog.leader_epoch(topic, partition),
                replica_nodes=place.replicas,
                isr_nodes=place.replicas,
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=place.offline,
            )
            for partition in partitions
        ),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _describe_topic_partitions_refused(name: str, code: ErrorCode) -> _response.DescribeTopicPartitionsResponseTopic:
    return _response.DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_id=None, partitions=())


def _reply(
    context: RequestContext, topics: tuple[_response.DescribeTopicPartitionsResponseTopic, ...], cursor: _response.Cursor | None
) -> Reply:
    response = _response.DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=topics, next_cursor=cursor)
    return Reply(context.ticket, response)
