"""Requests for topics and records, from a client that is no application, and what is in a request or a response.

Owns their form in the newest version. Must not know their senders or the expected responses.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.messages import create_topics_request, produce_request
from ottla.types import TopicPartition


class Unanswered(Exception):
    """A request of the test itself was not executed, or may not have been."""


IN_TIME = timedelta(seconds=30)


def creating(*names: str, partitions: int = 1, **configs: str) -> create_topics_request.CreateTopicsRequest:
    """CreateTopics. ``configs`` have underscores instead of dots."""
    given = tuple(
        create_topics_request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
    )
    return create_topics_request.CreateTopicsRequest(
        topics=tuple(
            create_topics_request.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=-1, assignments=(), configs=given
            )
            for name in names
        ),
        timeout=IN_TIME,
        validate_only=False,
    )


def produce_message(
    records: bytes | None,
    topic: str = "orders",
    partition: int = 0,
    *,
    acks: int = 1,
    topic_id: uuid.UUID | None = None,
    transactional_id: str | None = None,
) -> produce_request.ProduceRequest:
    """A Produce request for one partition."""
    data = produce_request.PartitionProduceData(index=partition, records=records)
    return produce_request.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=IN_TIME,
        topic_data=(produce_request.TopicProduceData(name=topic, topic_id=topic_id, partition_data=(data,)),),
    )


def errors_in(message: Any) -> Iterator[ErrorCode]:
    """The errors anywhere in a response."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, ErrorCode):
            if value is not ErrorCode.none:
                yield value
        elif isinstance(value, tuple):
            for item in value:
                if dataclasses.is_dataclass(item):
                    yield from errors_in(item)


def offsets_in(commit: Any, name_of: Callable[[uuid.UUID], str | None]) -> Iterator[tuple[TopicPartition, int]]:
    """The offsets that an OffsetCommit request contains. Newer versions name topics by their ids."""
    for topic in commit.topics:
        name = topic.name or name_of(topic.topic_id) or str(topic.topic_id)
        for partition in topic.partitions:
            yield TopicPartition(name, partition.partition_index), partition.committed_offset
