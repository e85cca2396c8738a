"""A broker's session with ZooKeeper, which begins when ZooKeeper is known to have the broker's cluster.

Owns the check of ``/cluster/id`` in each new session. Must not know topics, or what the managers do. Invariant: no manager learns
of a session, and no operation of theirs is performed in it, before its ZooKeeper has given the id that is in the broker's data
directory. To the managers ZooKeeper is away until then.

Without the check: 1. ZooKeeper has lost its data, or another one gets its address. 2. It refuses clients that have seen newer
transactions, but other clients make transactions, until it takes this broker. 3. The broker reads a list without topics, and
deletes all that it has.
"""

from __future__ import annotations

import logging

from ottla.errors import KeeperCode, ProtocolError, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import decode_cluster_id
from ottla.zookeeper.operations import GetData, Node, Sync
from ottla.zookeeper.session import Disconnect, Perform, Session, SessionPoll, SessionState

_log = logging.getLogger(__name__)

_SHORTEST_MS, _LONGEST_MS = 100, 30_000
"""The back-off after the first check in a row that was in vain, and the longest one. Each is twice the last."""


class ClusterSession(Session):
    """See the module. ``cluster_id`` is that of the data directory, ``connect`` ZooKeeper's connect string."""

    def __init__(self, timeout: int, cluster_id: str, connect: str) -> None:
        super().__init__(timeout)
        self._cluster_id = cluster_id
        self._connect = connect
        self._unchecked: int | None = None
        """The session that is established, and has not begun for the managers."""
        self._number = 0
        """The number of the last read of the id. These numbers are negative, so that no manager's operation has them."""
        self._asked_at: int | None = None
        """When that was sent; ``None``: it has an outcome."""
        self._check_at = 0
        """When the id is to be read again."""
        self._failures = 0
        self._reported = ""
        """What was logged last about the session that is not checked."""

    # -- reports of the shell ---------------------------------------------------------------------------------------------

    def on_connected(self, session_id: int, now: Now) -> None:
        """Continue the session, or check another one."""
        self._unchecked = None
        if session_id == self.session_id or self.state is SessionState.CLOSED:
            return super().on_connected(session_id, now)
        super().on_expired()  # the last session may have ended without a report of it
        self._unchecked, self._asked_at, self._check_at = session_id, None, now.mono
        return None

    def on_disconnected(self) -> None:
        """Note that the connection broke."""
        self._unchecked = None
        super().on_disconnected()

    def on_expired(self) -> None:
        """Note that the server has ended the session."""
        self._unchecked = None
        super().on_expired()

    def on_answered(self, number: int, result: object, now: Now) -> None:
        """Take the result of an operation."""
        if number > 0:
            super().on_answered(number, result, now)
        elif self._is_awaited(number) and isinstance(result, Node):
            self._on_read(result, now)

    def on_failed(self, number: int, error: ZooKeeperError, now: Now) -> None:
        """Take the error of an operation."""
        if number > 0:
            super().on_failed(number, error, now)
        elif self._is_awaited(number):
            self._on_read(error, now)

    def close(self) -> None:
        """End the session."""
        self._unchecked = None
        super().close()

    # -- the check --------------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> SessionPoll:
        """Also read the id of the cluster, if that is due. A server that does not answer is left, as it is later."""
        effects, wake_at, disconnect = super().poll(now)
        if self._unchecked is None:
            return SessionPoll(effects, wake_at, disconnect)
        if self._asked_at is None and now.mono >= self._check_at:
            self._asked_at, self._number = now.mono, self._number - 2
            # After a Sync: a server that is behind might not know the id of a new cluster yet.
            effects += [Perform(self._number + 1, Sync()), Perform(self._number, GetData(paths.CLUSTER_ID))]
        elif self._asked_at is not None and now.mono - self._asked_at >= self._patience:
            self._unchecked = None
            return SessionPoll(effects, wake_at, (Disconnect(),))
        due = self._check_at if self._asked_at is None else self._asked_at + self._patience
        return SessionPoll(effects, due if wake_at is None else min(due, wake_at), disconnect)

    def _is_awaited(self, number: int) -> bool:
        return number == self._number and self._unchecked is not None and self._asked_at is not None

    def _on_read(self, found: Node | ZooKeeperError, now: Now) -> None:
        """Begin the session, or try again later."""
        session_id, self._asked_at = self._unchecked, None
        level, trouble = self._trouble(found)
        if session_id is not None and not trouble:
            self._unchecked, self._failures, self._reported = None, 0, ""
            return super().on_connected(session_id, now)
        self._check_at = now.mono + min(_LONGEST_MS, _SHORTEST_MS << min(self._failures, 20))
        self._failures += 1
        if trouble != self._reported:
            _log.log(level, "%s", trouble)
        self._reported = trouble
        return None

    def _trouble(self, found: Node | ZooKeeperError) -> tuple[int, str]:
        """Return why the session must not begin, with the level of a log line; ``""`` if it may."""
        try:
            if isinstance(found, Node):
                cluster_id = decode_cluster_id(found.data, paths.CLUSTER_ID)
                whose = f"belongs to cluster {cluster_id}"
                if cluster_id == self._cluster_id:
                    return logging.INFO, ""
            elif found.code is KeeperCode.NONODE:
                whose = "knows no cluster"
            else:
                level = logging.INFO if found.retriable else logging.WARNING
                return level, f"{paths.CLUSTER_ID} of ZooKeeper could not be read: {found}; trying again"
        except ProtocolError as error:
            whose = f"has a damaged one: {error}"
        return logging.ERROR, (
            f"this broker belongs to cluster {self._cluster_id}, and ZooKeeper ({self._connect}) {whose}. It has lost its data, or "
            "another one has its address: nothing of it is applied here, and this broker is not registered. Restore its data, or "
            "stop the broker; it looks again and again, but a ZooKeeper with older data may refuse it until it is started again"
        )
