"""The settings of one consumer group: its own group config, else the broker's.

Owns the bounds: a value that was stored before the broker's bounds were changed is clamped to them.
"""

from __future__ import annotations

from ottla.coordinator.decision import GroupContext


def session_timeout(coordinator: GroupContext, group_id: str) -> int:
    """Return the time without heartbeats after which a member is fenced, in milliseconds."""
    value = coordinator.configs.of_group(group_id).get("consumer.session.timeout.ms")
    config = coordinator.config
    if value is None:
        return config.group_consumer_session_timeout_ms
    return _clamp(config.group_consumer_min_session_timeout_ms, value, config.group_consumer_max_session_timeout_ms)


def heartbeat_interval(coordinator: GroupContext, group_id: str) -> int:
    """Return the interval at which members send heartbeats, in milliseconds."""
    value = coordinator.configs.of_group(group_id).get("consumer.heartbeat.interval.ms")
    config = coordinator.config
    if value is None:
        return config.group_consumer_heartbeat_interval_ms
    return _clamp(config.group_consumer_min_heartbeat_interval_ms, value, config.group_consumer_max_heartbeat_interval_ms)


def assignment_interval(coordinator: GroupContext, group_id: str) -> int:
    """Return the minimum time between two target assignments, in milliseconds (KIP-1263)."""
    value = coordinator.configs.of_group(group_id).get("consumer.assignment.interval.ms")
    config = coordinator.config
    if value is None:
        value = config.group_consumer_assignment_interval_ms
    return _clamp(config.group_consumer_min_assignment_interval_ms, value, config.group_consumer_max_assignment_interval_ms)


def _clamp(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
