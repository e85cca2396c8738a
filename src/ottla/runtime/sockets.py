"""The sockets of a client: opens, closes and moves bytes, in the clear or by TLS, and decides nothing.

Owns the selector and every socket of one network thread. Must not know requests, brokers or retries. Invariant: what
happens to a socket is reported to ``Connections`` once; one that the core has closed reports nothing more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.client.connections.connections import Connections
from ottla.client.connections.node_connections import Address
from ottla.config import ClientConfig
from ottla.errors import TlsError
from ottla.protocol.connection import ClientConnection
from ottla.protocol.framing import Piece
from ottla.types import Now

if TYPE_CHECKING:
    import ssl

    from ottla.runtime.tls import TlsSocket

READ_BUDGET = 8 << 20
"""Bytes read from one connection in one pass, so that a busy broker does not keep the others waiting."""

LONG = 64 << 10
"""From so many missing bytes on an answer is waited for as a whole, in one call and without the GIL: a thread that wakes for every
few packets has to win the GIL each time, from an application that is busy. (To have the socket count as readable only when much is
there, by SO_RCVLOWAT, makes the sender wait for space in its own buffer: measured, a third of the throughput.)"""

PATIENCE_US = 3_000
"""For how many microseconds at most, as exactly as the system's ticks allow: other connections and commands wait meanwhile."""

_WHOLE = socket.MSG_WAITALL if sys.platform != "win32" else 0

_AT_ONCE = 64
"""Pieces handed to the operating system in one call."""

_UNDER_WAY = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK)})


class _Socket:
    """One socket, its side of the dialogue, and the bytes that still wait to be sent on it."""

    __slots__ = ("connecting", "connection", "connection_id", "host", "outgoing", "receive", "securing", "sock", "tls")

    def __init__(self, connection_id: int, sock: socket.socket, connection: ClientConnection, host: str) -> None:
        self.connection_id = connection_id
        self.sock = sock
        self.connection = connection
        self.host = host
        self.receive: Callable[[memoryview], int] = sock.recv_into
        self.tls: TlsSocket | None = None
        self.connecting = True
        self.securing = False
        self.outgoing: deque[memoryview] = deque()

    @property
    def interest(self) -> int:
        """What the selector should watch for."""
        if self.connecting or (self.securing and self.tls is not None and self.tls.wants_write):
            return selectors.EVENT_WRITE
        if self.securing:
            return selectors.EVENT_READ
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)


class Sockets:
    """Used by one thread only, but for ``wake``. With a ``context`` all connections speak TLS."""

    def __init__(
        self, config: ClientConfig, connections: Connections, clock: Callable[[], Now], context: ssl.SSLContext | None = None
    ) -> None:
        self._config = config
        self._connections = connections
        self._clock = clock
        self._context = context
        self._sockets: dict[int, _Socket] = {}
        self._unread: set[int] = set()
        """Connections whose budget ended: what TLS has decrypted and not handed out yet does not make a socket readable."""
        self._received = 0
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)

    def wake(self) -> None:
        """End the present or the next ``wait`` at once; callable from any thread."""
        # Full: it is already awake. Closed: there is no thread to wake.
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def connect(self, connection_id: int, address: Address, connection: ClientConnection, host: str) -> None:
        """Begin to connect to an address of ``host``."""
        family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            return self._connections.on_connect_failed(connection_id, _reason(error), self._clock())
        try:
            self._set_options(sock)
            code = sock.connect_ex((address.ip, address.port))
            if code not in _UNDER_WAY:
                raise OSError(code, os.strerror(code))
            link = _Socket(connection_id, sock, connection, host)
            self._selector.register(sock, link.interest, link)
        except OSError as error:
            sock.close()
            return self._connections.on_connect_failed(connection_id, _reason(error), self._clock())
        self._sockets[connection_id] = link
        return None

    def write(self, connection_id: int, pieces: list[Piece]) -> None:
        """Send bytes now as far as the socket takes them, the rest as soon as it can."""
        link = self._sockets.get(connection_id)
        if link is None:
            return
        for piece in pieces:
            assert isinstance(piece, bytes), "a client sends no ranges of files"
            link.outgoing.append(memoryview(piece))
        self._flush(link)

    def close(self, connection_id: int) -> None:
        """Close one socket; nothing more is reported of it."""
        link = self._sockets.pop(connection_id, None)
        if link is not None:
            self._selector.unregister(link.sock)
            link.sock.close()

    def close_all(self) -> None:
        """Close every socket and the selector."""
        for connection_id in list(self._sockets):
            self.close(connection_id)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def take_received(self) -> int:
        """Bytes that have come since this was last asked."""
        received, self._received = self._received, 0
        return received

    def wait(self, timeout: float | None) -> bool:
        """Sleep until something happens, ``wake`` is called, or ``timeout`` (seconds) is over; then move bytes.

        False where nothing came of it but parts of answers: there is nothing yet to think about.
        """
        events = self._selector.select(0 if self._unread else timeout)
        news = not events
        unread, self._unread = self._unread, set()
        for connection_id in unread:
            if connection_id in self._sockets:
                news = self._read(self._sockets[connection_id]) or news
        for key, what in events:
            link = key.data
            if link is None:
                self._drain_wake()
                news = True
            elif link.connecting or link.securing:
                self._advance(link)
                news = True
            else:
                if what & selectors.EVENT_WRITE:
                    self._flush(link)
                if what & selectors.EVENT_READ:
                    news = self._read(link) or news
        return news

    def _set_options(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _WHOLE:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, PATIENCE_US))
        if self._config.receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer_bytes)
        if self._config.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer_bytes)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._wake_in.recv(4096)) == 4096:
                pass

    def _advance(self, link: _Socket) -> None:
        """TCP is connected, or has failed; or the TLS handshake may go on."""
        if link.connecting:
            code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.close(link.connection_id)
                return self._connections.on_connect_failed(link.connection_id, os.strerror(code), self._clock())
            link.connecting = False
        try:
            if self._context is not None and link.tls is None:
                self._begin_tls(link, self._context)
            if link.tls is not None:
                link.securing = not link.tls.handshake()
        except (OSError, TlsError) as error:
            return self._lost(link, error)
        self._selector.modify(link.sock, link.interest, link)
        if not link.securing:
            self._connections.on_connected(link.connection_id, self._clock())
        return None

    def _begin_tls(self, link: _Socket, context: ssl.SSLContext) -> None:
        from ottla.runtime.tls import TlsSocket

        self._connections.on_securing(link.connection_id, self._clock())
        link.tls = TlsSocket(link.sock, context, link.host)
        self._selector.unregister(link.sock)
        link.sock, link.receive, link.securing = link.tls.sock, link.tls.recv_into, True
        self._selector.register(link.sock, link.interest, link)

    def _read(self, link: _Socket) -> bool:
        """Read until the socket is empty, the budget is spent or the connection of no more use; whether it completed anything."""
        budget = READ_BUDGET
        now = self._clock()
        news = False
        while budget > 0 and link.connection_id in self._sockets:
            buffer = link.connection.get_buffer()[:budget]
            size = len(buffer)
            try:
                count = _receive_long(link.sock, buffer) if size >= LONG and link.tls is None else link.receive(buffer)
            except (BlockingIOError, InterruptedError):
                return news
            except (OSError, TlsError) as error:
                self._lost(link, error)
                return True
            buffer.release()
            if count == 0:
                self._lost(link, ConnectionResetError("the peer closed the connection"))
                return True
            budget -= count
            self._received += count
            if not self._connections.on_received(link.connection_id, count, now):
                return True  # the core has closed it: the effect follows
            news = news or not self._connections.response_incomplete
            if link.tls is None and (count < size or not link.connection.awaits_answers):
                return news  # the socket is empty: asking again would only tell so
        if link.tls is not None:
            self._unread.add(link.connection_id)
        return news

    def _flush(self, link: _Socket) -> None:
        if link.connecting or link.securing:
            return None
        watched = link.interest
        try:
            while link.outgoing:
                self._send_some(link)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, TlsError) as error:
            return self._lost(link, error)
        if self._selector.get_key(link.sock).events != link.interest or watched != link.interest:
            self._selector.modify(link.sock, link.interest, link)
        return None

    def _send_some(self, link: _Socket) -> None:
        if link.tls is not None:
            if len(link.outgoing) > 1:
                link.outgoing = deque([memoryview(b"".join(link.outgoing))])  # one record of TLS, not one a piece
            sent = link.tls.send(link.outgoing[0])
        elif hasattr(link.sock, "sendmsg"):
            sent = link.sock.sendmsg([*link.outgoing][:_AT_ONCE])
        else:
            sent = link.sock.send(link.outgoing[0])
        while link.outgoing and sent >= len(link.outgoing[0]):
            sent -= len(link.outgoing.popleft())
        if sent:
            link.outgoing[0] = link.outgoing[0][sent:]

    def _lost(self, link: _Socket, error: OSError | TlsError) -> None:
        self.close(link.connection_id)
        if isinstance(error, TlsError):
            self._connections.on_tls_failed(link.connection_id, error, self._clock())
        else:
            self._connections.on_closed(link.connection_id, _reason(error), self._clock())


def _receive_long(sock: socket.socket, buffer: memoryview) -> int:
    """Fill ``buffer``, or as much of it as comes soon."""
    sock.setblocking(True)
    try:
        return sock.recv_into(buffer, 0, _WHOLE)
    finally:
        sock.setblocking(False)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
