"""The shape of a part of the broker that works in ZooKeeper.

Owns the protocol. Must not know what a manager does. Invariant: a manager changes its own state in its callbacks only, and what it
wants performed is returned by its next poll.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ottla.types import Now
from ottla.zookeeper.session import AnyAsk, SessionChanged, WatchFired


class ManagerPoll(NamedTuple):
    """The operations to perform, and when to poll again at the latest (monotonic ms; ``None``: after the next event)."""

    asks: tuple[AnyAsk, ...] = ()
    wake_at: int | None = None


class ZooKeeperManager(Protocol):
    """A part of the broker that works in ZooKeeper."""

    @property
    def is_due(self) -> bool:
        """Whether it has to be polled although nothing has come from ZooKeeper: a request has begun a change."""

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Note a watch that has fired, or another state of the session."""

    def poll(self, now: Now) -> ManagerPoll:
        """Return what to do."""
