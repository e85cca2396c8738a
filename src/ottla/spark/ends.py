"""The offsets where a query starts and ends, as its options say, resolved in a cluster.

Owns the precedence of offsets, timestamps and committed offsets. Must not know how a batch or stream is planned. Invariant: each
partition that is read gets an offset, or the query fails with the option and the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from ottla.errors import ConfigError
from ottla.spark.cluster import Cluster
from ottla.spark.offsets import EARLIEST, LATEST, Offsets, TimestampSpec
from ottla.spark.options import AT_END, SourceOptions
from ottla.types import TopicPartition

log = logging.getLogger(__name__)


def starts_of(cluster: Cluster, options: SourceOptions, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition. Raises ``ConfigError`` if the options do not match the cluster."""
    if options.starting_times is not None:
        return _by_time(cluster, options.starting_times, options.starting_strategy, partitions)
    spec = options.starting_offsets
    assert spec is not None
    spec.check_covers("startingOffsets", partitions)
    committed = _committed(cluster, options, partitions) if spec.of_group else {}
    rest = [tp for tp in partitions if tp not in committed]
    earliest = cluster.earliest(spec.unresolved(rest, EARLIEST))
    latest = cluster.latest(spec.unresolved(rest, LATEST))
    return {**spec.resolve(rest, earliest, latest), **committed}


def ends_of(cluster: Cluster, options: SourceOptions, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offset of each partition in a batch. Raises ``ConfigError`` if the options do not match the cluster."""
    if options.ending_times is not None:
        return _by_time(cluster, options.ending_times, AT_END, partitions)
    spec = options.ending_offsets
    assert spec is not None
    spec.check_covers("endingOffsets", partitions)
    return spec.resolve(partitions, {}, cluster.latest(spec.unresolved(partitions, LATEST)))


def _by_time(
    cluster: Cluster, spec: TimestampSpec, strategy: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    times = spec.times(partitions)
    found = cluster.at_times(times)
    missing = [tp for tp in partitions if tp not in found]
    if missing and strategy != AT_END:
        tp = missing[0]
        moment = _moment(times[tp])
        others = f", nor have {len(missing) - 1} other partitions" if len(missing) > 1 else ""
        raise ConfigError(
            f"option {spec.option}: {tp} has no record at or after {times[tp]} ({moment}){others}",
            hint="startingOffsetsByTimestampStrategy=latest starts such partitions at their end",
        )
    return {**found, **cluster.latest(missing)}


def _moment(time: int) -> str:
    """The time of a timestamp (ms) as text."""
    try:
        return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return "not before the year 10000: it should be in milliseconds"


def _committed(cluster: Cluster, options: SourceOptions, partitions: Sequence[TopicPartition]) -> Offsets:
    """The committed offsets, limited to the ends of the logs."""
    committed = cluster.of_group(partitions)
    ends = cluster.log_end_offsets(sorted(committed))
    beyond = sorted(tp for tp, offset in committed.items() if offset > ends[tp])
    for tp in beyond:
        text = f"group {options.group_id!r} has committed offset {committed[tp]} of {tp}, whose log ends at offset {ends[tp]}"
        if options.fail_on_data_loss:
            raise ConfigError(text, hint="with failOnDataLoss=false the query starts at that end")
        log.warning("%s; failOnDataLoss is false, so the query starts at that end", text)
    return {tp: min(offset, ends[tp]) for tp, offset in committed.items()}
