"""The network thread of a client: runs one ``ClientCore`` on real sockets and the real clock.

Owns the thread, its inbox and the order of one pass: commands, core, sockets, sleep. Must not know what the core is for. Invariant:
nothing kills the thread silently: an error of a pass is logged, told to the application, and the next pass comes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.client.connections.connections import Authenticate, Close, Connect, ConnectionEffect, Resolve, Write
from ottla.client.core import ClientCore
from ottla.client.notifications import ErrorNotification
from ottla.config import ClientConfig
from ottla.errors import ClosedError, ForkedError, OttlaError
from ottla.runtime import clock
from ottla.runtime.login import NotProved, Proved, logins_of
from ottla.runtime.notifications import NotificationQueue
from ottla.runtime.resolver import Resolved, ResolveFailed, resolve_in_background
from ottla.runtime.sockets import Sockets
from ottla.types import Now

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

GIVE_WAY, FEW = 0.0003, 1 << 16
"""Seconds that an application which was woken by few bytes is given to handle them, before the next requests are thought of. Both
need the GIL: measured, a lone record is in its handler 0.1 ms sooner. Of many bytes the broker should send more meanwhile."""


class NetworkThread:
    """A daemon thread that owns a core. ``submit`` and ``close`` may be called from any thread of the process that made it.

    Making one raises ``ConfigError`` for certificates that cannot be used.
    """

    def __init__(self, core: ClientCore, *, name: str = "ottla-network", now: Callable[[], Now] = clock.now) -> None:
        self.notifications = NotificationQueue()
        """What the core tells the application."""
        self._core = core
        self._now = now
        self._sockets: Sockets | None = None
        self._context = _tls_context(core.config)
        self._logins = logins_of(core.config)
        self._inbox: deque[object] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._runs = threading.Lock()
        """Taken for good by the thread: there is one, whatever interrupts its start."""
        self._pid = os.getpid()
        self._closing = False
        self._asleep = False
        self._may_wait: frozenset[type[object]] = frozenset()

    @property
    def running(self) -> bool:
        """Whether commands are still handled."""
        return self._thread.is_alive() and not self._closing

    def start(self) -> None:
        """Begin; nothing was opened before. Where the handler of a signal raises in here, it can be called again."""
        self._check_fork()
        if self._sockets is None:
            self._sockets = Sockets(self._core.config, self._core.connections, self._now, self._context)
        if not self._thread.is_alive():
            self._thread.start()

    def submit(self, command: object) -> None:
        """Have the core handle a command in the next pass.

        Raises ``ClosedError`` once closed, ``ForkedError`` in a forked child.
        """
        self._check_fork()
        if self._closing:
            raise ClosedError("the client is closed")
        self._post(command)

    def close(self, timeout: float) -> bool:
        """End the thread: commands that were submitted are handled, what is not answered fails.

        Gives whether it ended within ``timeout`` (seconds). Does nothing in a forked child: thread and sockets are the parent's.
        """
        if os.getpid() != self._pid:
            return True
        self._closing = True
        if self._sockets is not None:
            self._sockets.wake()
            if self._thread.ident is not None:
                self._thread.join(timeout)
        return not self._thread.is_alive()

    def _check_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"this client belongs to process {self._pid}, this is process {os.getpid()}")

    def _post(self, item: object) -> None:
        # First the item, then the check whether the thread sleeps; the thread does it in reverse order, so no wake-up is lost.
        self._inbox.append(item)
        if self._asleep and type(item) not in self._may_wait and self._sockets is not None:
            self._sockets.wake()

    def _run(self) -> None:
        assert self._sockets is not None
        if not self._runs.acquire(blocking=False):
            return
        sockets = self._sockets
        try:
            while not self._closing:
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
            self._closing = True
            sockets.close_all()
            self.notifications.wake()

    def _pass(self, sockets: Sockets) -> int | None:
        """One pass; gives the time to wake at the latest."""
        now = self._now()
        while self._inbox:
            self._handle(self._inbox.popleft(), now)
        # A few records come first, the next Fetch afterwards; but while many are handled the broker should send more.
        self._core.deliver(now)
        if sockets.take_received() < FEW and self._publish():
            self.notifications.give_way(GIVE_WAY)
        effects, wake_at, self._may_wait = self._core.poll(now)
        for effect in effects:
            self._perform(sockets, effect)
        self._publish()
        return wake_at

    def _sleep(self, sockets: Sockets, wake_at: int | None) -> None:
        """Until there is something to think about: parts of a long answer are only read."""
        self._asleep = True
        news = False
        while not news:
            if self._closing or self._is_pressed():
                timeout: float | None = 0
            else:
                timeout = None if wake_at is None else max(wake_at - self._now().mono, 0) / 1000
            news = sockets.wait(timeout) or self._closing or self._is_pressed()
            news = news or (wake_at is not None and self._now().mono >= wake_at)
        self._asleep = False

    def _is_pressed(self) -> bool:
        """Whether there is a command that cannot wait."""
        return bool(self._inbox) and any(type(item) not in self._may_wait for item in self._inbox.copy())

    def _handle(self, item: object, now: Now) -> None:
        if isinstance(item, Resolved):
            self._core.connections.on_resolved(item.host, item.port, item.addresses, now)
        elif isinstance(item, ResolveFailed):
            self._core.connections.on_resolve_failed(item.host, item.port, item.reason, now)
        elif isinstance(item, Proved):
            self._core.connections.on_proved(item.connection_id, item.proof, now)
        elif isinstance(item, NotProved):
            self._core.connections.on_not_proved(item.connection_id, item.error, now)
        else:
            self._core.handle_command(item, now)

    def _perform(self, sockets: Sockets, effect: ConnectionEffect) -> None:
        match effect:
            case Write(connection_id, pieces):
                sockets.write(connection_id, pieces)
            case Connect(connection_id, address, connection, host):
                sockets.connect(connection_id, address, connection, host)
            case Authenticate(connection_id, question):
                assert self._logins is not None
                self._logins.prove_in_background(connection_id, question, self._post)
            case Close(connection_id, reason):
                _log.debug("connection %d closed: %s", connection_id, reason)
                sockets.close(connection_id)
            case Resolve(host, port):
                resolve_in_background(host, port, self._post)

    def _publish(self) -> bool:
        """Tell the application what there is to tell; whether that woke it."""
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
