"""The state of one broker, for the handlers of APIs: its catalog, its coordinators, and delayed requests.

Owns the references between them. Must not know the APIs, nor when a handler runs. Invariant: handlers change nothing else, so that
the core finds the consequences of a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ottla.assignors import PartitionAssignor
from ottla.broker.catalog import BrokerCatalog, Endpoint
from ottla.broker.config import BrokerConfig
from ottla.broker.effects import BrokerEffect, RunJob, Ticket
from ottla.broker.fetch_sessions import FetchSessionCache
from ottla.broker.group_coordinator_service import GroupCoordinatorService, configured_assignors
from ottla.broker.local_topic_changes import LocalTopicChanges
from ottla.broker.ports import DiskJob, Ids, Store, StoredSettings
from ottla.broker.purgatory import DelayedProduce, FetchPurgatory
from ottla.broker.slices import SlicedRequests
from ottla.broker.transaction_coordinator_service import TransactionCoordinatorService
from ottla.protocol.apis import Api

if TYPE_CHECKING:
    from ottla.broker.central_coordinator_service import CentralCoordinatorService

_CENTRAL = frozenset({Api.CONSULT, Api.REGISTER, Api.LEAVE, Api.PING, Api.STOP, Api.START})
"""The APIs of central groups, which only a broker with ZooKeeper serves."""


class BrokerState:
    """The state of one broker. ``own_apis``: the APIs with a handler in ``api/``; the coordinators have their own."""

    def __init__(
        self,
        config: BrokerConfig,
        endpoint: Endpoint,
        store: Store,
        ids: Ids,
        assignors: Mapping[str, PartitionAssignor] = MappingProxyType({}),
        own_apis: Iterable[Api] = (),
    ) -> None:
        """``assignors``: the user's own assignors for consumer groups. Raises ``ConfigError``."""
        self.catalog = BrokerCatalog(config, endpoint, store, ids)
        self.catalog.changes = LocalTopicChanges(self.catalog)
        self.fetch_purgatory = FetchPurgatory()
        self.sliced_requests = SlicedRequests()
        self.fetch_sessions = FetchSessionCache(config.max_incremental_fetch_session_cache_slots, ids.new_uuid)
        self.delayed_produces: dict[Ticket, DelayedProduce] = {}
        self.responses_after_jobs: dict[Ticket, tuple[object, object]] = {}
        self.groups = GroupCoordinatorService(self.catalog, config, ids, configured_assignors(config, assignors))
        self.transactions = TransactionCoordinatorService(self.catalog, self.groups, config)
        self.central: CentralCoordinatorService | None = None
        """The coordinator of central groups; ``None``: the broker has no ZooKeeper."""
        served = {*own_apis, *self.groups.served, *self.transactions.served}
        # As Kafka's brokers with ZooKeeper: they have no quorum to describe.
        served = served - _CENTRAL if self.catalog.cluster.is_alone else (served | _CENTRAL) - {Api.DESCRIBE_QUORUM}
        self.served = tuple(sorted(served))
        """The APIs that have a handler, and no others."""

    def reply_after(self, ticket: Ticket, job: DiskJob, response: object, failure: object) -> list[BrokerEffect]:
        """Send ``response`` when ``job`` is done, or ``failure`` if it fails."""
        self.responses_after_jobs[ticket] = (response, failure)
        return [RunJob(("answer", ticket), job)]

    def alter_settings(self, settings: StoredSettings, validate_only: bool) -> None:
        """Alter settings as ``BrokerCatalog`` does, and apply them to groups, too."""
        self.catalog.alter_settings(settings, validate_only)
        if not validate_only:
            self.groups.reconfigure()
            if self.central is not None:
                self.central.reconfigure()
