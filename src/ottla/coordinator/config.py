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
    """Partitions of ``__consumer_offsets``. Do not change it for an existing log: groups would be looked up in other partitions."""
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    """How long the first rebalance of an empty group waits for more members. Kafka's default is 3000; on one machine groups are
    small."""
    expected_member_wait_ms: int = 3_000
    """How long the first rebalance of an empty group, without an initial delay, waits for clients that got a member id."""
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 86_400_000
    """How long an unused offset is kept."""
    offsets_retention_check_interval_ms: int = 600_000
    """The interval at which a partition is searched for expired offsets."""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member stays in its first join phase, in which it cannot send heartbeats yet."""
    group_consumer_session_timeout_ms: int = 45_000
    """The session timeout of consumer groups. A group can set its own, between the next two."""
    group_consumer_min_session_timeout_ms: int = 1_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 1_000
    """The heartbeat interval of consumer groups, and so the delay with which members see a new assignment: Kafka's 5000 would be
    long on one machine. A group can set its own, between the next two."""
    group_consumer_min_heartbeat_interval_ms: int = 100
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_migration_policy: str = "bidirectional"
    """The conversions of groups with members that are allowed: ``upgrade`` to consumer groups, ``downgrade`` to classic groups,
    ``bidirectional``, ``disabled``."""
    group_consumer_assignment_interval_ms: int = 0
    """The minimum time between two target assignments (KIP-1263); Kafka's default is 1000. A group can set its own, between the
    next two."""
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000
    group_consumer_regex_refresh_interval_ms: int = 600_000
    """The time after which regular expressions are resolved again even if no topic was created or deleted."""
    group_consumer_client_assignors_enable: bool = False
    """Whether members of consumer groups may run client-side assignors; Kafka has no such setting."""
    append_retry_backoff_ms: int = 500
    """The delay before a timer's work is retried whose records could not be appended."""
