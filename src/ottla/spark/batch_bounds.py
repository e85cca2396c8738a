"""The bounds of a batch: the first offset and the end offset in each partition, and the ids of the topics.

Owns the resolution of ``startingOffsets`` and ``endingOffsets`` to offsets in a cluster, and the JSON of bounds. Must not know how
tasks share them. Invariant: ``are_fixed`` is true only for bounds that do not depend on the state of the cluster, so every
execution resolves the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ottla.errors import ConfigError
from ottla.spark.cluster import Cluster
from ottla.spark.data_loss import Loss, LossKind, report
from ottla.spark.ends import ends_of, starts_of
from ottla.spark.offset_checks import clamp_to_logs
from ottla.spark.offsets import EARLIEST
from ottla.spark.options import SourceOptions
from ottla.spark.planning import Bounds
from ottla.types import TopicPartition


def are_fixed(options: SourceOptions, bounds: Bounds) -> bool:
    """Whether ``bounds`` equal the offsets in the options, so that each execution has the same bounds.

    They differ for an offset beyond the end of a log with ``failOnDataLoss=false``: by a later execution the log may have grown.
    """
    starting, ending = options.starting_offsets, options.ending_offsets
    if starting is None or ending is None or starting.everywhere is not None or ending.everywhere is not None:
        return False
    return all(both == (starting.partitions[tp], ending.partitions[tp]) for tp, both in bounds.offsets.items())


def current_bounds(cluster: Cluster, options: SourceOptions) -> Bounds:
    """Resolve the bounds of a batch now. Raises ``ConfigError`` if the options do not match the cluster's partitions or offsets."""
    partitions = cluster.partitions()
    resolved = starts_of(cluster, options, partitions), ends_of(cluster, options, partitions)
    starts, ends = clamp_to_logs(cluster, options, *resolved)
    first = "startingOffsets" if options.starting_times is None else options.starting_times.option
    last = "endingOffsets" if options.ending_times is None else options.ending_times.option
    gone = [tp for tp in _from_beginning(options, partitions) if starts[tp] > ends[tp]]
    report([Loss(LossKind.LOG_BEGINS_LATER, *tp, 0, ends[tp], starts[tp]) for tp in gone], fail=options.fail_on_data_loss)
    starts = {**starts, **{tp: ends[tp] for tp in gone}}
    for tp, start in starts.items():
        if start > ends[tp]:
            raise ConfigError(
                f"{first} for {tp} is {start}, beyond its {last}, {ends[tp]}",
                hint="endingOffsets=latest is the current end of the log",
            )
    return Bounds({tp: (start, ends[tp]) for tp, start in starts.items()}, cluster.topic_ids)


def _from_beginning(options: SourceOptions, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that are read from the beginnings of their logs, whatever is there."""
    spec = options.starting_offsets
    if options.starting_times is not None or spec is None or spec.of_group:
        return []
    return spec.unresolved(partitions, EARLIEST)


def bounds_to_json(bounds: Bounds) -> str:
    """Encode as ``{"offsets": [["topic", 0, 23, 42], ...], "topics": {"topic": "id"}}``: each row has a topic, a partition, its
    first offset and its end offset (exclusive)."""
    rows = [[*tp, *bounds.offsets[tp]] for tp in sorted(bounds.offsets)]
    return json.dumps({"offsets": rows, "topics": dict(bounds.topic_ids)})


def bounds_from_json(stored: Any) -> Bounds:
    """Return the bounds for the decoded JSON of ``bounds_to_json``."""
    offsets = {TopicPartition(topic, partition): (start, end) for topic, partition, start, end in stored["offsets"]}
    return Bounds(offsets, stored["topics"])
