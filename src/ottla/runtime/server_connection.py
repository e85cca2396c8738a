"""Clients' connections on the broker's side: accepted while there are descriptors, then frames in and responses out, and on the
channel of a member also the coordinator's requests.

Owns when the listening socket is watched; and of each connection its socket, the incoming frame, the responses that wait for
earlier ones and the bytes that wait for the socket. Must not know what a request means. Invariants: responses are sent in the order
of the requests, whichever is ready first, and a request of the coordinator after the responses that were ready before it; nothing
is read while too many requests or bytes are in flight, so that a client that
does not read cannot fill the broker's memory; connections never take the reserve of descriptors (``descriptors``), without which no
file could be opened: while only the reserve is left, clients wait in the kernel's queue, and the log has one line a minute about
it.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ottla.errors import ProtocolError
from ottla.protocol.codec import RequestHeader
from ottla.protocol.framing import Frame, FrameReader, Piece
from ottla.runtime.descriptors import is_reserve_reached, limit
from ottla.runtime.log_files import DiskRange

MAX_IN_FLIGHT = 128
"""The maximum number of requests in flight on one connection; while it is reached, nothing is read."""

MAX_OUTGOING = 8 << 20
"""The maximum bytes that wait for the socket; while there are more, nothing is read."""

_READ_SIZE = 1 << 16
_READS = 16
"""The maximum number of reads from one connection in one turn, so that a busy one does not delay the others."""

_COPIED = 1 << 14
"""Pieces up to this size are copied together, since each piece costs more than its copy."""

_AT_ONCE = 64
_MORE = getattr(socket, "MSG_MORE", 0)

_ACCEPTED_AT_ONCE = 64
_PAUSE_MS = 1_000
_LOG_EVERY_MS = 60_000
_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("ottla.broker")


class Acceptor:
    """Accepts the connections to ``listener``, as soon as that listens. ``close_idle_files`` closes files that need not be open."""

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
        if self._listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._selector.register(self._listener, selectors.EVENT_READ, on_ready)

    def listen(self, backlog: int) -> int:
        """Listen on the socket, which did not when ``watch`` was called; returns 0. Raises ``OSError``."""
        self._listener.listen(backlog)
        if self._on_ready is not None:
            self.watch(self._on_ready)
        return 0

    def accept(self, mono: int, present: int) -> Iterator[tuple[socket.socket, str]]:
        """Accept waiting connections; yield each with the address of its client. ``present``: the number of open connections."""
        for _ in range(_ACCEPTED_AT_ONCE):
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


class InFlightRequest:
    """A request whose response was not sent yet. ``pieces`` is ``None`` until the response is ready."""

    __slots__ = ("connection", "header", "is_last", "pieces", "ticket")

    def __init__(self, connection: Connection, ticket: int, header: RequestHeader) -> None:
        self.connection = connection
        self.ticket = ticket
        self.header = header
        self.pieces: list[Piece] | None = None
        self.is_last = False
        """Whether the connection is closed after this response."""


class Connection:
    """A connection. ``receive`` and ``send`` are called when the socket is ready; both raise ``OSError`` when it is broken."""

    def __init__(self, number: int, sock: socket.socket, host: str, max_frame: int, mono: int) -> None:
        self.number = number
        self.sock = sock
        self.host = host
        self.last_active = self.last_received = mono
        self.watched = 0
        """The events that the selector watches for now."""
        self.client_id: str | None = None
        """The client id in the last request."""
        self.muted_by: set[int] = set()
        """The tickets of the requests that must end before the next one is handled."""
        self.closes_at: int | None = None
        """When it is closed at the latest, after the broker has hung up (monotonic ms). Nothing more is handled or answered."""
        self._is_channel = False
        """Whether the broker has sent a request to the client."""
        self._has_ended = False
        self._reader = FrameReader(max_frame)
        self._frames: deque[Frame] = deque()
        self._in_flight: deque[InFlightRequest] = deque()
        self._outgoing: deque[memoryview | DiskRange] = deque()
        self._outgoing_size = 0

    def __repr__(self) -> str:
        return f"<Connection {self.number} {self.host}, {len(self._in_flight)} in flight, {self._outgoing_size} bytes to send>"

    @property
    def wanted(self) -> int:
        """The events that the selector should watch for; 0 while the connection only waits for responses."""
        reading = self.can_receive and not self._frames
        return (selectors.EVENT_READ if reading else 0) | (selectors.EVENT_WRITE if self._outgoing else 0)

    @property
    def can_receive(self) -> bool:
        """Whether one more request may be in flight."""
        return len(self._in_flight) < MAX_IN_FLIGHT and self._outgoing_size < MAX_OUTGOING

    @property
    def has_request(self) -> bool:
        """Whether a received request can be handled now."""
        return bool(self._frames) and self.can_receive and not self.muted_by

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._reader.in_frame

    @property
    def idle(self) -> bool:
        """Whether no request is in flight, no bytes wait to be sent, and the broker never sends anything by itself.

        On a channel of a member it may be silent for as long as it likes: it notices a dead one, and hangs up.
        """
        return not (self._in_flight or self._outgoing or self._is_channel)

    def receive(self, mono: int) -> bool:
        """Read the available bytes; return False at the end of the stream. Raises ``ProtocolError`` for an invalid frame.

        The end takes effect only after the requests before it were handled, as in Kafka: 1. A producer with acks=0 sends records,
        and closes the connection at once. 2. The broker reads both in one turn. 3. It writes the records before it discards the
        connection.
        """
        if self.closes_at is not None:
            return self._drain()
        for _ in range(_READS):
            try:
                count, full = self._read()
            except BlockingIOError:
                break
            if not count:
                return bool(self._frames)
            self.last_active = self.last_received = mono
            if not full or len(self._frames) >= MAX_IN_FLIGHT:
                break
        return True

    @property
    def is_finished(self) -> bool:
        """Whether the last response of the connection was sent."""
        return self._has_ended and not self._outgoing

    @property
    def is_closed(self) -> bool:
        """Whether the client has closed the connection, and all its bytes were read. Raises ``OSError`` as ``receive`` does."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def next_frame(self) -> Frame | None:
        """Return the next received request; ``None`` if there is none, too much is in flight, or the connection is muted."""
        return self._frames.popleft() if self.has_request else None

    def register(self, slot: InFlightRequest) -> None:
        """Add a request to those in flight."""
        self._in_flight.append(slot)
        self.client_id = slot.header.client_id

    def tickets(self) -> list[int]:
        """Return the tickets of the requests in flight."""
        return [slot.ticket for slot in self._in_flight]

    def send(self, mono: int) -> None:
        """Send the responses that are ready, in order, as far as the socket accepts them. Raises ``ProtocolError`` if a file has
        become shorter."""
        self._enqueue_ready()
        while self._outgoing:
            try:
                sent = self._send_file() if isinstance(self._outgoing[0], DiskRange) else self._send_bytes()
            except BlockingIOError:
                return
            self.last_active = mono
            self._outgoing_size -= sent
            self._drop(sent)
        if self.closes_at is not None:
            self.sock.shutdown(socket.SHUT_WR)

    def push(self, pieces: list[Piece]) -> bool:
        """Send a request to the client, after the responses that are ready by now and before all others.

        Return False, and send nothing, if as many bytes as allowed wait already: the client does not read.
        """
        self._is_channel = True
        last = next((slot for slot in reversed(self._in_flight) if slot.pieces is not None), None)
        if self._has_ended or self.closes_at is not None or (last is not None and last.is_last):
            return True
        if self._outgoing_size + sum(len(piece) for slot in self._in_flight for piece in slot.pieces or ()) >= MAX_OUTGOING:
            return False
        if last is None:
            self._enqueue([pieces])
        else:
            last.pieces = [*(last.pieces or ()), *pieces]
        return True

    def hang_up(self, at: int) -> None:
        """Send the responses that are ready, and close once the client has closed its end too, or at ``at`` (monotonic ms).

        The end of the stream is sent first, and what still arrives is dropped: 1. The broker answers Leave and hangs up. 2. The
        client's answer to a Ping is on its way. 3. If the socket were closed by now, the kernel would reset the connection, and the
        client might lose the response.
        """
        self._enqueue_ready()
        self._in_flight.clear()
        self._frames.clear()
        self.closes_at = at

    def _drain(self) -> bool:
        """Read and drop; return False at the end of the stream."""
        for _ in range(_READS):
            try:
                if not self.sock.recv(_READ_SIZE):
                    return False
            except BlockingIOError:
                break
        return True

    def _read(self) -> tuple[int, bool]:
        """Read once; return the number of bytes, and whether there may be more."""
        if not self._reader.in_frame:
            data = self.sock.recv(_READ_SIZE)
            self._frames.extend(self._reader.feed(data))
            return len(data), len(data) == _READ_SIZE
        with self._reader.get_buffer() as buffer:
            room = len(buffer)
            count = self.sock.recv_into(buffer)
        frame = self._reader.buffer_updated(count) if count else None
        if frame is not None:
            self._frames.append(frame)
        return count, count == room

    def _enqueue_ready(self) -> None:
        """Queue the responses that are ready, up to the first one that is not."""
        ready: list[list[Piece]] = []
        while self._in_flight and (pieces := self._in_flight[0].pieces) is not None and not self._has_ended:
            ready.append(pieces)
            self._has_ended = self._in_flight.popleft().is_last
        self._enqueue(ready)

    def _enqueue(self, frames: Iterable[list[Piece]]) -> None:
        """Queue frames for the socket; join small adjacent pieces."""
        small: list[bytes] = []
        for frame in frames:
            for piece in frame:
                self._outgoing_size += len(piece)
                if isinstance(piece, bytes) and len(piece) <= _COPIED:
                    small.append(piece)
                else:
                    self._enqueue_bytes(small)
                    assert isinstance(piece, bytes | DiskRange)
                    self._outgoing.append(memoryview(piece) if isinstance(piece, bytes) else piece)
                    small.clear()
        self._enqueue_bytes(small)

    def _enqueue_bytes(self, pieces: list[bytes]) -> None:
        if pieces:
            self._outgoing.append(memoryview(b"".join(pieces)))

    def _send_bytes(self) -> int:
        pieces: list[memoryview] = []
        more = 0
        for piece in self._outgoing:
            if isinstance(piece, DiskRange):
                more = _MORE
                break
            if len(pieces) == _AT_ONCE:
                break
            pieces.append(piece)
        return self.sock.send(pieces[0], more) if len(pieces) == 1 else self.sock.sendmsg(pieces, (), more)

    def _send_file(self) -> int:
        piece = self._outgoing[0]
        assert isinstance(piece, DiskRange)
        try:
            sent = os.sendfile(self.sock.fileno(), piece.handle.fd, piece.position, len(piece))
        except OSError as error:
            if error.errno != errno.EIO:
                raise  # an error of the socket
            piece.handle.is_unreadable = True
            raise ProtocolError("a part of a log file cannot be read") from error
        if not sent:
            piece.handle.is_unreadable = True
            raise ProtocolError(f"a log file ended {len(piece)} bytes before its range did")
        return sent

    def _drop(self, sent: int) -> None:
        while sent:
            piece = self._outgoing[0]
            if sent >= len(piece):
                sent -= len(piece)
                self._outgoing.popleft()
            elif isinstance(piece, DiskRange):
                self._outgoing[0] = DiskRange(piece.handle, piece.position + sent, len(piece) - sent)
                sent = 0
            else:
                self._outgoing[0] = piece[sent:]
                sent = 0


def first_half(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the first half of the bytes of a response."""
    pieces = list(pieces)
    left = sum(map(len, pieces)) // 2
    half: list[Piece] = []
    for piece in pieces:
        size = min(len(piece), left)
        left -= size
        if isinstance(piece, DiskRange):
            half.append(DiskRange(piece.handle, piece.position, size))
        else:
            assert isinstance(piece, bytes)
            half.append(piece[:size])
    return [piece for piece in half if len(piece)]
