"""What a migration of committed offsets from one store to another writes.

Owns the decision for each partition. Must not know where the stores are. Invariant: an offset never moves backwards unless the user
has allowed it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla import TopicPartition
from ottla.cli.offsets import Log


class Store(enum.StrEnum):
    """Where a group keeps its members and offsets."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"


class Action(enum.StrEnum):
    """What happens to the offset of a partition."""

    WRITE = "write"
    """The target gets the source's offset."""
    UNCHANGED = "unchanged"
    """Both have the same."""
    KEEP = "keep"
    """The target has a greater one, and keeps it."""
    SKIP = "skip"
    """The partition does not exist any more."""
    MALFORMED = "malformed"
    """The source's offset cannot be understood. The target keeps what it has."""


@dataclass(frozen=True, slots=True)
class Step:
    """The offsets of one partition in both stores, and what happens. ``note``: what the user should look at."""

    partition: TopicPartition
    source: int | None
    target: int | None
    action: Action
    note: str | None = None
    outside: bool = False
    """Whether the offset is outside the log."""

    @property
    def new_offset(self) -> int | None:
        """What is written; ``None``: nothing."""
        return self.source if self.action is Action.WRITE else None


def plan(
    source: Mapping[TopicPartition, int],
    malformed: Mapping[TopicPartition, str],
    target: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, Log],
    to: Store,
    *,
    backwards: bool,
) -> list[Step]:
    """Return a step for each partition that has an offset in the source.

    ``malformed``: why the offset in the source cannot be understood. ``logs`` has those partitions that exist.
    """
    steps = []
    for each in sorted({*source, *malformed}):
        if each not in logs:
            steps.append(Step(each, source.get(each), target.get(each), Action.SKIP, "the partition does not exist any more"))
        elif each in malformed:
            steps.append(Step(each, None, target.get(each), Action.MALFORMED, malformed[each]))
        else:
            steps.append(_step(each, source[each], target.get(each), logs[each], to, backwards))
    return steps


def _step(partition: TopicPartition, source: int, target: int | None, log: Log, to: Store, backwards: bool) -> Step:
    outside = _outside(source, log)
    if source == target:
        return Step(partition, source, target, Action.UNCHANGED, outside, outside is not None)
    if target is not None and target > source and not backwards:
        return Step(partition, source, target, Action.KEEP, f"the offset in {to} is greater")
    back = f"backwards by {target - source}" if target is not None and target > source else None
    return Step(partition, source, target, Action.WRITE, "; ".join(filter(None, (back, outside))) or None, outside is not None)


def _outside(offset: int, log: Log) -> str | None:
    if log.beginning is not None and offset < log.beginning:
        return f"before the beginning of the log, {log.beginning}"
    if log.end is not None and offset > log.end:
        return f"after the end of the log, {log.end}"
    return None


def written(steps: Iterable[Step]) -> dict[TopicPartition, int]:
    """Return the offsets that are written."""
    return {step.partition: step.new_offset for step in steps if step.new_offset is not None}
