"""Groups of Ottla's consumers on three Apache Kafka nodes: nodes restart and die, leaders move, topics grow and are recreated.

The checks are in ``groups/invariants.py`` and ``cluster/invariants.py``, the scenarios in ``cluster/scenarios.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cluster.scenario_runner import SESSION, ScenarioRunner, cluster_settings
from tests.interop.cluster.scenarios import SHORT, endless
from tests.interop.groups.scenario_runner import session_for_now
from tests.interop.real_kafka import KafkaCluster, KafkaTool

KINDS = (("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "uniform"))
"""Protocol and assignor of each group: all of them live through the same story. The short one is for those that keep partitions."""
SECONDS = float(os.environ.get("OTTLA_ENDURANCE_SECONDS", "600"))
SEED = int(os.environ.get("OTTLA_ENDURANCE_SEED", "1"))


@pytest.fixture
def session() -> int:
    return session_for_now(SESSION)


@pytest.fixture
def cluster(kafka_tool: KafkaTool, session: int) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(3, *cluster_settings(session))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_a_minute_of_troubles(cluster: KafkaCluster, session: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    runner = ScenarioRunner(cluster, tmp_path, KINDS[1:], session)
    assert runner.play(SHORT) == []
    request.node.user_properties.append(("cluster, short", runner.figures.row()))


@pytest.mark.endurance
@pytest.mark.timeout(SECONDS + 1200)
def test_troubles_without_end(cluster: KafkaCluster, session: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    runner = ScenarioRunner(cluster, tmp_path, KINDS, session)
    assert runner.play(endless(SEED), SECONDS) == []
    request.node.user_properties.append((f"cluster, {SECONDS:.0f} s from seed {SEED}", runner.figures.row()))
