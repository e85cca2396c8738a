"""Accepting connections while the process has descriptors for them and for its files.

Owns when the listening socket is watched. Must not know the use of a connection. Invariants: connections never take the reserve of
descriptors (``descriptors``), without which no file could be opened; while only the reserve is left, clients wait in the kernel's
queue, and the log has one line a minute about it.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Callable, Iterator

from ottla.runtime.descriptors import is_reserve_reached, limit

_AT_ONCE = 64
_PAUSE_MS = 1_000
_LOG_EVERY_MS = 60_000
_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("ottla.broker")


class Acceptor:
    """Accepts the connections to ``listener``. ``close_idle_files`` closes files that need not be open."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, close_idle_files: Callable[[], object]) -> None:
        self._listener = listener
        self._selector = selector
        self._close_idle_files = close_idle_files
        self._on_ready: Callable[[int], None] | None = None
        self._resumes_at: int | None = None
        self._said_at: int | None = None

    def watch(self, on_ready: Callable[[int], None]) -> None:
        """Have the selector watch the listening socket; ``on_ready`` is to call ``accepted``."""
        self._on_ready = on_ready
        self._selector.register(self._listener, selectors.EVENT_READ, on_ready)

    def accept(self, mono: int, present: int) -> Iterator[tuple[socket.socket, str]]:
        """Accept waiting connections; yield each with the address of its client. ``present``: the number of open connections."""
        for _ in range(_AT_ONCE):
            if self._lacks_descriptors():
                self._pause(f"the process may have {limit()} file descriptors (ulimit -n)", mono, present)
                return
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _LACKS:
                    self._pause(error.strerror or str(error), mono, present)
                    return
                continue  # the client has gone away again
            present += 1
            yield sock, str(address[0])

    def resume_if_due(self, mono: int) -> None:
        """Accept again after a pause."""
        if self._resumes_at is None or mono < self._resumes_at or self._on_ready is None:
            return
        try:
            self.watch(self._on_ready)
        except OSError:  # no memory for it, for example; ``_pause`` has logged the reason
            self._resumes_at = mono + _PAUSE_MS
        else:
            self._resumes_at = None

    def _lacks_descriptors(self) -> bool:
        if not is_reserve_reached(self._listener.fileno()):
            return False
        self._close_idle_files()
        return is_reserve_reached(self._listener.fileno())

    def _pause(self, reason: str, mono: int, present: int) -> None:
        self._selector.unregister(self._listener)
        self._resumes_at = mono + _PAUSE_MS
        if self._said_at is None or mono - self._said_at >= _LOG_EVERY_MS:
            self._said_at = mono
            log.error("%d connections are open, and new ones have to wait until some are closed: %s", present, reason)
