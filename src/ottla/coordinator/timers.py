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
    """A member's session: set anew by all that shows it alive."""
    return (COORDINATOR, group_id, "session", member_id)


def join_timer(group_id: str) -> TimerKey:
    """The end of a join phase that not everybody came to, or of the initial delay."""
    return (COORDINATOR, group_id, "join")


def sync_timer(group_id: str) -> TimerKey:
    """The time by which every member of a generation must have sent its SyncGroup."""
    return (COORDINATOR, group_id, "sync")


class Timers:
    """Armed timers and their deadlines (milliseconds on the monotonic clock)."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}

    def __iter__(self) -> Iterator[TimerKey]:
        return iter(self._deadlines)

    def deadline(self, key: TimerKey) -> int | None:
        """When a timer is due; ``None`` if it is not armed."""
        return self._deadlines.get(key)

    def note(self, effect: SetTimer | CancelTimer) -> None:
        """Remember an effect that goes out."""
        if isinstance(effect, SetTimer):
            self._deadlines[effect.key] = effect.at
        else:
            self._deadlines.pop(effect.key, None)

    def take_if_due(self, key: TimerKey, mono: int) -> bool:
        """Whether a reported timer shall have its effect; it is disarmed then."""
        deadline = self._deadlines.get(key)
        if deadline is None or deadline > mono:
            return False
        del self._deadlines[key]
        return True
