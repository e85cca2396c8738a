"""Shared by the tests of one consumer with ``assign()``: a topic of two partitions, an assignment, a poll.

Owns no fixture: ``conftest`` does. Must not know what is tested.
"""

from __future__ import annotations

from typing import Any

from ottla.simulation.application import App
from ottla.types import TopicPartition
from tests.simulation.world import World

TP0, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)


def assigned(world: World, *partitions: TopicPartition, **settings: Any) -> App:
    """An application that has called ``assign()`` with these partitions."""
    app = world.app("a", **settings)
    world.call(app, app.calls.assign(partitions, world.now))
    return app


def poll(world: World, app: App, timeout: int = 1_000) -> list[tuple[int, int]]:
    """One poll: (partition, offset) of each record."""
    records = world.call(app, app.calls.poll(timeout, world.now))
    return [(record.partition, record.offset) for record in records]
