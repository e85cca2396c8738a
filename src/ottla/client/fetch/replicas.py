"""Whom to fetch a partition from: its leader, or the replica that the leader named as closer (KIP-392).

Owns the leases of preferred replicas. Must not know requests or positions. Invariants: a replica is preferred only while its lease
runs, its broker is there, and the leader that named it still leads; whatever goes wrong with it leads back to the leader.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.client.cluster.metadata import MetadataManager
from ottla.types import Leader, Now, TopicPartition


class _Lease(NamedTuple):
    node_id: int
    until: int
    leader: Leader


class ReadReplicas:
    """See the module. ``lease`` in milliseconds: afterwards the leader is asked again for the closest replica."""

    def __init__(self, metadata: MetadataManager, lease: int) -> None:
        self._metadata = metadata
        self._lease = lease
        self._leases: dict[TopicPartition, _Lease] = {}

    def __repr__(self) -> str:
        return f"<ReadReplicas {len(self._leases)} preferred>"

    @property
    def expires_at(self) -> int | None:
        """When the next lease is over."""
        return min((lease.until + 1 for lease in self._leases.values()), default=None)

    def choose(self, tp: TopicPartition, now: Now) -> int | None:
        """The node to fetch from; ``None``, and the metadata is asked for, where that is not known."""
        current = self._metadata.current
        leader = current.leader(tp)
        if leader is None:
            self._metadata.request_update()
            return None
        lease = self._leases.get(tp)
        if lease is None:
            return leader.node.node_id
        if lease.leader == leader and lease.until >= now.mono and lease.node_id in current.nodes:
            return lease.node_id
        if lease.node_id not in current.nodes:
            self._metadata.request_update()
        del self._leases[tp]
        return leader.node.node_id

    def preferred(self, tp: TopicPartition) -> int | None:
        """The replica that is read from in place of the leader, if one is."""
        lease = self._leases.get(tp)
        return None if lease is None else lease.node_id

    def prefer(self, tp: TopicPartition, node_id: int, now: Now) -> bool:
        """The leader named a closer replica; whether that is news."""
        leader = self._metadata.current.leader(tp)
        known = self._leases.get(tp)
        if leader is None or (known is not None and known.node_id == node_id):
            return False
        self._leases[tp] = _Lease(node_id, now.mono + self._lease, leader)
        return True

    def forget(self, tp: TopicPartition) -> bool:
        """Something went wrong; whether another replica than the leader was asked."""
        return self._leases.pop(tp, None) is not None
