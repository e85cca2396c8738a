"""The planner process: resolves the bounds of each execution of a batch, and serves them to the tasks.

Owns the bounds of each table and execution. The first task's request resolves them; all others get the same bounds, including
second attempts of tasks and stages that Spark computes again after it lost an executor. Must not know how tasks share the bounds,
nor import Spark. Invariants: bounds of an execution never change; requests for evicted ones fail, and never resolve them again; the
process ends with its driver.

Spark plans a Python source once per table, in a worker process that may have ended before the table is read. When it executes a
query, it runs no code of a Python source on the driver. So ``planner_client.py`` starts this process next to the driver: one per
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
"""Bytes of the bounds that are kept per table, least recently used first out: enough for 180,000 executions with a few partitions,
or 1,600 with a thousand."""

MAX_TABLES = 10_000
"""Tables that are kept, least recently used first out. Tables with the same options count as one."""

IDLE_TIMEOUT, MAX_CONNECTED_TABLES = 60.0, 16
"""Seconds after which the connections of an unused table are closed, and the number of tables that may have connections."""

DRIVER_CHECK_INTERVAL = 1.0
"""Seconds between two checks that the driver is alive."""

TOUCH_INTERVAL = 3600.0
"""Seconds between updates of the modification times of the planner's files: some systems delete files in ``/tmp`` after ten
days."""

CLIENT_TIMEOUT = 10.0
"""Seconds for a client to send a request."""

RELOAD_HINT = "call load() again, or set option planOnce to true"


class BoundsCache:
    """The bounds, or the error, of each execution of one table. Thread-safe."""

    def __init__(self, plan: Callable[[], str], *, most: int = CACHE_SIZE, last_evicted: int = -1) -> None:
        self._plan = plan
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[int, str | Exception] = OrderedDict()
        self._size = 0
        self._last_evicted = last_evicted
        """The greatest number of an execution that may have been evicted."""

    def get(self, execution: int) -> str | None:
        """Return the bounds of ``execution``; ``None`` if they may have been evicted.

        The first call resolves them. If that fails, this and all other calls for the execution raise the error: retries for each
        attempt of each task would only delay the end of the query. Spark numbers executions in ascending order.
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
    """Return the approximate size of an entry in bytes."""
    return 200 + (len(answer) if isinstance(answer, str) else 1000)


class Table:
    """A batch as described by its options: the bounds of its executions, and the connection to its cluster while in use."""

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
        """Whether the table may have connections."""
        return self._cluster is not None

    def close_idle(self, now: float, *, idle: float) -> None:
        """Close the connections if they have not been used for ``idle`` seconds."""
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
    """The greatest number of an execution with a response, in a file.

    A planner process that replaces a killed one must not send different bounds to the tasks of an execution that still runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.previous = int(path.read_bytes())
            """The last one of an earlier process, -1 if there was none."""
        except (OSError, ValueError):
            self.previous = -1
        self._last = self.previous
        self._lock = threading.Lock()

    def record(self, execution: int) -> None:
        """Record ``execution``. Called before the response is sent."""
        with self._lock, contextlib.suppress(OSError):
            if execution > self._last:
                file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.pwrite(file, b"%020d" % execution, 0)
                finally:
                    os.close(file)
                self._last = execution


class Planner:
    """All tables of a driver, and the handling of requests. Thread-safe."""

    def __init__(self, key: bytes, home: Path) -> None:
        self._key = key
        self._last = LastExecution(home / "last-execution")
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, Table] = OrderedDict()

    def handle(self, request: Mapping[str, Any]) -> str:
        """Return the JSON of the response: ``{"table": NAME}`` to a table's options, ``{"bounds": {...}}`` to an execution of a
        table, ``{}`` to a hello, or ``{"error": TEXT}``."""
        try:
            if "hello" in request:
                return "{}"
            if "options" in request:
                return json.dumps({"table": self._add(request["options"])})
            return self._bounds(request["table"], request["execution"])
        except OttlaError as error:
            return json.dumps({"error": str(error)})
        except Exception as error:
            log.exception("a request to the planner process failed")
            return json.dumps({"error": repr(error)})

    def _add(self, options: dict[str, str]) -> str:
        # The name goes over the network in clear text. As the hash has a key, it does not allow guessing a password in the options.
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
            text = "the planner process does not have this table: the process was restarted, or evicted the table for other ones"
            raise OttlaError(text, hint=RELOAD_HINT)
        bounds = table.answers.get(execution)
        if bounds is None:
            text = f"the planner process does not have the offsets of execution {execution}: the process was restarted, or evicted "
            text += "them for later executions of this table"
            raise OttlaError(text, hint="run the query again")
        self._last.record(execution)
        return f'{{"bounds": {bounds}}}'

    def close_idle(self, now: float) -> None:
        """Close idle connections, and those of all but the most recently used tables."""
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
                request = json.loads(receive(self.rfile, key, REQUEST, most=MAX_REQUEST))
                response = self.server.planner.handle(request)
                send(self.wfile, key, RESPONSE + request["nonce"].encode(), response.encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, key: bytes, home: Path) -> None:
        socketserver.BaseServer.__init__(self, listening.getsockname(), _Handler)
        self.socket = listening
        self.key = key
        self.planner = Planner(key, home)


def serve(listening: socket.socket, key: bytes, *, driver: int, home: Path) -> None:
    """Serve until the process ``driver`` ends, or until Spark deletes ``home`` with its own temporary files."""
    server = _Server(listening, key, home)
    threading.Thread(target=server.serve_forever, name="ottla-spark-planner", daemon=True).start()
    try:
        importlib.import_module("ottla.spark.batch_bounds")  # loads the client before the first request
        touched = time.monotonic()
        while home.is_dir() and _is_alive(driver):
            time.sleep(DRIVER_CHECK_INTERVAL)
            now = time.monotonic()
            server.planner.close_idle(now)
            if now - touched > TOUCH_INTERVAL:
                touched = now
                _touch(home)
    finally:
        # Otherwise the thread goes on after the caller has closed the socket, and takes a whole core: select() returns at once.
        server.shutdown()


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal, Ctrl-C ends a query, not the driver
    # Errors only: the response to the task has the reason if planning fails, and connections that were lost meanwhile do not
    # matter.
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    descriptor, driver, home = sys.argv[1:]
    key = sys.stdin.buffer.read()
    if len(key) != KEY_SIZE:
        sys.exit("the planner process received no key: the worker process that started it was killed")
    serve(socket.socket(fileno=int(descriptor)), key, driver=int(driver), home=Path(home))
    shutil.rmtree(home, ignore_errors=True)
    os._exit(0)  # do not wait for threads that wait for a cluster


if __name__ == "__main__":
    main()
