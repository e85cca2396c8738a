"""The figures of a life, by which the generations are compared.

Owns what each figure is computed from. Must not know how a life came about, or how figures are shown. Invariant: the figures of the
phases add up to those of the life.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any, NamedTuple

from ottla.comparison.life import Generation, Life, Phase, Step, Traffic


class PhaseFigures(NamedTuple):
    """What a phase has cost."""

    phase: Phase
    stable: tuple[float, ...]
    """Seconds from the beginning of each step until the group was stable."""
    unread: float
    """Seconds for which partitions had no live member, summed over the partitions."""
    duration: float
    """Seconds, the rests after the steps included."""
    messages: Counter[str]
    """API -> requests and responses."""
    operations: int
    """See ``Traffic``, for this and the next two."""
    single_operations: int
    notifications: int

    @property
    def time_to_stable(self) -> float:
        """The mean of the steps (seconds)."""
        return fmean(self.stable)


class Figures(NamedTuple):
    """What a generation has cost."""

    generation: Generation
    phases: tuple[PhaseFigures, ...]
    records: int
    repeated: int
    """How often a record was processed again. None was lost: a life ends only when all were processed."""

    @property
    def messages(self) -> Counter[str]:
        """API -> requests and responses."""
        return sum((one.messages for one in self.phases), Counter())

    @property
    def operations(self) -> int:
        """ZooKeeper operations as issued."""
        return sum(one.operations for one in self.phases)

    @property
    def single_operations(self) -> int:
        """ZooKeeper operations as 0.8 would issue them."""
        return sum(one.single_operations for one in self.phases)

    @property
    def notifications(self) -> int:
        """Watches of ZooKeeper that fired."""
        return sum(one.notifications for one in self.phases)

    @property
    def unread(self) -> float:
        """Partition-seconds."""
        return sum(one.unread for one in self.phases)

    @property
    def duration(self) -> float:
        """Seconds."""
        return sum(one.duration for one in self.phases)

    def of(self, phase: Phase) -> PhaseFigures:
        """The figures of a phase."""
        return next(one for one in self.phases if one.phase is phase)

    def as_json(self) -> dict[str, Any]:
        """What ``ottla compare --format json`` prints for a generation. Seconds."""
        return {
            "generation": self.generation.value,
            "seconds": round(self.duration, 3),
            **_costs(self),
            "records": {"processed": self.records, "processed_twice": self.repeated},
            "phases": [_phase(one) for one in self.phases],
        }


def _costs(one: Figures | PhaseFigures) -> dict[str, Any]:
    return {
        "messages": one.messages.total(),
        "messages_by_api": dict(sorted(one.messages.items())),
        "zookeeper_operations": {"as_issued": one.operations, "as_0.8": one.single_operations},
        "zookeeper_notifications": one.notifications,
        "partition_seconds_unread": round(one.unread, 3),
    }


def _phase(one: PhaseFigures) -> dict[str, Any]:
    return {
        "phase": one.phase.value,
        "seconds": round(one.duration, 3),
        "steps": len(one.stable),
        "time_to_stable": round(one.time_to_stable, 3),
        "longest_time_to_stable": round(max(one.stable), 3),
        **_costs(one),
    }


def figures(life: Life) -> Figures:
    """Return the figures of a life."""
    phases = tuple(_phase_figures(life, phase) for phase in Phase)
    return Figures(life.generation, phases, life.history.distinct, life.history.repeated)


def _phase_figures(life: Life, phase: Phase) -> PhaseFigures:
    steps = [step for step in life.steps if step.phase is phase]
    traffic = _spent(life, steps)
    return PhaseFigures(
        phase,
        tuple(step.stable - step.began for step in steps),
        life.history.unread(steps[0].began, steps[-1].ended),
        steps[-1].ended - steps[0].began,
        traffic.messages,
        traffic.operations,
        traffic.single_operations,
        traffic.notifications,
    )


def _spent(life: Life, steps: list[Step]) -> Traffic:
    """What was sent in these steps, which follow one another."""
    earlier = [step.traffic for step in life.steps if step.ended <= steps[0].began]
    before, after = earlier[-1] if earlier else life.before, steps[-1].traffic
    messages = Counter({api: count - before.messages[api] for api, count in after.messages.items()})
    return Traffic(
        +messages,
        after.operations - before.operations,
        after.single_operations - before.single_operations,
        after.notifications - before.notifications,
    )
