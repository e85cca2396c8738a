"""The parts of a consumer that exist only with ZooKeeper: the session, the brokers that it names, the member and its offset store.

Owns how these parts are connected. Must not know the other managers. Invariant: nothing here is imported before a consumer with
``group.protocol=zookeeper`` is created.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.zookeeper_brokers import ZooKeeperBrokers
from ottla.client.core import ClientCore
from ottla.client.effects import ToOneBroker
from ottla.client.groups.membership import MembershipContext, new_member_id
from ottla.client.groups.zookeeper.membership import ZooKeeperMembership
from ottla.client.positions.stores.both import DualOffsetStore
from ottla.client.positions.stores.interface import OffsetStore
from ottla.client.positions.stores.kafka import KafkaOffsetStore
from ottla.client.positions.stores.zookeeper import ZooKeeperOffsetStore
from ottla.client.subscription import Mode
from ottla.config import ConsumerConfig, HostPort
from ottla.errors import OttlaError
from ottla.types import Now
from ottla.zookeeper.session import Session


class ZooKeeperMember(NamedTuple):
    """The member of a ZooKeeper group, and where it stores offsets."""

    membership: ZooKeeperMembership
    store: OffsetStore


class ZooKeeperAssembly:
    """The session of a consumer, and what depends on it."""

    def __init__(self, core: ClientCore, config: ConsumerConfig, backoff: ExponentialBackoff) -> None:
        self.session = Session(config.zookeeper_session_timeout_ms)
        self.brokers = ZooKeeperBrokers(config, self.session, backoff, self._on_brokers)
        self._core = core
        self._config = config
        core.use_zookeeper(self.session)
        core.on_session_event(self.brokers.on_event)
        core.add_manager(self.brokers)

    def _on_brokers(self, servers: tuple[HostPort, ...]) -> None:
        """Bootstrap from these brokers as well. An empty list changes nothing: the brokers that were known may come back."""
        if servers:
            self._core.connections.brokers.bootstrap_servers = tuple(dict.fromkeys((*self._config.bootstrap_servers, *servers)))

    def unreachable(self, who: str = "", targets: Iterable[ToOneBroker] = (), /) -> OttlaError | None:
        """Return the error for ``effects.Unreachable``: without ZooKeeper no broker is known, so none has failed."""
        return self._core.connections.brokers.unreachable(who, targets) or self.brokers.none_known()

    def member(self, context: MembershipContext, host: str) -> ZooKeeperMember:
        """Create the member of the group. ``host`` is a part of its id, as with Java's consumer."""
        membership = ZooKeeperMembership(context, self.session, new_member_id(self._config, host, self._core.random), self.brokers)
        zookeeper = ZooKeeperOffsetStore(self._config, self.session, context.subscription, membership.claims)
        self._core.on_session_event(membership.on_event)
        if self._config.offsets_storage == "zookeeper":
            return ZooKeeperMember(membership, zookeeper)

        def leased(now: Now) -> bool:
            # Kafka does not know the owners: while the lease lasts, no other member can own a partition of this one.
            return context.subscription.mode is Mode.MANUAL or self.session.has_lease(now)

        kafka = KafkaOffsetStore(
            self._config, context.coordinator, membership, context.metadata, self.unreachable, leased, knows_members=False
        )
        return ZooKeeperMember(membership, DualOffsetStore(kafka, zookeeper) if self._config.dual_commit_enabled else kafka)
