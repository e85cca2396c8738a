"""The sockets of a client: resolves host names, connects, reads, writes and closes, with or without TLS, and makes no decisions.

Owns the selector and every socket of one network thread, and the threads that resolve names, since ``getaddrinfo`` may block for
many seconds. Must not know requests, brokers or retries. Invariants: each event of a socket is reported to ``Connections`` once,
and none after the core has closed the socket; each look-up is reported exactly once, and none keeps the process from ending.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.connections.connections import Connections
from ottla.client.effects import Address
from ottla.config import ClientConfig
from ottla.errors import TlsError
from ottla.protocol.connection import ClientConnection
from ottla.protocol.framing import Piece
from ottla.types import Now

if TYPE_CHECKING:
    import ssl

    from ottla.runtime.tls import TlsSocket

READ_BUDGET = 8 << 20
"""Bytes read from one connection in one pass, at most: a busy broker must not keep the others waiting."""

LONG_READ = 64 << 10
"""Bytes. If a response lacks at least so many, one blocking call waits for all of them, without the GIL.

A thread that wakes for every few packets has to take the GIL each time, from an application that is busy. SO_RCVLOWAT, which makes
a socket readable only once much has arrived, is no alternative: the sender then waits for space in its own buffer (measured: a
third of the throughput).
"""

LONG_READ_TIMEOUT_US = 3_000
"""Microseconds that a long read waits at most, rounded to the kernel's ticks: other connections and commands wait meanwhile."""

_MSG_WAITALL = socket.MSG_WAITALL if sys.platform != "win32" else 0

_SENDMSG_PIECES = 64
"""Pieces passed to one call of ``sendmsg``, at most."""

_IN_PROGRESS = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK)})
"""Results of ``connect_ex`` that are not failures."""


class _Transport:
    """One socket, the protocol state of its connection, and the bytes that are not sent yet."""

    __slots__ = ("connecting", "connection", "connection_id", "handshaking", "host", "outgoing", "receive", "sock", "tls")

    def __init__(self, connection_id: int, sock: socket.socket, connection: ClientConnection, host: str) -> None:
        self.connection_id = connection_id
        self.sock = sock
        self.connection = connection
        self.host = host
        self.receive: Callable[[memoryview], int] = sock.recv_into
        self.tls: TlsSocket | None = None
        self.connecting = True
        self.handshaking = False
        self.outgoing: deque[memoryview] = deque()

    @property
    def interest(self) -> int:
        """What the selector should watch for."""
        if self.connecting or (self.handshaking and self.tls is not None and self.tls.wants_write):
            return selectors.EVENT_WRITE
        if self.handshaking:
            return selectors.EVENT_READ
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)


class Sockets:
    """The sockets of all connections. With a ``context`` they use TLS. Not thread-safe, except ``wake``."""

    def __init__(
        self, config: ClientConfig, connections: Connections, clock: Callable[[], Now], context: ssl.SSLContext | None = None
    ) -> None:
        self._config = config
        self._connections = connections
        self._clock = clock
        self._context = context
        self._transports: dict[int, _Transport] = {}
        self._unread: set[int] = set()
        """TLS connections whose read budget ended: bytes that OpenSSL has already decrypted do not make a socket readable."""
        self._failed = False
        """Whether a connection has failed while the effects of a pass were performed: the core has to look at that."""
        self._received = 0
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)

    def wake(self) -> None:
        """End the current or the next ``wait`` at once. May be called from any thread."""
        # The buffer is full: the thread is already being woken. The socket is closed: there is no thread to wake.
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def connect(self, connection_id: int, address: Address, connection: ClientConnection, host: str) -> None:
        """Start to connect to an address of ``host``; failures are reported to ``Connections``."""
        family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._failed = True
            return self._connections.on_connect_failed(connection_id, _reason(error), self._clock())
        try:
            self._set_options(sock)
            code = sock.connect_ex((address.ip, address.port))
            if code not in _IN_PROGRESS:
                raise OSError(code, os.strerror(code))
            transport = _Transport(connection_id, sock, connection, host)
            self._selector.register(sock, transport.interest, transport)
        except OSError as error:
            sock.close()
            self._failed = True
            return self._connections.on_connect_failed(connection_id, _reason(error), self._clock())
        self._transports[connection_id] = transport
        return None

    def write(self, connection_id: int, pieces: list[Piece]) -> None:
        """Send as much as the socket accepts now, and the rest as soon as it is writable."""
        transport = self._transports.get(connection_id)
        if transport is None:
            return
        for piece in pieces:
            assert isinstance(piece, bytes | memoryview), "a client sends no ranges of files"
            transport.outgoing.append(memoryview(piece))
        self._flush(transport)

    def close(self, connection_id: int) -> None:
        """Close the socket of a connection, if it has one. No further events of it are reported."""
        transport = self._transports.pop(connection_id, None)
        if transport is not None:
            self._selector.unregister(transport.sock)
            transport.sock.close()

    def close_all(self) -> None:
        """Close every socket and the selector."""
        for connection_id in list(self._transports):
            self.close(connection_id)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def take_received(self) -> int:
        """Return the number of bytes received since the last call."""
        received, self._received = self._received, 0
        return received

    def wait(self, timeout: float | None) -> bool:
        """Sleep until a socket is ready, ``wake`` is called or ``timeout`` (seconds) has passed; then read and write.

        Return False if only parts of responses arrived: the core has nothing to do yet.
        """
        failed, self._failed = self._failed, False
        events = self._selector.select(0 if self._unread or failed else timeout)
        needs_pass = failed or not events
        unread, self._unread = self._unread, set()
        for connection_id in unread:
            if connection_id in self._transports:
                needs_pass = self._read(self._transports[connection_id]) or needs_pass
        for key, what in events:
            transport = key.data
            if transport is None:
                self._drain_wake()
                needs_pass = True
            elif transport.connecting or transport.handshaking:
                self._continue_handshake(transport)
                needs_pass = True
            else:
                if what & selectors.EVENT_WRITE:
                    self._flush(transport)
                if what & selectors.EVENT_READ:
                    needs_pass = self._read(transport) or needs_pass
        return needs_pass

    def _set_options(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _MSG_WAITALL:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, LONG_READ_TIMEOUT_US))
        if self._config.receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer_bytes)
        if self._config.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._config.send_buffer_bytes)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._wake_in.recv(4096)) == 4096:
                pass

    def _continue_handshake(self, transport: _Transport) -> None:
        """Handle the end of the TCP handshake, or continue the TLS handshake."""
        if transport.connecting:
            code = transport.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.close(transport.connection_id)
                return self._connections.on_connect_failed(transport.connection_id, os.strerror(code), self._clock())
            transport.connecting = False
        try:
            if self._context is not None and transport.tls is None:
                self._begin_tls(transport, self._context)
            if transport.tls is not None:
                transport.handshaking = not transport.tls.handshake()
        except (OSError, TlsError) as error:
            return self._on_error(transport, error)
        self._selector.modify(transport.sock, transport.interest, transport)
        if not transport.handshaking:
            self._connections.on_connected(transport.connection_id, self._clock())
        return None

    def _begin_tls(self, transport: _Transport, context: ssl.SSLContext) -> None:
        from ottla.runtime.tls import TlsSocket

        self._connections.on_securing(transport.connection_id, self._clock())
        transport.tls = TlsSocket(transport.sock, context, transport.host)
        self._selector.unregister(transport.sock)
        transport.sock, transport.receive, transport.handshaking = transport.tls.sock, transport.tls.recv_into, True
        self._selector.register(transport.sock, transport.interest, transport)

    def _read(self, transport: _Transport) -> bool:
        """Read until the socket is empty, the budget is spent or the connection closed; return whether the core has to run."""
        budget = READ_BUDGET
        now = self._clock()
        needs_pass = False
        while budget > 0 and transport.connection_id in self._transports:
            buffer = transport.connection.get_buffer()[:budget]
            size = len(buffer)
            is_long = size >= LONG_READ and transport.tls is None
            try:
                count = _read_long(transport.sock, buffer) if is_long else transport.receive(buffer)
            except (BlockingIOError, InterruptedError):
                return needs_pass
            except (OSError, TlsError) as error:
                self._on_error(transport, error)
                return True
            buffer.release()
            if count == 0:
                self._on_error(transport, ConnectionResetError("the peer closed the connection"))
                return True
            budget -= count
            self._received += count
            if not self._connections.on_received(transport.connection_id, count, now):
                return True  # the core has closed the connection: its effect ``Close`` follows
            needs_pass = needs_pass or not self._connections.response_incomplete
            if transport.tls is None and (count < size or not transport.connection.awaits_answers):
                return needs_pass  # the socket is empty: another call would only raise BlockingIOError
        if transport.tls is not None:
            self._unread.add(transport.connection_id)
        return needs_pass

    def _flush(self, transport: _Transport) -> None:
        if transport.connecting or transport.handshaking:
            return None
        watched = transport.interest
        try:
            while transport.outgoing:
                self._send_some(transport)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, TlsError) as error:
            return self._on_error(transport, error)
        if self._selector.get_key(transport.sock).events != transport.interest or watched != transport.interest:
            self._selector.modify(transport.sock, transport.interest, transport)
        return None

    def _send_some(self, transport: _Transport) -> None:
        if transport.tls is not None:
            if len(transport.outgoing) > 1:
                transport.outgoing = deque([memoryview(b"".join(transport.outgoing))])  # one TLS record instead of one per piece
            sent = transport.tls.send(transport.outgoing[0])
        elif hasattr(transport.sock, "sendmsg"):
            sent = transport.sock.sendmsg([*transport.outgoing][:_SENDMSG_PIECES])
        else:
            sent = transport.sock.send(transport.outgoing[0])
        while transport.outgoing and sent >= len(transport.outgoing[0]):
            sent -= len(transport.outgoing.popleft())
        if sent:
            transport.outgoing[0] = transport.outgoing[0][sent:]

    def _on_error(self, transport: _Transport, error: OSError | TlsError) -> None:
        self.close(transport.connection_id)
        self._failed = True
        if isinstance(error, TlsError):
            self._connections.on_tls_failed(transport.connection_id, error, self._clock())
        else:
            self._connections.on_closed(transport.connection_id, _reason(error), self._clock())


def _read_long(sock: socket.socket, buffer: memoryview) -> int:
    """Fill ``buffer``, or as much of it as arrives within ``LONG_READ_TIMEOUT_US``; return the number of bytes."""
    sock.setblocking(True)
    try:
        return sock.recv_into(buffer, 0, _MSG_WAITALL)
    finally:
        sock.setblocking(False)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Resolved:
    """The addresses of a host, in the order in which to try them."""

    host: str
    port: int
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class ResolveFailed:
    """Why a host was not resolved."""

    host: str
    port: int
    reason: str


Report = Callable[[Resolved | ResolveFailed], None]


def resolve_in_background(host: str, port: int, report: Report) -> None:
    """Resolve a host on a new thread, and call ``report`` there; if no thread can be started, call it here."""

    def look_up() -> None:
        try:
            outcome = resolve(host, port)
        except BaseException as error:  # connections wait for this report, even if the thread fails
            outcome = ResolveFailed(host, port, repr(error))
        report(outcome)

    try:
        threading.Thread(target=look_up, name=f"ottla-resolve-{host}", daemon=True).start()
    except RuntimeError as error:
        report(ResolveFailed(host, port, str(error)))


def resolve(host: str, port: int) -> Resolved | ResolveFailed:
    """Resolve a host, on the calling thread."""
    try:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, ValueError) as error:  # a ValueError: a name that IDNA cannot encode, or with a null byte
        return ResolveFailed(host, port, getattr(error, "strerror", None) or str(error))
    return Resolved(host, port, tuple(Address(str(sockaddr[0]), int(sockaddr[1])) for *_, sockaddr in results))
