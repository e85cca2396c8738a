"""A group of two members, and checks that must hold under any fault.

Owns the checks that must hold under any fault. Must not know which fault is injected. Invariant: the checks run all the
time, not only at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from ottla.broker.faults.rules import Action, Delay, Drop, LoseReply, Moment
from ottla.protocol.apis import Api
from ottla.simulation.application import App, member
from tests.scenarios.groups import ALL, PARTITIONS, filled
from tests.simulation.world import QUICK_GROUPS, World

NO_ANSWER: dict[str, Action] = {
    "lost": LoseReply(),
    "dropped-request": Drop(Moment.REQUEST),
    "dropped-reply": Drop(Moment.REPLY),
    "half-reply": Drop(Moment.HALFWAY),
    "late": Delay(1_500),
    "too-late": Delay(5_000),
}
"""The ways in which an answer does not come, or not in time."""

COORDINATOR = ("not_coordinator", "coordinator_not_available", "coordinator_load_in_progress")
"""The errors with which a broker says that a group is not its own, or not yet."""


def each_of(errors: Mapping[Api, Iterable[str]]) -> pytest.MarkDecorator:
    """A test of ``api`` and ``error`` for each error of each api."""
    pairs = [(api, error) for api, names in errors.items() for error in names]
    return pytest.mark.parametrize(("api", "error"), pairs, ids=lambda value: getattr(value, "name", value))


class Group:
    """Two members that commit after each poll, and the checks on them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.apps: list[App] = []
        self.committed: dict[int, int] = {}

    def join(self, name: str) -> App:
        times = {"request_timeout_ms": 3_000, "default_api_timeout_ms": 10_000}
        app = self.world.app(name, group_id="g", max_poll_records=20, group_protocol=self.world.protocol, **times)
        self.apps.append(app)
        app.start(member(app, commits=True))
        return app

    def run(self, duration: int) -> None:
        for _ in range(duration // 250):
            self.world.run(250)
            self.check()

    def check(self) -> None:
        """Check that no committed offset goes back, and that none is ahead of the handled records."""
        if self.world.broker.core.catalog.faults.active:
            return  # the fault could hit this very request
        now = self.world.committed("g", "t", PARTITIONS)
        for partition, offset in now.items():
            assert offset >= self.committed.get(partition, 0)
            handled = {record.offset for app in self.apps for record in app.handled if record.partition == partition}
            assert set(range(offset)) <= handled
        self.committed = now

    def heal(self, limit: int = 60_000) -> None:
        """Remove the faults, and check that the members share the partitions, and read and commit all records."""
        self.world.broker.clear_faults()
        self.produce(10)
        end = self.world.now.mono + limit
        while not self.is_well():
            assert self.world.now.mono < end, (
                self.committed,
                [app.errors for app in self.apps],
                [app.calls.owned for app in self.apps],
            )
            self.run(250)

    def is_well(self) -> bool:
        owned = sorted(tp for app in self.apps for tp in app.calls.owned)
        stable = all(app.membership.state.name == "STABLE" for app in self.apps)
        return owned == ALL and stable and list(self.committed.values()) == [self.world.produced[tp] for tp in ALL]

    def produce(self, count: int) -> None:
        for partition in range(PARTITIONS):
            self.world.produce("t", partition, count)


def supplied(path: Path, protocol: str) -> Group:
    """A group without members, and a topic with records."""
    world = filled(path, records=50, **QUICK_GROUPS)
    world.protocol = protocol
    return Group(world)


def working(group: Group) -> Group:
    """A group of two members that has read all records."""
    group.join("a")
    group.join("b")
    group.heal()
    return group


def play(group: Group, action: Action, api: Api, times: int | None, *, forming: bool) -> None:
    """Inject a fault while the group forms or while it works, for some seconds, then remove it."""
    if forming:
        group.world.broker.set_fault(action, api, times=times)
    group.join("a")
    group.run(2_000)
    group.join("b")
    group.run(3_000)
    if not forming:
        group.world.broker.set_fault(action, api, times=times)
    group.produce(50)
    group.run(7_000)
    assert group.world.broker.struck >= 1
    group.heal()
