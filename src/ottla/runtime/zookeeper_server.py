"""A real ZooKeeper server for tests and experiments, or an ensemble of several, in child processes.

Owns the JVMs, their configuration, their ports and the data directory. Must not know a client of ZooKeeper, nor what is stored.
Invariants: one ``ZooKeeperServer`` at a time uses a data directory; a folder that has other files is left as it is; no JVM survives
this process.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shlex
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from ottla.errors import ConfigError, IllegalStateError, OttlaError, OttlaTimeoutError, StorageError
from ottla.runtime.child_process import ChildProcess
from ottla.runtime.java import find_java
from ottla.runtime.temporary import TemporaryFolder, remove_abandoned
from ottla.runtime.zookeeper_jars import find_jars

REQUIRED_JAVA = 8
"""The oldest Java that ZooKeeper 3.9 runs on."""
STANDALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
QUORUM_PEER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JVM_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dslf4j.internal.verbosity=ERROR",
    "-Dlog4j2.configurationFile=log4j2.properties",
)
"""A small JVM that starts fast. ``SERVER_JVMFLAGS``, the variable of ZooKeeper's own scripts, adds to these."""
LOG4J = """\
appender.console.type=Console
appender.console.name=CONSOLE
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n%ex
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=CONSOLE
"""
DEFAULTS: Mapping[str, object] = {
    "tickTime": 2000,
    "initLimit": 10,
    "syncLimit": 5,
    "maxClientCnxns": 0,
    "4lw.commands.whitelist": "*",
    "admin.enableServer": "false",
    "autopurge.purgeInterval": 24,
}
"""Settings of ``zoo.cfg`` that ``settings`` may change."""
RESERVED = {"clientPort": "port", "clientPortAddress": "host", "dataDir": "data_dir", "dataLogDir": "data_dir"}
"""Settings that parameters of ``ZooKeeperServer`` decide."""

START_TIMEOUT = 120.0
"""Seconds. It takes one on an idle machine, and many more beside busy processes."""
LOCK_TIMEOUT = 3.0
"""Seconds for the JVMs of a process that was killed to end: they have its lock until then."""
POLL_INTERVAL, PROBE_TIMEOUT = 0.02, 2.0
"""Seconds between two questions to a server that starts, and for its answer."""
PORTS = range(20_000, 32_768)
"""Below the ports from which Linux and macOS take those of outgoing connections: while a node is down, no connection takes its
port."""

LOCK, MARKER, LOG, DATA = ".lock", "ottla-zookeeper.json", "zookeeper.log", "data"
"""The files in the data directory, and in the folder of each node."""
TAIL, TAIL_BYTES = 20, 1 << 16
"""Lines of a node's output in the error, and how much of the end of its log is searched for them."""


class ZooKeeperFailed(OttlaError):
    """A node ended by itself; ``output`` has the last lines that it wrote."""

    def __init__(self, message: str, output: list[str]) -> None:
        super().__init__(message)
        self.output = output


class _Node:
    """One server: its folder, its ports and its process."""

    def __init__(self, number: int, folder: Path, host: str, ports: tuple[int, int, int]) -> None:
        self.number, self.folder = number, folder
        self.host, (self.port, self.peer_port, self.election_port) = host, ports
        self.process: ChildProcess | None = None
        """``None`` before the first start, and after it was stopped or killed."""
        self._output_from = 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.exit_code() is None

    @property
    def address(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    def write_files(self, settings: Mapping[str, object], ensemble: Iterable[_Node]) -> None:
        (self.folder / DATA).mkdir(parents=True, exist_ok=True)
        # The paths are relative to the JVM's working directory, so that they need no escapes.
        own = {"dataDir": f"./{DATA}", "clientPort": self.port, "clientPortAddress": self.host}
        # Nodes talk to each other on the loopback address, wherever clients connect to.
        peers = {f"server.{peer.number}": f"127.0.0.1:{peer.peer_port}:{peer.election_port}" for peer in ensemble}
        lines = [_property(name, value) for name, value in {**DEFAULTS, **settings, **own, **peers}.items()]
        (self.folder / "zoo.cfg").write_text("".join(lines), encoding="ascii")
        (self.folder / "log4j2.properties").write_text(LOG4J, encoding="ascii")
        if peers:
            (self.folder / DATA / "myid").write_text(f"{self.number}\n", encoding="ascii")

    def spawn(self, command: list[str], lock: int) -> None:
        self.kill()  # if it has ended by itself, this ends its watcher
        log = self.folder / LOG
        self._output_from = log.stat().st_size if log.exists() else 0
        # In the locale "C" Java could open no file whose path is not ASCII.
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        self.process = ChildProcess(command, folder=self.folder, output=log, environment=environment, inherited=[lock])

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.process = None

    def mode(self) -> str | None:
        """Return ``standalone``, ``leader``, ``follower`` or ``observer``, or ``None`` while the node does not serve clients."""
        try:
            with socket.create_connection((_reachable(self.host), self.port), PROBE_TIMEOUT) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return None
        modes = [line.removeprefix(b"Mode: ").decode() for line in answer.splitlines() if line.startswith(b"Mode: ")]
        return modes[0] if modes else None

    def check(self) -> None:
        """Raise ``ZooKeeperFailed`` if the process has ended by itself."""
        code = None if self.process is None else self.process.exit_code()
        if code is None:
            return
        output = self._output()
        errors = [line for line in output if "Exception" in line or "Error" in line]
        reason = (errors or output or ["it has written no output"])[-1].strip()
        ended = f"signal {-code} ended it" if code < 0 else f"it has ended with exit code {code}"
        raise ZooKeeperFailed(f"node {self.number} of ZooKeeper does not run, {ended}: {reason}", output)

    def _output(self) -> list[str]:
        """The last lines that the process has written, without the stacks of exceptions."""
        with (self.folder / LOG).open("rb") as log:
            log.seek(max(self._output_from, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("\t")][-TAIL:]


class ZooKeeperServer:
    """A ZooKeeper server, or an ensemble, for tests and experiments::

        with ZooKeeperServer() as server:
            client = KazooClient(server.connect_string)

    ``data_dir``: where the data is stored; ``None`` for a temporary folder that is deleted with the server. ``port``: that of the
    first node, each further one has the next port; 0 picks free ones. ``nodes``: 1, or the size of an ensemble, as it was when the
    data directory was created. ``host``: where clients connect to. ``jars``: a folder that has the jars of ZooKeeper 3.5 or newer;
    ``None`` for those of the installed PySpark. ``settings``: settings of ``zoo.cfg``, by ZooKeeper's names: a client can have a
    session time-out of 2 to 20 times ``tickTime``, which is 2000 (milliseconds).

    The constructor starts all nodes. It raises ``ConfigError`` for an invalid argument or an address that it cannot listen on,
    ``StorageError`` for a folder that it cannot use, ``ZooKeeperFailed``, with a node's output, if that node ends, and
    ``OttlaError`` if Java or a jar is missing. Nodes have the numbers 1, 2, ...; one thread at a time may call the methods.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        *,
        nodes: int = 1,
        host: str = "127.0.0.1",
        jars: str | os.PathLike[str] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        _check_settings(settings or {})
        if nodes < 1:
            raise ConfigError(f"nodes={nodes}: an ensemble has at least one node")
        java, jar_paths = find_java(REQUIRED_JAVA), find_jars(None if jars is None else Path(jars))
        self._command = [java, *JVM_OPTIONS, *([] if data_dir is not None else ["-Dzookeeper.forceSync=no"])]
        self._command += [*_additional_jvm_options(), "-cp", os.pathsep.join(map(str, jar_paths))]
        self._command += [STANDALONE if nodes == 1 else QUORUM_PEER, "./zoo.cfg"]
        self._pid = os.getpid()
        self._temporary: TemporaryFolder | None = None
        self._lock = -1
        self._nodes: dict[int, _Node] = {}
        try:
            self.data_dir = self._open_data_dir(None if data_dir is None else Path(data_dir).absolute(), nodes)
            ports = _find_ports(host, port, nodes)
            self._nodes = {
                number: _Node(number, self.data_dir / f"node-{number}", host, ports[number - 1]) for number in range(1, nodes + 1)
            }
            for node in self._nodes.values():
                node.write_files(settings or {}, self._nodes.values() if nodes > 1 else ())
            self.start()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, OttlaError):
                raise StorageError(f"ZooKeeper cannot be started: {error}", cause=error) from error
            raise

    def __repr__(self) -> str:
        return f"<ZooKeeperServer {'closed' if self._lock < 0 else f'on {self.connect_string}'}>"

    def __reduce__(self) -> NoReturn:
        # A copy would stop the processes when it is closed.
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: create one where it is used")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def hosts(self) -> tuple[str, ...]:
        """``HOST:PORT`` of each node."""
        return tuple(node.address for node in self._nodes.values())

    @property
    def connect_string(self) -> str:
        """The addresses of all nodes, as ``zookeeper.connect`` and clients of ZooKeeper take them: ``HOST:PORT,HOST:PORT``."""
        return ",".join(self.hosts)

    def pid(self, node: int = 1) -> int:
        """Return the process id of a node that runs, for signals such as SIGSTOP."""
        process = self._node(node).process
        if process is None:
            raise IllegalStateError(f"node {node} of ZooKeeper does not run", hint="start() starts it")
        return process.pid

    def modes(self) -> dict[int, str | None]:
        """Return for each node ``"standalone"``, ``"leader"`` or ``"follower"``; ``None`` if it does not serve clients."""
        return {number: node.mode() for number, node in self._nodes.items()}

    def leader(self) -> int:
        """Return the number of the node that leads the ensemble; a single node is its own leader. Waits for an election.

        Raises ``OttlaTimeoutError`` if there is no leader after ``START_TIMEOUT``.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            for number, mode in self.modes().items():
                if mode in ("leader", "standalone"):
                    return number
            self._wait(deadline, "there is no leader")

    def start(self, *nodes: int) -> None:
        """Start those of the nodes that do not run, by default all, with their data, and wait until they serve clients.

        Raises ``ZooKeeperFailed`` if one ends, ``OttlaTimeoutError`` after ``START_TIMEOUT``: an ensemble serves clients only while
        more than half of its nodes run.
        """
        if self._lock < 0:
            raise IllegalStateError("this ZooKeeper server is closed")
        starting = [node for node in self._selected(nodes) if not node.is_running]
        for node in starting:
            node.spawn(self._command, self._lock)
        deadline = time.monotonic() + START_TIMEOUT
        for node in starting:
            while node.mode() is None:
                self.check()
                self._wait(deadline, f"node {node.number} does not serve clients; its output is in {node.folder / LOG}")

    def stop(self, *nodes: int) -> None:
        """Stop nodes, by default all, with SIGTERM; one that does not end is killed."""
        selected = self._selected(nodes)
        for node in selected:
            if node.process is not None:
                node.process.terminate()
        for node in selected:
            node.stop()

    def kill(self, *nodes: int) -> None:
        """Kill nodes, by default all, with SIGKILL. What clients have written is still there after a start."""
        for node in self._selected(nodes):
            node.kill()

    def restart(self, *nodes: int) -> None:
        """Stop nodes, by default all, and start them again on their ports."""
        self.stop(*nodes)
        self.start(*nodes)

    def check(self) -> None:
        """Raise ``ZooKeeperFailed`` if a node has ended by itself, that is, neither ``stop`` nor ``kill`` has ended it."""
        for node in self._nodes.values():
            node.check()

    def close(self) -> None:
        """Stop all nodes, and delete a temporary folder. Does nothing the second time, and in a forked child."""
        if os.getpid() != self._pid:
            return
        try:
            if self._temporary is None:
                self.stop()
        finally:
            for node in self._nodes.values():
                node.kill()
            if self._temporary is not None:
                self._temporary.remove()
                self._temporary = None
            if self._lock >= 0:
                lock, self._lock = self._lock, -1
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for copies of the descriptor, such as that of a forked child
                os.close(lock)

    def _node(self, number: int) -> _Node:
        if number not in self._nodes:
            raise ConfigError(f"there is no node {number} of ZooKeeper: the nodes are {', '.join(map(str, self._nodes))}")
        return self._nodes[number]

    def _selected(self, numbers: tuple[int, ...]) -> list[_Node]:
        return [self._node(number) for number in numbers or self._nodes]

    def _wait(self, deadline: float, otherwise: str) -> None:
        if time.monotonic() > deadline:
            raise OttlaTimeoutError(f"ZooKeeper: after {START_TIMEOUT:g} s {otherwise}")
        time.sleep(POLL_INTERVAL)

    def _open_data_dir(self, path: Path | None, nodes: int) -> Path:
        """Lock the data directory and return it."""
        if path is None:
            remove_abandoned()
            self._temporary = TemporaryFolder("zookeeper")
            path = self._temporary.path / "data"
        try:
            path.mkdir(parents=True, exist_ok=True)
            _check_owned(path, nodes)
            self._lock = _lock(path)
            _check_owned(path, nodes)  # again: another process may have created it before this one got the lock
            draft = path / f"{MARKER}.tmp"
            draft.write_text(json.dumps({"version": 1, "nodes": nodes}) + "\n", encoding="ascii")
            draft.replace(path / MARKER)
        except OSError as error:
            raise StorageError(f"data directory {path} cannot be used: {error.strerror or error}") from error
        return path


def _check_owned(path: Path, nodes: int) -> None:
    """Raise ``StorageError`` if the directory has other files, or an ensemble of another size."""
    try:
        content = (path / MARKER).read_text(encoding="utf-8")
    except FileNotFoundError:
        others = sorted({entry.name for entry in path.iterdir()} - {LOCK, f"{MARKER}.tmp"})
        if others:
            raise StorageError(
                f"data directory {path} was not created by `ottla zookeeper`, it has other files: {', '.join(others[:5])}",
                hint="give a folder that is empty or does not exist",
            ) from None
        return
    try:
        size = int(json.loads(content)["nodes"])
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(f"data directory {path}: {MARKER} is damaged: {error!r}") from error
    if size != nodes:
        raise StorageError(
            f"data directory {path} is that of {size} node{'s' * (size > 1)}, not of {nodes}",
            hint="start it with the same number of nodes, or give another folder",
        )


def _lock(path: Path) -> int:
    """Lock the directory and return the descriptor that holds the lock, which the JVMs inherit."""
    opened = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # At least 10, since the shell of ChildProcess uses the lower ones.
        lock = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(opened)
    deadline = time.monotonic() + LOCK_TIMEOUT
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            if time.monotonic() > deadline:
                raise StorageError(
                    f"data directory {path} is in use by another ZooKeeper server",
                    hint="stop that one, or give this one another directory",
                )
            time.sleep(POLL_INTERVAL)
    except BaseException:
        os.close(lock)
        raise


def _additional_jvm_options() -> list[str]:
    flags = os.environ.get("SERVER_JVMFLAGS", "")
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise ConfigError(f"SERVER_JVMFLAGS={flags!r} cannot be split into options: {error}", cause=error) from error


def _check_settings(settings: Mapping[str, object]) -> None:
    for name, value in settings.items():
        if name in RESERVED or name.startswith("server."):
            hint = f"it follows from {RESERVED.get(name, 'nodes')}"
            raise ConfigError(f"the setting {name} of ZooKeeper cannot be given", hint=hint)
        if not name or not str(value).strip():
            raise ConfigError(f"the setting {name!r} of ZooKeeper has no {'value' if name else 'name'}")


def _property(name: str, value: object) -> str:
    """Return a line of a Java properties file, in ASCII."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    utf_16 = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(utf_16[at : at + 2], "big") for at in range(0, len(utf_16), 2)]
    escaped = "".join(chr(unit) if 0x20 < unit < 0x7F and unit != 0x5C else f"\\u{unit:04x}" for unit in units)
    return f"{name}={escaped}\n"


def _find_ports(host: str, first: int, nodes: int) -> list[tuple[int, int, int]]:
    """Return for each node a port for clients, one for its peers and one for elections."""
    if not 0 <= first <= 65536 - nodes:
        raise ConfigError(f"port {first} is not between 0 and {65536 - nodes}", hint=f"each of {nodes} nodes needs a port")
    # Not the shared generator: test runs in parallel processes seed it alike, and would choose the same ports.
    candidates = iter(random.SystemRandom().sample(PORTS, len(PORTS)))
    clients = range(first, first + nodes) if first else [_free_port(host, candidates) for _ in range(nodes)]
    if first:
        for port in clients:
            _try_port(host, port)
    if nodes == 1:
        return [(clients[0], 0, 0)]
    used = set(clients)
    others = (port for port in candidates if port not in used)
    return [(port, _free_port("127.0.0.1", others), _free_port("127.0.0.1", others)) for port in clients]


def _free_port(host: str, candidates: Iterable[int]) -> int:
    failed: ConfigError | None = None
    for port in candidates:
        try:
            _try_port(host, port)
        except ConfigError as error:
            if isinstance(error.cause, socket.gaierror):
                raise
            failed = error
        else:
            return port
    raise failed or ConfigError("there is no free port")


def _try_port(host: str, port: int) -> None:
    """Raise ``ConfigError`` if no server can listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does
            probe.bind(address)
    except (OSError, ValueError) as error:  # a name that IDNA cannot encode is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {_bracketed(host)}:{port}: {reason}",
            hint="use another port, or port 0 for one that is free; host is a name or an address of this machine",
            cause=error,
        ) from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _reachable(host: str) -> str:
    """Return the address at which this process reaches a server that listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
