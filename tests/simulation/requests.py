"""Requests for topics and records, for any client or broker of a test.

Owns their form in the newest version. Must not know their senders or the expected responses.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

from ottla.protocol.messages import create_topics_request, fetch_request, produce_request

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
    isolation_level: int = 0,
) -> fetch_request.FetchRequest:
    """A Fetch request for one partition. ``wait`` is in milliseconds; ``session``: its id and epoch."""
    wanted = fetch_request.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=epoch
    )
    return fetch_request.FetchRequest(
        max_wait=timedelta(milliseconds=wait),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=(fetch_request.FetchTopic(topic=topic, topic_id=topic_id, partitions=(wanted,)),),
        forgotten_topics_data=(),
    )
