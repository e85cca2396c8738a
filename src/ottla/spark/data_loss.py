"""Data loss: records that were deleted before the query read them.

Owns the kinds of data loss, their detection in offsets, and their error texts. Must not do I/O. Invariant: a gap in a log, from
compaction or transactions, is no loss; a loss is a log that begins later, ends earlier or does not exist.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.spark.offsets import Offsets
from ottla.spark.planning import OffsetRange
from ottla.types import TopicPartition

log = logging.getLogger(__name__)


class LossKind(enum.Enum):
    """The cause of a data loss; the value is its description."""

    LOG_BEGINS_LATER = (
        "cannot be read: the log now begins at offset {bound}: retention, or a DeleteRecords request, was faster than this query"
    )
    LOG_ENDS_EARLIER = (
        "cannot be read: the log now ends at offset {bound}: the topic was recreated, or its last records were lost with a broker"
    )
    TOPIC_RECREATED = "cannot be read: the topic was deleted, and created again under its name"
    PARTITION_GONE = "cannot be read: the partition no longer exists: the topic was deleted, or recreated with fewer partitions"
    FOUND_LATE = "cannot be read: the partition was new, and its log began at offset {bound} when this query first saw it"
    NOT_SUBSCRIBED = "are not read: the partition is no longer among those that the query subscribes to"


_AGAINST_RETENTION = "to avoid it, run the query more often, or increase retention.ms and retention.bytes of the topic"

_ADVICE = {
    LossKind.LOG_BEGINS_LATER: _AGAINST_RETENTION,
    LossKind.FOUND_LATE: _AGAINST_RETENTION,
    LossKind.TOPIC_RECREATED: "to read the new topic in a batch, call load() again",
    LossKind.NOT_SUBSCRIBED: "to read them, include the partition in assign, subscribe or subscribePattern again",
}
"""The advice for each kind, beside ``failOnDataLoss``."""


class Loss(NamedTuple):
    """Offsets of one partition that cannot be read, from ``start`` to ``end`` (exclusive, ``None`` if unknown)."""

    kind: LossKind
    topic: str
    partition: int
    start: int
    end: int | None
    bound: int | None = None
    """The current first or end offset of the log."""

    def __str__(self) -> str:
        lost = f"offsets {self.start} to {self.end - 1} " if self.end is not None else f"offsets from {self.start} on "
        return f"{self.topic}-{self.partition}: {lost}{self.kind.value.format(bound=self.bound)}"


class DataLossError(OttlaError):
    """Records in the offset range of a query do not exist any more. ``losses`` has the offsets and causes."""

    def __init__(self, losses: Iterable[Loss]) -> None:
        self.losses = tuple(losses)
        advice = dict.fromkeys(_ADVICE[loss.kind] for loss in self.losses if loss.kind in _ADVICE)
        hint = "; ".join(("to continue without them, set option failOnDataLoss to false", *advice))
        super().__init__("; ".join(map(str, self.losses)), hint=hint)


def report(losses: Iterable[Loss], *, fail: bool) -> None:
    """Raise ``DataLossError`` if there are ``losses``, or, unless ``fail``, log a warning for each."""
    reported = tuple(losses)
    if reported and fail:
        raise DataLossError(reported)
    for loss in reported:
        log.warning("data loss, and failOnDataLoss is false: %s", loss)


def losses_between(
    starts: Offsets, ends: Offsets, is_subscribed: Callable[[TopicPartition], bool], recreated: Container[str] = ()
) -> list[Loss]:
    """Return the losses in a plan from ``starts`` to ``ends``: topics that are ``recreated``, partitions that are deleted or no
    longer selected, and logs that end before their start."""
    losses = []
    for tp, start in sorted(starts.items()):
        end = ends.get(tp)
        if tp.topic in recreated:
            losses.append(Loss(LossKind.TOPIC_RECREATED, *tp, start, None))
        elif end is None:
            kind = LossKind.PARTITION_GONE if is_subscribed(tp) else LossKind.NOT_SUBSCRIBED
            losses.append(Loss(kind, *tp, start, None))
        elif end < start:
            losses.append(Loss(LossKind.LOG_ENDS_EARLIER, *tp, end, start, end))
    return losses


def losses_of_new_partitions(earliest: Offsets) -> list[Loss]:
    """Return the losses of partitions that are new to a stream: the offsets before ``earliest``, the first ones of their logs."""
    return [Loss(LossKind.FOUND_LATE, *tp, 0, begin, begin) for tp, begin in sorted(earliest.items()) if begin > 0]


def losses_in_range(wanted: OffsetRange, begin: int | None, end: int | None) -> tuple[list[Loss], OffsetRange | None]:
    """Compare a range with its log, which now contains ``begin`` to ``end`` (``None``: the partition is deleted).

    Returns the losses at the beginning and at the end, and the range that remains to be read, or ``None``.
    """
    topic, partition = wanted.topic_partition
    if begin is None or end is None:
        return [Loss(LossKind.PARTITION_GONE, topic, partition, wanted.start, wanted.end)], None
    losses = []
    # A log that ends before the range begins was truncated or recreated: only its end is reported, wherever it begins.
    if wanted.start < begin <= end:
        losses.append(Loss(LossKind.LOG_BEGINS_LATER, topic, partition, wanted.start, min(begin, wanted.end), begin))
    if end < wanted.end:
        losses.append(Loss(LossKind.LOG_ENDS_EARLIER, topic, partition, max(wanted.start, end), wanted.end, end))
    left = wanted._replace(start=max(wanted.start, begin), end=min(wanted.end, end))
    return losses, left if left.size > 0 else None
