"""The simulator's world with a broker on real files, which its data directory keeps when it is killed.

Owns the choice of the files. Must not know what is tested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.simulation import world
from tests.simulation.files import RealFiles

QUICK_GROUPS: dict[str, Any] = {
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.assignment.interval.ms": 0,
}
"""Settings of a broker whose consumer groups beat as quickly as the classic ones here."""


class World(world.World):
    """One broker on a real folder, some applications, one clock."""

    def __init__(self, path: Path, seed: int = 0, **settings: Any) -> None:
        super().__init__(seed, lambda: RealFiles(path, int(settings.get("node.id", 1))), **settings)
