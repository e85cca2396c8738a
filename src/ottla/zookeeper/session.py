"""The client's side of a ZooKeeper session, without sockets.

Owns the state of the session, the operations in flight and those that wait for a connection, the watches that are set, and the
lease. Must not know kazoo, nor why a node is read or written. Invariants:

- Exactly one of ``on_result`` and ``on_failure`` of each ``Ask`` is called, once.
- Operations are performed in the order of the ``Ask``s, and only while the session is CONNECTED.
- After a disconnection no watch is set: a manager reads everything again that it wants to watch.
- The lease never lasts longer than the session on the servers: it ends three quarters of the session time-out after the *sending*
  of the last write or ``Sync`` that was answered in this session.
- A server that answers nothing for two thirds of the session time-out is left, as ZooKeeper's own client leaves it.
- No step looks at all operations in flight: a member of a large group reads thousands of nodes at once.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from ottla.errors import KeeperCode, OttlaError, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper.operations import Exists, GetChildren, GetData, Operation, Read, ResultT, Sync

LEASE = 3 / 4
"""The part of the session time-out that a lease lasts; it is renewed each time a quarter has passed.

The leader ends sessions. Of clients that are connected with another server it hears with the pings of that server, which come twice
in a tick; if the server dies, the leader never learns of the clients' latest requests. A session lasts two ticks at least, so the
leader knows of every request that is older than a quarter of its time-out.
"""


class SessionState(enum.Enum):
    """The state of the session, as far as the client knows."""

    CONNECTING = "no session yet"
    CONNECTED = "operations are performed"
    SUSPENDED = "disconnected: the session may still be alive, or may have expired"
    LOST = "the session has expired, and there is no other yet"
    CLOSED = "the client has closed it"


class SessionEvent(enum.Enum):
    """The events of a session."""

    CONNECT = "connected: a session is established or continued"
    DISCONNECT = "the connection broke"
    EXPIRE = "the server has ended the session"
    CLOSE = "the client closes it"


_ENDS = {SessionEvent.CLOSE: SessionState.CLOSED}

TRANSITIONS: Mapping[SessionState, Mapping[SessionEvent, SessionState]] = {
    SessionState.CONNECTING: {SessionEvent.CONNECT: SessionState.CONNECTED, **_ENDS},
    SessionState.CONNECTED: {
        SessionEvent.CONNECT: SessionState.CONNECTED,
        SessionEvent.DISCONNECT: SessionState.SUSPENDED,
        SessionEvent.EXPIRE: SessionState.LOST,
        **_ENDS,
    },
    SessionState.SUSPENDED: {
        SessionEvent.CONNECT: SessionState.CONNECTED,
        SessionEvent.EXPIRE: SessionState.LOST,
        **_ENDS,
    },
    SessionState.LOST: {SessionEvent.CONNECT: SessionState.CONNECTED, **_ENDS},
    SessionState.CLOSED: {},
}
"""State -> event -> the next state. An event that has no entry changes nothing: reports of the shell may be late."""


@dataclass(frozen=True, slots=True)
class Ask(Generic[ResultT]):
    """One operation. ``timeout`` (milliseconds) covers the wait for a connection and the wait for the answer.

    Exactly one of the two functions is called, once, also if the manager has lost interest meanwhile: it then ignores the outcome.
    ``on_failure`` gets a ``ZooKeeperError``; its ``outcome_unknown`` says whether the operation may have been executed.
    """

    operation: Operation[ResultT]
    timeout: int
    on_result: Callable[[ResultT, Now], None]
    on_failure: Callable[[OttlaError, Now], None]


AnyAsk = Ask[Any]
"""An operation where the type of its result does not matter: the manager that made it and mypy have matched them."""


class WatchType(enum.Enum):
    """The watches of ZooKeeper, by the read that sets them."""

    DATA = "the data of a node"
    EXIST = "the existence of a node"
    CHILDREN = "the children of a node"


WATCHES: Mapping[type[Operation[Any]], WatchType] = {
    GetData: WatchType.DATA,
    Exists: WatchType.EXIST,
    GetChildren: WatchType.CHILDREN,
}


class WatchFired(NamedTuple):
    """What was watched has changed. The watch is no longer set."""

    watch: WatchType
    path: str


class SessionChanged(NamedTuple):
    """The session has another state. ``is_new``: it is another session; the ephemeral nodes of the last one disappear."""

    state: SessionState
    is_new: bool = False


class Perform(NamedTuple):
    """Perform an operation, after those of earlier effects; report ``on_answered`` or ``on_failed`` with the same number."""

    number: int
    operation: Operation[Any]


class Disconnect(NamedTuple):
    """Break the connection, and connect again, if possible with another server. Report ``on_disconnected``."""


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A report of the shell, which its own threads post and the thread of the core applies."""

    apply: Callable[[Session, Now], None]


class CompletedAsk(NamedTuple):
    """The outcome of an ``Ask``: a result or an error."""

    owner: object
    ask: AnyAsk
    result: Any
    error: OttlaError | None


class SessionPoll(NamedTuple):
    """What to do now, and the time of the next poll at the latest (monotonic ms; ``None``: on the next event)."""

    effects: list[Perform]
    wake_at: int | None
    disconnect: tuple[Disconnect, ...] = ()
    """What to do first if the server does not answer."""


@dataclass(eq=False, slots=True)
class _Pending:
    """An ``Ask`` without an outcome. ``ask`` is ``None`` for the operation that only renews the lease."""

    owner: object
    ask: AnyAsk | None
    operation: Operation[Any]
    deadline: int
    number: int = 0
    """The number with which it was performed; 0: it waits for a connection."""
    has_ended: bool = False
    sent_at: int = 0
    session_id: int | None = None
    fired: bool = False
    """Whether its watch has fired before its answer: both come from different threads of the shell."""


class Session:
    """See the module. ``timeout`` is the session time-out (milliseconds)."""

    def __init__(self, timeout: int) -> None:
        self.state = SessionState.CONNECTING
        self.session_id: int | None = None
        """The id of the session; ``None`` while there is none."""
        self.watches: set[tuple[WatchType, str]] = set()
        """The watches that are set."""
        self._timeout = timeout
        self._lease = int(timeout * LEASE)
        self._interval = timeout - self._lease
        """Milliseconds between two renewals."""
        self._lease_until: int | None = None
        self._renewed_at = 0
        """When the last operation was sent that may renew the lease."""
        self._patience = timeout * 2 // 3
        """Milliseconds for which a server may answer nothing."""
        self._silent_since: int | None = None
        """Since when the server owes an answer, and has sent none; ``None``: it owes none."""
        self._in_vain = False
        """Whether an error was reported, since the lease was last renewed, that perhaps no server has sent."""
        self._numbers = self._first_number = 0
        """The number of the last operation, and of the first one of the present connection."""
        self._asks = 0
        self._waiting: deque[_Pending] = deque()
        """Also some whose deadline has passed: they are skipped."""
        self._in_flight: dict[int, _Pending] = {}
        self._setting: dict[tuple[WatchType, str], dict[int, _Pending]] = {}
        """Watch -> the reads in flight that set it, by their numbers. Those whose watch has fired are not in it."""
        self._deadlines: list[tuple[int, int, _Pending]] = []
        """A heap; the second number makes each entry unique. Operations that have ended are dropped when they are at its top."""
        self._completed: list[CompletedAsk] = []
        self._events: list[WatchFired | SessionChanged] = []

    def __repr__(self) -> str:
        return f"<Session {self.state.name} {len(self._in_flight)} in flight, {len(self._waiting)} waiting>"

    def has_lease(self, now: Now) -> bool:
        """Whether the session surely exists: no other member can have seen its ephemeral nodes disappear."""
        return self._lease_until is not None and now.mono < self._lease_until

    @property
    def lease_until(self) -> int | None:
        """The time at which the lease ends (monotonic ms); ``None``: there is none."""
        return self._lease_until

    @property
    def doubt(self) -> str:
        """Why there is no lease, if there is none."""
        return "the server has not answered in time" if self.state is SessionState.CONNECTED else self.state.value

    # -- operations -------------------------------------------------------------------------------------------------------

    def ask(self, owner: object, ask: AnyAsk, now: Now) -> None:
        """Perform an operation as soon as the session is connected. ``owner`` is the manager, for ``CompletedAsk``."""
        pending = _Pending(owner, ask, ask.operation, now.mono + ask.timeout)
        if self.state is SessionState.CLOSED:
            self._fail(pending, KeeperCode.SESSIONEXPIRED)
        else:
            self._waiting.append(pending)
            self._watch_deadline(pending)

    def poll(self, now: Now) -> SessionPoll:
        """Fail what is overdue, and return the operations to perform."""
        self._expire(now)
        effects: list[Perform] = []
        disconnect: tuple[Disconnect, ...] = ()
        if self._silent_since is not None and now.mono - self._silent_since >= self._patience:
            self._silent_since, disconnect = None, (Disconnect(),)
        if self.state is SessionState.CONNECTED:
            while self._waiting:
                pending = self._waiting.popleft()
                if not pending.has_ended:
                    effects.append(self._perform(pending, now))
            if now.mono - self._renewed_at >= self._interval:
                renewal = _Pending(self, None, Sync("/"), now.mono + self._timeout)
                self._watch_deadline(renewal)
                effects.append(self._perform(renewal, now))
        times = [self._renewed_at + self._interval] if self.state is SessionState.CONNECTED else []
        if self._silent_since is not None:
            times.append(self._silent_since + self._patience)
        if (deadline := self._first_deadline()) is not None:
            times.append(deadline)
        return SessionPoll(effects, min(times, default=None), disconnect)

    @property
    def has_completions(self) -> bool:
        """Whether there are outcomes or events to take."""
        return bool(self._completed or self._events)

    def take_completions(self) -> list[CompletedAsk]:
        """Return the outcomes since the last call, in order."""
        completed, self._completed = self._completed, []
        return completed

    def take_events(self) -> list[WatchFired | SessionChanged]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """End the session: what has no outcome fails."""
        self._move(SessionEvent.CLOSE)
        self._lease_until, self.session_id = None, None
        self.watches.clear()
        for pending in (*self._in_flight.values(), *self._waiting):
            if not pending.has_ended:
                self._fail(pending, KeeperCode.CONNECTIONLOSS if pending.number else KeeperCode.SESSIONEXPIRED)
        for collection in (self._in_flight, self._waiting, self._setting, self._deadlines):
            collection.clear()

    # -- reports of the shell ---------------------------------------------------------------------------------------------

    def on_connected(self, session_id: int, now: Now) -> None:
        """Continue the session, or begin another one."""
        is_new = session_id != self.session_id
        if self.state is SessionState.CLOSED:
            return
        if is_new:
            # The last session may have ended without a report of it: its lease and its watches are void.
            self._lease_until, self.session_id = None, session_id
            self.watches.clear()
        self._silent_since, self._first_number = None, self._numbers + 1
        self._renewed_at = now.mono - self._timeout
        self._move(SessionEvent.CONNECT)
        self._events.append(SessionChanged(self.state, is_new))

    def on_disconnected(self) -> None:
        """Note that the connection broke. The lease goes on, since the session does; the watches are dropped."""
        if self._move(SessionEvent.DISCONNECT):
            self._silent_since = None
            self.watches.clear()
            self._events.append(SessionChanged(self.state))

    def on_expired(self) -> None:
        """Note that the server has ended the session."""
        if self._move(SessionEvent.EXPIRE):
            self._lease_until, self.session_id, self._silent_since = None, None, None
            self.watches.clear()
            self._events.append(SessionChanged(self.state))

    def on_watch_fired(self, watch: WatchType, path: str) -> None:
        """Report a change, also if the answer of the read that set the watch is still under way."""
        self.watches.discard((watch, path))
        for pending in self._setting.pop((watch, path), {}).values():
            pending.fired = True
        self._events.append(WatchFired(watch, path))

    def on_answered(self, number: int, result: object, now: Now) -> None:
        """Take the result of an operation."""
        pending = self._take(number)
        self._heard(number, now)
        if pending is not None:
            self._renew(pending)
            watch = _watch_of(pending.operation)
            if watch is not None and not pending.fired and self._is_current(number):
                self.watches.add(watch)
            if pending.ask is not None:
                self._completed.append(CompletedAsk(pending.owner, pending.ask, result, None))

    def on_failed(self, number: int, error: ZooKeeperError, now: Now) -> None:
        """Take the error of an operation. That a node is missing, or exists, is an answer of the server, too."""
        pending = self._take(number)
        if error.was_sent_by_server or not self._in_flight:
            self._heard(number, now)
        if pending is not None:
            if error.was_sent_by_server:
                self._renew(pending)
            elif pending.ask is not None and self._is_current(number):
                # Perhaps it was never sent, and neither are the next ones: they do not put off the renewal of the lease.
                self._in_vain = True
                self._renewed_at = min(self._renewed_at, (self._lease_until or 0) - self._lease)
            if pending.ask is not None:
                self._completed.append(CompletedAsk(pending.owner, pending.ask, None, error))

    # -- internals --------------------------------------------------------------------------------------------------------

    def _move(self, event: SessionEvent) -> bool:
        """Take the transition of ``event``; return whether there is one."""
        following = TRANSITIONS[self.state].get(event)
        if following is not None:
            self.state = following
        return following is not None

    def _perform(self, pending: _Pending, now: Now) -> Perform:
        self._numbers += 1
        pending.number, pending.sent_at = self._numbers, now.mono
        pending.session_id = self.session_id
        self._in_flight[pending.number] = pending
        watch = _watch_of(pending.operation)
        if watch is not None:
            self._setting.setdefault(watch, {})[pending.number] = pending
        if self._silent_since is None:
            self._silent_since = now.mono
        if pending.ask is None or (_needs_leader(pending.operation) and not self._in_vain):
            self._renewed_at = now.mono
        return Perform(pending.number, pending.operation)

    def _take(self, number: int) -> _Pending | None:
        """Remove an operation from those in flight."""
        pending = self._in_flight.pop(number, None)
        if pending is not None:
            pending.has_ended = True
            watch = _watch_of(pending.operation)
            if watch is not None and not pending.fired:
                del self._setting[watch][number]
                if not self._setting[watch]:
                    del self._setting[watch]
        return pending

    def _is_current(self, number: int) -> bool:
        """Whether the connection over which the operation was sent is still open.

        Otherwise its watch is dropped, also if the answer is reported late: 1. The server answers a read. 2. The connection breaks
        and is restored, and the shell reports both. 3. Another thread of the shell reports the answer.
        """
        return number >= self._first_number and self.state is SessionState.CONNECTED

    def _heard(self, number: int, now: Now) -> None:
        """Note that the server has answered, perhaps an operation that has failed because of its own time-out before."""
        if self._is_current(number):
            self._silent_since = now.mono if self._in_flight else None

    def _renew(self, pending: _Pending) -> None:
        # An operation that the shell queued during a reconnect may be answered in the next session, and says nothing about its own.
        is_own = pending.session_id == self.session_id and self.session_id is not None
        if is_own and _needs_leader(pending.operation):
            self._in_vain = False
            self._lease_until = max(self._lease_until or 0, pending.sent_at + self._lease)

    def _expire(self, now: Now) -> None:
        while (deadline := self._first_deadline()) is not None and now.mono >= deadline:
            _, _, pending = heapq.heappop(self._deadlines)
            # One that was never performed has a known outcome.
            self._fail(pending, KeeperCode.OPERATIONTIMEOUT if pending.number else KeeperCode.SESSIONEXPIRED)
            self._take(pending.number)
            pending.has_ended = True
        while self._waiting and self._waiting[0].has_ended:
            self._waiting.popleft()

    def _watch_deadline(self, pending: _Pending) -> None:
        self._asks += 1
        heapq.heappush(self._deadlines, (pending.deadline, self._asks, pending))

    def _first_deadline(self) -> int | None:
        """The earliest deadline of an operation without an outcome."""
        while self._deadlines and self._deadlines[0][2].has_ended:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _fail(self, pending: _Pending, code: KeeperCode) -> None:
        if pending.ask is not None:
            error = ZooKeeperError(code, pending.operation.path)
            self._completed.append(CompletedAsk(pending.owner, pending.ask, None, error))


def _needs_leader(operation: Operation[Any]) -> bool:
    """Whether the answer proves that the leader knows the session: a server answers reads by itself, also when it is cut off."""
    return not isinstance(operation, Read)


def _watch_of(operation: Operation[Any]) -> tuple[WatchType, str] | None:
    if isinstance(operation, Read) and operation.watch:
        return WATCHES[type(operation)], operation.path
    return None
