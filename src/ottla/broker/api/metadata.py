"""Metadata (3): the broker, the topics and their partitions; asking for an unknown topic may create it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.refusal import Refusal
from ottla.broker.topics import Topic
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import metadata_request, metadata_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore


@serves(Api.METADATA)
def metadata(core: BrokerCore, context: RequestContext, request: metadata_request.MetadataRequest, now: Now) -> list[Effect]:
    """All topics, or those asked for. In a request that holds any id, only ids are looked at, as Kafka does it."""
    if request.topics is None:
        topics = [_described(core, topic) for topic in core.topics]
    elif any(one.topic_id is not None for one in request.topics):
        topics = [_by_id(core, one) for one in request.topics if one.topic_id is not None]
    else:
        create = request.allow_auto_topic_creation and core.config.auto_create_topics_enable
        topics = [_by_name(core, one.name or "", create) for one in request.topics]
    response = metadata_response.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(metadata_response.MetadataResponseBroker(node_id=core.node_id, host=core.endpoint.host, port=core.endpoint.port),),
        cluster_id=core.cluster_id,
        controller_id=core.node_id,
        topics=tuple(topics),
        error_code=ErrorCode.none,
    )
    return [Reply(context.ticket, response)]


def _by_id(core: BrokerCore, one: metadata_request.MetadataRequestTopic) -> metadata_response.MetadataResponseTopic:
    topic = core.topics.by_id(one.topic_id)
    if topic is not None:
        return _described(core, topic)
    return metadata_response.MetadataResponseTopic(
        error_code=ErrorCode.unknown_topic_id, name=None, topic_id=one.topic_id, partitions=()
    )


def _by_name(core: BrokerCore, name: str, create: bool) -> metadata_response.MetadataResponseTopic:
    try:
        return _described(core, core.topic_or_new(name) if create else core.topic(name))
    except Refusal as refusal:
        return metadata_response.MetadataResponseTopic(error_code=refusal.code, name=name, topic_id=None, partitions=())


def _described(core: BrokerCore, topic: Topic) -> metadata_response.MetadataResponseTopic:
    me = (core.node_id,)
    partitions = tuple(
        metadata_response.MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=partition,
            leader_id=core.node_id,
            leader_epoch=core.logs.get(topic, partition).epochs.current,
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
