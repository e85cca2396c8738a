"""ZooKeeper as the log of the central coordinator: groups are loaded after an election, and appends are written as multis.

Owns the term of an elected broker in ZooKeeper: what is loaded, and which appends of which group are under way. Must not know what
a record means, nor who is elected. Invariants: the appends of one group are written in their order, and its offsets are read
between two of them; several groups are written at the same time; each append ends with one outcome, unless the term ends first; one
with an unknown outcome is looked for, and written again if it was not executed, until it is or there was another election; appends
that are refused one after the other for the same members of Kafka 0.8 are logged once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ottla.broker.zookeeper.backlog import Backlog
from ottla.broker.zookeeper.central_calls import (
    GroupNodes,
    LoadedGroup,
    Malformed,
    Offsets,
    Written,
    load_groups,
    read_offsets,
    write_records,
)
from ottla.broker.zookeeper.manager import ManagerPoll
from ottla.broker.zookeeper.reports import Reports
from ottla.broker.zookeeper.steps import take_steps
from ottla.coordinator.central.group import StoredGroup
from ottla.coordinator.effects import ApiError, Append
from ottla.errors import OttlaError, ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.types import Now
from ottla.zookeeper.ask_queue import AskQueue
from ottla.zookeeper.session import SessionChanged, SessionState, WatchFired

_log = logging.getLogger("ottla.broker")

MOST_GROUPS_AT_ONCE = 100
"""Groups that are written at the same time."""

_ALL_GROUPS = ""
"""The key for the loading of all groups. No group has this id."""

OnLoaded = Callable[[Sequence[StoredGroup], Now], None]
OnWritten = Callable[[Append, ErrorCode, Offsets | None, Now], None]
OnRead = Callable[[Offsets | None, Now], None]


class Elector(Protocol):
    """What ends a term."""

    def resign(self, reason: str, now: Now) -> None:
        """End the term: a write has found that there was another election."""

    def outbid(self, epoch: int, now: Now) -> bool:
        """Return whether the term is later than this epoch, of which the groups know. If it is not, it ends."""


@dataclass(eq=False, slots=True)
class _Reading:
    """Offsets of a group are to be read, after the appends before."""

    is_begun: bool = False
    readers: list[OnRead] = field(default_factory=list)


class CentralStore:
    """See the module. ``timeout`` (milliseconds) is that of each operation; ``longest_session`` returns how long a session may
    last. It implements ``ZooKeeperManager``."""

    def __init__(self, timeout: int, elector: Elector, longest_session: Callable[[], int]) -> None:
        self._asks = AskQueue(timeout)
        self._elector = elector
        self._longest_session = longest_session
        self._is_connected = False
        self._has_news = False
        """Whether something has become due since the last poll that ZooKeeper has not announced."""
        self._epoch_version = -1
        """The version of the epoch's node in this term."""
        self._backlog: Backlog[str] = Backlog(MOST_GROUPS_AT_ONCE)
        """The groups with something to do, and ``_ALL_GROUPS``."""
        self._queues: dict[str, deque[Append | _Reading]] = {}
        self._nodes: dict[str, GroupNodes] = {}
        self._malformed = Malformed()
        self._old_members = Reports()
        """What was reported about members of Kafka 0.8 in groups, in this term."""
        self._reported: set[tuple[str, str]] = set()
        """The groups with an error, and the error, of which the traceback was logged in this term."""
        self._on_loaded: OnLoaded
        self._on_written: OnWritten

    def __repr__(self) -> str:
        return f"<CentralStore {self._backlog}>"

    # -- for the coordinator ----------------------------------------------------------------------------------------------

    def begin(self, epoch_version: int, on_loaded: OnLoaded, on_written: OnWritten) -> None:
        """Begin a term: load all groups, and call ``on_loaded`` with them; ``on_written`` gets each append, its error, and
        the offsets of its group if others may have changed them."""
        self.end()
        self._epoch_version, self._on_loaded, self._on_written = epoch_version, on_loaded, on_written
        self._backlog.add(_ALL_GROUPS)
        self._has_news = True

    def end(self) -> None:
        """End the term: no outcome of what is under way will be reported."""
        self._asks.abandon()
        self._backlog.clear()
        self._queues.clear()
        self._nodes.clear()
        self._reported.clear()
        self._old_members.clear()

    def write(self, append: Append) -> None:
        """Write the records of an append, which concern one group."""
        group_id = append.records[0][0].decode().partition("/")[0]
        self._add(group_id, append)

    def read_offsets(self, group_id: str, on_read: OnRead) -> None:
        """Read the offsets of a group, after the appends before; ``None``: that failed. Without a connection it waits."""
        queue = self._queues.get(group_id)
        last = queue[-1] if queue else None
        if not isinstance(last, _Reading) or last.is_begun:
            last = _Reading()
            self._add(group_id, last)
        last.readers.append(on_read)

    def _add(self, group_id: str, one: Append | _Reading) -> None:
        self._queues.setdefault(group_id, deque()).append(one)
        self._backlog.add(group_id)
        self._has_news = True

    # -- the manager ------------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether there is something to load or to write that the last poll did not know of."""
        return self._has_news

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Begin again with what was in flight, after each connection: it has no outcome."""
        if isinstance(event, WatchFired):
            return
        self._asks.abandon()
        for group_id in self._queues.keys() & self._nodes.keys():
            self._nodes[group_id].forget()
        self._backlog.restart()
        self._is_connected = event.state is SessionState.CONNECTED

    def poll(self, now: Now) -> ManagerPoll:
        """Return what is to be read and written."""
        self._has_news = False
        if not self._is_connected:
            return ManagerPoll()
        for key in self._backlog.take(now):
            if key == _ALL_GROUPS:
                steps = load_groups(self._longest_session(), self._malformed)
                take_steps(self._asks, steps, self._loaded, now)
            else:
                self._do_next(key, now)
        return ManagerPoll(self._asks.take(), self._backlog.wake_at)

    def _loaded(self, groups: list[LoadedGroup] | None, error: Exception | None, now: Now) -> None:
        if groups is None or error is not None:
            return self._fail(_ALL_GROUPS, error, now)
        self._backlog.done(_ALL_GROUPS)
        if not self._elector.outbid(max([loaded.group.epoch for loaded in groups], default=-1), now):
            return None
        self._nodes = {one.group.group_id: GroupNodes(one.nodes, is_shared=not one.group.members) for one in groups}
        return _isolate(lambda: self._on_loaded([loaded.group for loaded in groups], now))

    def _do_next(self, group_id: str, now: Now) -> None:
        first = self._queues[group_id][0]
        if isinstance(first, _Reading):
            self._read(group_id, first, now)
        else:
            self._write(group_id, first, now)

    def _read(self, group_id: str, reading: _Reading, now: Now) -> None:
        reading.is_begun = True

        def read(found: Offsets | None, error: Exception | None, now: Now) -> None:
            if isinstance(error, OttlaError) and error.retriable:
                return self._fail(group_id, error, now)
            if error is not None:
                self._report("the offsets of the central group %r could not be read from ZooKeeper", group_id, error)
            self._end_first(group_id)
            for on_read in reading.readers:
                _isolate(partial(on_read, found, now))
            return None

        take_steps(self._asks, read_offsets(group_id, self._malformed), read, now)

    def _write(self, group_id: str, append: Append, now: Now) -> None:
        nodes = self._nodes.setdefault(group_id, GroupNodes())

        def ended(error: ErrorCode, now: Now, found: Offsets | None = None) -> None:
            if nodes.is_nothing:
                self._nodes.pop(group_id, None)
            self._end_first(group_id)
            _isolate(lambda: self._on_written(append, error, found, now))

        def written(result: Written | None, error: Exception | None, now: Now) -> None:
            if result is not None and error is None:
                self._report_beside(group_id, result.beside)
                return ended(ErrorCode.none, now, result.offsets)
            nodes.forget()
            if isinstance(error, ApiError) and error.code is ErrorCode.not_coordinator:
                return self._elector.resign(error.message, now)
            if isinstance(error, ApiError):
                self._old_members.report(group_id, f"nothing is written: {error.message}")
                return ended(error.code, now)
            if isinstance(error, OttlaError) and error.retriable:
                return self._fail(group_id, error, now)
            self._report("the central group %r could not be written to ZooKeeper", group_id, error)
            if not nodes.may_be_stored:
                return ended(ErrorCode.coordinator_not_available, now)
            # It may not be refused: it would be in ZooKeeper, and not in the coordinator's memory.
            self._backlog.fail(group_id, now)
            return None

        steps = write_records(group_id, append.records, self._epoch_version, nodes, self._malformed)
        take_steps(self._asks, steps, written, now)

    def _report_beside(self, group_id: str, beside: str | None) -> None:
        if beside is not None:
            text = f"{beside}; they get no partitions, since it has central members" if beside else ""
            self._old_members.report(group_id, text)

    def _end_first(self, group_id: str) -> None:
        queue = self._queues[group_id]
        queue.popleft()
        if queue:
            self._backlog.add(group_id)
        else:
            del self._queues[group_id]
        self._backlog.done(group_id)

    def _report(self, text: str, group_id: str, error: Exception | None) -> None:
        """Log an error that another attempt does not fix: once, since each of 200 members may commit what is refused."""
        kind = f"{text} {error.code.name}" if isinstance(error, ZooKeeperError) else f"{text} {type(error).__name__}"
        level = logging.DEBUG if (group_id, kind) in self._reported else logging.ERROR
        self._reported.add((group_id, kind))
        _log.log(level, text, group_id, exc_info=error)

    def _fail(self, key: str, error: Exception | None, now: Now) -> None:
        if self._backlog.fail(key, now):
            is_passing = isinstance(error, OttlaError) and error.retriable
            what = f"the central group {key!r} could not be written to ZooKeeper" if key else "the central groups could not be read"
            _log.log(logging.INFO if is_passing else logging.WARNING, "%s: %s; trying again", what, error)


def _isolate(step: Callable[[], None]) -> None:
    """Let the coordinator go on. If it fails, what is to be written is still written."""
    try:
        step()
    except Exception:
        _log.exception("the central coordinator failed after an answer of ZooKeeper")
