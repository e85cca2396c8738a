"""A request for records, from a client that is no application.

Owns its form in the newest version. Must not know its senders or the expected response.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

from ottla.protocol.messages import fetch_request


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
