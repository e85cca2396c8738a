"""The figures of lives, by which the generations are compared.

Owns what each figure is computed from. Must not know how a life came about, or how figures are shown. Invariants: the figures of
several lives are the means of their figures; the figures of the phases add up to those of the life.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ottla.comparison.life import Life, Phase, Step, Traffic
from ottla.simulation.outcome import Generation


class PhaseFigures(NamedTuple):
    """What a phase has cost, in the mean of the lives."""

    phase: Phase
    stable: tuple[float, ...]
    """Seconds from the beginning of each step, of all lives, until the group was stable."""
    unread: float
    """Seconds for which partitions had no live member, summed over the partitions."""
    unread_at_once: float
    """Partitions that had no live member any more when the phase began: those of killed members."""
    duration: float
    """Seconds, the rests after the steps included."""
    traffic: Traffic

    @property
    def time_to_stable(self) -> float:
        """The mean of the steps (seconds)."""
        return fmean(self.stable)


class Figures(NamedTuple):
    """What a generation has cost, in the mean of some lives."""

    generation: Generation
    lives: int
    phases: tuple[PhaseFigures, ...]
    records: float
    repeated: float
    """How often a record was processed again. None was lost: a life ends only when all were processed."""

    @property
    def traffic(self) -> Traffic:
        """That of all phases."""
        return Traffic.weighted_sum((1, one.traffic) for one in self.phases)

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
            "lives": self.lives,
            "seconds": round(self.duration, 3),
            **_costs(self),
            "records": {"processed": round(self.records, 1), "processed_twice": round(self.repeated, 1)},
            "phases": [_phase(one) for one in self.phases],
        }


def _costs(one: Figures | PhaseFigures) -> dict[str, Any]:
    traffic = one.traffic
    return {
        "messages": round(traffic.total(), 1),
        "messages_by_api": {api: round(count, 1) for api, count in sorted(traffic.messages.items())},
        "zookeeper_operations": {
            "as_issued": round(traffic.operations, 1),
            "as_0.8": round(traffic.single_operations, 1),
            "of_offsets": round(traffic.offset_operations, 1),
        },
        "zookeeper_notifications": round(traffic.notifications, 1),
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


def figures(lives: Sequence[Life]) -> Figures:
    """Return the figures of some lives of one generation."""
    phases = tuple(_mean([_phase_figures(life, phase) for life in lives]) for phase in Phase)
    distinct, repeated = (
        fmean(counts) for counts in zip(*((one.history.distinct, one.history.repeated) for one in lives), strict=True)
    )
    return Figures(lives[0].generation, len(lives), phases, distinct, repeated)


def _mean(some: Sequence[PhaseFigures]) -> PhaseFigures:
    return PhaseFigures(
        some[0].phase,
        tuple(seconds for one in some for seconds in one.stable),
        fmean(one.unread for one in some),
        fmean(one.unread_at_once for one in some),
        fmean(one.duration for one in some),
        Traffic.weighted_sum((1 / len(some), one.traffic) for one in some),
    )


def _phase_figures(life: Life, phase: Phase) -> PhaseFigures:
    steps = [step for step in life.steps if step.phase is phase]
    return PhaseFigures(
        phase,
        tuple(step.stable - step.began for step in steps),
        life.history.unread(steps[0].began, steps[-1].ended),
        life.history.unread_at(steps[0].began),
        steps[-1].ended - steps[0].began,
        _spent(life, steps),
    )


def _spent(life: Life, steps: list[Step]) -> Traffic:
    """What was sent in these steps, which follow one another."""
    earlier = [step.traffic for step in life.steps if step.ended <= steps[0].began]
    before = earlier[-1] if earlier else life.before
    return Traffic.weighted_sum([(1, steps[-1].traffic), (-1, before)])
