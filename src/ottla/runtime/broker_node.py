"""A whole broker in this process: the start and stop of data directory, listening socket, core, loop and ZooKeeper session.

Owns the order of starting and stopping, the broker's thread, and the garbage collector's highest threshold while logs are read.
Must not know requests. Invariants: a failed start is undone; ``stop`` leaves a data directory that needs no scan, unless the loop
itself has failed; the directory is released when no thread works on it any more, and not before; a broker that does not serve is
not registered in ZooKeeper, but for the moment in which one takes the place of another address; a forked child only closes its
copies of descriptors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import logging
import os
import socket
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ottla.assignors import PartitionAssignor
from ottla.broker.catalog import Endpoint
from ottla.broker.config import BrokerConfig, broker_config
from ottla.broker.core import BrokerCore
from ottla.broker.effects import BrokerEffect
from ottla.broker.faults.rules import Command
from ottla.errors import ConfigError, ForkedError, IllegalStateError, OttlaError, StorageError
from ottla.runtime import clock
from ottla.runtime.data_dir import DataDir, read_identity
from ottla.runtime.descriptors import raise_limit
from ottla.runtime.disk import DiskWorkers
from ottla.runtime.server import Server
from ottla.types import uuid_text

if TYPE_CHECKING:
    from ottla.broker.zookeeper.start import FoundTopics, JoinedCluster
    from ottla.runtime.broker_zookeeper import BrokerSession

_BACKLOG = 512
_CHECK_EVERY = 1.0
"""Seconds between two checks that the loop still runs, while a command waits for it."""
_LOG_EVERY_MS = 5_000
"""Milliseconds between two log lines about a long shutdown."""

_WILDCARDS = ("", "0.0.0.0", "::")
_LISTENER_SCHEME = "PLAINTEXT://"
_NO_FULL_COLLECTION = 2**31 - 1

log = logging.getLogger("ottla.broker")


class RandomIds:
    """Random ids of the operating system."""

    def new_uuid(self) -> uuid.UUID:
        """Return a topic id."""
        return uuid.uuid4()

    def new_id(self) -> str:
        """Return the unique part of a member id."""
        return str(uuid.uuid4())


class FullCollections:
    """The full collections of Python's garbage collector, which any number of brokers may disable while they read their logs.

    The loaded objects stay alive, and each full collection would traverse all of them again: that took a third of the time in which
    100,000 groups are loaded. Young garbage is collected as usual. After the last broker has read its logs the threshold is the
    former one, unless the application has set another, also in a forked child.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._usual = gc.get_threshold()

    def put_off(self) -> None:
        """Disable them until ``resume`` was called as often as this."""
        with self._lock:
            if not self._count:
                self._usual = gc.get_threshold()
                gc.set_threshold(*self._usual[:2], _NO_FULL_COLLECTION)
            self._count += 1

    def resume(self) -> None:
        """Undo one ``put_off``; the last one restores the threshold."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self._restore()

    def forked(self) -> None:
        """In a forked child: the code that disabled it does not run here."""
        self._lock = threading.Lock()
        if self._count:
            self._count = 0
            self._restore()

    def _restore(self) -> None:
        if gc.get_threshold()[2] == _NO_FULL_COLLECTION:
            gc.set_threshold(*self._usual)


FULL_COLLECTIONS = FullCollections()
os.register_at_fork(after_in_child=FULL_COLLECTIONS.forked)


class BrokerNode:
    """A broker on one data directory and one port. ``durable`` False: the directory is temporary, so nothing is forced to disk.

    ``on_strike`` is called, on the broker's thread, with the scripted fault that has struck.

    The constructor starts it, and with ZooKeeper waits until it is registered. Raises ``ConfigError`` for invalid settings, an
    address that it cannot listen on or a node id that another broker has, ``StorageError`` for a directory that it cannot use, and
    ``ConnectionFailedError`` without a connection to ZooKeeper.
    """

    def __init__(
        self,
        data_dir: Path,
        host: str,
        port: int,
        settings: Mapping[str, object],
        *,
        durable: bool = True,
        on_strike: Callable[[int], None] = lambda fault: None,
        assignors: Mapping[str, PartitionAssignor] = MappingProxyType({}),
    ) -> None:
        config = broker_config(settings)
        self._on_strike = on_strike
        self._pid = os.getpid()
        self._durable = durable
        self._assignors = assignors
        self._failure: BaseException | None = None
        self._zookeeper: BrokerSession | None = None
        self._workers = DiskWorkers()
        self._stopping = threading.RLock()
        self._is_stopping = False
        self._stopped = self._is_releasing = False
        self.has_ended = False
        """Whether ``stop`` has nothing left to do."""
        raise_limit()  # before the data directory is opened: how many files it keeps open depends on it
        self._listener = _bound(host, port)
        try:
            self.port: int = self._listener.getsockname()[1]
            self.endpoint = _advertised(config, host, self.port)
            joined = _join(config, data_dir)
            if joined is None:
                self._data = DataDir(data_dir, config.node_id, durable=durable)
            else:
                config = dataclasses.replace(config, node_id=joined.node_id)
                self._data = DataDir(data_dir, joined.node_id, joined.cluster_id, durable=durable)
        except BaseException:
            self._listener.close()
            raise
        try:
            self._start(config, joined, host, port)
        except OSError as error:
            self._undo_start()
            raise StorageError(f"the logs in {data_dir} cannot be read: {error}") from error
        except BaseException:
            self._undo_start()
            raise
        if self._zookeeper is not None:
            self._register(self._zookeeper, host, port)

    def check(self) -> None:
        """Raise if this broker does not run: it was stopped, has failed, or belongs to the parent process."""
        if os.getpid() != self._pid:
            raise ForkedError("this broker belongs to the process that started it")
        if self._failure is not None:
            raise OttlaError(f"the broker has failed: {self._failure!r}", hint="its log says more", cause=self._failure)
        if self._stopped:
            raise IllegalStateError("this broker is closed", hint="if close() was interrupted, call it again")

    def command(self, command: Command) -> int:
        """Carry out a command on the broker's thread; return its count. Raises if this broker does not run."""
        self.check()
        return self._result(self._server.command(command))

    def close_connections(self, client_id: str | None) -> int:
        """Close the connections of a client, or all; returns how many."""
        self.check()
        return self._result(self._server.close_connections(client_id))

    def _result(self, future: Future[int]) -> int:
        while True:
            try:
                return future.result(timeout=_CHECK_EVERY)
            except (TimeoutError, CancelledError):
                self.check()  # raises if the loop has ended meanwhile

    def stop(self) -> None:
        """Stop the broker cleanly. Does nothing once that is done, or in a forked child.

        If Ctrl-C interrupts it, another call continues. Until then the directory stays locked, since threads may still work on it.
        """
        if os.getpid() != self._pid:
            return
        with self._stopping:
            if self.has_ended or self._is_stopping:  # a signal handler may call it while this thread is in it
                return
            self._is_stopping = True
            try:
                self._stop()
            finally:
                self._is_stopping = False

    def _stop(self) -> None:
        self._stopped = True
        # In the other order: 1. The listening socket is closed. 2. A client asks another broker for the leader of a partition, gets
        # the address of this one, and cannot connect. 3. This repeats until the session ends. So this broker first disappears from
        # ZooKeeper, and serves until then; no other broker takes its partitions.
        self._end_session()
        self._server.stop()
        self._thread.join()
        try:
            if self._durable and self._failure is None and not self._is_releasing:
                self._run_shutdown_jobs()
                self._data.mark_clean_shutdown()
        except OSError as error:
            gone = self._data.is_removed
            self._release()
            what = "its data directory was removed or renamed" if gone else "the next start will scan its logs"
            raise StorageError(f"the broker could not shut down cleanly, {what}: {error}") from error
        except Exception:
            self._release()
            raise
        self._release()

    def _release(self) -> None:
        self._is_releasing = True
        self._data.release()
        _running.discard(self)
        self.has_ended = True

    def _run_shutdown_jobs(self) -> None:
        """Run the jobs that complete a clean shutdown."""
        said, done = clock.now().mono, 0
        for jobs in self._core.close():
            self._workers.run_all(jobs)
            done += len(jobs)
            if clock.now().mono - said >= _LOG_EVERY_MS:
                said = clock.now().mono
                log.warning("the broker is shutting down: %d logs are flushed, others are still being flushed", done)

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's descriptors, which otherwise keep the port and the directory in use
        when the parent closes them."""
        self._server.close_files()
        self._data.abandon()
        if self._zookeeper is not None:
            self._zookeeper.abandon()

    def _start(self, config: BrokerConfig, joined: JoinedCluster | None, host: str, port: int) -> None:
        self._core = BrokerCore(config, self.endpoint, self._data, RandomIds(), self._assignors)
        found = None if joined is None else _find_topics(config, joined)
        registered = None if found is None else found.topics_with(self._data.read_catalog().topics)
        warnings, effects = self._core.start(clock.now(), registered, None if joined is None else joined.first_producer_id)
        for warning in warnings:
            log.warning("%s", warning)
        # Another address is that of another broker with this id, or of the last process: a client must not take this one for it.
        self._is_listening = found is None or found.registered_at in (None, self.endpoint)
        try:
            if self._is_listening:
                self._listener.listen(_BACKLOG)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        self._server = Server(self._core, self._listener, clock.now, self._on_strike, self._data.close_files)
        if joined is not None:
            from ottla.runtime.broker_zookeeper import BrokerSession

            self._zookeeper = BrokerSession(config, self._server)
        self._thread = threading.Thread(target=self._run, name="ottla-broker", daemon=True)
        try:
            self._serve(effects)
        except BaseException:
            # No thread may work on the directory when it is released.
            self._server.stop()
            if self._thread.ident is None:
                self._server.close()
            else:
                self._thread.join()
            raise

    def _serve(self, effects: list[BrokerEffect]) -> None:
        FULL_COLLECTIONS.put_off()
        try:
            self._server.perform(effects)
        finally:
            self._server.run_in_background(
                FULL_COLLECTIONS.resume
            )  # on the disk thread, after the jobs of the effects, which load the groups
        self._server.run_in_background(self._data.remove_leftovers())
        self._thread.start()
        _running.add(self)

    def _register(self, zookeeper: BrokerSession, host: str, port: int) -> None:
        try:
            zookeeper.start(self.check)
            if not self._is_listening:
                self._listen(host, port)
        except BaseException:
            # Its loop runs and its logs are open, so it ends as every broker does, and the next start needs no scan.
            with contextlib.suppress(OttlaError):  # the error of the registration says more
                self.stop()
            raise

    def _listen(self, host: str, port: int) -> None:
        try:
            self._result(self._server.listen(_BACKLOG))
        except OSError as error:
            raise _cannot_listen(host, port, error) from error

    def _end_session(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.close()

    def _undo_start(self) -> None:
        self._listener.close()
        self._data.release()

    def _run(self) -> None:
        try:
            self._server.run()
        except BaseException as error:
            self._failure = error
            log.critical("the broker on %s:%d has failed and serves no more", *self.endpoint, exc_info=True)
        finally:
            self._end_session()  # if the loop has failed, it is still open
            self._server.close()


_running: weakref.WeakSet[BrokerNode] = weakref.WeakSet()


def _after_fork() -> None:
    for node in list(_running):
        node.abandon()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)


def _join(config: BrokerConfig, data_dir: Path) -> JoinedCluster | None:
    """Join the cluster in ZooKeeper; ``None`` without ZooKeeper: the broker is its whole cluster."""
    if not config.zookeeper_connect:
        return None
    from ottla.runtime.broker_zookeeper import join_cluster

    return join_cluster(config, read_identity(data_dir.absolute()), uuid_text(uuid.uuid4()))


def _find_topics(config: BrokerConfig, joined: JoinedCluster) -> FoundTopics:
    from ottla.runtime.broker_zookeeper import find_topics

    return find_topics(config, joined)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address and not listening yet: connections are refused until the logs are loaded."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} is not between 0 and 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:  # a name that IDNA cannot encode is a ValueError
        raise _cannot_listen(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from error
    return sock


def _cannot_listen(host: str, port: int, error: OSError | ValueError) -> ConfigError:
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
        hint = "use another port, or port 0 for one that is free; a broker that is started again needs the port that it had"
    else:
        hint = "host is a name or an address of this machine, without a port"
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"cannot listen on {host}:{port}: {reason}", hint=hint)


def _advertised(config: BrokerConfig, host: str, port: int) -> Endpoint:
    """Return the address that clients connect to."""
    listeners = config.advertised_listeners
    if not listeners:
        if host in _WILDCARDS:
            raise ConfigError(
                f"listening on {host or 'all addresses'}, clients need a name to connect to",
                hint=f"set advertised.listeners={_LISTENER_SCHEME}HOST:{port}",
            )
        return Endpoint(host, port)
    name, _, number = listeners.removeprefix(_LISTENER_SCHEME).rpartition(":")
    if not listeners.startswith(_LISTENER_SCHEME) or not name or not number.isdigit() or int(number) > 65535:
        raise ConfigError(f"advertised.listeners={listeners!r} must be {_LISTENER_SCHEME}HOST:PORT")
    return Endpoint(name.strip("[]"), int(number) or port)
