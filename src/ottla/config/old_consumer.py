"""The settings of Kafka 0.8's consumer: what a ``zookeeper`` group reads, so that its configuration files work unchanged.

Owns the names, words and defaults that differ from today's, and the bounds of a session. Must not know how settings are parsed.
Invariant: each name is in ``OTHER_CLIENTS`` or ``OTHER_CONSUMERS``, so that the other group protocols refuse it with the name of
today.

Some defaults stay today's on purpose, since they change only the speed: 0.8 has 64 KiB for ``socket.receive.buffer.bytes``, 1 MiB
for ``fetch.message.max.bytes`` and 200 ms for ``refresh.leader.backoff.ms``.

Source: ``kafka.consumer.ConsumerConfig`` and ``ZKConfig`` of Kafka 0.8.2.2 and 1.1.1, which differ only in ``fetch.max.bytes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES: Mapping[str, str] = {
    "auto.commit.enable": "enable_auto_commit",
    "fetch.message.max.bytes": "max_partition_fetch_bytes",
    "fetch.wait.max.ms": "fetch_max_wait_ms",
    "refresh.leader.backoff.ms": "retry_backoff_ms",
    "socket.receive.buffer.bytes": "receive_buffer_bytes",
    "socket.timeout.ms": "request_timeout_ms",
}
"""Names of 0.8 -> the fields."""

WORDS: Mapping[tuple[str, str], str] = {
    ("auto_offset_reset", "smallest"): "earliest",
    ("auto_offset_reset", "largest"): "latest",
}
"""A field and a word of 0.8 -> the word of today."""

STRATEGIES = ("range", "roundrobin")
"""The values of ``partition.assignment.strategy``."""

DEFAULTS: Mapping[str, Any] = {
    "auto_commit_interval_ms": 60_000,
    "fetch_max_wait_ms": 100,
    "partition_assignment_strategy": STRATEGIES[:1],
}
"""The defaults of 0.8 that differ."""

_TICK = 2_000
"""``tickTime`` in the configuration that ZooKeeper is delivered with; a server grants sessions of 2 to 20 ticks."""


def session_warning(timeout: int) -> str | None:
    """The warning about a session time-out (ms) that most servers change without a word; ``None``: they grant it.

    A client cannot see what was granted. A member that counts on more may read partitions that already belong to another member.
    """
    shortest, longest = 2 * _TICK, 20 * _TICK
    if shortest <= timeout <= longest:
        return None
    granted = shortest if timeout < shortest else longest
    return (
        f"zookeeper.session.timeout.ms is {timeout}, but a server with tickTime={_TICK} grants {shortest} to {longest} and"
        f" would use {granted}: choose a value in this range, unless your servers have other limits"
    )
