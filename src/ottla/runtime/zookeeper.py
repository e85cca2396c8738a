"""A ZooKeeper client on kazoo, which performs the operations of a ``Session``.

Owns the only use of kazoo. Must not know why a node is read or written. Invariants: kazoo's threads only post reports, so every
decision is made in the thread of the core; each operation is reported exactly once.

What kazoo does, and what follows:

- On every disconnection it drops all watches, with an event of type NONE for each. The state listener reports the disconnection;
  the NONE events say nothing more and are skipped.
- It queues an operation that it gets while it reconnects, and may send it in the *next* session. ``Session`` performs operations
  only while it is connected, but learns of a disconnection later than kazoo. So a write that needs the session checks in a multi
  that the session's own node exists.
- After the end of a session it opens the next one by itself.
- It would block the sender of an operation while it reconnects (``_WakeUps``).
- It leaves a server that does not answer its own pings. Each operation counts as a ping, so while there are operations it sends
  none of its own, and waits for a server that has hung. ``Session`` counts the time instead.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ottla.errors import ConfigError, KeeperCode, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper.operations import (
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
    SetData,
    Stat,
    Sync,
)
from ottla.zookeeper.session import Disconnect, Perform, Session, SessionReport, WatchType

try:
    from kazoo import exceptions
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import SequentialThreadingHandler
    from kazoo.protocol.states import EventType, KazooState
    from kazoo.retry import KazooRetry
except ImportError as missing:
    raise ConfigError("ZooKeeper needs kazoo", hint="pip install 'ottla[zookeeper]'", cause=missing) from missing

_log = logging.getLogger(__name__)

CODES: Mapping[type[Exception], KeeperCode] = {
    exceptions.APIError: KeeperCode.APIERROR,
    exceptions.AuthFailedError: KeeperCode.AUTHFAILED,
    exceptions.BadArgumentsError: KeeperCode.BADARGUMENTS,
    exceptions.BadVersionError: KeeperCode.BADVERSION,
    exceptions.ConnectionClosedError: KeeperCode.CONNECTIONLOSS,
    exceptions.ConnectionLoss: KeeperCode.CONNECTIONLOSS,
    exceptions.DataInconsistency: KeeperCode.DATAINCONSISTENCY,
    exceptions.InvalidACLError: KeeperCode.INVALIDACL,
    exceptions.InvalidCallbackError: KeeperCode.INVALIDCALLBACK,
    exceptions.MarshallingError: KeeperCode.MARSHALLINGERROR,
    exceptions.NoAuthError: KeeperCode.NOAUTH,
    exceptions.NoChildrenForEphemeralsError: KeeperCode.NOCHILDRENFOREPHEMERALS,
    exceptions.NoNodeError: KeeperCode.NONODE,
    exceptions.NodeExistsError: KeeperCode.NODEEXISTS,
    exceptions.NotEmptyError: KeeperCode.NOTEMPTY,
    exceptions.NotReadOnlyCallError: KeeperCode.NOTREADONLY,
    exceptions.OperationTimeoutError: KeeperCode.OPERATIONTIMEOUT,
    exceptions.RuntimeInconsistency: KeeperCode.RUNTIMEINCONSISTENCY,
    exceptions.SessionExpiredError: KeeperCode.SESSIONEXPIRED,
    exceptions.SessionMovedError: KeeperCode.SESSIONMOVED,
    exceptions.SystemZookeeperError: KeeperCode.SYSTEMERROR,
    exceptions.UnimplementedError: KeeperCode.UNIMPLEMENTED,
}
"""Each of kazoo's exceptions -> its code. Any other one is an APIERROR with kazoo's exception as its cause."""

CLOSE_TIMEOUT = 2.0
"""Seconds that ``close`` waits for the server to end the session. Later the session expires by itself."""

FIRST_DELAY, LONGEST_DELAY = 0.05, 1.0
"""Seconds between attempts to connect: a restarted server is found within a second."""

MOST_OUTSTANDING = 100
"""Operations that kazoo has at a time: fewer than a pair of sockets holds wake-ups (``_WakeUps``)."""

_ROOM_PER_WAKE_UP = 4096
"""What a kernel counts for a byte in a pair of sockets is far less."""

Post = Callable[[SessionReport], None]
"""Puts a report into the inbox of the core's thread; any thread may call it."""


class ZooKeeperClient:
    """Performs operations in one session after another. Not started: no thread, no socket.

    ``hosts`` is ZooKeeper's connect string (``host:port,host:port/chroot``), ``timeout`` the session time-out in milliseconds.
    Kazoo's lines are logged with level DEBUG.
    """

    def __init__(self, hosts: str, timeout: int, post: Post) -> None:
        self._post = post
        self._started = False
        self._stopping = threading.Lock()
        self._handler = _Handler()
        self._lock = threading.RLock()
        """Held while one operation is sent."""
        self._waiting: deque[Perform] = deque()
        """Operations that kazoo does not have yet."""
        self._outstanding: set[object] = set()
        """One for each operation that kazoo has."""
        self._is_sending = False
        """Whether the thread that has the lock is sending: an operation that fails at once has ended before that."""
        retry = KazooRetry(max_tries=-1, delay=FIRST_DELAY, max_delay=LONGEST_DELAY)
        try:
            self._kazoo = KazooClient(
                hosts, timeout=timeout / 1000, handler=self._handler, connection_retry=retry, logger=_KazooLogger()
            )
        except (ValueError, TypeError) as error:
            text = f"zookeeper.connect: {hosts!r} is not a list of servers: {error}"
            raise ConfigError(text, hint="write host:port,host:port, with a chroot at the end if there is one") from error
        self.servers: tuple[tuple[str, int], ...] = tuple(self._kazoo.hosts)
        """Host and port of each server."""
        self.chroot: str = self._kazoo.chroot or "/"
        """The node below which all paths are."""
        self._kazoo.add_listener(self._on_state)
        # One function object for each type: kazoo then keeps one watcher per path, however often the node is read.
        self._fired: Mapping[WatchType, Callable[[Any], None]] = {watch: self._watcher(watch) for watch in WatchType}

    def start(self) -> None:
        """Connect in the background. Does nothing the second time."""
        # If a signal handler raises before the flag is set, the next call starts kazoo once more, which first ends what it began.
        if not self._started:
            self._kazoo.start_async()
            self._started = True

    def close(self) -> None:
        """End the session, so that its ephemeral nodes disappear at once; wait for that at most ``CLOSE_TIMEOUT``.

        Closing twice, or in two threads, does no harm.
        """
        stopping = threading.Thread(target=self._stop, name="ottla-zookeeper-close", daemon=True)
        try:
            stopping.start()
        except RuntimeError:  # Python 3.12 starts no thread when the process ends
            self._stop()
        else:
            stopping.join(CLOSE_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child: close its copy of the parent's connection, which goes on."""
        self._handler.abandon()

    def perform(self, effect: Perform | Disconnect) -> None:
        """Send one operation, and post its outcome; or break the connection. It does not block."""
        if isinstance(effect, Disconnect):
            self._handler.disconnect()
            return
        self._waiting.append(effect)
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send operations in order, as far as kazoo takes them, in the core's thread or in kazoo's."""
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Send the next operation, if kazoo takes one. If a signal handler raises meanwhile, it fails, and the others go on."""
        with self._lock:
            if self._is_sending or not self._waiting or len(self._outstanding) >= MOST_OUTSTANDING:
                return False
            effect, token = self._waiting[0], object()
            try:
                self._is_sending = True
                self._outstanding.add(token)
                self._waiting.popleft()
                self._send_one(effect, token)
            except BaseException as error:
                if self._waiting and self._waiting[0] is effect:
                    self._waiting.popleft()
                # It may have been sent. Kazoo raises ValueError and TypeError for paths that it refuses.
                cause = error if isinstance(error, Exception) else exceptions.ConnectionLoss()
                self._ended(token, _failed(effect.number, _error_of(cause, effect.operation)))
                if not isinstance(error, Exception):
                    self._handler.wake()  # kazoo may have the operation, and no byte for it: each later one would wait for the next
                    raise
            finally:
                self._is_sending = False
        return True

    def _send_one(self, effect: Perform, token: object) -> None:
        number, operation = effect

        def answered(done: Any) -> None:
            try:
                report = _outcome(number, operation, done)
            except Exception as error:
                report = _failed(number, ZooKeeperError(KeeperCode.APIERROR, operation.path, cause=error))
            self._ended(token, report)

        if not self._kazoo.connected:
            raise exceptions.ConnectionLoss
        self._send(operation).rawlink(answered)

    def _ended(self, token: object, report: SessionReport) -> None:
        with self._lock:
            if token not in self._outstanding:
                return
            self._outstanding.remove(token)
        self._post(report)
        self._send_waiting()

    def _stop(self) -> None:
        try:
            with self._stopping:  # kazoo refuses to close what another thread is still stopping
                self._kazoo.stop()
                self._kazoo.close()
        except Exception as error:
            _log.warning("ZooKeeper: the session was not closed, it will expire: %r", error)

    def _send(self, operation: Operation[Any]) -> Any:
        match operation:
            case Create(path, data, ephemeral):
                return self._kazoo.create_async(path, data, ephemeral=ephemeral)
            case Delete(path, version):
                return self._kazoo.delete_async(path, version)
            case SetData(path, data, version):
                return self._kazoo.set_async(path, data, version)
            case GetData(path, watch):
                return self._kazoo.get_async(path, self._fired[WatchType.DATA] if watch else None)
            case Exists(path, watch):
                return self._kazoo.exists_async(path, self._fired[WatchType.EXIST] if watch else None)
            case GetChildren(path, watch):
                return self._kazoo.get_children_async(path, self._fired[WatchType.CHILDREN] if watch else None, include_data=True)
            case Sync(path):
                return self._kazoo.sync_async(path)
            case Multi(operations):
                return self._multi(operations)
        raise TypeError(f"{operation!r} can only be part of a multi")

    def _multi(self, operations: tuple[Create | Delete | SetData | Check, ...]) -> Any:
        transaction = self._kazoo.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral):
                    transaction.create(path, data, ephemeral=ephemeral)
                case Delete(path, version):
                    transaction.delete(path, version)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Check(path, version):
                    transaction.check(path, version)
        return transaction.commit_async()

    # -- in kazoo's threads -----------------------------------------------------------------------------------------------

    def _on_state(self, state: KazooState) -> None:
        # Returning True would remove the listener.
        if state == KazooState.CONNECTED:
            session_id = self._kazoo.client_id[0]
            self._post(SessionReport(lambda session, now: session.on_connected(session_id, now)))
        elif state == KazooState.SUSPENDED:
            self._post(SessionReport(lambda session, now: session.on_disconnected()))
        else:
            self._post(SessionReport(lambda session, now: session.on_expired()))

    def _watcher(self, watch: WatchType) -> Callable[[Any], None]:
        def fired(event: Any) -> None:
            if event.type != EventType.NONE:
                self._post(SessionReport(lambda session, now: session.on_watch_fired(watch, event.path)))

        return fired


def _outcome(number: int, operation: Operation[Any], done: Any) -> SessionReport:
    if done.exception is not None:
        return _failed(number, _error_of(done.exception, operation))
    if isinstance(operation, Multi):
        failed = _failure_in(operation, done.value)
        if failed is not None:
            return _failed(number, failed)
        value: object = tuple(_plain(part, result) for part, result in zip(operation.operations, done.value, strict=True))
    else:
        value = _plain(operation, done.value)

    def report(session: Session, now: Now) -> None:
        session.on_answered(number, value, now)

    return SessionReport(report)


def _failed(number: int, error: ZooKeeperError) -> SessionReport:
    return SessionReport(lambda session, now: session.on_failed(number, error, now))


def _failure_in(multi: Multi, results: list[Any]) -> ZooKeeperError | None:
    """The error of the operation because of which none was executed; kazoo returns errors among the results."""
    errors = [(index, result) for index, result in enumerate(results) if isinstance(result, Exception)]
    for index, error in errors:
        # The operations before it are "rolled back", those after it a "runtime inconsistency".
        if not isinstance(error, exceptions.RolledBackError | exceptions.RuntimeInconsistency):
            return _error_of(error, multi.operations[index], index)
    return _error_of(errors[0][1], multi) if errors else None


def _error_of(error: Exception, operation: Operation[Any], index: int | None = None) -> ZooKeeperError:
    if isinstance(error, ValueError | TypeError):
        return ZooKeeperError(KeeperCode.BADARGUMENTS, operation.path, index=index, cause=error)
    return ZooKeeperError(CODES.get(type(error), KeeperCode.APIERROR), operation.path, index=index, cause=error)


def _plain(operation: Operation[Any], value: Any) -> object:
    """Kazoo's result of an operation, as the operation's own type."""
    match operation:
        case Create():
            return operation.path
        case GetData():
            data, stat = value
            return Node(data or b"", _stat(stat))
        case GetChildren():
            names, stat = value
            return Children(tuple(names), _stat(stat))
        case Exists():
            return _stat(value) if value is not None else None
        case SetData():
            return _stat(value)
    return None


def _stat(stat: Any) -> Stat:
    return Stat(stat.czxid, stat.version, stat.cversion, stat.ephemeralOwner, stat.mzxid)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads and sockets. It remembers the latest connection, so that it can be broken."""

    def __init__(self) -> None:
        super().__init__()
        self._connection: socket.socket | None = None
        self._wake_ups: _WakeUps | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Open a connection to a server, for kazoo."""
        self._connection = super().create_connection(*args, **kwargs)
        return self._connection

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        """Create the pair by which kazoo wakes its own thread: it reads from the first one."""
        reader, writer = socket.socketpair()
        self._wake_ups = _WakeUps(writer)
        return reader, self._wake_ups

    def wake(self) -> None:
        """Wake kazoo's thread once more than it has operations, which does no harm."""
        if self._wake_ups is not None:
            with contextlib.suppress(OSError):  # it was closed meanwhile
                self._wake_ups.send(b"\0")

    def disconnect(self) -> None:
        """Break the connection, if there is one: kazoo connects again."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it has broken meanwhile
                self._connection.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close this process's copy of the connection, if there is one, and leave the connection as it is."""
        if self._connection is not None:
            self._connection.close()


class _WakeUps(socket.socket):
    """The end of a pair on which kazoo sends its own thread a byte for each operation. It does not block:

    1. The thread reads none while it connects, and those of operations that it drops with a connection remain: after some short
    connections the pair is full. 2. The thread of the core, a broker's only one, sends the next one, and would wait as long as
    ZooKeeper is away.

    A byte for which there is no room is left out. Kazoo sends an operation for each one that it reads, so there must never be more
    operations than bytes that are there already: ``MOST_OUTSTANDING``. How many a pair has room for depends on the kernel, which
    counts some 800 bytes for one, and on its settings: 278 with the defaults of Linux.
    """

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end.family, end.type, end.proto, end.detach())
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_OUTSTANDING * _ROOM_PER_WAKE_UP)
        self.setblocking(False)

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send the byte, unless the pair is full."""
        with contextlib.suppress(BlockingIOError):
            return super().send(data, flags)
        return len(data)


class _KazooLogger(logging.Logger):
    """Logs kazoo's lines with level DEBUG. It repeats its warnings while it cannot connect; the error of a call says why.

    It is enabled only if they are wanted: kazoo logs each request, and formatting a multi of 100 operations takes as long as
    sending it.
    """

    def __init__(self) -> None:
        super().__init__("kazoo.client", logging.DEBUG)

    def isEnabledFor(self, level: int) -> bool:
        return _log.isEnabledFor(logging.DEBUG) and super().isEnabledFor(level)

    def handle(self, record: logging.LogRecord) -> None:
        _log.debug("kazoo: %s", record.getMessage())
