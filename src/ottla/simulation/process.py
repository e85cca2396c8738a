"""One process of a broker on a virtual clock, which its owner drives.

Owns the core and its timers. Must not know when they fire, nor what becomes of an effect. Invariant: all happens in calls; the
files are those of an earlier process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ottla.broker.catalog import Endpoint
from ottla.broker.cluster import TopicRegistration
from ottla.broker.config import broker_config
from ottla.broker.core import BrokerCore
from ottla.broker.effects import BrokerEffect, CancelTimer, RunJob, SetTimer
from ottla.broker.timers import Timers
from ottla.errors import OttlaError
from ottla.protocol.codec import RequestHeader
from ottla.simulation.clock import Clock, CountingIds
from ottla.simulation.cluster import ADDRESS
from ottla.simulation.files import OpenStore
from ottla.types import Now

FIRST = Endpoint(*ADDRESS)


class BrokerProcess:
    """One process of a broker: its core on an open data directory, with its timers.

    ``perform`` gets each effect of the core, timers included, which are set by then.
    """

    def __init__(
        self,
        store: OpenStore,
        clock: Clock,
        ids: CountingIds,
        perform: Callable[[BrokerEffect], None],
        settings: dict[str, Any],
        endpoint: Endpoint = FIRST,
    ) -> None:
        self.clock = clock
        self.timers = Timers()
        self.warnings: list[str] = []
        """What the start has said."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called after the effects of each turn."""
        self._perform = perform
        self.store = store
        try:
            self.core = BrokerCore(broker_config(settings), endpoint, self.store, ids)
        except BaseException:
            self.store.release()
            raise

    @property
    def now(self) -> Now:
        return self.clock.now

    def start(self, registered: Sequence[TopicRegistration] | None = None, first_producer_id: int | None = None) -> None:
        """Start on the files of an earlier process. ``registered`` and ``first_producer_id``: what is read in ZooKeeper, if there
        is one."""
        try:
            self.warnings, effects = self.core.start(self.now, registered, first_producer_id)
        except BaseException:
            self.store.release()
            raise
        self.take(effects)

    def take(self, effects: list[BrokerEffect], *, turn_ends: bool = True) -> None:
        """Perform effects, and end the loop's turn unless more effects of the same turn follow."""
        if turn_ends:
            effects = effects + self.core.write_batches(self.now)
        for effect in effects:
            match effect:
                case SetTimer(key, at):
                    self.timers.set(key, at)
                case CancelTimer(key):
                    self.timers.cancel(key)
            self._perform(effect)
        self.on_turn()

    def handle(self, header: RequestHeader, message: Any, ticket: int, connection: int, *, turn_ends: bool = True) -> None:
        """Handle a request."""
        self.take(self.core.handle(header, message, ticket, connection, ADDRESS[0], self.now), turn_ends=turn_ends)

    def run(self, job: RunJob) -> None:
        """Run a job as the disk thread does."""
        try:
            outcome = job.job()
        except (OSError, OttlaError) as error:
            outcome = error
        self.take(self.core.on_job(job.tag, outcome, self.now))

    def fire(self, until: int) -> bool:
        """Fire a timer that is due at ``until``; returns whether there was one."""
        key = self.timers.pop_due(until)
        if key is not None:
            self.take(self.core.on_timer(key, self.now))
        return key is not None

    def kill(self) -> None:
        """End like kill -9: written files stay."""
        self.store.release()
