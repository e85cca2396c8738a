"""The broker's event loop: it passes requests, timers, jobs and news of ZooKeeper to the core, and carries out its effects.

Owns the listening socket, the connections, the timers and the loop's thread. Must not know what a request means. Invariants:
nothing that a client sends ends the loop, only its own connection, with a log line that says why, at most one per minute and
client; each request gets one response or its connection is closed; only this thread calls the core.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.cluster import unsupported_version
from ottla.broker.core import BrokerCore
from ottla.broker.effects import (
    BrokerEffect,
    CancelTimer,
    CloseConnection,
    FaultStruck,
    HangUp,
    MuteConnection,
    NoReply,
    Push,
    Reply,
    RunJob,
    SetTimer,
    TruncatedReply,
    UnmuteConnection,
)
from ottla.broker.faults.rules import Command
from ottla.broker.timers import Timers
from ottla.errors import ProtocolError, UnsupportedApiError
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, decode_request, encode_request, encode_response, peek_request
from ottla.protocol.framing import Frame
from ottla.runtime.disk import DiskThread, Tag
from ottla.runtime.server_connection import Acceptor, Connection, InFlightRequest, first_half
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.zookeeper.session import SessionReport

_Step = Callable[[Now], list[BrokerEffect]]
"""A call of the core."""

STALLED_FRAME_MS = 30_000
"""The maximum time between two reads of the same frame."""

HANG_UP_MS = 1_000
"""The time that a client has to read what was sent to it before the broker has hung up."""

INTERVAL_MS = 60_000
"""The minimum time between two log lines about one client."""

_SWEEP_MS = 1_000
_TURN_MS = 10
"""Finished jobs, timers, and the requests of one connection each get this much time before the sockets are checked again."""

log = logging.getLogger("ottla.broker")


class Server:
    """Serves one core on one listening socket. ``run`` is the loop; ``stop`` and ``command`` may be called from any thread.

    On the loop's thread, ``on_strike`` is called with the scripted fault that has struck, and ``close_idle_files`` closes files
    that need not be open.
    """

    def __init__(
        self,
        core: BrokerCore,
        listener: socket.socket,
        clock: Callable[[], Now],
        on_strike: Callable[[int], None],
        close_idle_files: Callable[[], object],
    ) -> None:
        self._core = core
        self._listener = listener
        self._clock = clock
        self._disk = DiskThread(self._on_job_done)
        self._timers = Timers()
        self._malformed = LogThrottle()
        self._connections: dict[int, Connection] = {}
        self._served = frozenset(core.state.served)
        self._tickets: dict[int, InFlightRequest] = {}
        self._next_connection = self._next_ticket = self._next_sweep = 0
        self._news: deque[tuple[str, object, _Step]] = deque()
        """What other threads pass to the core: what it is and its name, for the log, and the call of the core."""
        self._commands: deque[tuple[Callable[[], int], Future[int]]] = deque()
        self._changed: dict[Connection, None] = {}
        self._postponed: dict[Connection, None] = {}
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._acceptor = Acceptor(listener, self._selector, close_idle_files)
        self._wake_in, self._wake_out = socket.socketpair()
        for sock in (listener, self._wake_in, self._wake_out):
            sock.setblocking(False)
        self._effect_handlers: dict[type[Any], Callable[[Any], None]] = {
            Reply: self._reply,
            NoReply: self._no_reply,
            CloseConnection: self._close_ticket,
            SetTimer: lambda effect: self._timers.set(effect.key, effect.at),
            CancelTimer: lambda effect: self._timers.cancel(effect.key),
            RunJob: lambda effect: self._disk.submit(effect.tag, effect.job),
            MuteConnection: self._mute,
            UnmuteConnection: self._unmute,
            TruncatedReply: lambda effect: self._reply(effect, half=True),
            FaultStruck: lambda effect: on_strike(effect.fault),
            Push: self._push,
            HangUp: self._hang_up,
        }

    def carry_out(self, handlers: Mapping[type[Any], Callable[[Any], None]]) -> None:
        """Have the effects of these types carried out by these functions. Before ``run``."""
        self._effect_handlers |= handlers

    def perform(self, effects: Iterable[BrokerEffect]) -> None:
        """Carry out effects, in order. A failing effect is logged, and the others are carried out."""
        for effect in effects:
            try:
                self._effect_handlers[type(effect)](effect)
            except Exception:
                log.exception("the broker failed to carry out %s", type(effect).__name__)

    def run_in_background(self, job: Callable[[], object]) -> None:
        """Run a job on the disk thread without waiting for it."""
        self._disk.submit(("background",), job)

    def run(self) -> None:
        """Run the loop until ``stop``. Call ``close`` afterwards, also if it raises."""
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._woken)
        self._acceptor.watch(self._accept)
        while not self._stopping:
            for key, events in self._selector.select(self._select_timeout()):
                key.data(events)
            self._take_news()
            self._run_commands()
            self._run_timers()
            self._serve_postponed()
            self._end_turn()

    def close(self) -> None:
        """Close every connection, and wait until every job is done."""
        # With close() alone: 1. Another thread forks, and the child gets a copy of the listening socket. 2. close() leaves the copy
        # open. 3. The port is taken until the child runs and closes it. shutdown() takes effect on all copies.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.close_files()
        self._count_malformed(self._clock().mono + 2 * INTERVAL_MS)  # the last lines about clients, with the counts so far
        for _, future in self._commands:
            future.cancel()
        self._connections.clear()
        self._tickets.clear()
        self._disk.close()

    def stop(self) -> None:
        """End the loop."""
        self._stopping = True
        self._wake()

    def close_files(self) -> None:
        """Close all descriptors; in a forked child, the child's copies of them."""
        for connection in self._connections.values():
            connection.sock.close()
        for sock in (self._listener, self._wake_in, self._wake_out):
            sock.close()
        self._selector.close()

    # From other threads

    def command(self, command: Command) -> Future[int]:
        """Pass a command to the core; the result is the count that it returns."""
        return self._in_loop(lambda: self._command(command))

    def close_connections(self, client_id: str | None) -> Future[int]:
        """Close the connections of a client, or all; the result is how many."""
        return self._in_loop(lambda: self._close_connections(client_id))

    def listen(self, backlog: int) -> Future[int]:
        """Listen on the socket, if it does not. The future has the ``OSError`` if the address is taken."""
        return self._in_loop(partial(self._acceptor.listen, backlog))

    def _in_loop(self, action: Callable[[], int]) -> Future[int]:
        future: Future[int] = Future()
        self._commands.append((action, future))
        self._wake()
        return future

    def on_session_report(self, report: SessionReport) -> None:
        """Pass a report of the ZooKeeper client to the core."""
        self._pass_on("a report of", "ZooKeeper", partial(self._core.on_session_report, report))

    def _on_job_done(self, tag: Tag, outcome: object) -> None:
        self._pass_on("the outcome of its job", tag, partial(self._core.on_job, tag, outcome))

    def _pass_on(self, what: str, name: object, step: _Step) -> None:
        # First the news, then the wake-up. In the other order: 1. The loop wakes and finds no news. 2. This thread adds the news.
        # 3. The loop waits in select() again, up to a second, although there is work.
        self._news.append((what, name, step))
        self._wake()

    def _wake(self) -> None:
        # The socket is full: a wake-up is pending already. It is closed: the loop has ended.
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    # Events

    def _woken(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)

    def _accept(self, events: int) -> None:
        for sock, host in self._acceptor.accept(self._clock().mono, len(self._connections)):
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._next_connection += 1
            largest = self._core.catalog.config.socket_request_max_bytes
            connection = Connection(self._next_connection, sock, host, largest, self._clock().mono)
            self._connections[connection.number] = connection
            try:
                self._watch(connection)
            except OSError as error:  # for example, all watches that a user may have are in use
                self._close(connection, f"the event loop cannot watch it: {error.strerror}")

    def _ready(self, connection: Connection, events: int) -> None:
        """A socket can be read from or written to."""
        self._isolate(connection, self._exchange, events)
        self._flush_changed()

    def _isolate(self, connection: Connection, action: Callable[..., None], *args: object) -> None:
        """Run an action on one connection. An error closes that connection, and has no other effect."""
        try:
            action(connection, *args)
        except ProtocolError as error:
            self._close_malformed(connection, str(error.args[0]))  # the hint is meant for a client
        except OSError:
            self._discard(connection)
        except Exception:
            log.exception("closing the connection from %s: the broker failed to serve it", connection.host)
            self._discard(connection)

    def _exchange(self, connection: Connection, events: int) -> None:
        mono = self._clock().mono
        if events & selectors.EVENT_WRITE:
            connection.send(mono)
        if events & selectors.EVENT_READ and not connection.receive(mono):
            self._discard(connection)
        else:
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Handle the requests that have arrived, while there is space for answers and the connection's turn lasts."""
        self._changed[connection] = None
        now = self._clock()
        while (frame := connection.next_frame()) is not None:
            self._handle(connection, frame, now)
            if connection.number not in self._connections or self._clock().mono >= now.mono + _TURN_MS:
                return

    def _serve_postponed(self) -> None:
        """Continue with the connections whose turn ended before their requests were handled."""
        postponed, self._postponed = self._postponed, {}
        for connection in postponed:
            if connection.number in self._connections:
                self._isolate(connection, self._serve)

    def _end_turn(self) -> None:
        """Write the appends of this turn and send the replies, until there are no more. That makes space for received requests."""
        self._write_batches()
        while self._changed:
            self._flush_changed()
            self._write_batches()

    def _write_batches(self) -> None:
        try:
            self.perform(self._core.write_batches(self._clock()))
        except Exception:
            log.exception("the broker failed to write the appends of groups")

    def _flush_changed(self) -> None:
        """Send the replies that are ready. That may make space for received requests, which the next turn handles."""
        while self._changed:
            connection, _ = self._changed.popitem()
            if connection.number in self._connections:
                self._isolate(connection, self._flush)

    def _flush(self, connection: Connection) -> None:
        connection.send(self._clock().mono)
        if connection.is_finished:
            self._close(connection, "broker.faults is set to cut a response")
        else:
            if connection.has_request:
                self._postponed[connection] = None
            self._watch(connection)

    def _handle(self, connection: Connection, frame: Frame, now: Now) -> None:
        self._next_ticket = ticket = self._next_ticket + 1
        try:
            header, message = decode_request(frame)
        except UnsupportedApiError:
            key, _, correlation_id = peek_request(frame)
            if key != Api.API_VERSIONS:
                raise
            # ApiVersions is answered in any version: a newer client learns from the response, in version 0, which versions to use.
            self._register_request(connection, ticket, RequestHeader(Api.API_VERSIONS, 0, correlation_id, None))
            self.perform([Reply(ticket, unsupported_version())])
            return
        if header.api not in self._served:
            raise ProtocolError(f"{header.api.name} is not served here")
        self._register_request(connection, ticket, header)
        self.perform(self._core.handle(header, message, ticket, connection.number, connection.host, now))

    def _register_request(self, connection: Connection, ticket: int, header: RequestHeader) -> None:
        self._tickets[ticket] = slot = InFlightRequest(connection, ticket, header)
        connection.register(slot)

    def _take_news(self) -> None:
        """Pass finished jobs and reports to the core. Loading many groups takes long, so the sockets are served in between."""
        end = self._clock().mono + _TURN_MS
        while self._news:
            what, name, step = self._news.popleft()
            try:
                self.perform(step(self._clock()))
            except Exception:
                log.exception("the broker failed to handle %s %s", what, name)
            if self._clock().mono >= end:
                return

    def _run_commands(self) -> None:
        while self._commands:
            action, future = self._commands.popleft()
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)

    def _command(self, command: Command) -> int:
        count, effects = self._core.on_command(command, self._clock())
        self.perform(effects)
        return count

    def _close_connections(self, client_id: str | None) -> int:
        meant = [one for one in self._connections.values() if client_id is None or one.client_id == client_id]
        for connection in meant:
            self._close(connection, "broker.faults is set to")
        return len(meant)

    def _run_timers(self) -> None:
        """Pass due timers to the core. The timers of all logs may be due at once, so the sockets are served in between."""
        now = self._clock()
        while (key := self._timers.pop_due(now.mono)) is not None:
            try:
                self.perform(self._core.on_timer(key, now))
            except Exception:
                log.exception("the broker failed in its timer %s", key)
            if self._clock().mono >= now.mono + _TURN_MS:
                break
        if now.mono >= self._next_sweep:
            self._next_sweep = now.mono + _SWEEP_MS
            self._sweep(now.mono)

    def _sweep(self, mono: int) -> None:
        """Close idle, stalled and abandoned connections, and accept again after a lack of descriptors."""
        max_idle = self._core.catalog.config.connections_max_idle_ms
        for connection in list(self._connections.values()):
            if connection.in_frame and mono - connection.last_received > STALLED_FRAME_MS:
                self._close_malformed(connection, f"a frame has begun and no more of it arrived for {STALLED_FRAME_MS // 1000} s")
            elif connection.closes_at is not None and mono >= connection.closes_at:
                self._discard(connection)
            elif mono - connection.last_active > max_idle and connection.idle:
                self._close(connection, f"it was idle for {max_idle} ms", level=logging.DEBUG)
            elif not connection.watched and not connection.can_receive:
                self._isolate(connection, self._check_closed_by_peer)
        self._count_malformed(mono)
        self._acceptor.resume_if_due(mono)

    def _check_closed_by_peer(self, connection: Connection) -> None:
        """Discard a connection that its client has closed while the broker was not reading from it.

        1. A connection has too much in flight, so the selector does not watch it for input. 2. The client closes it. 3. No event
        reports that, so this checks for the end of the stream. Where nothing is read because the connection's turn is over or it is
        muted, its received requests are handled first.
        """
        if connection.is_closed:
            self._discard(connection)

    def _select_timeout(self) -> float:
        """Seconds until something is due."""
        if self._news or self._postponed:
            return 0.0
        due = self._timers.next_at()
        at = self._next_sweep if due is None else min(due, self._next_sweep)
        return max(0, at - self._clock().mono) / 1000

    # Effects, carried out

    def _reply(self, effect: Reply | TruncatedReply, *, half: bool = False) -> None:
        slot = self._tickets.pop(effect.ticket, None)
        if slot is None:
            return  # its connection was closed
        try:
            pieces = encode_response(slot.header, effect.response)
        except Exception:
            host = slot.connection.host
            log.exception("closing the connection from %s: the response to its request cannot be encoded", host)
            self._discard(slot.connection)
            return
        slot.pieces, slot.is_last = first_half(pieces) if half else pieces, half
        self._changed[slot.connection] = None

    def _no_reply(self, effect: NoReply) -> None:
        slot = self._tickets.pop(effect.ticket, None)
        if slot is not None:
            slot.pieces = []
            self._changed[slot.connection] = None

    def _push(self, effect: Push) -> None:
        header = RequestHeader(effect.api, SPOKEN[effect.api].maximum, effect.correlation_id, None)
        connection = self._connections.get(effect.connection)
        if connection is not None and not connection.push(encode_request(header, effect.message)):
            self._close(connection, "the member does not read what the coordinator sends to it")
        elif connection is not None:
            self._changed[connection] = None

    def _hang_up(self, effect: HangUp) -> None:
        connection = self._connections.get(effect.connection)
        if connection is not None and connection.closes_at is None:
            log.info("closing the connection from %s: %s", connection.host, effect.reason)
            for ticket in connection.tickets():
                self._tickets.pop(ticket, None)
            connection.hang_up(self._clock().mono + HANG_UP_MS)
            self._changed[connection] = None

    def _mute(self, effect: MuteConnection) -> None:
        slot = self._tickets.get(effect.ticket)
        if slot is not None:
            slot.connection.muted_by.add(effect.ticket)

    def _unmute(self, effect: UnmuteConnection) -> None:
        slot = self._tickets.get(effect.ticket)
        if slot is not None:
            slot.connection.muted_by.discard(effect.ticket)
            self._changed[slot.connection] = None

    def _close_ticket(self, effect: CloseConnection) -> None:
        slot = self._tickets.pop(effect.ticket, None)
        if slot is not None:
            self._close(slot.connection, effect.reason)

    # Connections

    def _watch(self, connection: Connection) -> None:
        wanted = connection.wanted
        if wanted == connection.watched:
            return
        if not connection.watched:
            self._selector.register(connection.sock, wanted, partial(self._ready, connection))
        elif not wanted:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, wanted, partial(self._ready, connection))
        connection.watched = wanted

    def _close(self, connection: Connection, reason: str, level: int = logging.WARNING) -> None:
        if connection.number in self._connections:
            log.log(level, "closing the connection from %s: %s", connection.host, reason)
            self._discard(connection)

    def _close_malformed(self, connection: Connection, reason: str) -> None:
        """Close a connection because of invalid input. The log gets one line per minute and client address."""
        left_out = self._malformed.admit(connection.host, self._clock().mono)
        if left_out is None:
            return self._discard(connection)
        more = f" (as were {left_out} more from there since the last such line)" if left_out else ""
        return self._close(connection, f"{reason}{more}")

    def _count_malformed(self, mono: int) -> None:
        for host, count in self._malformed.forget(mono):
            log.warning("closed %d more connections from %s because of invalid input", count, host)

    def _discard(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        if connection.watched:
            self._selector.unregister(connection.sock)
        connection.sock.close()
        for ticket in connection.tickets():
            self._tickets.pop(ticket, None)
        try:
            self.perform(self._core.on_disconnect(connection.number, self._clock()))
        except Exception:
            log.exception("the broker failed after a connection was closed")


class _Written:
    """The last line about an address."""

    __slots__ = ("at", "left_out")

    def __init__(self, at: int) -> None:
        self.at = at
        self.left_out = 0


class LogThrottle:
    """Decides which lines about clients are written: at most one per address and minute, so that a client that repeats its mistake
    does not fill the log. Lines that are left out are counted in a later line. Times are in milliseconds on the monotonic clock."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}

    def admit(self, address: str, mono: int) -> int | None:
        """If a line about an address is to be written now, the number of lines left out since the last one; otherwise ``None``."""
        last = self._written.get(address)
        if last is not None and mono - last.at < INTERVAL_MS:
            last.left_out += 1
            return None
        self._written[address] = _Written(mono)
        return last.left_out if last is not None else 0

    def forget(self, mono: int) -> Iterator[tuple[str, int]]:
        """Forget the addresses without lines for two minutes; yield those with lines that were left out, and their number."""
        for address, last in list(self._written.items()):
            if mono - last.at >= 2 * INTERVAL_MS or (mono - last.at >= INTERVAL_MS and not last.left_out):
                del self._written[address]
                if last.left_out:
                    yield address, last.left_out
