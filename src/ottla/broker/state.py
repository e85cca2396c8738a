"""The state of one broker, as the handlers of APIs see it: what it has, its coordinators, and the requests that wait.

Owns which of them are notified of a change by another. Must not know which requests there are, nor when a handler runs. Invariant:
all that a handler changes is in here or below, so what follows from it can be found by looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ottla.assignors import PartitionAssignor
from ottla.broker.catalog import BrokerCatalog, Endpoint
from ottla.broker.config import BrokerConfig
from ottla.broker.delayed import Delayed, Flushing
from ottla.broker.effects import Effect, RunJob, Ticket
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.groups import Groups, offered
from ottla.broker.ports import Ids, Job, Store, StoredSettings
from ottla.broker.slices import SlicedRequests
from ottla.broker.transactions import Transactions
from ottla.protocol.apis import Api


class BrokerState:
    """See the module. ``own_apis`` are those that have a handler here; the coordinators know theirs."""

    def __init__(
        self,
        config: BrokerConfig,
        endpoint: Endpoint,
        store: Store,
        ids: Ids,
        assignors: Mapping[str, PartitionAssignor] = MappingProxyType({}),
        own_apis: Iterable[Api] = (),
    ) -> None:
        """``assignors``: those of the user's own for consumer groups. Raises ``ConfigError``."""
        self.catalog = BrokerCatalog(config, endpoint, store, ids)
        self.delayed = Delayed()
        self.sliced = SlicedRequests()
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, ids.new_uuid)
        self.flushing: dict[Ticket, Flushing] = {}
        self.answers: dict[Ticket, tuple[object, object]] = {}
        self.groups = Groups(self.catalog, config, ids, offered(config, assignors))
        self.transactions = Transactions(self.catalog, self.groups, config)
        self.served = tuple(sorted({*own_apis, *self.groups.served, *self.transactions.served}))
        """The APIs that have a handler, and no others."""

    def answer_after(self, ticket: Ticket, job: Job, response: object, failure: object) -> list[Effect]:
        """Send ``response`` when ``job`` is done, or ``failure`` where the disk failed."""
        self.answers[ticket] = (response, failure)
        return [RunJob(("answer", ticket), job)]

    def alter_settings(self, settings: StoredSettings, validate_only: bool) -> None:
        """As ``BrokerCatalog`` does; those of groups hold at once, too."""
        self.catalog.alter_settings(settings, validate_only)
        if not validate_only:
            self.groups.reconfigure()
