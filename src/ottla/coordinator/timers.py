"""The coordinator's timers: their keys and deadlines.

Owns the deadlines of all timers that are set. Must not know the purpose of a timer. Invariant: a timer has an effect only if it is
set and its deadline has passed, however late or often the shell reports it; a timer that was moved or cancelled while its report
waited in a queue has none.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.coordinator.effects import CancelTimer, SetTimer, TimerKey

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


class Timers:
    """The timers that are set, with their deadlines (milliseconds on the monotonic clock).

    Every heartbeat moves a session timer, and an effect for each would cost more than the rest of the heartbeat. So the shell keeps
    the earlier deadline of a timer that moves back:

    1. A timer is set to 10 s, and an effect tells the shell.
    2. A heartbeat moves it to 13 s: only the deadline here changes.
    3. At 10 s the shell reports the timer. It is not due, so an effect sets it to its deadline of then.
    """

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._in_shell: dict[TimerKey, int] = {}
        """The deadlines that the shell knows; they may be earlier than the real ones."""

    def __iter__(self) -> Iterator[TimerKey]:
        return iter(self._deadlines)

    def deadline(self, key: TimerKey) -> int | None:
        """Return the deadline of a timer; ``None`` if it is not set."""
        return self._deadlines.get(key)

    def note(self, effect: SetTimer | CancelTimer) -> bool:
        """Note an effect. Return whether it must go out to the shell."""
        if isinstance(effect, CancelTimer):
            self._deadlines.pop(effect.key, None)
            self._in_shell.pop(effect.key, None)
            return True
        if effect.unless_set and effect.key in self._deadlines:
            return False
        self._deadlines[effect.key] = effect.at
        in_shell = self._in_shell.get(effect.key)
        if in_shell is not None and in_shell <= effect.at:
            return False
        self._in_shell[effect.key] = effect.at
        return True

    def reported(self, key: TimerKey) -> None:
        """Note that the shell has reported a timer, and so no longer has it."""
        self._in_shell.pop(key, None)

    def take_if_due(self, key: TimerKey, mono: int) -> bool:
        """Return whether a reported timer is due; if so, it is no longer set."""
        deadline = self._deadlines.get(key)
        if deadline is None or deadline > mono:
            return False
        del self._deadlines[key]
        return True
