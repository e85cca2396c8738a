"""Fetch on the wire: a request made of what a session has to say, and an answer cut into partitions.

Owns the shape of both messages. Must not know why a partition is fetched or what becomes of the records. Invariant: a request whose
session names topics by name carries no topic id at all, so that it goes out in a version that has names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ottla.client.fetch.session import SessionRequest
from ottla.config import ConsumerConfig
from ottla.protocol import duration
from ottla.types import Node, TopicPartition


def fetch_request(config: ConsumerConfig, session: SessionRequest, max_bytes: int) -> Any:
    """One Fetch for at most ``max_bytes``."""
    from ottla.protocol.messages import fetch_request as messages

    topics: dict[tuple[str, uuid.UUID | None], list[Any]] = {}
    for tp, wanted in session.named.items():
        topics.setdefault((tp.topic, wanted.topic_id if session.by_id else None), []).append(
            messages.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.offset,
                partition_max_bytes=wanted.limit,
            )
        )
    forgotten: dict[tuple[str, uuid.UUID | None], list[int]] = {}
    for tp, topic_id in session.forgotten:
        forgotten.setdefault((tp.topic, topic_id if session.by_id else None), []).append(tp.partition)
    return messages.FetchRequest(
        max_wait=duration(config.fetch_max_wait_ms),
        min_bytes=config.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(config.isolation_level),
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=tuple(
            messages.FetchTopic(topic=topic, topic_id=topic_id, partitions=tuple(items))
            for (topic, topic_id), items in topics.items()
        ),
        forgotten_topics_data=tuple(
            messages.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=tuple(numbers))
            for (topic, topic_id), numbers in forgotten.items()
        ),
        rack_id=config.client_rack,
    )


def partitions_of(message: Any, names: Mapping[uuid.UUID, str]) -> Iterator[tuple[TopicPartition | None, Any]]:
    """Each partition of an answer with its data; ``None`` for one of a topic that is known by no name."""
    for topic in message.responses:
        name = topic.topic or names.get(topic.topic_id)
        for data in topic.partitions:
            yield (TopicPartition(name, data.partition_index) if name else None), data


def leaders_of(message: Any, names: Mapping[uuid.UUID, str]) -> tuple[dict[TopicPartition, tuple[int, int]], list[Node]]:
    """The leaders (node id, epoch) that an answer names beside its errors, and their nodes (KIP-951)."""
    leaders = {
        tp: (int(data.current_leader.leader_id), int(data.current_leader.leader_epoch))
        for tp, data in partitions_of(message, names)
        if tp is not None and data.error_code and data.current_leader.leader_id >= 0
    }
    return leaders, [Node(item.node_id, item.host, item.port, item.rack) for item in message.node_endpoints]
