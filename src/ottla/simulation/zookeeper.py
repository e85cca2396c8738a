"""A model of ZooKeeper: its nodes, sessions and watches in memory.

Owns what a server answers and which watches it fires. Must not know connections, or who asks. Invariants: for every history of
operations it answers as a real server does to kazoo, and fires the same watches (``tests/end_to_end/test_zookeeper_model.py`` runs
random histories on both); a multi executes all of its operations or none.

Transaction ids are those of a server in their order, but not in their values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, KeysView
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.errors import KeeperCode, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper.operations import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Node,
    Operation,
    Read,
    SetData,
    Stat,
    Sync,
    Write,
)
from ottla.zookeeper.session import WATCHES, WatchType

ROOT = "/"

_OF_DATA = (WatchType.DATA, WatchType.EXIST)
"""One event of a server fires both: for a server they are the same watch, which different reads set."""


class Fired(NamedTuple):
    """A watch that has fired, and the session that had set it."""

    session_id: int
    watch: WatchType
    path: str


class Executed(NamedTuple):
    """The outcome of an operation, and the watches that it fired, in order."""

    result: Any
    error: ZooKeeperError | None = None
    fired: tuple[Fired, ...] = ()


@dataclass(eq=False, slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    ephemeral_owner: int
    version: int = 0
    cversion: int = 0
    children: dict[str, None] = field(default_factory=dict)

    @property
    def stat(self) -> Stat:
        return Stat(self.czxid, self.version, self.cversion, self.ephemeral_owner, self.mzxid)


@dataclass(eq=False, slots=True)
class _Session:
    timeout: int
    heard_at: int
    expires_at: int
    ephemerals: dict[str, None] = field(default_factory=dict)


class _Refused(Exception):
    """An operation that the server does not execute."""

    def __init__(self, code: KeeperCode) -> None:
        super().__init__(code)
        self.code = code


class ZooKeeperModel:
    """See the module. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {ROOT: _Node(b"", 0, 0, 0)}
        self._sessions: dict[int, _Session] = {}
        self._zxid = 0
        self._last_session = 0
        self._watches: defaultdict[str, dict[tuple[int, WatchType], None]] = defaultdict(dict)
        self._undo: list[Callable[[], object]] = []
        """What takes back the part of a multi that was executed, the last step last."""
        self._changes: list[tuple[str, tuple[WatchType, ...]]] = []
        """What was changed: the path, and the types of watches that this fires."""

    # -- sessions ---------------------------------------------------------------------------------------------------------

    def open(self, timeout: int, now: Now) -> int:
        """Open a session; returns its id."""
        self._zxid += 1
        self._last_session += 1
        self._sessions[self._last_session] = _Session(timeout, now.mono, now.mono + timeout)
        return self._last_session

    def touch(self, session_id: int, now: Now) -> bool:
        """Note that the client has been heard, also at a reconnect; returns whether the session exists."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.heard_at, session.expires_at = now.mono, now.mono + session.timeout
        return session is not None

    def forget_last(self, session_id: int) -> None:
        """Forget that the client has been heard in the last half tick: its server has not passed that on to the leader.

        A session lasts two ticks at least.
        """
        session = self._sessions[session_id]
        session.expires_at = session.heard_at + session.timeout - session.timeout // 4

    def drop_watches(self, session_id: int) -> None:
        """Forget the watches of a session whose connection broke, as a client on kazoo does."""
        for watches in self._watches.values():
            for watch in WatchType:
                watches.pop((session_id, watch), None)

    def close(self, session_id: int) -> tuple[Fired, ...]:
        """End a session and delete its ephemeral nodes; returns the watches that this fires."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return ()
        self.drop_watches(session_id)
        self._zxid += 1
        for path in session.ephemerals:
            self._remove(path)
        return self._fire()

    @property
    def sessions(self) -> KeysView[int]:
        """The sessions that exist."""
        return self._sessions.keys()

    def overdue(self, now: Now) -> list[int]:
        """The sessions whose time is over, which a server ends.

        A real server looks at its sessions once in a tick, so they last up to a tick longer there. A client must not rely on that.
        """
        return [session_id for session_id, session in self._sessions.items() if session.expires_at <= now.mono]

    @property
    def expires_at(self) -> int | None:
        """When the next session ends unless its client is heard before; ``None``: there is no session."""
        return min((session.expires_at for session in self._sessions.values()), default=None)

    def data(self, path: str) -> bytes | None:
        """The data of a node; ``None``: it does not exist."""
        node = self._nodes.get(path)
        return None if node is None else node.data

    def owner(self, path: str) -> int | None:
        """The session whose node this is, 0 for that of none; ``None``: it does not exist."""
        node = self._nodes.get(path)
        return None if node is None else node.ephemeral_owner

    def children(self, path: str) -> tuple[str, ...]:
        """The names of a node's children; none if it does not exist."""
        node = self._nodes.get(path)
        return () if node is None else tuple(sorted(node.children))

    # -- operations -------------------------------------------------------------------------------------------------------

    def execute(self, session_id: int, operation: Operation[Any], now: Now) -> Executed:
        """Execute one operation of a session. Its error is returned, not raised."""
        if not self.touch(session_id, now):
            return Executed(None, ZooKeeperError(KeeperCode.SESSIONEXPIRED, operation.path))
        match operation:
            case Multi(operations):
                return self._execute_all(session_id, operations)
            case GetData() | Exists() | GetChildren():
                return self._read(session_id, operation)
            case Sync():
                return Executed(None)
            case Create() | Delete() | SetData():
                executed = self._execute_all(session_id, (operation,))
                if executed.error is not None:
                    return Executed(None, ZooKeeperError(executed.error.code, operation.path))
                return executed._replace(result=executed.result[0])
        # Check exists as a part of a multi only.
        return Executed(None, ZooKeeperError(KeeperCode.BADARGUMENTS, operation.path))

    def _read(self, session_id: int, operation: Read) -> Executed:
        path = operation.path
        if not _is_valid(path):
            return Executed(None, ZooKeeperError(KeeperCode.BADARGUMENTS, path))
        node = self._nodes.get(path)
        # Only the watch of Exists can be set at a node that does not exist.
        if node is None and not isinstance(operation, Exists):
            return Executed(None, ZooKeeperError(KeeperCode.NONODE, path))
        if operation.watch:
            self._watches[path][session_id, WATCHES[type(operation)]] = None
        match operation, node:
            case GetData(), _Node():
                return Executed(Node(node.data, node.stat))
            case GetChildren(), _Node():
                return Executed(Children(self.children(path), node.stat))
        return Executed(node.stat if node is not None else None)

    def _execute_all(self, session_id: int, operations: Iterable[Write]) -> Executed:
        self._zxid += 1
        results: list[object] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._write(session_id, operation))
            except _Refused as refused:
                while self._undo:
                    self._undo.pop()()
                self._changes.clear()
                return Executed(None, ZooKeeperError(refused.code, operation.path, index=index))
        self._undo.clear()
        return Executed(tuple(results), None, self._fire())

    def _write(self, session_id: int, operation: Write) -> object:
        if not _is_valid(operation.path):
            raise _Refused(KeeperCode.BADARGUMENTS)
        match operation:
            case Create(path, data, ephemeral):
                self._create(path, data, session_id if ephemeral else 0)
                return path
            case Delete(path, version):
                self._delete(path, version)
            case SetData(path, data, version):
                return self._set(path, data, version)
            case Check(path, version):
                self._at_version(path, version)
        return None

    def _create(self, path: str, data: bytes, owner: int) -> None:
        # The order of these checks is that of the server.
        parent = self._node(_parent(path))
        if path in self._nodes:
            raise _Refused(KeeperCode.NODEEXISTS)
        if parent.ephemeral_owner:
            raise _Refused(KeeperCode.NOCHILDRENFOREPHEMERALS)
        self._add(path, _Node(data, self._zxid, self._zxid, owner))
        parent.cversion += 1

        def undo() -> None:
            self._take_out(path)
            parent.cversion -= 1

        self._undo.append(undo)
        self._changes += [(path, _OF_DATA), (_parent(path), (WatchType.CHILDREN,))]

    def _delete(self, path: str, version: int) -> None:
        if path == ROOT:
            raise _Refused(KeeperCode.BADARGUMENTS)
        node = self._at_version(path, version)
        if node.children:
            raise _Refused(KeeperCode.NOTEMPTY)
        self._remove(path)

    def _set(self, path: str, data: bytes, version: int) -> Stat:
        node = self._at_version(path, version)
        before, written = node.data, node.mzxid
        node.data, node.version, node.mzxid = data, node.version + 1, self._zxid

        def undo() -> None:
            node.data, node.version, node.mzxid = before, node.version - 1, written

        self._undo.append(undo)
        self._changes.append((path, _OF_DATA))
        return node.stat

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise _Refused(KeeperCode.NONODE)
        return node

    def _at_version(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (ANY_VERSION, node.version):
            raise _Refused(KeeperCode.BADVERSION)
        return node

    def _remove(self, path: str) -> None:
        node, parent = self._take_out(path), self._nodes[_parent(path)]
        parent.cversion += 1

        def undo() -> None:
            self._add(path, node)
            parent.cversion -= 1

        self._undo.append(undo)
        self._changes += [(path, (*_OF_DATA, WatchType.CHILDREN)), (_parent(path), (WatchType.CHILDREN,))]

    def _add(self, path: str, node: _Node) -> None:
        self._nodes[path] = node
        self._nodes[_parent(path)].children[_name(path)] = None
        if node.ephemeral_owner:
            self._sessions[node.ephemeral_owner].ephemerals[path] = None

    def _take_out(self, path: str) -> _Node:
        node = self._nodes.pop(path)
        del self._nodes[_parent(path)].children[_name(path)]
        if node.ephemeral_owner in self._sessions:
            del self._sessions[node.ephemeral_owner].ephemerals[path]
        return node

    def _fire(self) -> tuple[Fired, ...]:
        """Return the watches that the changes fire, which are then no longer set."""
        fired: list[Fired] = []
        for path, kinds in self._changes:
            watches = self._watches.get(path, {})
            for session_id, watch in [one for one in watches if one[1] in kinds]:
                del watches[session_id, watch]
                fired.append(Fired(session_id, watch, path))
            if not watches:
                self._watches.pop(path, None)
        self._changes.clear()
        self._undo.clear()
        return tuple(fired)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_valid(path: str) -> bool:
    parts = path.split("/")[1:]
    return path == ROOT or (path.startswith("/") and not any(part in ("", ".", "..") or "\x00" in part for part in parts))
