"""A decision about a central group: its inputs besides the group, its result, and the keys of the timers that it sets.

Owns the settings, by Kafka's names where Kafka has one. Must not know how the runtime applies a result, nor the parsing of
settings. Invariant: a result is applied as a whole or not at all, and one with durable events only after these are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.coordinator.decision import TopicImage
from ottla.coordinator.effects import CancelTimer, HangUp, NoReply, Push, Reply, ResolveRegexes, SetTimer, TimerKey
from ottla.values import light_dataclass

if TYPE_CHECKING:
    from ottla.coordinator.central.events import Event

CENTRAL = "central"
"""The first element of the keys of all timers of the central coordinator."""


@dataclass(frozen=True, slots=True)
class CentralConfig:
    """Times are milliseconds, sizes are bytes."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    rebalance_max_retries: int = 4
    """The rebalances that may fail one after the other before the group backs off."""
    rebalance_backoff_ms: int = 2_000
    append_retry_backoff_ms: int = 500
    """The delay before an internal step is retried that could not be stored. Failed requests are retried by clients."""


@dataclass(slots=True)
class CentralContext:
    """The inputs of a decision besides the group."""

    config: CentralConfig
    """Replaced when a setting changes."""
    topics: TopicImage
    epoch: int = -1
    """The epoch of this coordinator: of the election that it has won."""
    loaded_at: int = 0
    """When it has loaded the groups (milliseconds on the monotonic clock)."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Do the work of a timer next, as an operation of its own. It does not leave the coordinator.

    A step that is stored must not share an operation with what led to it:

    1. The last member answers its Stop. That is known from now on.
    2. The new generation cannot be stored. Only this is tried again; the answer must not be lost with it.
    """

    timer: TimerKey


CentralEffect = Reply | NoReply | Push | HangUp | SetTimer | CancelTimer | ResolveRegexes | GoOn


@light_dataclass(frozen=True, slots=True)
class Result:
    """``answer`` is the response to the current request; ``None`` if there is none or its ``Reply`` is among the effects."""

    events: tuple[Event, ...] = ()
    effects: tuple[CentralEffect, ...] = ()
    answer: Any = None


# Timers


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """The session timeout of a member, restarted by every answer."""
    return (CENTRAL, group_id, "session", member_id)


def ping_timer(group_id: str, member_id: str) -> TimerKey:
    """The next Ping of a member."""
    return (CENTRAL, group_id, "ping", member_id)


def answer_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which a member must have answered its Stop or Start."""
    return (CENTRAL, group_id, "answer", member_id)


def recovery_timer(group_id: str) -> TimerKey:
    """The end of the wait for the owners that a new coordinator has found."""
    return (CENTRAL, group_id, "recovery")


def backoff_timer(group_id: str) -> TimerKey:
    """The end of the back-off after too many failed rebalances."""
    return (CENTRAL, group_id, "backoff")


def generation_timer(group_id: str) -> TimerKey:
    """The next attempt to store a new generation, for which all members have stopped."""
    return (CENTRAL, group_id, "generation")


def started_timer(group_id: str) -> TimerKey:
    """The begin of the time for the answers to Starts: the new generation is stored."""
    return (CENTRAL, group_id, "started")


def emptied_timer(group_id: str) -> TimerKey:
    """The next attempt to store that the group has no members left."""
    return (CENTRAL, group_id, "emptied")


def check_timer(group_id: str) -> TimerKey:
    """The next check whether a rebalance is necessary, after topics have changed or patterns could not be resolved."""
    return (CENTRAL, group_id, "check")


def deleted_topics_timer(group_id: str, topics: tuple[str, ...]) -> TimerKey:
    """The next attempt to delete offsets of deleted topics; without names: of those that were deleted before the election."""
    return (CENTRAL, group_id, "forget", topics)
