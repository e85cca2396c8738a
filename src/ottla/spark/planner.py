"""The planner process: settles the bounds of each execution of a batch, and tells them to its tasks.

Owns the answers: for a table and an execution there is one, given to the first task that asks and repeated to all others, to a
second attempt of a task, and to a stage that Spark computes again after an executor was lost. Must not know how tasks share the
bounds, nor import Spark. Invariants: an answer is never changed; one that was forgotten is refused, not made again; the process
ends with its driver.

Spark plans a Python source once for each table, in a worker process that may be gone when the table is read. No code of a Python
source runs on the driver when a query is executed. So ``launch.py`` starts this process beside the driver: one for each
SparkContext, with the first table that needs it.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib
import json
import logging
import os
import shutil
import signal
import socket
import socketserver
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.errors import OttlaError
from ottla.spark.signed_messages import KEY_SIZE, MAX_REQUEST, REQUEST, RESPONSE, WrongSignatureError, receive, send

if TYPE_CHECKING:
    from ottla.spark.cluster import Cluster

log = logging.getLogger(__name__)

CACHE_SIZE = 64 * 2**20
"""Bytes of one table's answers that are kept, the last used: those of 200,000 executions for a few partitions, of 1,600 for a
thousand."""

MAX_TABLES = 10_000
"""Tables that are kept: the last used. Those with the same options are one."""

IDLE_TIMEOUT, MAX_CONNECTED_TABLES = 60.0, 16
"""Seconds after which the connections of a table that is not used are closed; and how many tables keep theirs."""

DRIVER_CHECK_INTERVAL = 1.0
"""Seconds between two looks at the driver."""

TOUCH_INTERVAL = 3600.0
"""Seconds between two new dates for the files of the planner: some systems delete files in ``/tmp`` that are ten days old."""

CLIENT_TIMEOUT = 10.0
"""Seconds for a client to send its question."""

RELOAD_HINT = "call load() again, or set option planOnce to true"


class BoundsCache:
    """One answer for each execution of one table. Any thread."""

    def __init__(self, plan: Callable[[], str], *, most: int = CACHE_SIZE, last_evicted: int = -1) -> None:
        self._plan = plan
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[int, str | Exception] = OrderedDict()
        self._size = 0
        self._last_evicted = last_evicted
        """The last execution whose answer may have been forgotten."""

    def get(self, execution: int) -> str | None:
        """The answer for ``execution``; ``None`` where it may have been forgotten.

        The first call plans. If that fails, this call and all others for the execution raise the error: to plan for each attempt of
        each task would only delay the end of the query. Spark numbers executions in ascending order.
        """
        with self._lock:
            answer = self._answers.get(execution)
            if answer is None and execution > self._last_evicted:
                answer = self._add(execution)
            if answer is not None:
                self._answers.move_to_end(execution)
            while self._size > self._most and len(self._answers) > 1:
                last_evicted, gone = self._answers.popitem(last=False)
                self._size -= _size(gone)
                self._last_evicted = max(self._last_evicted, last_evicted)
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)
        return answer

    def _add(self, execution: int) -> str | Exception:
        answer: str | Exception
        try:
            answer = self._plan()
        except Exception as error:
            answer = error
        self._answers[execution] = answer
        self._size += _size(answer)
        return answer


def _size(answer: str | Exception) -> int:
    """Bytes that an answer takes, about."""
    return 200 + (len(answer) if isinstance(answer, str) else 1000)


class Table:
    """A batch as its options describe it: its answers, and a connection to its cluster that is kept while it is used."""

    def __init__(self, given: Mapping[str, str], *, last_evicted: int = -1) -> None:
        from ottla.spark.options import parse_options

        self._options = parse_options(given).for_batch()
        self._cluster: Cluster | None = None
        self._lock = threading.Lock()
        self._used = time.monotonic()
        self.answers = BoundsCache(self._plan, last_evicted=last_evicted)

    def _plan(self) -> str:
        from ottla.spark.batch_bounds import bounds_to_json, current_bounds
        from ottla.spark.cluster import Cluster

        with self._lock:
            self._used = time.monotonic()
            cluster = self._cluster = self._cluster or Cluster(self._options)
            try:
                return bounds_to_json(current_bounds(cluster, self._options))
            except BaseException:
                self._close()
                raise

    @property
    def is_open(self) -> bool:
        """Whether there may be connections."""
        return self._cluster is not None

    def close_idle(self, now: float, *, idle: float) -> None:
        """Close the connections unless they are in use, or were ``idle`` seconds ago."""
        if self._lock.acquire(blocking=False):
            try:
                if now - self._used > idle:
                    self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()


class LastExecution:
    """The last execution that was answered, in a file: a process that is started in place of one that was killed must not give
    other answers to executions that still run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.previous = int(path.read_bytes())
            """The last one that another process has answered, -1 if there was none."""
        except (OSError, ValueError):
            self.previous = -1
        self._last = self.previous
        self._lock = threading.Lock()

    def record(self, execution: int) -> None:
        """Call before an answer is given."""
        with self._lock, contextlib.suppress(OSError):
            if execution > self._last:
                file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.pwrite(file, b"%020d" % execution, 0)
                finally:
                    os.close(file)
                self._last = execution


class Planner:
    """All tables of a driver, and the answers to questions about them. Any thread."""

    def __init__(self, key: bytes, home: Path) -> None:
        self._key = key
        self._last = LastExecution(home / "last-execution")
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, Table] = OrderedDict()

    def answer(self, question: Mapping[str, Any]) -> str:
        """The JSON of the answer: ``{"table": NAME}`` to a table's options, ``{"bounds": [...]}`` to an execution of it,
        ``{}`` to a hello, or ``{"error": TEXT}``."""
        try:
            if "hello" in question:
                return "{}"
            if "options" in question:
                return json.dumps({"table": self._add(question["options"])})
            return self._bounds(question["table"], question["execution"])
        except OttlaError as error:
            return json.dumps({"error": str(error)})
        except Exception as error:
            log.exception("a question could not be answered")
            return json.dumps({"error": repr(error)})

    def _add(self, options: dict[str, str]) -> str:
        # The name goes over the network. Without the key, a password in the options cannot be found by trying.
        name = hmac.digest(self._key, json.dumps(options, sort_keys=True).encode(), "sha256").hex()
        table = Table(options, last_evicted=self._last.previous)
        with self._lock:
            self._tables.setdefault(name, table)
            self._tables.move_to_end(name)
            if len(self._tables) > MAX_TABLES:
                self._tables.popitem(last=False)
        return name

    def _bounds(self, name: str, execution: int) -> str:
        with self._lock:
            table = self._tables.get(name)
            if table is not None:
                self._tables.move_to_end(name)
        if table is None:
            text = "the planner process does not know this table: it was started again, or other tables have taken its place"
            raise OttlaError(text, hint=RELOAD_HINT)
        bounds = table.answers.get(execution)
        if bounds is None:
            text = f"the offsets of execution {execution} were forgotten: the planner process was started again, or too many "
            text += "executions of this table came after it"
            raise OttlaError(text, hint="run the query again")
        self._last.record(execution)
        return f'{{"bounds": {bounds}}}'

    def close_idle(self, now: float) -> None:
        """Close connections that are not used, and those of all but the last used tables."""
        with self._lock:
            tables = [table for table in self._tables.values() if table.is_open]
        for number, table in enumerate(reversed(tables)):
            table.close_idle(now, idle=IDLE_TIMEOUT if number < MAX_CONNECTED_TABLES else 0.0)


class _Handler(socketserver.StreamRequestHandler):
    timeout = CLIENT_TIMEOUT
    server: _Server

    def handle(self) -> None:
        key = self.server.key
        with contextlib.suppress(OSError, EOFError, WrongSignatureError, ValueError):
            while True:
                question = json.loads(receive(self.rfile, key, REQUEST, most=MAX_REQUEST))
                answer = self.server.planner.answer(question)
                send(self.wfile, key, RESPONSE + question["nonce"].encode(), answer.encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, key: bytes, home: Path) -> None:
        socketserver.BaseServer.__init__(self, listening.getsockname(), _Handler)
        self.socket = listening
        self.key = key
        self.planner = Planner(key, home)


def serve(listening: socket.socket, key: bytes, *, driver: int, home: Path) -> None:
    """Answer questions until the process ``driver`` is gone, or ``home``, which Spark deletes with its own temporary files."""
    server = _Server(listening, key, home)
    threading.Thread(target=server.serve_forever, name="ottla-spark-planner", daemon=True).start()
    importlib.import_module("ottla.spark.batch_bounds")  # and the client with it, before the first task asks
    touched = time.monotonic()
    while home.is_dir() and _is_alive(driver):
        time.sleep(DRIVER_CHECK_INTERVAL)
        now = time.monotonic()
        server.planner.close_idle(now)
        if now - touched > TOUCH_INTERVAL:
            touched = now
            _touch(home)


def _touch(home: Path) -> None:
    with contextlib.suppress(OSError):
        for path in (home, *home.iterdir()):
            os.utime(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main() -> None:
    """``python -m ottla.spark.planner DESCRIPTOR DRIVER HOME``, with the key as stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends a query, not the driver
    # What keeps a plan from being made is in the answer to the task that asked; lost connections in between do not matter.
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    descriptor, driver, home = sys.argv[1:]
    key = sys.stdin.buffer.read()
    if len(key) != KEY_SIZE:
        sys.exit("the worker process that started this planner was killed before it had sent the key")
    serve(socket.socket(fileno=int(descriptor)), key, driver=int(driver), home=Path(home))
    shutil.rmtree(home, ignore_errors=True)
    os._exit(0)  # a thread that waits for a cluster must not keep the process alive


if __name__ == "__main__":
    main()
