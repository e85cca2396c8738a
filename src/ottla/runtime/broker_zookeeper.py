"""A broker's way into ZooKeeper: it joins its cluster before its data is opened, and then has a session in its event loop.

Owns the connection of the start, the client of the session, and the wait for the registration. Must not know which nodes there are.
Nothing here is imported by a broker without ZooKeeper. Invariant: after ``close`` the broker is registered no more, or, if
ZooKeeper does not answer, only until its session expires.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from ottla.broker.config import BrokerConfig
from ottla.broker.effects import Registered
from ottla.broker.zookeeper.registration import patience
from ottla.broker.zookeeper.start import FoundTopics, JoinedCluster, create_root, join, read_topics
from ottla.errors import ConnectionFailedError, OttlaError
from ottla.runtime import clock
from ottla.runtime.data_dir import Identity
from ottla.runtime.server import Server
from ottla.runtime.zookeeper import ZooKeeperClient
from ottla.runtime.zookeeper_calls import ZooKeeperCalls
from ottla.runtime.zookeeper_probe import probe
from ottla.zookeeper.calls import Call, ResultT
from ottla.zookeeper.session import Disconnect, Perform, SessionReport

_CHECK_EVERY = 0.5
"""Seconds between two checks that the loop still runs."""
_PROBE_TIME = 1.0
"""Seconds in which the servers are asked why the broker could not be registered."""


def join_cluster(config: BrokerConfig, identity: Identity | None, new_cluster_id: str) -> JoinedCluster:
    """Join the cluster of ``zookeeper.connect``. ``identity``: whose data directory it is; ``None``: it is new.

    Raises ``ConnectionFailedError``, ``ConfigError``, ``StorageError``, and other ``OttlaError``.
    """
    servers, _, chroot = config.zookeeper_connect.partition("/")
    node_id, cluster_id = (None, None) if identity is None else identity
    if chroot.strip("/"):
        _run(servers, create_root("/" + chroot.strip("/"), cluster_id), config)  # as Kafka's broker does
    if "node.id" in config.given:
        node_id = config.node_id
    return _run(config.zookeeper_connect, join(node_id, cluster_id, new_cluster_id), config)


def find_topics(config: BrokerConfig, joined: JoinedCluster) -> FoundTopics:
    """Read the topics of the cluster that was joined. Raises as ``join_cluster`` does."""
    return _run(config.zookeeper_connect, read_topics(joined, delete_topic_enable=config.delete_topic_enable), config)


def _run(connect: str, call: Call[ResultT], config: BrokerConfig) -> ResultT:
    with closing(ZooKeeperCalls(connect)) as calls:
        return calls.run(call, config.zookeeper_connection_timeout_ms)


class BrokerSession:
    """The session of a broker that runs on ``server``. ``close`` may be called from any thread."""

    def __init__(self, config: BrokerConfig, server: Server) -> None:
        self._server = server
        self._client = ZooKeeperClient(config.zookeeper_connect, config.zookeeper_session_timeout_ms, self._post)
        self._timeout = patience(config) + config.zookeeper_connection_timeout_ms
        self._has_outcome = threading.Event()
        self._error: OttlaError | None = None
        self._is_closing = False
        server.carry_out({Perform: self._client.perform, Disconnect: self._client.perform, Registered: self._on_registered})

    def start(self, check: Callable[[], object]) -> None:
        """Connect, and wait until the broker is registered. ``check`` raises if the broker has failed meanwhile.

        Raises the error of the registration, or ``ConnectionFailedError`` after both time-outs: the session of the broker's last
        process may have to expire first.
        """
        self._client.start()
        give_up_at = clock.monotonic() + self._timeout / 1000
        while not self._has_outcome.wait(max(min(_CHECK_EVERY, give_up_at - clock.monotonic()), 0)):
            check()
            if clock.monotonic() >= give_up_at:
                text = f"the broker was not registered in ZooKeeper within {self._timeout / 1000:g} s"
                raise ConnectionFailedError(text, probe(self._client.servers, _PROBE_TIME))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the session. Closing twice does no harm."""
        self._is_closing = True
        self._client.close()

    def abandon(self) -> None:
        """In a forked child: close its copy of the parent's connection."""
        self._client.abandon()

    def _post(self, report: SessionReport) -> None:
        if not self._is_closing:  # the core would warn of the end of its session
            self._server.on_session_report(report)

    def _on_registered(self, effect: Registered) -> None:
        self._error = effect.error
        self._has_outcome.set()
