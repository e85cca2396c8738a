"""Records that were asked for and are no longer there.

Owns the ways in which that happens, the search for them in offsets, and the texts that report it. Must not do I/O. Invariant:
a gap that compaction or a transaction left inside a log is no loss; only a log that begins later, ends earlier or is gone is one.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.spark.offsets import Offsets
from ottla.spark.planning import OffsetRange
from ottla.types import TopicPartition

log = logging.getLogger(__name__)


class LossKind(enum.Enum):
    """How records came to be missing."""

    LOG_BEGINS_LATER = (
        "cannot be read: the log now begins at offset {bound}: retention, or delete-records, was faster than this query"
    )
    LOG_ENDS_EARLIER = "cannot be read: the log now ends at offset {bound}: the topic was recreated, or lost its tail with a broker"
    PARTITION_GONE = "cannot be read: the partition no longer exists: the topic was deleted, or recreated with fewer partitions"
    FOUND_LATE = "cannot be read: the partition was new, and its log began at offset {bound} when this query first saw it"
    NOT_SUBSCRIBED = "are not read: the partition is no longer among those that the query subscribes to"


_AGAINST_RETENTION = (
    "to keep it from happening again, run the query more often than the topic's retention.ms and retention.bytes delete"
)

_ADVICE = {
    LossKind.LOG_BEGINS_LATER: _AGAINST_RETENTION,
    LossKind.FOUND_LATE: _AGAINST_RETENTION,
    LossKind.NOT_SUBSCRIBED: "to read them, name the topic or the partition again in assign, subscribe or subscribePattern",
}
"""What else than ``failOnDataLoss`` helps."""


class Loss(NamedTuple):
    """Offsets of one partition that cannot be read: ``start`` up to, and without, ``end``; ``end`` may be unknown."""

    kind: LossKind
    topic: str
    partition: int
    start: int
    end: int | None
    bound: int | None = None
    """Where the log begins or ends now."""

    def __str__(self) -> str:
        lost = f"offsets {self.start} to {self.end - 1} " if self.end is not None else f"offsets from {self.start} on "
        return f"{self.topic}-{self.partition}: {lost}{self.kind.value.format(bound=self.bound)}"


class DataLossError(OttlaError):
    """Records between the offsets a query wanted are gone. ``losses`` says which and why."""

    def __init__(self, losses: Iterable[Loss]) -> None:
        self.losses = tuple(losses)
        advice = dict.fromkeys(_ADVICE[loss.kind] for loss in self.losses if loss.kind in _ADVICE)
        hint = "; ".join(("to go on without them, set option failOnDataLoss to false", *advice))
        super().__init__("; ".join(map(str, self.losses)), hint=hint)


def report(losses: Iterable[Loss], *, fail: bool) -> None:
    """Raise ``DataLossError`` for any loss, or log a warning for each."""
    found = tuple(losses)
    if found and fail:
        raise DataLossError(found)
    for loss in found:
        log.warning("data loss, and failOnDataLoss is false: %s", loss)


def losses_between(starts: Offsets, ends: Offsets, is_subscribed: Callable[[TopicPartition], bool]) -> list[Loss]:
    """What a plan from ``starts`` to ``ends`` cannot read: partitions that are gone or no longer subscribed to, and logs cut off
    before their start."""
    losses = []
    for tp, start in sorted(starts.items()):
        end = ends.get(tp)
        if end is None:
            kind = LossKind.PARTITION_GONE if is_subscribed(tp) else LossKind.NOT_SUBSCRIBED
            losses.append(Loss(kind, *tp, start, None))
        elif end < start:
            losses.append(Loss(LossKind.LOG_ENDS_EARLIER, *tp, end, start, end))
    return losses


def losses_of_new_partitions(earliest: Offsets) -> list[Loss]:
    """What partitions that appeared after a stream began have lost before it saw them: ``earliest`` is where their logs begin."""
    return [Loss(LossKind.FOUND_LATE, *tp, 0, begin, begin) for tp, begin in sorted(earliest.items()) if begin > 0]


def losses_in_range(wanted: OffsetRange, begin: int | None, end: int | None) -> tuple[list[Loss], OffsetRange | None]:
    """Hold a range against its log, which now reaches from ``begin`` to ``end`` (``None``: it is gone).

    Returns what is lost, at the beginning and at the end, and what remains to be read, ``None`` for nothing.
    """
    topic, partition = wanted.topic_partition
    if begin is None or end is None:
        return [Loss(LossKind.PARTITION_GONE, topic, partition, wanted.start, wanted.end)], None
    losses = []
    # If the log ends before the range begins, the range was lost at the log's end, wherever the log begins.
    if wanted.start < begin <= end:
        losses.append(Loss(LossKind.LOG_BEGINS_LATER, topic, partition, wanted.start, min(begin, wanted.end), begin))
    if end < wanted.end:
        losses.append(Loss(LossKind.LOG_ENDS_EARLIER, topic, partition, max(wanted.start, end), wanted.end, end))
    left = wanted._replace(start=max(wanted.start, begin), end=min(wanted.end, end))
    return losses, left if left.size > 0 else None
