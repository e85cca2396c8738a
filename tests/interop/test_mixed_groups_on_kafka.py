"""Groups of Ottla's and other clients on Apache Kafka, with a process per member: each of them leads, leaves and is killed.

The checks are in ``groups/invariants.py``, the scenarios in ``groups/scenarios.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.groups.scenario_runner import ScenarioRunner, settings
from tests.interop.groups.scenarios import COOPERATIVE, EAGER, Scenario, beside_ours_everywhere, coming_and_going, migrations
from tests.interop.real_kafka import KafkaTool, OwnKafka, free_port_pair

SESSION = 6_000
"""Milliseconds."""
MATRIX = [*beside_ours_everywhere(("classic", "consumer"), {**EAGER, **COOPERATIVE}), *migrations()]


@pytest.fixture(scope="module")
def node(kafka_tool: KafkaTool) -> Iterator[OwnKafka]:
    """A node that misses a silent member of either kind of group soon."""
    node = OwnKafka(free_port_pair(), *(f"{name}={value}" for name, value in settings(SESSION).items()))
    try:
        yield node
    finally:
        node.stop()


def play(scenario: Scenario, node: OwnKafka, folder: Path, request: pytest.FixtureRequest) -> None:
    runner = ScenarioRunner(scenario, node.address, folder, SESSION)
    assert runner.play() == []
    request.node.user_properties.append((scenario.name, runner.figures.row()))


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_a_consumer_group_of_all_who_speak_it(node: OwnKafka, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    play(coming_and_going("consumer"), node, tmp_path, request)


@pytest.mark.interop
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", MATRIX, ids=lambda one: one.name)
def test_ours_among_others(scenario: Scenario, node: OwnKafka, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    play(scenario, node, tmp_path, request)
