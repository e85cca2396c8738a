"""Requests to a broker on a socket.

Must not know what an answer should be.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    create_topics_request,
    fetch_request,
    metadata_request,
    produce_request,
)
from ottla.records import NewRecord, encode_batch
from tests.raw_client import RawClient

METADATA = metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False)


def produce(client: RawClient, topic: str, records: bytes, acks: int = 1) -> Any:
    data = produce_request.PartitionProduceData(index=0, records=records)
    message = produce_request.ProduceRequest(
        acks=acks, timeout=timedelta(0), topic_data=(produce_request.TopicProduceData(name=topic, partition_data=(data,)),)
    )
    return client.ask(Api.PRODUCE, message, 12).responses[0].partition_responses[0]


def fetch_message(topic: str, *, offset: int = 0, wait: int = 0, max_bytes: int = 64 << 20) -> fetch_request.FetchRequest:
    part = fetch_request.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return fetch_request.FetchRequest(
        max_wait=timedelta(milliseconds=wait),
        min_bytes=1,
        max_bytes=max_bytes,
        topics=(fetch_request.FetchTopic(topic=topic, partitions=(part,)),),
        forgotten_topics_data=(),
    )


def creating(*names: str, **configs: str) -> create_topics_request.CreateTopicsRequest:
    given = tuple(create_topics_request.CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items())
    return create_topics_request.CreateTopicsRequest(
        topics=tuple(
            create_topics_request.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=given)
            for name in names
        )
    )


def create(client: RawClient, name: str, **configs: str) -> None:
    (result,) = client.ask(Api.CREATE_TOPICS, creating(name, **configs)).topics
    assert result.error_code is ErrorCode.none, result.error_message


def batch(size: int = 100, count: int = 1) -> bytes:
    return encode_batch([NewRecord(None, os.urandom(size), timestamp=time.time_ns() // 1_000_000) for _ in range(count)])
