"""The network thread's view of the consumer's health.

Owns the collection of the managers' states. Must not know callers, nor the verdicts. Invariant: it changes nothing, its result
never changes, and it costs nothing unless called.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from ottla.client.core import ClientCore
from ottla.client.fetch.manager import ReadReplicas
from ottla.client.groups.membership import Membership
from ottla.client.groups.rebalances import RebalanceRecorder
from ottla.client.health.metrics import CONSUMER, COORDINATOR, FETCH, Meters, MetricName, of_connections
from ottla.client.health.verdicts import NetworkView, PartitionSeen
from ottla.client.poll_timer import PollTimer
from ottla.client.subscription import Mode, SubscriptionState
from ottla.errors import OttlaError
from ottla.types import Now

HOUR = 3_600_000


class Inspection:
    """Collects the managers' states into a ``NetworkView``."""

    def __init__(
        self,
        core: ClientCore,
        subscription: SubscriptionState,
        membership: Membership | None,
        polls: PollTimer,
        recorder: RebalanceRecorder | None,
        replicas: ReadReplicas,
        unreachable: Callable[[], OttlaError | None],
    ) -> None:
        self._core = core
        self._subscription = subscription
        self._membership = membership
        self._polls = polls
        self._recorder = recorder
        self._replicas = replicas
        self._unreachable = unreachable
        self._meters = Meters()
        core.observe = self._meters.on_completion

    def on_ping(self, now: Now) -> None:
        """Note a request of the central coordinator: as with a heartbeat that it accepts, the member counts as alive."""
        self._meters.heartbeat_at = self._meters.accepted_at = now.mono

    def view(self, now: Now) -> NetworkView:
        """Return the current view."""
        membership, metadata = self._membership, self._core.metadata
        partitions = {}
        unleased = self._without_lease(now)
        for tp, state in self._subscription.partitions.items():
            leader = metadata.leader(tp)
            node_id = None if leader is None else leader.node.node_id
            source = self._replicas.preferred(tp)
            source = node_id if source is None else source
            fetch_at = None if source is None else self._meters.fetch_at.get(source)
            partitions[tp] = PartitionSeen.of(state, node_id, fetch_at, leased=unleased is None)
        failure = None if membership is None else membership.failure
        unreachable = self._unreachable()
        cut_off = unleased if unreachable is None else str(unreachable)
        return NetworkView(
            at=now,
            mode=self._subscription.mode,
            status=None if membership is None else membership.status,
            group=None if membership is None else membership.metadata(),
            failure=None if failure is None else str(failure),
            unreachable=cut_off,
            heartbeat_at=self._meters.heartbeat_at,
            accepted_at=self._meters.accepted_at,
            last_sign=self._polls.last_sign,
            sign_due=self._polls.deadline,
            processing=self._polls.processing,
            partitions=MappingProxyType(partitions),
            metrics=MappingProxyType(
                {
                    **self._meters.read(now),
                    **self._of_rebalances(now),
                    **of_connections(self._core.connections, CONSUMER),
                    **self._of_replicas(),
                }
            ),
        )

    def _without_lease(self, now: Now) -> str | None:
        """Why a member of a ZooKeeper group returns no records; ``None`` if it does, or needs no session."""
        session = self._core.session
        if session is None or self._subscription.mode is not Mode.TOPICS or session.has_lease(now):
            return None
        return f"ZooKeeper has not confirmed the session: {session.doubt}"

    def _of_replicas(self) -> dict[MetricName, float]:
        values = {}
        for tp in self._subscription.partitions:
            replica = self._replicas.preferred(tp)
            tags = (("topic", tp.topic), ("partition", str(tp.partition)))
            values[MetricName("preferred-read-replica", FETCH, tags)] = -1.0 if replica is None else float(replica)
        return values

    def _of_rebalances(self, now: Now) -> dict[MetricName, float]:
        recorder = self._recorder
        if recorder is None:
            return {}
        records = recorder.records
        hour = [record for record in records if now.wall - record.began * 1000 < HOUR]
        done = [record.duration * 1000 for record in records if record.completed]
        ended = records[-1].began + records[-1].duration if records else None
        values = {
            "rebalance-total": float(recorder.completed),
            "failed-rebalance-total": float(recorder.failed),
            "rebalance-rate-per-hour": float(sum(record.completed for record in hour)),
            "failed-rebalance-rate-per-hour": float(recorder.failed_within(HOUR, now)),
            "rebalance-latency-total": float(recorder.latency_total),
            "rebalance-latency-avg": sum(done) / max(1, len(done)),
            "rebalance-latency-max": max(done, default=0.0),
            "last-rebalance-seconds-ago": -1.0 if ended is None else max(0.0, now.wall / 1000 - ended),
            "assigned-partitions": float(len(self._subscription.partitions)),
        }
        return {MetricName(name, COORDINATOR): value for name, value in values.items()}
