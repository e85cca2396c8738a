"""Where a batch begins and ends in each partition.

Owns the step from the options ``startingOffsets`` and ``endingOffsets`` to offsets, for which it asks a cluster, and their JSON.
Must not know how tasks share them. Invariant: bounds that do not depend on the state of the cluster are known as such, so that
only those which do are asked for by each execution.
"""

from __future__ import annotations

import json
from typing import Any

from ottla.errors import ConfigError
from ottla.spark.cluster import Cluster
from ottla.spark.offset_checks import clamp_to_logs
from ottla.spark.offsets import EARLIEST, LATEST
from ottla.spark.options import SourceOptions
from ottla.spark.planning import Bounds
from ottla.types import TopicPartition


def are_fixed(options: SourceOptions, bounds: Bounds) -> bool:
    """Whether ``bounds`` of a batch are the numbers that the options name, so that each execution has the same ones.

    A number beyond the end of a log, with ``failOnDataLoss=false``, may have another effect later.
    """
    starting, ending = options.starting_offsets, options.ending_offsets
    assert starting is not None
    assert ending is not None
    if starting.everywhere is not None or ending.everywhere is not None:
        return False
    return all(both == (starting.partitions[tp], ending.partitions[tp]) for tp, both in bounds.items())


def current_bounds(cluster: Cluster, options: SourceOptions) -> Bounds:
    """The bounds of a batch that is planned now. Raises ``ConfigError`` where the options do not fit the cluster."""
    starting, ending = options.starting_offsets, options.ending_offsets
    assert starting is not None
    assert ending is not None
    partitions = cluster.partitions()
    starting.check_covers("startingOffsets", partitions)
    ending.check_covers("endingOffsets", partitions)
    earliest = cluster.earliest(starting.unresolved(partitions, EARLIEST))
    latest = cluster.latest(ending.unresolved(partitions, LATEST))
    starts, ends = clamp_to_logs(
        cluster, options, starting.resolve(partitions, earliest, {}), ending.resolve(partitions, {}, latest)
    )
    for tp, start in starts.items():
        if start > ends[tp]:
            raise ConfigError(
                f"{tp} would be read from offset {start} to {ends[tp]}: startingOffsets are beyond endingOffsets",
                hint="an endingOffsets of latest is where the log ends now",
            )
    return {tp: (start, ends[tp]) for tp, start in starts.items()}


def bounds_to_json(bounds: Bounds) -> str:
    """``[["topic", 0, 23, 42], ...]``: topic, partition, the first offset, and the one behind the last."""
    return json.dumps([[*tp, *bounds[tp]] for tp in sorted(bounds)])


def bounds_from_json(rows: Any) -> Bounds:
    """What ``bounds_to_json`` wrote, decoded."""
    return {TopicPartition(topic, partition): (start, end) for topic, partition, start, end in rows}
