"""Requests about topics and records to a broker's core, and what tests look at in the answers.

Owns the requests. Must not know what an answer should be.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    delete_records_request,
    delete_topics_request,
    metadata_request,
)
from ottla.simulation.requests import IN_TIME, creating, produce_message
from tests.simulation.broker import CoreUnderTest

NO_WAIT = timedelta(0)


def create(broker: CoreUnderTest, name: str = "orders", partitions: int = 1, **configs: str) -> Any:
    (result,) = broker.ask(Api.CREATE_TOPICS, creating(name, partitions=partitions, **configs)).topics
    return result


def produce(broker: CoreUnderTest, records: bytes | None, version: int = 12, **where: Any) -> Any:
    response = broker.ask(Api.PRODUCE, produce_message(records, **where), version=version)
    return response.responses[0].partition_responses[0]


def fetched(response: Any) -> Any:
    return response.responses[0].partitions[0]


def ask_metadata(broker: CoreUnderTest, *names: str, create: bool = False, ids: tuple[uuid.UUID, ...] = ()) -> Any:
    topics = tuple(metadata_request.MetadataRequestTopic(topic_id=None, name=name) for name in names)
    topics += tuple(metadata_request.MetadataRequestTopic(topic_id=one, name=None) for one in ids)
    message = metadata_request.MetadataRequest(
        topics=topics or None, allow_auto_topic_creation=create, include_topic_authorized_operations=False
    )
    return broker.ask(Api.METADATA, message)


def delete(broker: CoreUnderTest, name: str | None, topic_id: uuid.UUID | None = None) -> Any:
    state = delete_topics_request.DeleteTopicState(name=name, topic_id=topic_id)
    message = delete_topics_request.DeleteTopicsRequest(topics=(state,), timeout=IN_TIME)
    return broker.ask(Api.DELETE_TOPICS, message).responses[0]


def delete_records(broker: CoreUnderTest, offset: int, topic: str = "orders", partition: int = 0) -> tuple[ErrorCode, int]:
    wanted = delete_records_request.DeleteRecordsPartition(partition_index=partition, offset=offset)
    message = delete_records_request.DeleteRecordsRequest(
        topics=(delete_records_request.DeleteRecordsTopic(name=topic, partitions=(wanted,)),), timeout=NO_WAIT
    )
    ((result,),) = (one.partitions for one in broker.ask(Api.DELETE_RECORDS, message).topics)
    return result.error_code, result.low_watermark
