"""Offsets and the logs that they are in, for the commands about groups.

Owns what ``-o`` means, and the look-up of the ends of logs. Must not know where a group keeps its offsets. Invariant: a partition
that does not exist, or has no leader, never makes a look-up wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import ottla
from ottla import TopicPartition
from ottla.types import OffsetAndTimestamp

OFFSETS_TOPIC = "__consumer_offsets"


class Log(NamedTuple):
    """The beginning and the end of the log of a partition; ``None`` while it has no leader."""

    beginning: int | None
    end: int | None


def logs_of(admin: ottla.Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Log]:
    """Return the log of each of these partitions that exists."""
    led = _led(admin)
    existing = [each for each in partitions if each in led]
    beginnings, ends = (admin.list_offsets({each: edge for each in existing if led[each]}) for edge in ("earliest", "latest"))
    return {each: Log(_offset(beginnings.get(each)), _offset(ends.get(each))) for each in existing}


def ends_of(admin: ottla.Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end of the log of each of these partitions that exists and has a leader."""
    led = _led(admin)
    ends = admin.list_offsets({each: "latest" for each in partitions if led.get(each)})
    return {each: found.offset for each, found in ends.items() if found is not None}


def _led(admin: ottla.Admin) -> dict[TopicPartition, bool]:
    """Return for each partition that exists whether it has a leader."""
    return {
        TopicPartition(topic.name, each.partition): each.leader is not None
        for topic in admin.list_topics(include_internal=True).values()
        for each in topic.partitions
    }


def stored_in_kafka(admin: ottla.Admin, group: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group in Kafka.

    A broker that is asked for a group's coordinator creates the topic of the offsets if there is none, so it is not asked then.
    Brokers answer for a central group, too, but its offsets are in ZooKeeper.
    """
    if OFFSETS_TOPIC not in admin.list_topics(include_internal=True):
        return {}
    if any(each.group_id == group and each.group_type == "central" for each in admin.list_groups()):
        return {}
    return {each: committed.offset for each, committed in admin.group_offsets(group).items()}


def clamped_offsets(admin: ottla.Admin, partitions: list[TopicPartition], offset: str) -> dict[TopicPartition, int]:
    """Return the new offset of each partition, limited to the beginning and end of its log."""
    first, end = (admin.list_offsets(dict.fromkeys(partitions, edge)) for edge in ("earliest", "latest"))
    wanted: dict[TopicPartition, OffsetAndTimestamp | None] = {"beginning": first, "end": end}.get(offset, {})
    if offset.startswith("s@"):
        wanted = admin.list_offsets(dict.fromkeys(partitions, int(offset.removeprefix("s@"))))
    offsets = {}
    for each in partitions:
        low, high = (found.offset if (found := edge.get(each)) is not None else 0 for edge in (first, end))
        at = wanted.get(each)
        number = int(offset) if offset.isdecimal() else high if at is None else at.offset
        offsets[each] = max(low, min(number, high))
    return offsets


def _offset(found: OffsetAndTimestamp | None) -> int | None:
    return None if found is None else found.offset
