"""What the log of a broker has about its session with ZooKeeper.

Owns these lines, and the time of the ones that are due later. Must not know what is read or written. Invariants: the end of a
trouble is logged at the level at which its beginning was; however often the connection is lost, there are few lines:

1. A proxy, or a server without a quorum, takes a connection and closes it, twenty times a second. 2. The first loss is logged, and
its end. 3. As long as it goes on, a line a minute says how often it has happened, and others that a session has expired.
"""

from __future__ import annotations

import logging

from ottla.types import Now
from ottla.zookeeper.session import SessionChanged, SessionState

_log = logging.getLogger(__name__)

_LONG_OUTAGE = 30_000
"""Milliseconds without a connection after which the reason is more than a restart of ZooKeeper."""

_SHORT = 5_000
"""Milliseconds. The loss of a connection that has lasted for less is left out, if another one was logged in the last minute."""

_MINUTE = 60_000


class SessionLog:
    """See the module. ``connect`` is ZooKeeper's connect string."""

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._connected_at: int | None = None
        """When the last connection began; ``None``: there was none."""
        self._shown_at: int | None = None
        """When a line last said that the connection is lost, or how often it was; ``None``: never."""
        self._left_out = 0
        """The losses since then that have no line."""
        self._expired_at: int | None = None
        """When a line last said that the session has expired; ``None``: never."""
        self._complains_at: int | None = None
        """When it is time to say that ZooKeeper stays away; ``None``: it does not, or that was said."""
        self._is_connected = False
        self._is_shown = True
        """Whether what follows from the last loss is shown as well."""

    @property
    def level(self) -> int:
        """The level at which the consequences of the last loss are logged."""
        return logging.WARNING if self._is_shown else logging.DEBUG

    def on_changed(self, event: SessionChanged, now: Now) -> None:
        """Log another state of the session."""
        self._is_connected = event.state is SessionState.CONNECTED
        if self._is_connected:
            is_first, self._connected_at, self._complains_at = self._connected_at is None, now.mono, None
            again = "" if is_first else " again, in another session" if event.is_new else " again"
            _log.log(logging.INFO if is_first else self.level, "ZooKeeper (%s) is connected%s", self._connect, again)
        elif event.state is SessionState.SUSPENDED:
            self._on_lost_connection(now)
            _log.log(self.level, "the connection to ZooKeeper (%s) is lost; reconnecting", self._connect)
        elif event.state is SessionState.LOST:
            self._is_shown = self._is_shown or not _is_recent(self._expired_at, _MINUTE, now)
            if self._is_shown:
                self._expired_at = now.mono
            text = "the session with ZooKeeper has expired: this broker is not registered; it goes on with what it last knew"
            _log.log(self.level, text)

    def _on_lost_connection(self, now: Now) -> None:
        self._complains_at = now.mono + _LONG_OUTAGE
        self._is_shown = not (_is_recent(self._connected_at, _SHORT, now) and _is_recent(self._shown_at, _MINUTE, now))
        if self._is_shown:
            self._shown_at = now.mono
        else:
            self._left_out += 1

    def poll(self, now: Now) -> int | None:
        """Log what is due. Return when there is more; ``None``: not before the next event."""
        if self._complains_at is not None and now.mono >= self._complains_at:
            self._complains_at, self._is_shown = None, True
            _log.warning(
                "ZooKeeper (%s) gives this broker no session for %d s: is it running? One that has lost its data, or has older"
                " data, refuses clients that have seen newer data: restore it, or stop the brokers",
                self._connect,
                _LONG_OUTAGE // 1000,
            )
        summary_at = self._shown_at + _MINUTE if self._shown_at is not None and self._left_out else None
        if summary_at is not None and now.mono >= summary_at:
            state = "there is one now" if self._is_connected else "there is none now"
            text = "the connection to ZooKeeper (%s) was lost %d more times in the last minute; %s"
            _log.warning(text, self._connect, self._left_out, state)
            self._shown_at, self._left_out, summary_at = now.mono, 0, None
            self._is_shown = self._is_shown or not self._is_connected
        return min((at for at in (self._complains_at, summary_at) if at is not None), default=None)


def _is_recent(at: int | None, milliseconds: int, now: Now) -> bool:
    return at is not None and now.mono < at + milliseconds
