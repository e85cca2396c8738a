"""Child processes that never outlive their parent, and report events as lines of JSON.

Owns the start, the events, the kill and the shutdown of child processes; both ends of the pipe are in this file. Must not know what
a child does. Invariant: however the parent ends, each child ends, too: its stdin is a pipe from the parent, and it exits when that
closes. Each child leads its own session, so Ctrl-C at a terminal reaches only the parent, which then stops its children in order.

A child is a module with ``main(arguments, emit)``, started as ``python -m ottla.demo.processes MODULE``. It reads its arguments
from the first line of stdin, and writes each event as a line. All other output goes to its log file.
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
"""``emit("kind", name=value)``: report an event to the parent. Values are JSON."""

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
PROGRESS = "progress"
"""The event for the progress of a child."""
ENDED = "ended"
"""The last event of every child, created by the parent; ``code`` is the exit code."""
TAIL = 12
"""Lines of a failed child's log in the error."""


class Event(NamedTuple):
    """An event that a child reported. ``at`` is the child's wall clock in seconds."""

    child: str
    kind: str
    at: float
    data: Mapping[str, Any]


class ChildFailed(DemoFailed):
    """A child ended unexpectedly; the details are the end of its log."""


class Child:
    """One running child process."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path, events: queue.SimpleQueue[Event | None]) -> None:
        self.name, self.process, self.log = name, process, log
        self._events = events
        threading.Thread(target=self._listen, name=f"events of {name}", daemon=True).start()

    def send_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Send the arguments, for which the child waits."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(arguments) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.wait()
            raise self.failure() from None

    def failure(self) -> ChildFailed:
        """Return the error for the end of this child."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL:]
        details = [f"  {line}" for line in lines or ["(the log is empty)"]]
        return ChildFailed(f"the process {self.name} exited with {self.process.returncode}; the end of {self.log}:", details)

    def ended_with(self, event: Event) -> bool:
        """Whether an ``ENDED`` is that of this process, and not of an earlier one with the same name that was killed."""
        return event.child == self.name and self.process.poll() is not None

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):  # the child was killed while it wrote
                break
            message = json.loads(line)
            self._events.put(Event(self.name, message.pop("kind"), message.pop("at"), message))
        self._events.put(Event(self.name, ENDED, time.time(), {"code": self.process.wait()}))


class Children:
    """The child processes of a run. A context manager that stops all of them at its end.

    Methods that wait raise ``Interrupted`` after a signal in ``stop``.
    """

    def __init__(self, logs: Path, stop: Stop) -> None:
        self._logs, self._stop = logs, stop
        stop.wake = self._wake
        self._running: list[Child] = []
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._unread_events: deque[Event] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(*self._running[1:])
        self.stop(*self._running)  # the first ones are ZooKeeper and the broker, which the others use: they end last

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
            child.send_arguments(arguments)
        except ChildFailed:
            self._stop.check()  # Ctrl-C may have ended the child as well, before it had its own session
            raise
        return child

    def events(self, timeout: float) -> Iterator[Event]:
        """Yield the events of all children for at most ``timeout`` seconds. Raises ``ChildFailed`` when one of them fails."""
        deadline = time.monotonic() + timeout
        while self._unread_events:
            yield self._unread_events.popleft()
        while (event := self._next(deadline)) is not None:
            yield event

    def wait_for(
        self, child: Child, kind: str, timeout: float, on_progress: Callable[[Mapping[str, Any]], None] = lambda data: None
    ) -> Event:
        """Wait for the next event ``kind`` of ``child``. Other events, except its progress, stay for ``events()``.

        Raises ``ChildFailed`` at the timeout, or if the child ends.
        """
        for earlier in self._unread_events:
            if earlier.child == child.name and earlier.kind == kind:
                self._unread_events.remove(earlier)
                return earlier
        deadline = time.monotonic() + timeout
        while (event := self._next(deadline)) is not None:
            if event.child == child.name and event.kind == kind:
                return event
            if event.kind == ENDED and child.ended_with(event):
                raise child.failure()
            if event.child == child.name and event.kind == PROGRESS:
                on_progress(event.data)
            else:
                self._unread_events.append(event)
        raise ChildFailed(f"the process {child.name} did not report {kind!r} within {timeout:g} s; its log is {child.log}")

    def kill(self, child: Child) -> None:
        """Send SIGKILL, so that the child cannot leave its group."""
        self._running.remove(child)
        child.process.kill()
        child.process.wait()

    def stop(self, *children: Child) -> None:
        """Send SIGTERM to the children, then make sure that they and their own child processes have ended."""
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
                if child.ended_with(event):
                    raise child.failure()
        return event

    def _wake(self) -> None:
        self._events.put(None)


def _end_group(group: int) -> None:
    """Make sure that the rest of a child's process group, such as Spark's JVM, has ended."""
    deadline = time.monotonic() + GRACE
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def _exit_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def run_child(module: str) -> None:
    """Run the child's side: read the arguments from stdin, report on stdout, exit with the parent."""
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lock = threading.Lock()

    def emit(kind: str, **data: Any) -> None:
        with lock:
            reports.write(json.dumps({"kind": kind, "at": time.time(), **data}) + "\n")
            reports.flush()

    arguments = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, name="leave with the parent", daemon=True).start()
    try:
        importlib.import_module(module).main(arguments, emit)
    except DemoFailed as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    run_child(sys.argv[1])
