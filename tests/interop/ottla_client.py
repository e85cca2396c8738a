"""Ottla's consumer with the interface of ``other_clients``, for groups with several clients.

Owns how ``Consumer`` joins a group. Must not know the tests.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ottla import Consumer
from ottla.errors import CommitFailedError, RebalanceInProgressError
from tests.interop.other_clients import Message


class OttlaMember:
    """``ottla.Consumer``."""

    def __init__(self, servers: str, topic: str, group: str, **config: Any) -> None:
        self.consumer = Consumer(
            bootstrap_servers=servers,
            group_id=group,
            group_protocol="classic",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=300,
            **config,
        )
        self.consumer.subscribe([topic])

    def poll(self, seconds: float) -> list[Message]:
        return [
            Message(one.partition, one.offset, one.key, one.value, one.timestamp, one.headers)
            for one in self.consumer.poll(seconds)
        ]

    def assignment(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def commit(self) -> None:
        # A group that is rebalancing takes no commits: the next poll sees to that.
        with suppress(CommitFailedError, RebalanceInProgressError):
            self.consumer.commit(timeout=10)

    def close(self) -> None:
        self.consumer.close()
