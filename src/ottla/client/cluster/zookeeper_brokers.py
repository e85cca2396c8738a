"""The brokers that ZooKeeper names: the bootstrap servers of a client that is configured with ``zookeeper.connect``.

Owns the reading of ``/brokers/ids``, the brokers found there, and the problem of a ZooKeeper that does not answer. Must not know
connections to brokers. Invariants: the list of ids is watched before the brokers are read, so no broker is missed; a malformed node
is logged once, and the other brokers count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.backoff import ExponentialBackoff
from ottla.client.effects import Poll
from ottla.config import ConsumerConfig, HostPort
from ottla.errors import ConnectionFailedError, KeeperCode, OttlaError
from ottla.types import Node, Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, Outcome, first_error, is_missing
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.nodes import decode_broker
from ottla.zookeeper.operations import Children, Exists, GetChildren, GetData
from ottla.zookeeper.session import Session, SessionChanged, SessionState, WatchFired

_log = logging.getLogger(__name__)


class ZooKeeperBrokers:
    """See the module. ``on_brokers`` gets the addresses whenever they were read."""

    def __init__(
        self,
        config: ConsumerConfig,
        session: Session,
        backoff: ExponentialBackoff,
        on_brokers: Callable[[tuple[HostPort, ...]], None],
    ) -> None:
        self.brokers: dict[int, Node] = {}
        """The brokers that were registered when they were last read."""
        self.has_named_any = False
        """Whether any broker was ever read."""
        self._config = config
        self._session = session
        self._backoff = backoff
        self._on_brokers = on_brokers
        self._asks = AskQueue(config.request_timeout_ms)
        self._due = True
        self._in_flight = False
        self._failures = self._not_before = 0
        self._malformed = MalformedNodes()
        self._was_read = False
        self._failure: OttlaError | None = None
        self._missing_since: int | None = None
        """Since when there is no connection to ZooKeeper; ``None``: there is one, or nothing was polled yet."""

    def __repr__(self) -> str:
        return f"<ZooKeeperBrokers {sorted(self.brokers)}>"

    @property
    def is_empty(self) -> bool:
        """Whether ZooKeeper was read and names no broker."""
        return self._was_read and not self.brokers

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Read again after a change, and after each connection, since a disconnection drops the watches."""
        del now
        if isinstance(event, WatchFired):
            self._due = self._due or event.path == paths.BROKER_IDS
        elif event.state is SessionState.CONNECTED:
            self._due, self._not_before = True, 0
            if self._was_read:
                _log.info("ZooKeeper is connected again%s", ", in another session" if event.is_new else "")
        elif event.state is SessionState.SUSPENDED:
            _log.warning("the connection to ZooKeeper (%s) is lost; reconnecting", self._config.zookeeper_connect)

    def poll(self, now: Now) -> Poll:
        """Return the reads that are due."""
        if self._session.state is SessionState.CONNECTED:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now.mono
        if self._due and not self._in_flight and self._missing_since is None and self._not_before <= now.mono:
            self._due, self._in_flight = False, True
            self._asks.ask(GetChildren(paths.BROKER_IDS, watch=True), self._on_ids, self._on_failure)
        return Poll(self._asks.take(), min((at for at in self._deadlines() if at > now.mono), default=None))

    def problem(self, now: Now) -> OttlaError | None:
        """Why the client cannot work: ZooKeeper does not answer."""
        config = self._config
        if self._missing_since is not None and now.mono - self._missing_since >= config.zookeeper_connection_timeout_ms:
            return self._not_connected(f"not connected within {config.zookeeper_connection_timeout_ms / 1000:g} s")
        return self._failure

    def none_known(self) -> OttlaError | None:
        """Why no broker is known, for a call that has timed out; ``None``: ZooKeeper or ``bootstrap.servers`` has named some."""
        if self.brokers or self._config.bootstrap_servers:
            return None
        if self._session.state is not SessionState.CONNECTED:
            return self._not_connected(self._session.state.value)
        return self._failure or self.none_registered()

    def none_registered(self, *, for_group: bool = False) -> OttlaError | None:
        """Why there is nothing to work with: ZooKeeper names no broker, and ``bootstrap.servers`` neither.

        A group needs those of ZooKeeper, whatever finds the cluster: the topics beside them are what its members share.
        """
        if not self.is_empty or (self._config.bootstrap_servers and not for_group):
            return None
        where = f"{paths.BROKER_IDS} of {self._config.zookeeper_connect}"
        return ConnectionFailedError("no broker is registered in ZooKeeper", {where: "empty"}, hint="check the chroot")

    def _not_connected(self, reason: str) -> OttlaError:
        servers = self._config.zookeeper_connect or ""
        hint = "check zookeeper_connect and that the servers are up"
        return ConnectionFailedError("ZooKeeper could not be reached", {servers: reason}, hint=hint)

    def _deadlines(self) -> list[int]:
        times = [self._not_before] if self._due else []
        if self._missing_since is not None:
            times.append(self._missing_since + self._config.zookeeper_connection_timeout_ms)
        return times

    def _on_ids(self, children: Children, now: Now) -> None:
        ids = paths.broker_ids(children.names)
        if not ids:
            return self._take({}, now)

        def read(outcomes: list[Outcome], now: Now) -> None:
            error = first_error(outcomes, KeeperCode.NONODE)
            if error is not None:
                return self._on_failure(error, now)
            found = {broker_id: self._decoded(broker_id, outcome) for broker_id, outcome in zip(ids, outcomes, strict=True)}
            brokers = {broker_id: node for broker_id, node in found.items() if node is not None}
            if not brokers and any(map(is_missing, outcomes)):
                return self._read_again(now)
            return self._take(brokers, now)

        return self._asks.ask_all([GetData(paths.broker(broker_id)) for broker_id in ids], read)

    def _decoded(self, broker_id: int, outcome: Outcome) -> Node | None:
        def decode(data: bytes, path: str) -> Node:
            return decode_broker(broker_id, data, path, self._config.security_protocol)

        return self._malformed.decoded(paths.broker(broker_id), outcome, decode)

    def _take(self, brokers: dict[int, Node], now: Now) -> None:
        del now
        self._in_flight, self._was_read, self._failure, self._failures = False, True, None, 0
        if brokers != self.brokers:
            names = ", ".join(f"{node.host}:{node.port}" for node in brokers.values())
            _log.info("ZooKeeper names the brokers %s", names or "none")
        self.brokers, self.has_named_any = brokers, self.has_named_any or bool(brokers)
        self._on_brokers(tuple(HostPort(node.host, node.port) for node in brokers.values()))

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        if is_missing(error):
            # Kafka was never started below this chroot. Brokers create the node.
            self._asks.ask(Exists(paths.BROKER_IDS, watch=True), self._on_missing, self._on_failure)
            return
        self._failure = None if error.retriable else error
        self._read_again(now)

    def _on_missing(self, stat: object, now: Now) -> None:
        if stat is not None:
            return self._read_again(now)
        return self._take({}, now)

    def _read_again(self, now: Now) -> None:
        """Read the list after a back-off, since it has changed or could not be read. Until then the known brokers count."""
        self._in_flight, self._due = False, True
        self._not_before = now.mono + self._backoff.delay(self._failures)
        self._failures += 1
