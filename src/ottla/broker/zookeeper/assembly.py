"""A broker's session with ZooKeeper, and the managers that work in it.

Owns the session, the order of the managers, and the passes over them. Must not know what a manager does. Invariants: the managers
learn of a watch or of another state of the session before they get the outcomes that came after it; each operation goes through the
one session of this broker; after a pass nothing is left to do before the next event or timer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.central_coordinator_service import CentralCoordinatorService
from ottla.broker.effects import CancelTimer, Outbox, SetTimer
from ottla.broker.ports import Ids
from ottla.broker.zookeeper.central_lookup import CentralLookup
from ottla.broker.zookeeper.central_store import CentralStore
from ottla.broker.zookeeper.changes import ZooKeeperTopicChanges
from ottla.broker.zookeeper.cluster_session import ClusterSession
from ottla.broker.zookeeper.elector import CoordinatorElector
from ottla.broker.zookeeper.manager import ZooKeeperManager
from ottla.broker.zookeeper.registration import BrokerRegistration
from ottla.broker.zookeeper.states import PartitionStates
from ottla.broker.zookeeper.topics import TopicRegistry
from ottla.types import Now
from ottla.zookeeper.session import Session, SessionReport

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

log = logging.getLogger("ottla.broker")

ZOOKEEPER = "zookeeper"
"""The first element of the key of the session's timer."""

_TIMER = (ZOOKEEPER,)


class ZooKeeperAssembly:
    """See the module."""

    def __init__(self, state: BrokerState, ids: Ids) -> None:
        catalog = state.catalog
        config = catalog.config
        self.session: Session = ClusterSession(config.zookeeper_session_timeout_ms, catalog.cluster_id, config.zookeeper_connect)
        topics = TopicRegistry(catalog, ids)
        states = PartitionStates(catalog, topics)
        self._registration = BrokerRegistration(catalog, self.session, topics, states)
        changes = ZooKeeperTopicChanges(catalog, topics, ids)
        catalog.changes = changes
        timeout = catalog.config.zookeeper_connection_timeout_ms
        self.elector = CoordinatorElector(catalog, self.session, self._registration)
        store = CentralStore(timeout, self.elector, lambda: catalog.config.group_max_session_timeout_ms)
        lookup = CentralLookup(timeout)
        state.central = CentralCoordinatorService(catalog, state.groups, self.elector, store, lookup.look)
        self._managers: Sequence[ZooKeeperManager] = (topics, states, self._registration, changes, self.elector, store, lookup)
        """In this order: the states follow the topics, and the registration follows both; who is elected is registered."""
        self._wakes_at: int | None = None

    @property
    def is_registered(self) -> bool:
        """Whether clients find this broker in ZooKeeper, as far as is known."""
        return self._registration.is_registered

    @property
    def is_due(self) -> bool:
        """Whether a manager has something to do that no event has announced."""
        return any(manager.is_due for manager in self._managers)

    def apply(self, report: SessionReport, now: Now) -> None:
        """Note a report of the shell."""
        report.apply(self.session, now)

    def step(self, now: Now, outbox: Outbox) -> None:
        """Pass events and outcomes to the managers, and put what is to be performed into the outbox."""
        if self._wakes_at is not None and now.mono >= self._wakes_at:
            self._wakes_at = None  # the timer has fired
        while True:
            self._deliver(now)
            wake_at: list[int] = []
            for manager in self._managers:
                poll = manager.poll(now)
                for ask in poll.asks:
                    self.session.ask(manager, ask, now)
                wake_at += [] if poll.wake_at is None else [poll.wake_at]
            performed, session_at, disconnect = self.session.poll(now)
            outbox.put(*disconnect, *performed)
            if not self.session.has_completions:
                break
        wake_at += [] if session_at is None else [session_at]
        self._schedule(min(wake_at, default=None), outbox)

    def _deliver(self, now: Now) -> None:
        """Pass events and outcomes on. A failure at one of them must not take the others away."""
        for event in self.session.take_events():
            for manager in self._managers:
                _isolate(partial(manager.on_event, event, now))
        for _, ask, result, error in self.session.take_completions():
            _isolate(partial(ask.on_result, result, now) if error is None else partial(ask.on_failure, error, now))

    def _schedule(self, at: int | None, outbox: Outbox) -> None:
        """Set the timer for the next pass."""
        if at != self._wakes_at:
            self._wakes_at = at
            outbox.put(CancelTimer(_TIMER) if at is None else SetTimer(_TIMER, at))


def _isolate(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:
        log.exception("the broker failed to handle news of ZooKeeper")
