"""The client of the planner process: starts the process on the driver, and requests bounds in tasks.

Owns the private directory with the planner's port and key. Must not know what is planned. Invariants: a SparkContext has one
planner process, shared by its worker processes; only the user can read the key; options are sent only to a process that has proved
that it has the key.

The directory is in Spark's own temporary directory, whose name is unique per SparkContext and which Spark deletes at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ottla.errors import OttlaError
from ottla.spark.planner import RELOAD_HINT
from ottla.spark.signed_messages import KEY_SIZE, SignedConnection, WrongSignatureError

LOOPBACK = "127.0.0.1"

START_TIMEOUT = 60.0
"""Seconds for a planner process to start."""

SPARK_DIRECTORY_PREFIX = "blockmgr-"
"""The prefix of Spark's names for the temporary directory of a SparkContext."""

LOCAL_MASTER = re.compile(r"local(\[.*\])?")

DAEMON = "pyspark.daemon"
"""The module of the process that forks Spark's worker processes."""

BACKLOG = 1024
"""The listen backlog: tasks that may wait for ``accept()``."""

CONNECT_TIMEOUT = 20.0
"""Seconds for a task to connect to the planner process."""


class PlannerAddress(NamedTuple):
    """The address of a table's planner process; Spark sends it to the tasks."""

    port: int
    key: bytes
    table: str
    local_dirs: str
    """``SPARK_LOCAL_DIRS`` of the driver. A process with the same value runs on the driver's host."""


def register(given: Mapping[str, str]) -> PlannerAddress:
    """Send a table's options to the planner process, and start that if it does not run. Called on the driver.

    Raises ``OttlaError`` if the process does not start or rejects the options.
    """
    local_dirs = os.environ.get("SPARK_LOCAL_DIRS", "")
    try:
        with _locked_directory(local_dirs) as home:
            address = _read_address(home)
            response = _send_options(address, given) if address is not None else None
            if address is None or response is None:
                address = _start(home, address)
                response = _send_options(address, given)
            if response is None:
                raise ConnectionError("it exited at once; its error is in the driver's output")
    except (ImportError, OSError) as error:
        raise OttlaError(
            f"cannot start the planner process: {error}",
            hint="it resolves the offsets of each execution; with option planOnce=true a query does not need it",
            cause=error,
        ) from error
    if "error" in response:
        raise OttlaError(response["error"])
    return PlannerAddress(*address, response["table"], local_dirs)


def _send_options(address: tuple[int, bytes], given: Mapping[str, str]) -> dict[str, Any] | None:
    """Send the options of a table to the planner process and return its response; ``None`` if it does not run."""
    port, key = address
    try:
        with SignedConnection((LOOPBACK, port), key, timeout=START_TIMEOUT) as planner:
            # Another process may have the port by now. Options may have passwords: first a response that proves it has the key.
            planner.request({"hello": True}, timeout=START_TIMEOUT)
            response: dict[str, Any] = planner.request({"options": dict(given)}, timeout=START_TIMEOUT)
            return response
    except (OSError, EOFError, WrongSignatureError):
        return None


def request_bounds(address: PlannerAddress, execution: int, *, driver: str, timeout: float) -> dict[str, Any]:
    """Return the bounds of ``execution``, as decoded JSON, from the planner process. Called in a task. ``driver`` is a host name.

    Raises ``OttlaError`` if the planner process cannot be reached, does not respond within ``timeout`` seconds, or responds with an
    error.
    """
    is_local = os.environ.get("SPARK_LOCAL_DIRS", "") == address.local_dirs
    hosts = dict.fromkeys([LOOPBACK, driver] if is_local else [driver])
    failed: list[str] = []
    for host in hosts:
        try:
            with SignedConnection((host.strip("[]"), address.port), address.key, timeout=CONNECT_TIMEOUT) as planner:
                response = _request(planner, {"table": address.table, "execution": execution}, timeout)
            break
        except (OSError, EOFError, WrongSignatureError) as error:
            failed.append(f"{host}:{address.port} ({error or type(error).__name__})")
    else:
        raise OttlaError(
            f"cannot reach the planner process on the driver's host, which has the offsets of this query: {', '.join(failed)}",
            hint=f"allow executors to connect to that port; if the process was killed, {RELOAD_HINT}",
        )
    if "error" in response:
        raise OttlaError(response["error"])
    bounds: dict[str, Any] = response["bounds"]
    return bounds


def _request(planner: SignedConnection, request: dict[str, Any], timeout: float) -> dict[str, Any]:
    try:
        response: dict[str, Any] = planner.request(request, timeout=timeout)
    except TimeoutError as error:
        raise OttlaError(
            f"the planner process on the driver's host did not resolve the offsets of this query within {timeout:g} s",
            hint="it waits for the Kafka cluster, and plans queries of the same table one after the other; "
            "kafka.default.api.timeout.ms limits the time for each",
            cause=error,
        ) from error
    return response


@contextlib.contextmanager
def _locked_directory(local_dirs: str) -> Iterator[Path]:
    """The planner's private directory, locked, because Spark may plan two tables at the same time."""
    import fcntl

    candidates = (path for path in local_dirs.split(",") if os.path.basename(path).startswith(SPARK_DIRECTORY_PREFIX))
    sparks = [path for path in candidates if os.path.isdir(path)]
    fallback = Path(tempfile.gettempdir(), f"ottla-planner-{os.getuid()}-{_driver()[0]}")
    home = Path(sparks[0], "ottla-planner") if sparks else fallback
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()  # in a shared directory such as /tmp, another user may have created it
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{home} is not a directory of this user")
    with open(home / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


def _read_address(home: Path) -> tuple[int, bytes] | None:
    try:
        port, key = json.loads((home / "address").read_text())
        return port, bytes.fromhex(key)
    except (OSError, ValueError):
        return None


def _start(home: Path, previous: tuple[int, bytes] | None) -> tuple[int, bytes]:
    """Start the planner process, with port and key of a ``previous`` one, since tables that are in use have them."""
    preferred_port, key = previous or (0, secrets.token_bytes(KEY_SIZE))
    driver, words = _driver()
    with _listen(preferred_port, loopback_only=has_local_master(words)) as listening:
        port: int = listening.getsockname()[1]
        with open(os.open(home / "address", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump([port, key.hex()], file)
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla.spark.planner", str(listening.fileno()), str(driver), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # when PySpark's daemon ends, it sends SIGHUP to its process group
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(key)
    return port, key


def _listen(preferred_port: int, *, loopback_only: bool) -> socket.socket:
    """Return a listening socket on ``preferred_port`` if that is free, otherwise on any port."""
    for port in (preferred_port, 0):
        with contextlib.suppress(OSError):
            if loopback_only:
                return socket.create_server((LOOPBACK, port), backlog=BACKLOG)
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
            return socket.create_server(("", port), backlog=BACKLOG)
    raise ConnectionError("cannot bind any port")


def has_local_master(words: Sequence[str]) -> bool:
    """Whether the driver's command line has only local masters: then all tasks run on the driver's host.

    ``False`` for a command line without a master. Only values of options count, because ``local`` may also be an argument of the
    application.
    """
    masters = [value.removeprefix("--master=") for value in words if value.startswith("--master=")]
    for option, value in itertools.pairwise(words):
        if option == "--master":
            masters.append(value)
        elif option in ("--conf", "-c") and value.startswith("spark.master="):
            masters.append(value.removeprefix("spark.master="))
    return bool(masters) and all(LOCAL_MASTER.fullmatch(master) for master in masters)


def _driver() -> tuple[int, list[str]]:
    """Return the driver's process id and command line, which is empty if it cannot be read.

    This process is a child of PySpark's daemon, which is a child of the driver. With ``spark.python.use.daemon=false`` it is a
    child of the driver.
    """
    pid = os.getppid()
    try:
        parent, words = _parent_and_command_line(pid)
        if DAEMON not in words:
            return pid, words
        return parent, _parent_and_command_line(parent)[1]
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return pid, []


def _parent_and_command_line(pid: int) -> tuple[int, list[str]]:
    proc = Path(f"/proc/{pid}")
    if proc.is_dir():
        parent = (proc / "stat").read_text().rpartition(")")[2].split()[1]
        return int(parent), (proc / "cmdline").read_text(errors="replace").split("\0")
    command = ["ps", "-ww", "-o", "ppid=,args=", "-p", str(pid)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_TIMEOUT).stdout.split()
    return int(listed[0]), listed[1:]
