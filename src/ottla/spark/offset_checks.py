"""Checks of the offsets in options against the ends of the logs.

Owns this comparison on the driver: otherwise a task would wait for records that do not exist. Must not know how a batch or stream
is planned. Invariant: an offset within the log is never changed; one beyond its end raises, or is logged and moved to the end. (One
before its beginning is left to the task, which reports the records that are lost.)
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ottla.errors import ConfigError
from ottla.spark.cluster import Cluster
from ottla.spark.offsets import Offsets, OffsetSpec
from ottla.spark.options import SourceOptions
from ottla.types import TopicPartition

log = logging.getLogger(__name__)


class OffsetBeforeBeginning(NamedTuple):
    """An offset in an option, before the beginning of the log."""

    partition: TopicPartition
    offset: int
    begin: int

    def __str__(self) -> str:
        return f"option startingOffsets names offset {self.offset} for {self.partition}, whose log begins at offset {self.begin}"


class OffsetBeyondEnd(NamedTuple):
    """An offset in an option, beyond the end of the log."""

    option: str
    partition: TopicPartition
    offset: int
    end: int

    def __str__(self) -> str:
        return f"option {self.option} names offset {self.offset} for {self.partition}, whose log ends at offset {self.end}"


def offsets_beyond_end(option: str, spec: OffsetSpec | None, ends: Offsets) -> list[OffsetBeyondEnd]:
    """Return the offsets of ``spec`` that are greater than ``ends``."""
    named = {} if spec is None else spec.partitions
    return [OffsetBeyondEnd(option, tp, offset, ends[tp]) for tp, offset in sorted(named.items()) if offset > ends.get(tp, offset)]


def clamp_to_logs(cluster: Cluster, options: SourceOptions, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    """Return ``starts`` and ``ends`` of a batch, or ``starts`` of a stream (with empty ``ends``), limited to the ends of the logs.

    Raises ``ConfigError`` for an offset in the options beyond the end of its log; with ``failOnDataLoss=false`` it logs a warning
    and uses that end. A batch with ``read_committed`` may start after the last stable offset, which is what ``latest`` means for
    it: then it reads nothing from that partition.
    """
    specs = (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets))
    named = {tp for _, spec in specs if spec is not None for tp, offset in spec.partitions.items() if offset >= 0}
    behind = {tp for tp, end in ends.items() if options.read_committed and end < starts.get(tp, end)}
    logs = cluster.log_end_offsets(sorted((named | behind) & (starts.keys() | ends.keys())))
    found = [beyond for option, spec in specs for beyond in offsets_beyond_end(option, spec, logs)]
    if found and options.fail_on_data_loss:
        begins = cluster.earliest(sorted({beyond.partition for beyond in found} & starts.keys()))
        before = [OffsetBeforeBeginning(tp, starts[tp], begin) for tp, begin in begins.items() if starts[tp] < begin]
        raise ConfigError(
            "; ".join(map(str, (*before, *found))),
            hint="use offsets up to the end of the log, or latest (-1); with failOnDataLoss=false the query uses the log's end",
        )
    for beyond in found:
        log.warning("%s; failOnDataLoss is false, so the query uses that end", beyond)
    first = {tp: min(start, logs.get(tp, start)) for tp, start in starts.items()}
    last = {tp: min(end, logs.get(tp, end)) for tp, end in ends.items()}
    return first, {tp: first[tp] if tp in behind and logs[tp] >= first[tp] else end for tp, end in last.items()}
