"""The network thread of a client, which runs one ``ClientCore`` on real sockets and the real clock, and its two queues.

Owns the thread, the queue of commands, the queue of notifications, the order of one pass (commands, core, sockets, sleep), and the
choice of the generator of random numbers. Must not know what the core is for, what a notification means, nor event loops.
Invariants: nothing ends the thread silently: an error of a pass is logged and reported to the application, and the next pass
follows; notifications stay in their queue, in order, until their handler removes them, so that an exception of a signal handler
loses none; each ``put_all`` wakes a thread in ``wait``, or an event loop by the callback passed to ``arm``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ottla.client.backoff import RandomPort
from ottla.client.calls.shared_state import SharedState
from ottla.client.core import ClientCore
from ottla.client.effects import Authenticate, Close, Connect, ConnectionEffect, Resolve, Write
from ottla.client.events import ErrorNotification, Inspect
from ottla.config import ClientConfig, ConsumerConfig
from ottla.errors import ClosedError, ForkedError, IllegalStateError, OttlaError
from ottla.runtime import clock
from ottla.runtime.login import SaslFailed, SaslResponseReady, create_logins
from ottla.runtime.sockets import Resolved, ResolveFailed, Sockets, resolve_in_background
from ottla.types import Now

if TYPE_CHECKING:
    import ssl

    from ottla.runtime.zookeeper import ZooKeeperClient
    from ottla.zookeeper.session import Disconnect, Perform

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT = 5.0
"""Seconds that the network thread may take to report its state; it normally takes a thousandth of that."""

GIVE_WAY_TIME, FEW_BYTES = 0.0003, 1 << 16
"""Seconds and bytes. If fewer than ``FEW_BYTES`` have woken the application, the network thread gives it ``GIVE_WAY_TIME`` to
handle them before it computes the next requests. Both need the GIL: measured, a single record reaches its handler 0.1 ms sooner.
With more bytes the next Fetch goes first, so that the broker works meanwhile."""


BEGIN_TIMEOUT = 1.0
"""Seconds within which a thread begins that the operating system has started."""


class NotificationQueue:
    """The network thread adds notifications, the application thread takes them, and any thread may call ``wake``.

    A signal handler may call any method while its own thread is inside another one: ``SimpleQueue`` and ``deque`` allow that.
    """

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        """One item for each ``put_all`` and ``wake``, for a thread to sleep on. The notifications are in ``_items``."""
        self._callbacks: deque[Callable[[], object]] = deque(maxlen=1)
        """The callback of a waiting event loop, or nothing."""
        self._sleeping = False
        self._application_runs = threading.Lock()
        """Locked from a put that wakes the application until it waits again."""

    @property
    def sleeping(self) -> bool:
        """Whether a thread or an event loop waits."""
        return self._sleeping or bool(self._callbacks)

    def put_all(self, items: Iterable[object]) -> bool:
        """Add notifications and wake the waiting thread; return whether there was one."""
        sleeping = self.sleeping
        if sleeping:
            self._application_runs.acquire(blocking=False)
        self._items.extend(items)
        self._ring()
        return sleeping

    def give_way(self, timeout: float) -> None:
        """Wait until the application that was woken waits again, for at most ``timeout`` seconds.

        1. ``put_all`` has woken the application. 2. It needs the GIL to run, and the network thread would keep the GIL for as long
        as it has work. 3. Blocking on this lock releases the GIL; the application handles the notifications and, with its next
        ``wait`` or ``arm``, releases the lock.
        """
        self._application_runs.acquire(timeout=timeout)

    def wake(self) -> None:
        """End the current or the next ``wait`` without a notification."""
        self._ring()

    def _ring(self) -> None:
        self._bell.put(None)
        with contextlib.suppress(IndexError):  # no event loop waits
            self._callbacks.pop()()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until there is a notification, ``wake`` is called or ``timeout`` seconds have passed.

        Return whether there is a notification.
        """
        self._release_network_thread()
        if not self._items:
            self._sleeping = True
            try:
                self._bell.get(timeout=timeout)
            except Empty:
                return False
            finally:
                self._sleeping = False
        return bool(self._items)

    def arm(self, callback: Callable[[], object]) -> bool:
        """For an event loop, instead of ``wait``: the next put or wake calls ``callback``, once.

        Return False, and do not call it, if there is a notification or a wake-up already. The callback runs on any thread, so it
        must neither block nor raise.
        """
        self._release_network_thread()
        # First the callback, then the check; ``put_all`` first adds its items and then takes the callback. So the check finds what
        # arrives in between, or the callback is called.
        self._callbacks.append(callback)
        if self._items or not self._bell.empty():
            self._callbacks.clear()
            return False
        return True

    def _release_network_thread(self) -> None:
        """End a ``give_way``."""
        if self._application_runs.locked():
            self._application_runs.release()

    def disarm(self) -> None:
        """Undo ``arm``."""
        self._callbacks.clear()

    def news(self) -> deque[object]:
        """All notifications, oldest first. The caller removes each one, from the left, once it is handled."""
        with contextlib.suppress(Empty):
            while True:
                self._bell.get_nowait()
        return self._items

    def drain(self) -> list[object]:
        """Remove and return all notifications. If the caller is interrupted, they are lost."""
        news = self.news()
        return [news.popleft() for _ in range(len(news))]


class NetworkThread:
    """A daemon thread that owns a core. ``submit`` and ``close`` may be called from any thread of the process that created it.

    ``notifications`` and ``shared`` connect it with the application. The constructor raises ``ConfigError`` for certificates that
    cannot be used.
    """

    def __init__(
        self,
        core: ClientCore,
        *,
        notifications: NotificationQueue | None = None,
        shared: SharedState | None = None,
        name: str = "ottla-network",
        now: Callable[[], Now] = clock.now,
        zookeeper: Callable[[Callable[[object], None]], ZooKeeperClient] | None = None,
    ) -> None:
        self.notifications = NotificationQueue() if notifications is None else notifications
        self._shared = SharedState() if shared is None else shared
        self._core = core
        self._now = now
        self._sockets: Sockets | None = None
        self._context = _tls_context(core.config)
        self._logins = create_logins(core.config)
        self._inbox: deque[object] = deque()
        self._zookeeper = zookeeper(self._post) if zookeeper is not None else None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._runs = threading.Lock()
        """The thread acquires it and keeps it: only one thread runs, even if a signal handler interrupted the first ``start``."""
        self._is_started = self._was_tried = False
        """Whether ``start`` has succeeded, and whether it has come so far that the thread may run."""
        self._begun = threading.Event()
        self._ended = threading.Event()
        """Not ``Thread.is_alive()``: if a signal handler raises in there, CPython 3.11 marks a thread as ended that runs."""
        self._pid = os.getpid()

    @property
    def running(self) -> bool:
        """Whether the thread handles commands."""
        return (self._is_started or self._begun.is_set()) and not self._ended.is_set() and not self._shared.stopping

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.get_ident() == self._thread.ident

    def start(self) -> None:
        """Open the sockets and start the thread. If a signal handler raises in here, this can be called again."""
        self._check_fork()
        if self._sockets is None:
            self._sockets = Sockets(self._core.config, self._core.connections, self._now, self._context)
        if self._zookeeper is not None:
            self._zookeeper.start()
        # If a second call came while the thread of an interrupted one begins, ``Thread.start`` would begin another one.
        if not self._begun.is_set() and not (self._was_tried and self._begun.wait(BEGIN_TIMEOUT)):
            self._was_tried = True
            self._thread.start()
        self._is_started = True

    def submit(self, command: object) -> None:
        """Have the core handle a command in the next pass.

        Raises ``ClosedError`` once closed, ``ForkedError`` in a forked child.
        """
        self._check_fork()
        if self._shared.stopping:
            raise ClosedError("the client is closed")
        self._post(command)

    def inspect(self) -> Any:
        """Return what the core's handler of ``Inspect`` says; ``None`` if the thread does not run, or does not answer."""
        if not self.running:
            return None
        answer: Future[Any] = Future()
        try:
            self.submit(Inspect(answer.set_result))
            return answer.result(ANSWER_TIMEOUT)
        except (IllegalStateError, TimeoutError):
            return None

    def close(self, timeout: float) -> bool:
        """End the thread: it handles the commands that were submitted, and unanswered requests fail.

        Return whether it ended within ``timeout`` seconds. Does nothing in a forked child: thread and sockets are the parent's.
        """
        if os.getpid() != self._pid:
            return True
        self._shared.stopping = True
        if self._sockets is not None:
            self._sockets.wake()
            if self._thread.ident is not None:
                return self._ended.wait(timeout)
        return True

    def _check_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"this client belongs to process {self._pid}, this is process {os.getpid()}")

    def _post(self, item: object) -> None:
        # In this order: see ``SharedState.asleep`` and ``SharedState.deferrable``.
        self._inbox.append(item)
        if self._shared.asleep and type(item) not in self._shared.deferrable and self._sockets is not None:
            self._sockets.wake()

    def _run(self) -> None:
        assert self._sockets is not None
        if not self._runs.acquire(blocking=False):
            return
        self._begun.set()
        sockets = self._sockets
        try:
            while not self._shared.stopping:
                try:
                    self._sleep(sockets, self._pass(sockets))
                except Exception as error:
                    self._on_error(error)
                    sockets.wait(self._core.config.retry_backoff_max_ms / 1000)
            self._finish(sockets)
        except BaseException as error:
            self._on_error(error)
            raise
        finally:
            self._shared.stopping = True
            sockets.close_all()
            if self._zookeeper is not None:
                self._zookeeper.close()
            self.notifications.wake()
            self._ended.set()

    def _pass(self, sockets: Sockets) -> int | None:
        """Run one pass; return the time at which the next one is due (monotonic ms), if there is one."""
        now = self._now()
        while self._inbox:
            self._handle(self._inbox.popleft(), now)
        # Few records go to the application before the next Fetch leaves; if there are many, the broker sends more meanwhile.
        self._core.deliver(now)
        if sockets.take_received() < FEW_BYTES and self._publish():
            self.notifications.give_way(GIVE_WAY_TIME)
        effects, wake_at, self._shared.deferrable = self._core.poll(now)
        for effect in effects:
            self._perform(sockets, effect)
        self._publish()
        return wake_at

    def _sleep(self, sockets: Sockets, wake_at: int | None) -> None:
        """Wait until a pass has something to do. Parts of a long response are read without a pass."""
        self._shared.asleep = True
        needs_pass = False
        while not needs_pass:
            if self._shared.stopping or self._has_urgent_command():
                timeout: float | None = 0
            else:
                timeout = None if wake_at is None else max(wake_at - self._now().mono, 0) / 1000
            needs_pass = sockets.wait(timeout) or self._shared.stopping or self._has_urgent_command()
            needs_pass = needs_pass or (wake_at is not None and self._now().mono >= wake_at)
        self._shared.asleep = False

    def _has_urgent_command(self) -> bool:
        """Whether there is a command that ends a sleep."""
        deferrable = self._shared.deferrable
        return bool(self._inbox) and any(type(item) not in deferrable for item in self._inbox.copy())

    def _handle(self, item: object, now: Now) -> None:
        if isinstance(item, Resolved):
            self._core.connections.on_resolved(item.host, item.port, item.addresses, now)
        elif isinstance(item, ResolveFailed):
            self._core.connections.on_resolve_failed(item.host, item.port, item.reason, now)
        elif isinstance(item, SaslResponseReady):
            self._core.connections.on_sasl_response(item.connection_id, item.response, now)
        elif isinstance(item, SaslFailed):
            self._core.connections.on_sasl_failed(item.connection_id, item.error, now)
        else:
            self._core.handle_command(item, now)

    def _perform(self, sockets: Sockets, effect: ConnectionEffect | Perform | Disconnect) -> None:
        match effect:
            case Write(connection_id, pieces):
                sockets.write(connection_id, pieces)
            case Connect(connection_id, address, connection, host):
                sockets.connect(connection_id, address, connection, host)
            case Authenticate(connection_id, challenge):
                assert self._logins is not None
                self._logins.respond_in_background(connection_id, challenge, self._post)
            case Close(connection_id, reason):
                _log.debug("connection %d closed: %s", connection_id, reason)
                sockets.close(connection_id)
            case Resolve(host, port):
                resolve_in_background(host, port, self._post)
            case _:
                assert self._zookeeper is not None
                self._zookeeper.perform(effect)

    def _publish(self) -> bool:
        """Pass the core's notifications to the application; return whether that woke it."""
        notifications = self._core.take_notifications()
        return bool(notifications) and self.notifications.put_all(notifications)

    def _finish(self, sockets: Sockets) -> None:
        self._pass(sockets)
        for effect in self._core.shut_down(ClosedError("the client was closed"), self._now()):
            self._perform(sockets, effect)
        self._publish()

    def _on_error(self, error: BaseException) -> None:
        _log.error("the network thread of a client failed", exc_info=error)
        wrapped = error if isinstance(error, OttlaError) else OttlaError(f"the network thread failed: {error!r}", cause=error)
        self.notifications.put_all([ErrorNotification(wrapped)])


def _tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    if not config.uses_tls:
        return None
    from ottla.runtime.tls import client_context

    return client_context(config)


def random_source() -> RandomPort:
    """Return a new generator for back-off jitter and member ids, seeded by the operating system.

    Two clients never share a sequence, not even after a fork.
    """
    return random.Random()


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def zookeeper_client(config: ConsumerConfig) -> Callable[[Callable[[object], None]], ZooKeeperClient] | None:
    """Return what creates the client of ZooKeeper; ``None`` if the consumer uses none. Raises ``ConfigError`` without kazoo."""
    if config.group_protocol != "zookeeper":
        return None
    from ottla.runtime.zookeeper import ZooKeeperClient

    servers, timeout = config.zookeeper_connect or "", config.zookeeper_session_timeout_ms
    return lambda post: ZooKeeperClient(servers, timeout, post)
