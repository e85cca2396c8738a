"""What the groups of a sink hold in Kafka: the marker of each task, and the record of the latest batch.

Owns where they are, and how the newest one is found. Must not know when a batch may be committed. Invariant: a marker is returned
only when no transaction that could replace it is pending.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from ottla.admin import Admin
from ottla.errors import OttlaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from ottla.spark.exactly_once.replay import BatchRecord, Marker, SinkName, TaskReport
from ottla.spark.sink_options import SinkOptions
from ottla.types import OffsetAndMetadata, TopicPartition

StoredT = TypeVar("StoredT", Marker, BatchRecord)

RETENTION = timedelta(days=3650)
"""How long brokers keep the record of a batch: a query may be idle for longer than they keep the offsets of other groups."""


def newest_record(admin: Admin, name: SinkName) -> tuple[TopicPartition | None, BatchRecord | None]:
    """Return the record of the latest batch, and where it is."""
    return newest(admin.group_offsets(name.group), BatchRecord, name.group)


def newest_markers(
    admin: Admin, options: SinkOptions, name: SinkName, tasks: Iterable[int]
) -> dict[int, tuple[TopicPartition | None, Marker | None]]:
    """Return the latest marker of each task, and where it is, as soon as none is pending. Their producers were initialized before.

    A broker's classic coordinator of groups (the only one before Kafka 4.0) takes the offsets of a transaction over a moment after
    that has ended, and with it all that the producer has pending by then: 1. A task commits its marker of batch 0. 2. It prepares
    that of batch 1. 3. The coordinator takes both over. 4. The transaction of batch 1 is aborted, and its repetition would find its
    marker, and skip its rows. (With 3.0.2 on a busy machine that happened 3 times in 60.) So a task waits until nothing is pending.
    Kafka waits only for partitions that have an offset in the group, or are named.
    """
    found = {}
    places: list[TopicPartition] | None = None
    for task in tasks:
        group = name.of_task(task)
        offsets = admin.group_offsets(group, require_stable=True)
        if not offsets:
            if places is None:
                topics = admin.list_topics(include_internal=True) if options.topic is None else [options.topic]
                places = [*(TopicPartition(topic, 0) for topic in topics), *admin.group_offsets(name.group)]
            offsets = admin.group_offsets(group, places, require_stable=True)
        found[task] = newest(offsets, Marker, group)
    return found


def newest(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], kind: type[StoredT], group: str
) -> tuple[TopicPartition | None, StoredT | None]:
    """Return what is stored about the latest batch, and where. Several topics have it if the first was deleted for a time."""
    stored = {place: kind.loads(each.metadata, group) for place, each in offsets.items()}
    place = max(stored, key=lambda each: stored[each].order, default=None)
    return place, None if place is None else stored[place]


def record_places(
    admin: Admin, options: SinkOptions, reports: Sequence[TaskReport], place: TopicPartition | None
) -> Iterator[TopicPartition]:
    """Partitions for the record of a batch, the best ones first: where the latest one is, so that there is only one. A batch
    without rows may have no topic that exists."""
    if place is not None:
        yield place
    yield from (TopicPartition(report.topic, 0) for report in reports if report.topic is not None)
    if options.topic is not None:
        yield TopicPartition(options.topic, 0)
    yield from (TopicPartition(topic, 0) for topic in admin.list_topics(include_internal=True))


def store_record(admin: Admin, name: SinkName, record: BatchRecord, places: Iterator[TopicPartition]) -> None:
    for place in places:
        # The last one that is tried exists, since it has the offsets of groups.
        with contextlib.suppress(UnknownTopicOrPartitionError, TopicAuthorizationFailedError):
            position = {place: OffsetAndMetadata(record.batch, record.dumps())}
            admin.alter_group_offsets(name.group, position, retention=RETENTION)
            return
    raise OttlaError(f"batch {record.batch} cannot be recorded: there is no topic for which the sink may commit an offset")
