"""``Broker``: a durable, wire-compatible Kafka broker inside this process, as a context manager.

Owns the public API of the embedded broker and its temporary folder. Must not know how a broker works. Invariant: a folder that was
created here is removed here, by the process that created it and by no other.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ottla import arguments
from ottla.assignors import PartitionAssignor
from ottla.errors import ConfigError, IllegalStateError, OttlaError, StorageError
from ottla.faults import Faults

if TYPE_CHECKING:
    from ottla.runtime.broker_node import BrokerNode
    from ottla.runtime.temporary import TemporaryFolder

_CONNECT = "zookeeper.connect"


class Broker:
    """An embedded broker, for laptops, tests and small jobs::

        with Broker() as broker:
            consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, ...)

    ``data_dir``: where logs are stored, in Kafka's own format; ``None`` for a temporary folder that is deleted with the broker, or,
    if the process is killed, when a broker without ``data_dir`` starts the next time.
    Acknowledged records survive a killed process, but a power failure only with ``settings={"log.flush.interval.messages": 1}``.
    ``port``: 0 picks a free one, which the broker keeps when it is closed and started again. ``settings``: the supported broker
    settings, by Kafka's names. ``assignors``: your own assignors for consumer groups, by the name that members select
    (``group.remote.assignor``) or that ``group.consumer.assignors`` makes the default.

    ``zookeeper``: ``HOST:PORT,HOST:PORT/CHROOT``, the setting ``zookeeper.connect``: the brokers with the same one are a cluster,
    and each has its share of the partitions (``pip install 'ottla[zookeeper]'``). Nothing is replicated: the partitions of a closed
    broker come back with it, so give each its own ``data_dir``. The constructor waits until the broker is registered.

    Starting raises ``ConfigError`` for an invalid setting or an address that it cannot listen on, and ``StorageError`` for a folder
    that it cannot use: locked by another broker, not writable, of another node or cluster. With ``zookeeper`` also
    ``ConfigError`` for a node id that another broker has, and ``ConnectionFailedError`` without a connection. On Windows it raises
    ``OttlaError``: the broker runs on Linux and macOS.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        zookeeper: str | None = None,
        settings: Mapping[str, object] | None = None,
        assignors: Mapping[str, PartitionAssignor] | None = None,
    ) -> None:
        self._data_dir = None if data_dir is None else _absolute(arguments.path(data_dir, "data_dir"))
        self._address = (arguments.string(host, "host"), arguments.integer(port, "port", 0, 65535))
        self._settings = _with_zookeeper(arguments.mapping({} if settings is None else settings, "settings"), zookeeper)
        self._assignors = arguments.server_assignors(assignors)
        self._node: BrokerNode | None = None
        self._temporary: TemporaryFolder | None = None
        self._pid = os.getpid()
        self._changing = threading.RLock()  # a signal's handler may call close() in the middle of it
        """Held by the thread that starts or closes the broker."""
        self._faults = Faults(self._running)
        self.start()

    def __repr__(self) -> str:
        return f"<Broker {'closed' if self._node is None else 'on {}:{}'.format(*self._node.endpoint)}>"

    def __reduce__(self) -> NoReturn:
        # A copy would share the thread, and stop it when it is closed.
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: create one where it is used")

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """``HOST:PORT``, for clients. Raises if the broker is closed or has failed."""
        if os.getpid() != self._pid and self._node is not None:
            host, port = self._node.endpoint
        else:
            host, port = self._running().endpoint
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def faults(self) -> Faults:
        """The failures that tests script: see ``Faults``."""
        return self._faults

    @property
    def data_dir(self) -> Path:
        """Where the logs are stored: an absolute path."""
        if self._data_dir is not None:
            return self._data_dir
        if self._temporary is None:
            raise IllegalStateError("this broker is closed, and its temporary folder was deleted")
        return self._temporary.path

    def start(self) -> None:
        """Start a closed broker again, on its former port; does nothing if it is running. The constructor calls it.

        Raises what the constructor raises: ``ConfigError`` if another program has taken the port. May be called from any thread.
        """
        if os.getpid() != self._pid and self._node is not None:
            self._node.check()
        with self._changing:
            self._start()

    def _start(self) -> None:
        if self._node is not None:
            self._node.check()
            return
        if sys.platform == "win32":
            raise OttlaError(
                "the embedded broker runs on Linux and macOS; on Windows only Ottla's clients run",
                hint="run the broker in WSL or in a container, and pass its address as bootstrap_servers",
            )
        # Imported here, since it needs fcntl, which Windows does not have: this module must be importable there, to raise the
        # above.
        from ottla.runtime.broker_node import BrokerNode
        from ottla.runtime.temporary import TemporaryFolder, remove_abandoned

        if self._data_dir is None:
            try:
                remove_abandoned()
                self._temporary = TemporaryFolder("broker")
            except OSError as error:
                raise StorageError(
                    f"no temporary folder can be made: {error}", hint="pass data_dir, or set TMPDIR to a folder with space"
                ) from error
        try:
            self._node = BrokerNode(
                self.data_dir,
                *self._address,
                self._settings,
                durable=self._data_dir is not None,
                on_strike=self._faults.on_strike,
                assignors=self._assignors,
            )
        except BaseException:
            self._remove_temporary()
            raise
        self._pid = os.getpid()  # a forked child may start a broker that was closed before
        self._address = (self._address[0], self._node.port)
        _open.add(self)

    def close(self) -> None:
        """Stop the broker; does nothing the second time, and in a forked child. May be called from any thread.

        If Ctrl-C interrupts it, another call, or the end of the process, continues.
        """
        if os.getpid() != self._pid:
            return
        with self._changing:
            node = self._node
            if node is None:
                return
            self._faults.forget()
            try:
                node.stop()
            finally:
                if node.has_ended and self._node is node:
                    self._remove_temporary()
                    _open.discard(self)
                    self._node = None

    def _running(self) -> BrokerNode:
        if self._node is None:
            raise IllegalStateError("this broker is closed")
        self._node.check()
        return self._node

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None


def _with_zookeeper(settings: Mapping[str, object], zookeeper: str | None) -> Mapping[str, object]:
    if zookeeper is None:
        return settings
    connect = arguments.text(zookeeper, "zookeeper")
    given = settings.get(_CONNECT, connect)
    if given != connect:
        raise ConfigError(f"zookeeper={connect!r} and {_CONNECT}={given!r} contradict each other", hint="give one of them")
    return {**settings, _CONNECT: connect}


def _absolute(path: Path) -> Path:
    """Return an absolute path: the process may change its working directory while the broker uses it."""
    try:
        return path.absolute()
    except OSError as error:
        raise StorageError(
            f"data_dir={path} cannot be used: the current folder: {error.strerror}", hint="pass an absolute path"
        ) from error


_open: weakref.WeakSet[Broker] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Shut down brokers that the user has not closed."""
    for broker in list(_open):
        broker.close()
