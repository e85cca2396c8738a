"""The default world of the scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A broker with an empty topic ``t`` of two partitions."""
    world = World(tmp_path)
    world.create_topic("t", 2)
    return world
