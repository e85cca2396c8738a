"""Groups of other clients, with a process per member: members join, leave, are killed and return, and the broker restarts.

The checks are in ``groups/invariants.py``, the scenarios in ``groups/scenarios.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.groups.scenario_processes import BrokerProcess
from tests.interop.groups.scenario_runner import ScenarioRunner, session_for_now, settings
from tests.interop.groups.scenarios import PROTOCOLS, Scenario, everyday, matrix, torture

TORTURES = [torture(seed, protocol) for protocol in PROTOCOLS for seed in range(5)]


@pytest.fixture
def session() -> int:
    return session_for_now()


@pytest.fixture
def broker(tmp_path: Path, session: int) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path, settings(session))
    try:
        yield broker
    finally:
        broker.close()


def play(scenario: Scenario, broker: BrokerProcess, session: int, request: pytest.FixtureRequest) -> None:
    if "java" in (*scenario.clients, scenario.writer):
        request.getfixturevalue("kafka_tool")
    runner = ScenarioRunner(scenario, broker.servers, broker.folder, session, broker)
    assert runner.play() == []
    request.node.user_properties.append((scenario.name, runner.figures.row()))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", everyday(), ids=lambda one: one.name)
def test_every_client_s_life(scenario: Scenario, broker: BrokerProcess, session: int, request: pytest.FixtureRequest) -> None:
    play(scenario, broker, session, request)


@pytest.mark.interop
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", matrix(), ids=lambda one: one.name)
def test_the_full_matrix(scenario: Scenario, broker: BrokerProcess, session: int, request: pytest.FixtureRequest) -> None:
    play(scenario, broker, session, request)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", TORTURES, ids=lambda one: one.name)
def test_kills_in_any_order(scenario: Scenario, broker: BrokerProcess, session: int, request: pytest.FixtureRequest) -> None:
    play(scenario, broker, session, request)
