"""The coordinator's timers: their names, and which of them are armed.

Owns the deadlines, as a record of the timer effects that went out. Must not know what a timer is for. Invariant: a timer has an
effect only if it is armed and its deadline has passed, however late or often the shell reports it; one that was moved or cancelled
while its report waited in line does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.coordinator.effects import CancelTimer, SetTimer, TimerKey

COORDINATOR = "coordinator"
"""The first element of every key of the coordinator's, by which a broker with timers of its own can tell them apart."""


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """A member's session: restarted by every sign of life."""
    return (COORDINATOR, group_id, "session", member_id)


def rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which a member of a consumer group must have given back what it was asked for."""
    return (COORDINATOR, group_id, "rebalance", member_id)


def rejoin_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which a member of the classic protocol in a consumer group, told to join again, must have done so."""
    return (COORDINATOR, group_id, "rejoin", member_id)


def resync_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which such a member, having joined, must have sent its SyncGroup."""
    return (COORDINATOR, group_id, "resync", member_id)


def run_timer(group_id: str, member_id: str) -> TimerKey:
    """The time by which a member must have installed the assignment that it was asked to compute."""
    return (COORDINATOR, group_id, "run", member_id)


MEMBER_TIMERS = (session_timer, rebalance_timer, rejoin_timer, resync_timer, run_timer)
"""All timers that a member of a consumer group may have."""


def join_timer(group_id: str) -> TimerKey:
    """The end of a join phase with missing members, or of the initial delay."""
    return (COORDINATOR, group_id, "join")


def sync_timer(group_id: str) -> TimerKey:
    """The time by which every member of a generation must have sent its SyncGroup."""
    return (COORDINATOR, group_id, "sync")


def offset_expiration_timer(group_id: str) -> TimerKey:
    """Expired offsets of a group that could not be removed: the next try."""
    return (COORDINATOR, group_id, "expire")


def deleted_topics_timer(group_id: str, topics: tuple[str, ...]) -> TimerKey:
    """Offsets of deleted topics that could not be removed: the next try."""
    return (COORDINATOR, group_id, "forget", topics)


def retention_timer(partition: int) -> TimerKey:
    """The next search of a partition of ``__consumer_offsets`` for offsets that have expired. No group has a number as its id."""
    return (COORDINATOR, partition, "retention")


class Timers:
    """Armed timers and their deadlines (milliseconds on the monotonic clock)."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._told: dict[TimerKey, int] = {}
        """The timers last set in the shell. A deadline that moves back needs no effect: the early report is then postponed."""

    def __iter__(self) -> Iterator[TimerKey]:
        return iter(self._deadlines)

    def deadline(self, key: TimerKey) -> int | None:
        """When a timer is due; ``None`` if it is not armed."""
        return self._deadlines.get(key)

    def note(self, effect: SetTimer | CancelTimer) -> bool:
        """Remember an effect; whether it must go out."""
        if isinstance(effect, CancelTimer):
            self._deadlines.pop(effect.key, None)
            self._told.pop(effect.key, None)
            return True
        if effect.unless_set and effect.key in self._deadlines:
            return False
        self._deadlines[effect.key] = effect.at
        told = self._told.get(effect.key)
        if told is not None and told <= effect.at:
            return False
        self._told[effect.key] = effect.at
        return True

    def reported(self, key: TimerKey) -> None:
        """The shell has reported a timer, so it has forgotten it."""
        self._told.pop(key, None)

    def take_if_due(self, key: TimerKey, mono: int) -> bool:
        """Whether a reported timer shall have its effect; it is disarmed then."""
        deadline = self._deadlines.get(key)
        if deadline is None or deadline > mono:
            return False
        del self._deadlines[key]
        return True
