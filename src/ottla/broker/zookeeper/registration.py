"""The registration of this broker in ZooKeeper, and the brokers that are registered.

Owns the ephemeral node of this broker, and the reading of the others. Must not know topics, or what a partition's state is.
Invariants: a node of another session is neither overwritten nor deleted, be it that of an earlier process or of a second broker
with the same id; the node is created only after all topics were read in this session and the states of this broker's partitions
are written, so clients that find it can read and write; while another broker is registered with the id of this one, at another
address, this one leads nothing and writes no states. With the same address it is the last process of this very broker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.config import BrokerConfig
from ottla.broker.effects import NodeEndpoint, Registered
from ottla.broker.zookeeper.backlog import Backlog
from ottla.broker.zookeeper.manager import ManagerPoll
from ottla.broker.zookeeper.session_log import SessionLog
from ottla.broker.zookeeper.states import PartitionStates
from ottla.broker.zookeeper.topics import TopicRegistry
from ottla.errors import ConfigError, KeeperCode, OttlaError, ProtocolError
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, Outcome, first_error, has_code, is_missing
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.nodes import decode_broker, decode_start, encode_broker
from ottla.zookeeper.operations import Children, Create, GetChildren, GetData, Node, SetData
from ottla.zookeeper.session import Session, SessionChanged, SessionState, WatchFired

_log = logging.getLogger(__name__)


_LEAST_SESSION = 6_000
"""Milliseconds. A server raises a shorter time-out to two of its ticks, 4 or 6 s as it is usually set up, and tells only kazoo."""


def patience(config: BrokerConfig) -> int:
    """Return the milliseconds after which the session of an earlier process has surely ended."""
    return max(config.zookeeper_session_timeout_ms, _LEAST_SESSION) * 5 // 4


class BrokerRegistration:
    """See the module."""

    def __init__(self, catalog: BrokerCatalog, session: Session, topics: TopicRegistry, states: PartitionStates) -> None:
        config = catalog.config
        self.is_registered = False
        """Whether the node of this broker exists in this session, as far as is known."""
        self._catalog = catalog
        self._session = session
        self._topics = topics
        self._states = states
        self._connect = config.zookeeper_connect
        self._patience = patience(config)
        self._asks = AskQueue(config.zookeeper_connection_timeout_ms)
        self._path = paths.broker(catalog.node_id)
        self._data: bytes | None = None
        """What this process writes into its node."""
        self._backlog: Backlog[str] = Backlog(2)
        """The path of the list of brokers, if it is to be read, and that of the own node, if it is to be written."""
        self._is_taken = False
        """Whether another session has the node, which is watched."""
        self._patient_until: int | None = None
        """Until when that may be an earlier process; ``None``: no other session has the node, or that was reported."""
        self._is_in_conflict = False
        """Whether it was reported that another broker has the id."""
        self._was_registered = False
        """Whether that has happened since the start."""
        self._session_log = SessionLog(config.zookeeper_connect)
        self._is_refused = False
        """Whether it was reported that this process never will be registered."""
        self._czxids: dict[int, int] = {}
        """Broker -> the transaction that has created its node: another one for another process, or another session."""
        self._appeared: dict[int, None] = {}
        """Brokers whose leader epochs are to be read."""
        self._malformed = MalformedNodes()

    def __repr__(self) -> str:
        return f"<BrokerRegistration {self._path} {'registered' if self.is_registered else 'not registered'}>"

    @property
    def is_due(self) -> bool:
        """Only ZooKeeper makes something due here."""
        return False

    # -- the session ------------------------------------------------------------------------------------------------------

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Read the brokers again after a change, and after each connection, since a disconnection drops the watches."""
        if isinstance(event, SessionChanged):
            self._session_log.on_changed(event, now)
            return self._on_session(event)
        if event.path == paths.BROKER_IDS:
            self._backlog.add(paths.BROKER_IDS)
        elif event.path == self._path:
            # Perhaps it is free: the next attempt to create it will tell. If one is in progress, what it has read may be older.
            self._is_taken = False
            if self._path in self._backlog:
                self._backlog.add(self._path)
        return None

    def _on_session(self, event: SessionChanged) -> None:
        self._asks.abandon()
        self._backlog.clear()
        self._is_taken = self._states.may_write = False
        # Also in the same session: a server that was away lets each session begin again when it is back.
        self._patient_until = None
        if event.is_new or event.state is SessionState.LOST:
            self.is_registered = self._is_in_conflict = False
        if event.state is SessionState.CONNECTED:
            self._backlog.add(paths.BROKER_IDS)

    def poll(self, now: Now) -> ManagerPoll:
        """Return what to read and write."""
        if self._data is None:
            self._data = encode_broker(self._catalog.cluster.me.host, self._catalog.cluster.me.port, now.wall)
        line_at = self._session_log.poll(now)
        if self._session.state is not SessionState.CONNECTED:
            return ManagerPoll(wake_at=line_at)
        if self._topics.is_ready:
            for broker_id in self._appeared:
                self._states.read_epochs_of(broker_id)
            self._appeared.clear()
        if self._patient_until is not None and now.mono >= self._patient_until:
            self._is_taken = False
        if self._may_register and self._path not in self._backlog:
            self._backlog.add(self._path)
        for key in self._backlog.take(now):
            if key == paths.BROKER_IDS:
                self._asks.ask(GetChildren(key, watch=True), self._on_ids, self._on_ids_failed)
            elif self.is_registered:
                self._backlog.done(key)
            elif self._catalog.cluster.is_displaced:
                self._look(self._data)  # without creating it: the states are not written
            else:
                self._create(self._data)
        times = [at for at in (self._backlog.wake_at, self._patient_until, line_at) if at is not None and at > now.mono]
        return ManagerPoll(self._asks.take(), min(times, default=None))

    @property
    def _may_register(self) -> bool:
        is_ready = (self._topics.is_ready and self._states.is_ready) or self._catalog.cluster.is_displaced
        return is_ready and not (self.is_registered or self._is_taken or self._is_refused)

    def _fail(self, path: str, error: OttlaError, now: Now) -> None:
        if self._backlog.fail(path, now):
            level = logging.INFO if error.retriable else logging.WARNING
            _log.log(level, "%s of ZooKeeper could not be read or written: %s; trying again", path, error)

    # -- the own node -----------------------------------------------------------------------------------------------------

    def _create(self, data: bytes) -> None:
        def failed(error: OttlaError, now: Now) -> None:
            if has_code(error, KeeperCode.NODEEXISTS):
                self._look(data)
            else:
                self._fail(self._path, error, now)

        self._asks.ask(Create(self._path, data, ephemeral=True), lambda result, now: self._on_registered(), failed)

    def _look(self, data: bytes) -> None:
        """Find out whose node it is, and watch it."""

        def looked(node: Node, now: Now) -> None:
            if node.stat.ephemeral_owner != self._session.session_id:
                self._note_own(node)
                self._wait(node, now)
            elif node.data != data:
                self._asks.ask(SetData(self._path, data), lambda result, now: self._on_registered(), failed)
            else:
                self._on_registered()  # created with an unknown outcome

        def failed(error: OttlaError, now: Now) -> None:
            if is_missing(error):
                self._note_own(None)
                self._patient_until, self._is_in_conflict = None, False
                return self._backlog.done(self._path)
            return self._fail(self._path, error, now)

        self._asks.ask(GetData(self._path, watch=True), looked, failed)

    def _note_own(self, node: Node | None) -> None:
        """Note whether another broker has the id of this one; ``None``: no broker is registered with it."""
        cluster, was_displaced = self._catalog.cluster, self._catalog.cluster.is_displaced
        is_other = node is not None and node.stat.ephemeral_owner != self._session.session_id
        found = self._decoded(self._catalog.node_id, node) if node is not None and is_other else None
        if is_other and found != cluster.me:
            cluster.set_displaced(found)
        else:
            cluster.set_undisplaced()
        self._states.may_write = not (cluster.is_displaced or self._is_refused)
        if was_displaced and not cluster.is_displaced:
            self._states.check_own()  # the other broker may have written them
        if self._was_registered and cluster.is_displaced is not was_displaced:
            text = (
                "another broker is registered with it: this one leads no partitions" if cluster.is_displaced else "it is free again"
            )
            _log.warning("the broker id %d: %s", self._catalog.node_id, text)

    def _on_registered(self) -> None:
        self._backlog.done(self._path)
        self.is_registered, self._patient_until, self._is_in_conflict = True, None, False
        level = self._session_log.level if self._was_registered else logging.INFO
        _log.log(level, "broker %d is registered in ZooKeeper%s", self._catalog.node_id, " again" * self._was_registered)
        if not self._was_registered:
            self._was_registered = True
            self._catalog.outbox.put(Registered())

    def _wait(self, node: Node, now: Now) -> None:
        """Wait for the end of the session that has the node, probably that of the last process."""
        self._backlog.done(self._path)
        self._is_taken = True
        if self._is_in_conflict:
            return
        if self._patient_until is None:
            self._patient_until = now.mono + self._patience
            _log.info("broker %d is still registered by another session, which may end soon", self._catalog.node_id)
        elif now.mono >= self._patient_until:
            self._is_in_conflict, self._patient_until = True, None
            self._report_conflict(node)

    def _report_conflict(self, node: Node) -> None:
        try:
            other = decode_broker(self._catalog.node_id, node.data, self._path)
            where = f"{other.host}:{other.port}"
        except OttlaError:
            where = "an unknown address"
        node_id = self._catalog.node_id
        text = f"the broker id {node_id} is taken in ZooKeeper ({self._connect}): a broker at {where} is registered with it"
        if self._was_registered:
            _log.error("%s; waiting until it ends", text)
        else:
            self._is_refused = True
            self._catalog.outbox.put(Registered(ConfigError(text, hint="give each broker its own node.id")))

    # -- the brokers ------------------------------------------------------------------------------------------------------

    def _on_ids(self, children: Children, now: Now) -> None:
        ids = paths.broker_ids(children.names)
        if self._catalog.node_id not in ids:
            # Another client has deleted the node. This list was asked for, and so answered, after the creation: ``is_registered``
            # is noted when that is answered.
            self.is_registered = False
        if not ids:
            self._note_own(None)
            return self._take({})

        def read(outcomes: Sequence[Outcome], now: Now) -> None:
            error = first_error(outcomes, KeeperCode.NONODE)
            if error is not None:
                return self._fail(paths.BROKER_IDS, error, now)
            # A node that is gone by now fires the watch of the list.
            found = {one: outcome for one, outcome in zip(ids, outcomes, strict=True) if isinstance(outcome, Node)}
            self._catalog.cluster.started_at = {one: self._start_of(one, node) for one, node in found.items()}
            own = found.pop(self._catalog.node_id, None)
            self._note_own(own)
            if own is not None and own.stat.ephemeral_owner != self._session.session_id:
                self.is_registered = False
            return self._take(found)

        return self._asks.ask_all([GetData(paths.broker(broker_id)) for broker_id in ids], read)

    def _on_ids_failed(self, error: OttlaError, now: Now) -> None:
        self._fail(paths.BROKER_IDS, error, now)

    def _take(self, found: dict[int, Node]) -> None:
        """Note the other brokers that are registered."""
        self._backlog.done(paths.BROKER_IDS)
        brokers = {one: self._decoded(one, node) for one, node in found.items()}
        others = [broker for broker in brokers.values() if broker is not None]
        before = self._catalog.cluster.brokers
        self._catalog.cluster.set_brokers(others)
        if before != self._catalog.cluster.brokers:
            names = ", ".join(f"{one.node_id} ({one.host}:{one.port})" for one in others)
            _log.info("the other brokers that are registered in ZooKeeper: %s", names or "none")
        czxids = {one: node.stat.czxid for one, node in found.items() if brokers[one] is not None}
        self._appeared.update(dict.fromkeys(one for one, czxid in czxids.items() if self._czxids.get(one) != czxid))
        self._czxids = czxids

    def _start_of(self, broker_id: int, node: Node) -> int:
        try:
            return decode_start(node.data, paths.broker(broker_id))
        except ProtocolError:
            return 0  # other tools leave it out

    def _decoded(self, broker_id: int, node: Node) -> NodeEndpoint | None:
        def decode(data: bytes, path: str) -> NodeEndpoint:
            found = decode_broker(broker_id, data, path)
            return NodeEndpoint(broker_id, found.host, found.port)

        return self._malformed.decoded(paths.broker(broker_id), node, decode)
