"""Requests for topics and records, from a client that is no application.

Owns their form in the newest version. Must not know their senders or the expected responses.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

from ottla.protocol.messages import create_topics_request, produce_request

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
