"""How a table finds the planner process of its driver, or starts it; how a task reaches it.

Owns the private folder that has the planner's port and key. Must not know what is planned. Invariants: a SparkContext has one
planner process, whichever of its worker processes asks for it; the key is readable by its user alone; options are sent only to a
process that has proved that it has the key.

The folder is in Spark's own temporary folder, whose name is unique for each SparkContext, and which Spark deletes at its end.
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
from ottla.spark.signed_messages import KEY_SIZE, SignedConnection, WrongSignatureError

LOOPBACK = "127.0.0.1"

START_TIMEOUT = 60.0
"""Seconds for a planner process to start."""

SPARK_FOLDER_PREFIX = "blockmgr-"
"""What Spark calls the temporary folder of one SparkContext."""

LOCAL_MASTER = re.compile(r"local(\[.*\])?")

DAEMON = "pyspark.daemon"
"""The module whose process starts Spark's worker processes."""

BACKLOG = 1024
"""Tasks that may wait to be connected."""

CONNECT_TIMEOUT = 20.0
"""Seconds for a task to connect to it."""


class PlannerAddress(NamedTuple):
    """Where a table's planner process is; Spark sends it to the tasks."""

    port: int
    key: bytes
    table: str
    local_folders: str
    """Spark's temporary folders on the driver, which no other process has."""


def register(given: Mapping[str, str]) -> PlannerAddress:
    """Make a table's options known to the planner process, which is started unless it is there already. On the driver.

    Raises ``OttlaError`` where that fails.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    try:
        with _locked_folder(folders) as home:
            known = _read_address(home)
            answer = _send_options(known, given) if known is not None else None
            if known is None or answer is None:
                known = _start(home, known)
                answer = _send_options(known, given)
            if answer is None:
                raise ConnectionError("it ended at once; its error is in the driver's output")
    except (ImportError, OSError) as error:
        raise OttlaError(
            f"the planner process could not be started: {error}",
            hint="it settles the offsets of each execution; with option planOnce set to true there is none",
            cause=error,
        ) from error
    if "error" in answer:
        raise OttlaError(answer["error"])
    return PlannerAddress(*known, answer["table"], folders)


def _send_options(known: tuple[int, bytes], given: Mapping[str, str]) -> dict[str, Any] | None:
    """Tell a planner process the options of a table; ``None`` where it does not run."""
    port, key = known
    try:
        with SignedConnection((LOOPBACK, port), key, timeout=START_TIMEOUT) as planner:
            planner.ask({"hello": True}, timeout=START_TIMEOUT)  # its answer is signed: no other process gets the options
            answer: dict[str, Any] = planner.ask({"options": dict(given)}, timeout=START_TIMEOUT)
            return answer
    except (OSError, EOFError, WrongSignatureError):
        return None


def ask(address: PlannerAddress, execution: int, *, driver: str, patience: float) -> list[list[object]]:
    """The bounds of ``execution``, as JSON has them. In a task. ``driver`` is the driver's host.

    Raises ``OttlaError`` where the planner process cannot be reached within ``patience`` seconds, or cannot tell.
    """
    here = os.environ.get("SPARK_LOCAL_DIRS", "") == address.local_folders
    hosts = dict.fromkeys([LOOPBACK, driver] if here else [driver])
    failed: list[str] = []
    for host in hosts:
        try:
            with SignedConnection((host.strip("[]"), address.port), address.key, timeout=CONNECT_TIMEOUT) as planner:
                answer = _request_bounds(planner, {"table": address.table, "execution": execution}, patience)
            break
        except (OSError, EOFError, WrongSignatureError) as error:
            failed.append(f"{host}:{address.port} ({error or type(error).__name__})")
    else:
        raise OttlaError(
            f"only the planner process on the driver's host knows which offsets this query reads, and it could not be reached: "
            f"{', '.join(failed)}",
            hint=f"let executors connect to that port; if the process was killed: {LOAD_AGAIN}",
        )
    if "error" in answer:
        raise OttlaError(answer["error"])
    bounds: list[list[object]] = answer["bounds"]
    return bounds


def _request_bounds(planner: SignedConnection, question: dict[str, Any], patience: float) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = planner.ask(question, timeout=patience)
    except TimeoutError as error:
        raise OttlaError(
            f"the planner process on the driver's host has not settled the offsets of this query in {patience:g} s",
            hint="it waits for the Kafka cluster, perhaps for other queries of the same table first; "
            "kafka.default.api.timeout.ms bounds how long for each",
            cause=error,
        ) from error
    return answer


@contextlib.contextmanager
def _locked_folder(folders: str) -> Iterator[Path]:
    """The folder, locked: two tables may be planned at the same time."""
    import fcntl

    own = [
        folder
        for folder in folders.split(",")
        if os.path.basename(folder).startswith(SPARK_FOLDER_PREFIX) and os.path.isdir(folder)
    ]
    other = Path(tempfile.gettempdir(), f"ottla-planner-{os.getuid()}-{_driver()[0]}")
    home = Path(own[0], "ottla-planner") if own else other
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{home} belongs to someone else")
    with open(home / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


def _read_address(home: Path) -> tuple[int, bytes] | None:
    try:
        port, key = json.loads((home / "address").read_text())
        return port, bytes.fromhex(key)
    except (OSError, ValueError):
        return None


def _start(home: Path, known: tuple[int, bytes] | None) -> tuple[int, bytes]:
    """Start the planner process: where there was one, under its port and key, since there are tables that know them."""
    wanted, key = known or (0, secrets.token_bytes(KEY_SIZE))
    driver, words = _driver()
    with _listen(wanted, only_here=has_local_master(words)) as listening:
        port: int = listening.getsockname()[1]
        with open(os.open(home / "address", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump([port, key.hex()], file)
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla.spark.planner", str(listening.fileno()), str(driver), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # PySpark's daemon, when it ends, sends SIGHUP to all processes of its group
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(key)
    return port, key


def _listen(wanted: int, *, only_here: bool) -> socket.socket:
    """A socket for tasks to connect to; its port is ``wanted`` if that is free."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError):
            if only_here:
                return socket.create_server((LOOPBACK, port), backlog=BACKLOG)
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
            return socket.create_server(("", port), backlog=BACKLOG)
    raise ConnectionError("there is no port to listen on")


def has_local_master(words: Sequence[str]) -> bool:
    """Whether the driver's command line says that tasks run in the driver, so that no other machine needs to connect.

    ``False`` where it names no master. What follows the names of options may be anything, also an application's argument ``local``.
    """
    named = [value.removeprefix("--master=") for value in words if value.startswith("--master=")]
    for option, value in itertools.pairwise(words):
        if option == "--master":
            named.append(value)
        elif option in ("--conf", "-c") and value.startswith("spark.master="):
            named.append(value.removeprefix("spark.master="))
    return bool(named) and all(LOCAL_MASTER.fullmatch(master) for master in named)


def _driver() -> tuple[int, list[str]]:
    """The driver's process and its command line, which is empty where it is not known.

    This process is a child of PySpark's daemon, which is a child of the driver; with ``spark.python.use.daemon=false`` there is no
    daemon in between.
    """
    number = os.getppid()
    try:
        parent, words = _process(number)
        if DAEMON not in words:
            return number, words
        return parent, _process(parent)[1]
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return number, []


def _process(number: int) -> tuple[int, list[str]]:
    """The parent and the command line of a process."""
    about = Path(f"/proc/{number}")
    if about.is_dir():
        parent = (about / "stat").read_text().rpartition(")")[2].split()[1]
        return int(parent), (about / "cmdline").read_text(errors="replace").split("\0")
    command = ["ps", "-ww", "-o", "ppid=,args=", "-p", str(number)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_TIMEOUT).stdout.split()
    return int(listed[0]), listed[1:]
