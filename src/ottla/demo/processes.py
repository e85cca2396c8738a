"""Child processes that never outlive their parent, and the line of JSON they report on.

Owns how the demo starts, hears, kills and ends processes; both ends of the pipe are in this file. Must not know what a
child does. Invariant: when the parent goes, in whatever way, each child goes too: it holds a pipe from its parent as
stdin and leaves when that closes. Each child leads a session of its own, so that Ctrl-C at a terminal reaches the
parent alone, which then ends its children in order.

A child is a module with ``main(arguments, emit)`` and is started as ``python -m ottla.demo.processes MODULE``; its
arguments are the first line it reads, an event is a line it writes, and whatever else it prints goes to its log file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ottla.demo import DemoFailed
from ottla.signals import Stop

Emit = Callable[..., None]
"""``emit("kind", name=value)``: report to the parent. Values are what JSON knows."""

GRACE = 5.0
"""Seconds that a child which was asked to end has before it is killed."""
PROGRESS = "progress"
"""An event that says how far a child is."""
ENDED = "ended"
"""The last event of every child, made by the parent; ``code`` is the exit code."""
TAIL = 12
"""Lines of a child's log that are shown when it failed."""


class Event(NamedTuple):
    """Something a child reported. ``at`` is the child's wall clock in seconds."""

    child: str
    kind: str
    at: float
    data: Mapping[str, Any]


class ChildFailed(DemoFailed):
    """A child ended when it should not have; the details are the end of its log."""


class Child:
    """One running child process."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path, events: queue.SimpleQueue[Event | None]) -> None:
        self.name, self.process, self.log = name, process, log
        self._events = events
        threading.Thread(target=self._listen, name=f"events of {name}", daemon=True).start()

    def tell(self, arguments: Mapping[str, Any]) -> None:
        """Send the line that the child waits for."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(arguments) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.wait()
            raise self.failure() from None

    def failure(self) -> ChildFailed:
        """The error that tells how this child ended."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL:]
        details = [f"  {line}" for line in lines or ["(it said nothing)"]]
        return ChildFailed(f"the process {self.name} ended with {self.process.returncode}; the end of {self.log}:", details)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):  # the child was killed while it wrote
                break
            message = json.loads(line)
            self._events.put(Event(self.name, message.pop("kind"), message.pop("at"), message))
        self._events.put(Event(self.name, ENDED, time.time(), {"code": self.process.wait()}))


class Children:
    """The child processes of a run, as a context manager: none is left when it is done.

    Waiting for them ends with ``Interrupted`` when ``stop`` notes a signal.
    """

    def __init__(self, logs: Path, stop: Stop) -> None:
        self._logs, self._stop = logs, stop
        stop.wake = self._wake
        self._running: list[Child] = []
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._kept: deque[Event] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(*self._running[1:])
        self.stop(*self._running)  # what was started first is what the others talk to: it goes last

    def start(self, name: str, module: str, arguments: Mapping[str, Any]) -> Child:
        """Run ``main`` of ``module`` in a new process."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "ottla.demo.processes", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        child = Child(name, process, log, self._events)
        self._running.append(child)
        try:
            child.tell(arguments)
        except ChildFailed:
            self._stop.check()  # Ctrl-C reaches a child, too, that has no session of its own yet
            raise
        return child

    def events(self, timeout: float) -> Iterator[Event]:
        """What children report, as it comes, for at most ``timeout`` seconds. Raises ``ChildFailed`` when one of them fails."""
        deadline = time.monotonic() + timeout
        while self._kept:
            yield self._kept.popleft()
        while (event := self._next(deadline)) is not None:
            yield event

    def wait_for(
        self, child: Child, kind: str, timeout: float, on_progress: Callable[[Mapping[str, Any]], None] = lambda data: None
    ) -> Event:
        """The next event ``kind`` of ``child``; others are kept for ``events()``, but for its progress.

        Raises ``ChildFailed`` if it does not come.
        """
        deadline = time.monotonic() + timeout
        while (event := self._next(deadline)) is not None:
            if event.child == child.name and event.kind == kind:
                return event
            if event.child == child.name and event.kind == ENDED:
                raise child.failure()
            if event.child == child.name and event.kind == PROGRESS:
                on_progress(event.data)
            else:
                self._kept.append(event)
        raise ChildFailed(f"the process {child.name} did not report {kind!r} within {timeout:g} s; its log is {child.log}")

    def kill(self, child: Child) -> None:
        """SIGKILL: the child gets no chance to say goodbye."""
        self._running.remove(child)
        child.process.kill()
        child.process.wait()

    def stop(self, *children: Child) -> None:
        """Ask the children to end (SIGTERM), then make sure that they and all they started have."""
        for child in children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + GRACE
        for child in children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
            child.process.wait()
            _end_group(child.process.pid)
        self._running = [child for child in self._running if child not in children]

    def _next(self, deadline: float) -> Event | None:
        self._stop.check()
        try:
            event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        self._stop.check()
        assert event is not None
        if event.kind == ENDED and event.data["code"] != 0:
            for child in self._running:
                if child.name == event.child:
                    raise child.failure()
        return event

    def _wake(self) -> None:
        self._events.put(None)


def _end_group(group: int) -> None:
    """Make sure that the rest of a child's process group (Spark's JVM, say) follows it."""
    deadline = time.monotonic() + GRACE
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def _leave_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def run_child(module: str) -> None:
    """The child's side: take the arguments from stdin, report on stdout, leave with the parent."""
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lock = threading.Lock()

    def emit(kind: str, **data: Any) -> None:
        with lock:
            reports.write(json.dumps({"kind": kind, "at": time.time(), **data}) + "\n")
            reports.flush()

    arguments = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, name="leave with the parent", daemon=True).start()
    try:
        importlib.import_module(module).main(arguments, emit)
    except DemoFailed as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    run_child(sys.argv[1])
