"""The settings of the group coordinator, by Kafka's names.

Owns defaults and meaning; parsing settings and checking their bounds is the broker's.
Source: the group coordinator's configuration of Apache Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Times are milliseconds, sizes are bytes."""

    offsets_topic_partitions: int = 50
    """Partitions of ``__consumer_offsets``; another number in an existing log hides the groups that are in it."""
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    """How long the first round of an empty group waits for more members. Kafka's default is 3000; a laptop has few members."""
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in its first JoinGroup: it can not send heartbeats yet."""
    append_retry_backoff_ms: int = 500
    """How long until a timer's work is tried again whose records could not be appended."""
