"""Metadata (3): the broker, the topics and their partitions; asking for an unknown topic may create it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from ottla.broker.refusal import Refusal
from ottla.broker.slices import DESCRIBED, Slices
from ottla.broker.topics import Topic, check_name
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api, Fact
from ottla.protocol.messages import metadata_request, metadata_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.METADATA)
def metadata(core: BrokerState, context: RequestContext, request: metadata_request.MetadataRequest, now: Now) -> list[Effect]:
    """All topics, or those asked for. In a request that holds any id, only ids are looked at, as Kafka does it."""
    return core.sliced.begin(context, _slices(core, context, request), now)


def _slices(core: BrokerState, context: RequestContext, request: metadata_request.MetadataRequest) -> Slices:
    error = _request_error(context, request)
    topics: list[metadata_response.MetadataResponseTopic] = []
    in_slice = 0
    for topic in _topics(core, request, error):
        topics.append(topic)
        in_slice += max(1, len(topic.partitions))
        if in_slice >= DESCRIBED:
            yield []
            in_slice = 0
    if request.include_topic_authorized_operations:
        topics = [replace(topic, topic_authorized_operations=TOPIC_OPERATIONS) for topic in topics]
    response = metadata_response.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(metadata_response.MetadataResponseBroker(node_id=core.node_id, host=core.endpoint.host, port=core.endpoint.port),),
        cluster_id=core.cluster_id,
        controller_id=core.node_id,
        topics=tuple(topics),
        error_code=error,
        cluster_authorized_operations=CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED,
    )
    return [Reply(context.ticket, response)]


def _topics(
    core: BrokerState, request: metadata_request.MetadataRequest, error: ErrorCode
) -> Iterator[metadata_response.MetadataResponseTopic]:
    """Each topic in turn, in its state at that moment."""
    if error is not ErrorCode.none:
        return (_refused(error, one.name or "", one.topic_id) for one in request.topics or ())
    if request.topics is None:
        there = (core.topics.by_id(topic.topic_id) for topic in list(core.topics))
        return (_described(core, topic) for topic in there if topic is not None)
    if any(one.topic_id is not None for one in request.topics):
        return (_by_id(core, one) for one in request.topics if one.topic_id is not None)
    create = request.allow_auto_topic_creation and core.config.auto_create_topics_enable
    return (_by_name(core, name, create) for name in dict.fromkeys(one.name or "" for one in request.topics))


def _request_error(context: RequestContext, request: metadata_request.MetadataRequest) -> ErrorCode:
    """What is wrong with a topic that is not named, or named by an id too early, is said of the whole request, as in Kafka."""
    topics = request.topics or ()
    if Fact.NAMES_TOPIC_ID not in context.facts:
        early = any(one.name is None or one.topic_id is not None for one in topics)
        return ErrorCode.invalid_request if early else ErrorCode.none
    nothing = any(one.name is None and one.topic_id is None for one in topics)
    return ErrorCode.unknown_server_error if nothing else ErrorCode.none


def _by_id(core: BrokerState, one: metadata_request.MetadataRequestTopic) -> metadata_response.MetadataResponseTopic:
    topic = core.topics.by_id(one.topic_id)
    if topic is not None:
        return _described(core, topic)
    return _refused(ErrorCode.unknown_topic_id, None, one.topic_id)


def _by_name(core: BrokerState, name: str, create: bool) -> metadata_response.MetadataResponseTopic:
    try:
        check_name(name)
        return _described(core, core.topic_or_new(name) if create else core.topic(name))
    except Refusal as refusal:
        return _refused(refusal.code, name, None)


def _refused(error: ErrorCode, name: str | None, topic_id: uuid.UUID | None) -> metadata_response.MetadataResponseTopic:
    return metadata_response.MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, partitions=())


def _described(core: BrokerState, topic: Topic) -> metadata_response.MetadataResponseTopic:
    me = (core.node_id,)
    partitions = tuple(
        metadata_response.MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=partition,
            leader_id=core.node_id,
            leader_epoch=core.logs.leader_epoch(topic, partition),
            replica_nodes=me,
            isr_nodes=me,
        )
        for partition in topic.partitions
    )
    return metadata_response.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
    )
