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
    expected_member_wait_ms: int = 3_000
    """How long the first round of an empty group waits, where there is no such delay, for clients that were given a member id."""
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 86_400_000
    """How long an unused offset is kept."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often the offsets of a partition are searched for those."""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait in its first JoinGroup: it cannot send heartbeats yet."""
    group_consumer_session_timeout_ms: int = 45_000
    """How long a member of a consumer group may stay silent. A group can set its own, between the next two."""
    group_consumer_min_session_timeout_ms: int = 1_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 1_000
    """How often members of consumer groups send heartbeats, and so how soon they learn what changed: Kafka's 5000 would
    be long on one machine. A group can set its own, between the next two."""
    group_consumer_min_heartbeat_interval_ms: int = 100
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_migration_policy: str = "bidirectional"
    """Whether groups with members may change their protocol: ``upgrade`` makes consumer groups, ``downgrade`` classic ones."""
    group_consumer_assignment_interval_ms: int = 0
    """How long a target assignment is kept at least (KIP-1263); Kafka's default is 1000. A group can set its own, as above."""
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000
    group_consumer_regex_refresh_interval_ms: int = 600_000
    """After which time regular expressions are matched again although no topic has come or gone."""
    group_consumer_client_assignors_enable: bool = False
    """Whether members of consumer groups may run assignors of their own; Kafka has no such setting."""
    append_retry_backoff_ms: int = 500
    """How long until a timer's work is tried again whose records could not be appended."""
