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
    create_topics_request,
    delete_records_request,
    delete_topics_request,
    fetch_request,
    metadata_request,
    produce_request,
)
from tests.simulation.broker import CoreUnderTest

NO_WAIT = timedelta(0)
IN_TIME = timedelta(seconds=30)


def create(broker: CoreUnderTest, name: str = "orders", partitions: int = 1, **configs: str) -> Any:
    wanted = create_topics_request.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        assignments=(),
        configs=tuple(
            create_topics_request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ),
    )
    (result,) = broker.ask(Api.CREATE_TOPICS, create_topics_request.CreateTopicsRequest(topics=(wanted,))).topics
    return result


def produce_message(
    records: bytes | None, topic: str = "orders", partition: int = 0, acks: int = 1, topic_id: uuid.UUID | None = None
) -> produce_request.ProduceRequest:
    data = produce_request.PartitionProduceData(index=partition, records=records)
    return produce_request.ProduceRequest(
        acks=acks,
        timeout=IN_TIME,
        topic_data=(produce_request.TopicProduceData(name=topic, topic_id=topic_id, partition_data=(data,)),),
    )


def produce(broker: CoreUnderTest, records: bytes | None, version: int = 12, **where: Any) -> Any:
    response = broker.ask(Api.PRODUCE, produce_message(records, **where), version=version)
    return response.responses[0].partition_responses[0]


def fetch_message(
    offset: int = 0,
    *,
    topic: str = "orders",
    partition: int = 0,
    wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    epoch: int = -1,
    topic_id: uuid.UUID | None = None,
    session: tuple[int, int] = (0, -1),
) -> fetch_request.FetchRequest:
    wanted = fetch_request.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=epoch
    )
    return fetch_request.FetchRequest(
        max_wait=timedelta(milliseconds=wait),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=(fetch_request.FetchTopic(topic=topic, topic_id=topic_id, partitions=(wanted,)),),
        forgotten_topics_data=(),
    )


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
