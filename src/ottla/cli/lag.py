"""The lag of offsets that are not those of a group.

Owns the comparison with a cluster. Must not know where the offsets come from. Invariant: a partition that does not exist counts as
read.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla import TopicPartition
from ottla.admin import Admin
from ottla.errors import UnknownTopicOrPartitionError


def lag_behind(admin: Admin, positions: Mapping[TopicPartition, int]) -> int:
    """Return the number of records from ``positions`` to the ends of the logs."""
    existing: set[TopicPartition] = set()
    for topic in sorted({tp.topic for tp in positions}):
        try:
            description = admin.describe_topics([topic])[topic]
        except UnknownTopicOrPartitionError:
            continue
        existing |= {TopicPartition(topic, part.partition) for part in description.partitions}
    ends = admin.list_offsets({tp: "latest" for tp in positions if tp in existing})
    return sum(max(0, found.offset - positions[tp]) for tp, found in ends.items() if found is not None)
