"""Runs calls on ZooKeeper for a thread that waits: one ``Session`` on a ``ZooKeeperClient``, without a thread of its own.

Owns the wait for a connection and for answers, and the retries after a lost connection. Must not know what a call is for.
Invariants: a call ends with a result or an error; it never waits longer than its time-out for a connection or for an answer; if
there is no connection, the error names every server and why it cannot be used.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from ottla.errors import (
    ClosedError,
    ConcurrentAccessError,
    ConnectionFailedError,
    ForkedError,
    KeeperCode,
    OttlaError,
    OttlaTimeoutError,
    ZooKeeperError,
)
from ottla.runtime import clock
from ottla.runtime.zookeeper import ZooKeeperClient
from ottla.runtime.zookeeper_probe import probe
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.calls import Call, ResultT, Steps
from ottla.zookeeper.operations import Exists, Operation
from ottla.zookeeper.session import Ask, Disconnect, Perform, Session, SessionState

SESSION_TIMEOUT = 6000
"""Milliseconds; 0.8's own. The calls create no ephemeral nodes, so nothing depends on it."""
PROBE_TIME = 1000
"""Milliseconds at the end of a time-out, at most a third of it, in which the servers are asked why there is no connection."""


class ZooKeeperCalls:
    """See the module. ``connect`` is ZooKeeper's connect string. The first call connects."""

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._reports: SimpleQueue[Any] = SimpleQueue()
        """``SessionReport``s; ``None`` only wakes the thread that waits."""
        self._session = Session(SESSION_TIMEOUT)
        self._client = ZooKeeperClient(connect, SESSION_TIMEOUT, self._reports.put)
        self._has_root = self._closed = False
        self._running = threading.Lock()
        self._pid = os.getpid()
        self._finalize = weakref.finalize(self, _close, self._client, self._pid)

    def close(self) -> None:
        """End the session. Any thread may call it; a call that runs ends with ``ClosedError``. Closing twice does no harm."""
        self._closed = True
        self._reports.put(None)
        self._finalize()

    def run(self, call: Call[ResultT], timeout: int) -> ResultT:
        """Return the result of a call. ``timeout`` (milliseconds): see the module.

        Raises ``ConnectionFailedError``, ``OttlaTimeoutError``, ``ConfigError`` if the chroot does not exist, ``ZooKeeperError``,
        ``ClosedError``, and the errors of the call.
        """
        if os.getpid() != self._pid:
            raise ForkedError(f"this client belongs to process {self._pid}, this is process {os.getpid()}")
        if not self._running.acquire(blocking=False):
            raise ConcurrentAccessError("another call is running", hint="use a ZooKeeperAdmin for each thread")
        try:
            self._check_open()
            self._client.start()
            return self._repeat(call, timeout)
        finally:
            self._running.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")

    def _repeat(self, call: Call[ResultT], timeout: int) -> ResultT:
        """Attempt a call again after a lost connection or session, for at most ``timeout`` milliseconds."""
        give_up_at: int | None = None
        while True:
            try:
                self._check_root(timeout)
                return self._attempt(call(), timeout)
            except ZooKeeperError as error:
                if not error.retriable:
                    raise
                now = clock.now().mono
                give_up_at = now + timeout if give_up_at is None else give_up_at
                if error.code is KeeperCode.OPERATIONTIMEOUT or now >= give_up_at:
                    raise self._timed_out(timeout, error) from error

    def _attempt(self, steps: Steps[ResultT], timeout: int) -> ResultT:
        try:
            operations = next(steps)
            while True:
                operations = steps.send(self._perform(operations, timeout))
        except StopIteration as end:
            result: ResultT = end.value
            return result

    def _check_root(self, timeout: int) -> None:
        """Raise ``ConfigError`` if the chroot does not exist: otherwise a wrong one would look like a ZooKeeper without groups."""
        if self._has_root:
            return
        (outcome,) = self._perform((Exists("/"),), timeout)
        if isinstance(outcome, ZooKeeperError):
            raise outcome
        if outcome is None:
            raise paths.missing_root(self._connect)
        self._has_root = True

    def _perform(self, operations: Sequence[Operation[Any]], timeout: int) -> list[Any]:
        """Return the outcome of each operation."""
        now = clock.now()
        outcomes: dict[int, Any] = {}
        for number, operation in enumerate(operations):

            def take(outcome: Any, now: Now, number: int = number) -> None:
                outcomes[number] = outcome

            self._session.ask(self, Ask(operation, timeout, take, take), now)
        connect_by = self._connect_by(now, timeout)
        while len(outcomes) < len(operations):
            self._take_reports(0)
            now = clock.now()
            if self._session.state is SessionState.CONNECTED:
                connect_by = self._connect_by(now, timeout)
            elif now.mono >= connect_by:
                raise self._unconnected(timeout)
            effects, wake_at, disconnect = self._session.poll(now)
            todo: tuple[Perform | Disconnect, ...] = (*disconnect, *effects)
            for effect in todo:
                self._client.perform(effect)
            for _, ask, result, error in self._session.take_completions():
                if error is None:
                    ask.on_result(result, now)
                else:
                    ask.on_failure(error, now)
            if len(outcomes) < len(operations):
                self._take_reports(max(min(connect_by, connect_by if wake_at is None else wake_at) - now.mono, 0))
        return [outcomes[number] for number in range(len(operations))]

    def _take_reports(self, wait: int) -> None:
        """Apply all reports that have arrived; wait for the first one up to ``wait`` milliseconds."""
        try:
            report = self._reports.get(timeout=wait / 1000) if wait else self._reports.get_nowait()
            while True:
                if report is not None:
                    report.apply(self._session, clock.now())
                report = self._reports.get_nowait()
        except Empty:
            pass
        self._session.take_events()
        self._check_open()

    def _connect_by(self, now: Now, timeout: int) -> int:
        return now.mono + timeout - min(PROBE_TIME, timeout // 3)

    def _unconnected(self, timeout: int) -> OttlaError:
        reasons = probe(self._client.servers, min(PROBE_TIME, timeout // 3) / 1000)
        text = f"no connection to ZooKeeper within {timeout / 1000:g} s"
        return ConnectionFailedError(text, reasons, hint="see zookeeper.connect of the brokers")

    def _timed_out(self, timeout: int, error: ZooKeeperError) -> OttlaError:
        text = f"ZooKeeper did not answer within {timeout / 1000:g} s: {error}"
        return OttlaTimeoutError(text, hint="is it overloaded?", cause=error)


def _close(client: ZooKeeperClient, pid: int) -> None:
    if os.getpid() == pid:
        client.close()
