"""The life of ``ottla compare`` in the simulator, for the generation that has the most parts."""

from __future__ import annotations

import pytest

from ottla.comparison.figures import figures
from ottla.comparison.life import COUNTED, MORE_PARTITIONS, Phase
from ottla.comparison.simulated import simulated_life
from ottla.simulation.outcome import Generation


@pytest.mark.slow
def test_the_life_of_a_central_group() -> None:
    life = simulated_life(Generation.CENTRAL, 1)
    found = figures([life])
    traffic = found.traffic
    assert traffic.messages.keys() == {"Consult", "Register", "Leave", "Ping", "Stop", "Start", "OffsetCommit", "OffsetFetch"}
    assert traffic.messages.keys() < set(COUNTED.values())
    assert found.of(Phase.GROW).time_to_stable < 0.2, "no member waits for a heartbeat"
    assert found.of(Phase.GROW).traffic.messages["Stop"] == 2 * sum(range(1, 8)) + 2 * 7, "each member stops at each join"
    assert 5 < found.of(Phase.KILL).time_to_stable < 6.5, "the session of a dead member"
    assert found.of(Phase.COORDINATOR).unread == 0, "members keep what they have"
    assert found.of(Phase.COORDINATOR).time_to_stable < 4.5
    assert 0 < traffic.offset_operations < traffic.operations < traffic.single_operations
    assert len(life.history.owners) == MORE_PARTITIONS
