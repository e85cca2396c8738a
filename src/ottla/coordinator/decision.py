"""A handler's decision about a group: its inputs besides the group, its result, and the keys of the timers that it sets.

Owns the interfaces that handlers need (topics, random ids, settings of single groups), which the broker and the tests' simulation
implement, and the bounds of a group's own settings: a value that was stored before the broker's bounds were changed is clamped to
them. Must not know how the runtime applies a result. Invariants: these interfaces answer from memory, without blocking; a result is
applied as a whole or not at all, and one with durable events only after these are in the log.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.effects import CancelTimer, Reply, ResolveRegexes, SetTimer, TimerKey
from ottla.coordinator.events import Event
from ottla.values import light_dataclass


class TopicImage(Protocol):
    """The topics as they are now."""

    def topic_id(self, name: str) -> uuid.UUID | None:
        """Return the id of a topic, ``None`` if it does not exist."""
        ...

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic, ``None`` if it does not exist."""
        ...

    def partition_count(self, name: str) -> int | None:
        """Return the number of partitions of a topic, ``None`` if it does not exist."""
        ...

    def names(self) -> Collection[str]:
        """Return the names of all topics."""
        ...

    @property
    def version(self) -> int:
        """A number that grows whenever a topic is created, is deleted or gets more partitions."""
        ...


class Ids(Protocol):
    """The source of random ids."""

    def new_id(self) -> str:
        """Return a random UUID (version 4) in its usual notation."""
        ...


class GroupConfigs(Protocol):
    """The settings of single groups (config resource type GROUP)."""

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """Return the group's own settings by Kafka's names (``consumer.session.timeout.ms``), without defaults."""
        ...


class NoGroupConfigs:
    """No group has settings of its own."""

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """Return an empty mapping."""
        return _NOTHING_SET


_NOTHING_SET: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class GroupContext:
    """The inputs of a decision besides the group."""

    config: GroupConfig
    """Replaced when a setting changes (``GroupCoordinator.reconfigure``)."""
    topics: TopicImage
    ids: Ids
    assignors: Mapping[str, PartitionAssignor] = field(default_factory=lambda: SERVER_ASSIGNORS)
    """The server-side assignors by name, the default first."""
    configs: GroupConfigs = field(default_factory=NoGroupConfigs)


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


GroupEffect = Reply | SetTimer | CancelTimer | ResolveRegexes
"""The effects of a decision about a group: answers to parked requests, timers, and work away from the event loop."""


@light_dataclass(frozen=True, slots=True)
class Result:
    """``answer`` is the response to the current request; ``None`` if it is parked or its ``Reply`` is among the effects."""

    events: tuple[Event, ...] = ()
    effects: tuple[GroupEffect, ...] = ()
    answer: Any = None


COORDINATOR = "coordinator"
"""The first element of the keys of all timers of the group coordinator; the broker's other timers have other ones."""


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """The session timeout of a member, restarted by every heartbeat."""
    return (COORDINATOR, group_id, "session", member_id)


def rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which a member of a consumer group must have revoked partitions."""
    return (COORDINATOR, group_id, "rebalance", member_id)


def rejoin_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which a classic member of a consumer group must have joined again, after REBALANCE_IN_PROGRESS."""
    return (COORDINATOR, group_id, "rejoin", member_id)


def resync_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which a classic member of a consumer group must have sent its SyncGroup, after its JoinGroup."""
    return (COORDINATOR, group_id, "resync", member_id)


def run_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which the member that computes the assignment must have installed it."""
    return (COORDINATOR, group_id, "run", member_id)


MEMBER_TIMERS = (session_timer, rebalance_timer, rejoin_timer, resync_timer, run_timer)
"""The timers of a member of a consumer group."""


def join_timer(group_id: str) -> TimerKey:
    """The end of a join phase, or of its initial delay."""
    return (COORDINATOR, group_id, "join")


def sync_timer(group_id: str) -> TimerKey:
    """The time by which every member of a generation must have sent its SyncGroup."""
    return (COORDINATOR, group_id, "sync")


def offset_expiration_timer(group_id: str) -> TimerKey:
    """The next attempt to delete expired offsets of a group whose deletion could not be stored."""
    return (COORDINATOR, group_id, "expire")


def deleted_topics_timer(group_id: str, topics: tuple[str, ...]) -> TimerKey:
    """The next attempt to delete offsets of deleted topics whose deletion could not be stored."""
    return (COORDINATOR, group_id, "forget", topics)


def retention_timer(partition: int) -> TimerKey:
    """The next search for expired offsets in a partition of ``__consumer_offsets``; the int tells it from a group's timers."""
    return (COORDINATOR, partition, "retention")
