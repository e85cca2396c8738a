"""The election of the broker that coordinates the central groups.

Owns ``/consumers/coordinator``, which the elected broker has, ``/coordinator_epoch``, which each election raises, and the state of
this broker in the election. Must not know groups or requests. Invariants: a broker is elected only by the one multi that creates
its node and raises the epoch, so no two elections have the same epoch, and a write that checks the version of the epoch changes
nothing after the next election, also if an operator has deleted the epoch in between; an elected broker resigns before another one
can be elected, as soon as it can know: with the end of its lease, with its session, or when its node or the epoch is no longer what
it has written.

Why with the lease: 1. The elected broker is cut off from ZooKeeper, and its members are not. 2. Its session expires, and another
broker is elected, which waits for the members as long as their sessions last. 3. If the first one still pinged them, they would go
on reading, while the second one gives their partitions to others.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.zookeeper.backlog import Backlog
from ottla.broker.zookeeper.manager import ManagerPoll
from ottla.broker.zookeeper.registration import BrokerRegistration
from ottla.errors import KeeperCode, OttlaError
from ottla.types import Now
from ottla.zookeeper import paths
from ottla.zookeeper.ask_queue import AskQueue, Outcome, first_error, has_code, is_missing
from ottla.zookeeper.malformed import MalformedNodes
from ottla.zookeeper.nodes import decode_coordinator, decode_coordinator_epoch, encode_number
from ottla.zookeeper.operations import Create, Delete, Exists, GetData, Multi, Node, SetData, Write
from ottla.zookeeper.session import Session, SessionChanged, SessionState, WatchFired

_log = logging.getLogger("ottla.broker")

NONE, UNKNOWN_EPOCH = -1, -1
"""The broker id if none is elected, and the epoch if it was never read."""

_HIGHEST_EPOCH = 2**31 - 1
"""It cannot be raised."""
_FIRST_VERSIONS = 500
"""A new node of the epoch begins with a version below this, which tells it from earlier ones:

1. The node is created in epoch 1, with version 0. 2. An operator deletes it, and the node of the coordinator. 3. Another broker is
elected, and creates it with version 0. 4. A late write of the first coordinator checks that the version is 0.
"""

_ELECTION = "election"
"""The one key of the backlog."""
_NODES = (paths.COORDINATOR, paths.COORDINATOR_EPOCH)
_FASTER = (KeeperCode.NODEEXISTS, KeeperCode.BADVERSION)
"""Another broker was elected after the nodes were read."""


class ElectionState(enum.Enum):
    """The state of this broker in the election."""

    OUTSIDE = "it has no session with ZooKeeper"
    CANDIDATE = "no broker is known to be elected; it contends when it is registered"
    FOLLOWER = "the node belongs to another session, and is watched"
    ELECTED = "this broker is the coordinator"


class ElectionEvent(enum.Enum):
    """The events of the election."""

    CONNECT = "there is a session"
    VACATE = "the node does not exist, or is a left-over of this session"
    YIELD = "another session has the node"
    WIN = "ZooKeeper has executed the election of this broker"
    RESIGN = "this broker must not coordinate any more"
    LEAVE = "the session has ended"


_LEAVES = {ElectionEvent.LEAVE: ElectionState.OUTSIDE}

TRANSITIONS: Mapping[ElectionState, Mapping[ElectionEvent, ElectionState]] = {
    ElectionState.OUTSIDE: {ElectionEvent.CONNECT: ElectionState.CANDIDATE},
    ElectionState.CANDIDATE: {
        ElectionEvent.YIELD: ElectionState.FOLLOWER,
        ElectionEvent.WIN: ElectionState.ELECTED,
        **_LEAVES,
    },
    ElectionState.FOLLOWER: {ElectionEvent.VACATE: ElectionState.CANDIDATE, **_LEAVES},
    ElectionState.ELECTED: {ElectionEvent.RESIGN: ElectionState.CANDIDATE, **_LEAVES},
}
"""State -> event -> the next state. An event that has no entry changes nothing: what is true already may be read again."""

OnElected = Callable[[int, int, Now], None]
OnResigned = Callable[[str, Now], None]


class CoordinatorElector:
    """See the module. It implements ``ZooKeeperManager``."""

    def __init__(self, catalog: BrokerCatalog, session: Session, registration: BrokerRegistration) -> None:
        self.state = ElectionState.OUTSIDE
        self.epoch = UNKNOWN_EPOCH
        """The epoch of the last election that this broker knows of."""
        self._node_id = catalog.node_id
        self._session = session
        self._registration = registration
        self._asks = AskQueue(catalog.static_config.zookeeper_connection_timeout_ms)
        self._backlog: Backlog[str] = Backlog(1)
        self._owner = NONE
        """The broker whose node it is, as it was last read."""
        self._highest = 0
        """The highest epoch of which this process knows, also if its node was deleted."""
        self._epoch_version = -1
        """The version of the epoch's node that this broker has written."""
        self._epoch_czxid: int | None = None
        """What tells that node from one that was created later; ``None``: it was not read since."""
        self._awaits_registration = False
        """Whether it would contend if it were registered."""
        self._has_news = False
        """Whether something has become due since the last poll that ZooKeeper has not announced."""
        self._on_elected: OnElected = lambda epoch, version, now: None
        self._on_resigned: OnResigned = lambda reason, now: None
        self._malformed = MalformedNodes("no broker is elected until it is deleted or corrected")

    def __repr__(self) -> str:
        return f"<CoordinatorElector {self.state.name} epoch {self.epoch}>"

    def tell(self, on_elected: OnElected, on_resigned: OnResigned) -> None:
        """Call these when this broker is elected, with the epoch and the version of its node, and when it resigns, with the
        reason."""
        self._on_elected, self._on_resigned = on_elected, on_resigned

    @property
    def is_elected(self) -> bool:
        """Whether this broker is the coordinator."""
        return self.state is ElectionState.ELECTED

    def is_in_touch(self, now: Now) -> bool:
        """Whether the session surely exists, so that the watches do. Without it, another broker may be elected unnoticed."""
        return self._session.has_lease(now)

    def coordinator_id(self, now: Now) -> int:
        """The broker that is elected, as far as is known; ``NONE``: no broker, or this one is cut off from ZooKeeper.

        A node with the id of this broker that another session has is a left-over of the last one.
        """
        if not self.is_in_touch(now):
            return NONE
        if self.is_elected:
            return self._node_id
        return NONE if self._owner == self._node_id else self._owner

    @property
    def is_due(self) -> bool:
        """Whether it has to look at the nodes although nothing has come from ZooKeeper."""
        return self._has_news

    def check_lease(self, now: Now) -> None:
        """Resign if the session may have ended: then another broker may be elected."""
        if self.is_elected and not self._session.has_lease(now):
            self.resign(f"its session with ZooKeeper may have ended: {self._session.doubt}", now)

    def resign(self, reason: str, now: Now) -> None:
        """Give up the coordination, if this broker has it, and look again who is elected."""
        self._give_up(ElectionEvent.RESIGN, reason, now)
        self._backlog.add(_ELECTION)
        self._has_news = True

    def outbid(self, epoch: int, now: Now) -> bool:
        """Return whether the term is later than this epoch, of which the groups know. If not, the node of the epoch was deleted
        and has begun at 1 again: be elected once more, in an epoch that members do not take for an earlier one.

        One above which only the highest epoch is left is none that elections have reached.
        """
        if epoch < self.epoch or epoch >= _HIGHEST_EPOCH - 1:
            return True
        self._note_epoch(epoch)
        self.resign(f"a group was written in epoch {epoch}", now)
        return False

    # -- the manager ------------------------------------------------------------------------------------------------------

    def on_event(self, event: WatchFired | SessionChanged, now: Now) -> None:
        """Look again after a change, and after each connection, since a disconnection drops the watches."""
        if isinstance(event, WatchFired):
            if event.path in _NODES:
                self._backlog.add(_ELECTION)
            return
        self._asks.abandon()
        self._backlog.clear()
        if event.is_new or event.state in (SessionState.LOST, SessionState.CLOSED):
            self._give_up(ElectionEvent.LEAVE, "its session with ZooKeeper has ended", now)
        if not self.is_in_touch(now):
            self._owner = NONE
        if event.state is SessionState.CONNECTED:
            self._move(ElectionEvent.CONNECT)
            self._backlog.add(_ELECTION)

    def poll(self, now: Now) -> ManagerPoll:
        """Return what to read and write."""
        self._has_news = False
        self.check_lease(now)
        if self._session.state is SessionState.CONNECTED:
            if self._awaits_registration and self._registration.is_registered:
                self._awaits_registration = False
                self._backlog.add(_ELECTION)
            for _ in self._backlog.take(now):
                self._look()
        times = [self._backlog.wake_at, self._session.lease_until if self.is_elected else None]
        return ManagerPoll(self._asks.take(), min([at for at in times if at is not None], default=None))

    # -- the nodes --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the nodes, and watch them, also if they do not exist."""
        reads = [read for path in _NODES for read in (Exists(path, watch=True), GetData(path))]
        self._asks.ask_all(reads, self._on_looked)

    def _on_looked(self, outcomes: Sequence[Outcome], now: Now) -> None:
        error = first_error(outcomes, KeeperCode.NONODE)
        if error is not None:
            return self._fail(error, now)
        _, node, _, epoch = outcomes
        if self.is_elected and self._is_unchanged(node, epoch):
            return self._backlog.done(_ELECTION)
        if self.is_elected:
            self._give_up(ElectionEvent.RESIGN, self._why_deposed(node), now)
        known = 0 if is_missing(epoch) else self._malformed.decoded(paths.COORDINATOR_EPOCH, epoch, decode_coordinator_epoch)
        if known is not None:
            self._note_epoch(known)
        self.epoch = UNKNOWN_EPOCH if known is None else self._highest
        if not is_missing(node) and not self._is_own(node):
            return self._follow(node)
        self._owner = NONE
        self._move(ElectionEvent.VACATE)
        self._awaits_registration = not self._registration.is_registered
        if self._awaits_registration or known is None:
            return self._backlog.done(_ELECTION)
        return self._contend(None if is_missing(epoch) else epoch, is_own=not is_missing(node))

    def _is_unchanged(self, node: Node | OttlaError, epoch: Node | OttlaError) -> bool:
        """Whether the nodes are as this broker has written them at its election."""
        if not isinstance(epoch, Node) or epoch.stat.czxid != (self._epoch_czxid or epoch.stat.czxid):
            return False
        self._epoch_czxid = epoch.stat.czxid
        is_same_epoch = epoch.stat.version == self._epoch_version and epoch.data == encode_number(self.epoch)
        return is_same_epoch and isinstance(node, Node) and self._is_own(node) and node.stat.version == 0

    def _is_own(self, node: Node | OttlaError) -> bool:
        return isinstance(node, Node) and node.stat.ephemeral_owner == self._session.session_id

    def _why_deposed(self, node: Node | OttlaError) -> str:
        if isinstance(node, OttlaError):
            return f"another client has deleted {paths.COORDINATOR}"
        changed = paths.COORDINATOR_EPOCH if self._is_own(node) and node.stat.version == 0 else paths.COORDINATOR
        return f"another client has changed {changed}"

    def _follow(self, node: Node) -> None:
        owner = self._malformed.decoded(paths.COORDINATOR, node, decode_coordinator)
        self._backlog.done(_ELECTION)
        self._move(ElectionEvent.YIELD)
        if owner != self._owner:
            _log.info("broker %s is the central coordinator, in epoch %d", "?" if owner is None else owner, self.epoch)
        self._owner = NONE if owner is None else owner

    def _contend(self, epoch: Node | None, *, is_own: bool) -> None:
        """Try to be elected. ``is_own``: the node exists and is of this session, from an election with an unknown outcome or one
        that this broker has given up; it is replaced, so that each election has its own epoch."""
        raised_to = self._highest + 1
        data = encode_number(raised_to)
        if epoch is not None:
            version = epoch.stat.version + 1
            raised: tuple[Write, ...] = (SetData(paths.COORDINATOR_EPOCH, data, epoch.stat.version),)
        else:
            version = raised_to % _FIRST_VERSIONS
            raised = (Create(paths.COORDINATOR_EPOCH, data), *[SetData(paths.COORDINATOR_EPOCH, data)] * version)
        own = Create(paths.COORDINATOR, encode_number(self._node_id), ephemeral=True)

        def won(results: tuple[object, ...], now: Now) -> None:
            self._backlog.done(_ELECTION)
            self._note_epoch(raised_to)
            self.epoch, self._owner = raised_to, self._node_id
            self._epoch_version, self._epoch_czxid = version, None
            self._move(ElectionEvent.WIN)
            _log.info("broker %d is elected as the central coordinator, in epoch %d", self._node_id, self.epoch)
            self._on_elected(self.epoch, self._epoch_version, now)

        def failed(error: OttlaError, now: Now) -> None:
            if has_code(error, *_FASTER):
                self._backlog.add(_ELECTION)
                self._backlog.done(_ELECTION)
                return
            if is_missing(error):
                self._asks.ensure(paths.CONSUMERS)
            self._fail(error, now)

        removed = (Delete(paths.COORDINATOR),) if is_own else ()
        self._asks.ask(Multi((*removed, own, *raised)), won, failed)

    def _note_epoch(self, epoch: int) -> None:
        if epoch < _HIGHEST_EPOCH:
            self._highest = max(self._highest, epoch)

    def _fail(self, error: OttlaError, now: Now) -> None:
        if self._backlog.fail(_ELECTION, now):
            level = logging.INFO if error.retriable else logging.WARNING
            _log.log(level, "the central coordinator could not be found or elected: %s; trying again", error)

    # -- the state --------------------------------------------------------------------------------------------------------

    def _give_up(self, event: ElectionEvent, reason: str, now: Now) -> None:
        was_elected = self.is_elected
        self._move(event)
        if event is ElectionEvent.LEAVE:
            self._awaits_registration = False
        if was_elected:
            self._owner, self._epoch_version = NONE, -1
            _log.warning("broker %d is no longer the central coordinator of epoch %d: %s", self._node_id, self.epoch, reason)
            self._on_resigned(reason, now)

    def _move(self, event: ElectionEvent) -> None:
        self.state = TRANSITIONS[self.state].get(event, self.state)
