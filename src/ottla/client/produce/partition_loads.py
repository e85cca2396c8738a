"""Weighs the partitions of a topic for records without a key: those with short queues get more of them (KIP-794).

Owns the weights, and since when each broker has taken no batches. Must not know how a partition is chosen. Invariant: without
different queues, and without a broker that takes nothing, there are no weights, and all partitions have the same chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from ottla.client.cluster.metadata import MetadataManager
from ottla.config.producer import ProducerConfig
from ottla.records.producer_queues import PartitionQueue, TopicQueues
from ottla.types import Now


class PartitionLoads:
    """See the module."""

    def __init__(self, config: ProducerConfig, metadata: MetadataManager) -> None:
        self._is_adaptive = config.partitioner_adaptive_partitioning_enable
        self._patience = config.partitioner_availability_timeout_ms
        self._metadata = metadata
        self._blocked_since: dict[int, int] = {}
        """Broker -> since when it has had batches to take, and has taken none (monotonic ms)."""

    def blocked(self, node_id: int, now: Now) -> None:
        """Note that a broker has batches to take, and takes none."""
        self._blocked_since.setdefault(node_id, now.mono)

    def drained(self, node_id: int) -> None:
        """Note that a broker has taken batches."""
        self._blocked_since.pop(node_id, None)

    def weigh(self, active: Iterable[PartitionQueue], now: Now) -> None:
        """Set the weights of the topics that have batches and records without a key."""
        if self._is_adaptive:
            for topic in {queue.topic for queue in active if queue.topic.is_sticky}:
                topic.weights = self._weights(topic, now)

    def _weights(self, topic: TopicQueues, now: Now) -> tuple[list[int], list[int]] | None:
        """Return the partitions that may be chosen and their cumulative weights, which are large for short queues."""
        lengths: dict[int, int] = {}
        metadata = self._metadata.current
        for queue in topic.queues[: topic.partition_count]:
            info = metadata.partition(queue.tp)
            leader = None if info is None else info.leader
            if leader is not None and leader in metadata.nodes and self._is_available(leader, now):
                lengths[queue.partition] = len(queue.closed) + (queue.open is not None)
        if len(lengths) < 2 or (len(lengths) == topic.partition_count and len(set(lengths.values())) == 1):
            return None
        longest = max(lengths.values())
        return list(lengths), list(accumulate(longest + 1 - length for length in lengths.values()))

    def _is_available(self, node_id: int, now: Now) -> bool:
        since = self._blocked_since.get(node_id)
        return not self._patience or since is None or now.mono - since < self._patience
