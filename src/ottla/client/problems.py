"""The problems of a whole consumer: the reasons why no records arrive.

Owns the order in which the causes are checked, and the patience with the first connection. Must not know when an error is raised:
the calls decide on timeouts. Invariant: while some broker serves some assigned partition, there is no problem of the whole consumer
(single partitions have their own).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.client.cluster.coordinator import COORDINATOR, CoordinatorManager
from ottla.client.core import ClientCore
from ottla.client.effects import ToChannel, ToCoordinator, ToNode
from ottla.client.subscription import Mode, Phase, SubscriptionState
from ottla.errors import LeaderNotAvailableError, OttlaError, UnknownTopicOrPartitionError
from ottla.protocol import ErrorCode
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.client.cluster.zookeeper_brokers import ZooKeeperBrokers

PATIENCE = 1_500
"""Milliseconds that the first connection may take before the cluster counts as unreachable, even if others have failed."""


class Problems:
    """The reasons why no records arrive. Checked in every pass, so each check returns early while there is none."""

    def __init__(self, core: ClientCore, subscription: SubscriptionState) -> None:
        self.coordinator: CoordinatorManager | None = None
        """Of the group, if there is one."""
        self.zookeeper: ZooKeeperBrokers | None = None
        """The brokers that ZooKeeper names, if the consumer uses it."""
        self._core = core
        self._subscription = subscription
        self._patient_until: int | None = None

    def present(self, now: Now) -> OttlaError | None:
        """Return the reason why no records arrive; ``None``: there is none."""
        return (
            self._of_no_use()
            or (self.zookeeper.problem(now) if self.zookeeper is not None else None)
            or self._unregistered()
            or self._unreachable(now)
            or self._core.connections.brokers.refusal()
            or self._missing_topics()
            or self._uncoordinated()
            or self._leaderless()
            or self._cut_off()
        )

    def unreachable(self) -> OttlaError | None:
        """Why the consumer reaches no cluster, for its health; ``None`` if a broker is connected and, for a group, registered."""
        return self._core.connections.brokers.unreachable() or self._unregistered()

    @property
    def was_connected(self) -> bool:
        """Whether the cluster has answered at least once, and ZooKeeper has named it if a group needs that."""
        named = self.zookeeper is None or self.zookeeper.has_named_any or self._subscription.mode is not Mode.TOPICS
        return named and self._core.metadata.version > 0

    def wake_at(self, now: Now) -> int | None:
        """The time at which a problem may begin without an event."""
        return self._patient_until if self._patient_until is not None and self._patient_until > now.mono else None

    def _of_no_use(self) -> OttlaError | None:
        """The permanent problem of a broker that is too old, or is not Kafka.

        Checked first: its connection is closed, so between two attempts no broker seems to be reachable.
        """
        failure = self._core.metadata_manager.failure
        return failure if failure is not None and not failure.retriable else None

    def _unreachable(self, now: Now) -> OttlaError | None:
        """Why no broker is connected: once all attempts have failed, or the pending ones have taken ``PATIENCE``."""
        brokers = self._core.connections.brokers
        failure = brokers.connection_failure()
        since = None if failure is None else brokers.first_try_since
        self._patient_until = None if since is None else since + PATIENCE
        return failure if self._patient_until is None or now.mono >= self._patient_until else None

    def _unregistered(self) -> OttlaError | None:
        """The problem of a ZooKeeper that names no broker. A member that has partitions goes on reading them."""
        in_group = self._subscription.mode is Mode.TOPICS
        if self.zookeeper is None or (in_group and self._subscription.partitions):
            return None
        return self.zookeeper.none_registered(for_group=in_group)

    def _missing_topics(self) -> OttlaError | None:
        """The problem of a subscription whose topics do not exist."""
        known = self._core.metadata.topics
        wanted = self._subscription.topics
        if self._subscription.mode is not Mode.TOPICS or not wanted:
            return None
        for topic in wanted:  # checked in every pass: usually the first topic ends the loop
            error = known[topic].error if topic in known else None
            if error is None or error.code != ErrorCode.unknown_topic_or_partition:
                return None
        names = ", ".join(sorted(wanted))
        return UnknownTopicOrPartitionError(f"none of the subscribed topics exists: {names}")

    def _uncoordinated(self) -> OttlaError | None:
        """The problem of a membership, or of a look-up of commits, whose coordinator cannot be found or reached."""
        needed = self._subscription.mode is Mode.TOPICS or self._subscription.in_phase(Phase.INITIALIZING)
        if self.coordinator is None or not needed:
            return None
        named = self.coordinator.named
        targets = () if named is None else (ToCoordinator(named), ToChannel(named))
        cut_off = named is not None and self._core.connections.brokers.unreachable(COORDINATOR, targets)
        return cut_off or self.coordinator.failure

    def _leaderless(self) -> OttlaError | None:
        """The problem of an assignment whose partitions have no leader."""
        metadata = self._core.metadata
        described = []
        for tp in self._subscription.partitions:
            info = metadata.partition(tp)
            if info is None or info.leader is not None:  # checked in every pass: usually the first partition ends the loop
                return None
            described.append(info)
        if not described:
            return None
        names = ", ".join(f"{info.topic}-{info.partition}" for info in described[:5])
        more = f" and {len(described) - 5} more" if len(described) > 5 else ""
        return LeaderNotAvailableError(f"no assigned partition has a leader: {names}{more}")

    def _cut_off(self) -> OttlaError | None:
        """The problem of an assignment whose leaders cannot be reached, though some broker answers."""
        metadata, brokers = self._core.metadata, self._core.connections.brokers
        targets: dict[ToNode, None] = {}
        for tp in self._subscription.partitions:
            leader = metadata.leader(tp)
            target = None if leader is None else ToNode(leader.node.node_id)
            if target is None or not brokers.failures_of(target):
                return None  # checked in every pass: usually the first partition ends the loop
            targets[target] = None
        return brokers.unreachable("the leaders of the assigned partitions", targets) if targets else None
