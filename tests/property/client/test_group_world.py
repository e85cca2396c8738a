"""Any history of a group's members and their broker: no record is lost or out of order, and no commit runs ahead.

Hypothesis draws a history (members join, stall, are disconnected, die, close, seek, pause; the broker restarts), the in-memory
world plays it, and the invariants are checked after each step of the clock. In the end all faults are removed and all records
must be handled.
"""

from __future__ import annotations

import enum
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ottla.client.groups.classic import states as classic_states
from ottla.client.groups.consumer import states as consumer_states
from ottla.errors import CommitFailedError, ConnectionFailedError, IllegalStateError, OttlaTimeoutError, RebalanceInProgressError
from ottla.simulation.application import Program, Sleep
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.example_counts import examples
from tests.scenarios.client_assignors import SETTINGS, Weighted
from tests.scenarios.groups import owned_by_listeners
from tests.simulation.world import World

pytestmark = pytest.mark.slow


PARTITIONS = 3
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]
EXPECTED_ERRORS = (CommitFailedError, ConnectionFailedError, OttlaTimeoutError, RebalanceInProgressError, IllegalStateError)


class Watched:
    """A member that checks each of its records."""

    def __init__(self, world: World, name: str, *, auto_commit: bool, records: int) -> None:
        self.app = world.app(
            name,
            group_id="g",
            **({"group_protocol": "consumer", "group_client_assignors": [Weighted]} if world.protocol == "consumer" else {}),
            enable_auto_commit=auto_commit,
            auto_commit_interval_ms=300,
            max_poll_records=records,
            default_api_timeout_ms=10_000,
            request_timeout_ms=5_000,
        )
        self.commits = not auto_commit
        self.stall = 0
        self.pause: TopicPartition | None = None
        self.rewind: TopicPartition | None = None
        self.next: dict[TopicPartition, int] = {}
        """The offset that has to come next of each partition."""
        self.states: list[enum.Enum] = [self.state]
        self.app.start(self.program())

    @property
    def state(self) -> enum.Enum:
        state: enum.Enum = self.app.membership.state
        return state

    def program(self) -> Program:
        app, calls = self.app, self.app.calls
        yield from calls.subscribe(["t"], app.listeners(), app.now)
        while not app.stop:
            try:
                before = len(app.listener_calls)
                records = yield from calls.poll(200, app.now)
                if len(app.listener_calls) != before:
                    self.next.clear()
                for record in records:
                    self.check(TopicPartition(record.topic, record.partition), record.offset)
                yield Sleep(self.stall or 5)
                self.stall = 0
                app.handled.extend(records)
                if self.commits and records:
                    yield from calls.commits.commit(None, 3_000, app.now)
                yield from self.seek_or_pause()
            except EXPECTED_ERRORS as error:
                app.errors.append(error)
                yield Sleep(20)
        yield from calls.close(5_000, app.now)

    def check(self, tp: TopicPartition, offset: int) -> None:
        """Check that records arrive in order, without gap or repetition, and only of owned partitions that are not paused."""
        assert tp in self.app.calls.owned
        assert not self.app.calls.snapshot.partitions[tp].paused
        assert offset == self.next.get(tp, offset), f"{tp}: {offset} after {self.next[tp] - 1}"
        self.next[tp] = offset + 1

    def seek_or_pause(self) -> Program:
        calls, app = self.app.calls, self.app
        if self.rewind in calls.owned and self.rewind is not None:
            offset = max(0, self.next.get(self.rewind, 0) - 3)
            tp, self.rewind = self.rewind, None
            yield from calls.positions.seek({tp: OffsetAndMetadata(offset)}, app.now)
            self.next[tp] = offset
        paused = {tp for tp, view in calls.snapshot.partitions.items() if view.paused}
        if paused:
            yield from calls.positions.resume(paused & calls.owned, app.now)
        elif self.pause in calls.owned and self.pause is not None:
            tp, self.pause = self.pause, None
            yield from calls.positions.pause((tp,), app.now)


class Checks:
    """The invariants, checked at any time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.members: list[Watched] = []
        self._looks = 0

    def look(self) -> None:
        for member in self.members:
            if member.app.error is not None:
                raise member.app.error
            before, after = member.states[-1], member.state
            if before is not after:
                member.states.append(after)
        self._looks += 1
        if self.world.broker.up and self._looks % 10 == 0:
            self.commits_do_not_run_ahead()

    def commits_do_not_run_ahead(self) -> None:
        committed = self.world.committed("g", "t", PARTITIONS)
        for partition, offset in committed.items():
            handled = {record.offset for member in self.members for record in member.app.handled if record.partition == partition}
            assert set(range(offset)) <= handled, f"partition {partition}: {offset} is committed, but not all before it is handled"

    def listeners_in_turns(self) -> None:
        """Check that each assigned partition is revoked or lost once before it is assigned again."""
        for member in self.members:
            owned_by_listeners(member.app)

    def states_follow_the_table(self) -> None:
        """Seen at the ends of passes, a state may be several transitions from the one before."""
        of_protocol = {"classic": classic_states.TRANSITIONS, "consumer": consumer_states.TRANSITIONS}
        table: Mapping[Any, Mapping[Any, Any]] = of_protocol[self.world.protocol]  # type: ignore[assignment]
        reachable = {state: _reachable(table, state) for state in table}
        for member in self.members:
            for before, after in zip(member.states, member.states[1:], strict=False):
                assert after in reachable[before]


def _reachable(table: Mapping[Any, Mapping[Any, Any]], state: enum.Enum) -> set[enum.Enum]:
    found = {state}
    while True:
        more = found | {target for one in found for target in table[one].values()}
        if more == found:
            return found
        found = more


partitions = st.sampled_from(ALL)
actions = st.one_of(
    st.tuples(st.just("join"), st.booleans(), st.sampled_from([1, 7, 500])),
    st.tuples(st.just("close"), st.integers(0, 3)),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("stall"), st.integers(0, 3), st.sampled_from([3_000, 30_000])),
    st.tuples(st.just("cut"), st.integers(0, 3)),
    st.tuples(st.just("heal"), st.integers(0, 3)),
    st.tuples(st.just("pause"), st.integers(0, 3), partitions),
    st.tuples(st.just("rewind"), st.integers(0, 3), partitions),
    st.tuples(st.just("produce"), partitions, st.integers(1, 40)),
    st.tuples(st.just("restart"), st.sampled_from([10, 3_000])),
)
steps = st.lists(st.tuples(actions, st.sampled_from([3, 50, 700, 4_000, 12_000])), min_size=3, max_size=14)


class History:
    """Plays the drawn steps."""

    def __init__(self, path: Path, seed: int, protocol: str) -> None:
        self.world = World(path, seed, **(SETTINGS if protocol == "consumer" else {}))
        self.world.protocol = protocol
        self.world.create_topic("t", PARTITIONS)
        self.checks = Checks(self.world)

    def pass_time(self, duration: int) -> None:
        until = self.world.now.mono + duration
        while self.world.clock.step(until):
            self.checks.look()

    def do(self, action: tuple[Any, ...]) -> None:
        name, *arguments = action
        method: Callable[..., None] = getattr(self, name)
        method(*arguments)

    def member(self, number: int) -> Watched | None:
        alive = [member for member in self.checks.members if member.app.alive and member.app.running]
        return alive[number % len(alive)] if alive else None

    def join(self, auto_commit: bool, records: int) -> None:
        if sum(member.app.running and member.app.alive for member in self.checks.members) < 4:
            name = f"m{len(self.checks.members)}"
            self.checks.members.append(Watched(self.world, name, auto_commit=auto_commit, records=records))

    def close(self, number: int) -> None:
        if (member := self.member(number)) is not None:
            member.app.stop = True

    def kill(self, number: int) -> None:
        if (member := self.member(number)) is not None:
            member.app.kill()

    def stall(self, number: int, duration: int) -> None:
        if (member := self.member(number)) is not None:
            member.stall = duration

    def cut(self, number: int) -> None:
        if (member := self.member(number)) is not None:
            self.world.network.isolate(member.app.name)

    def heal(self, number: int) -> None:
        if (member := self.member(number)) is not None:
            self.world.network.rejoin(member.app.name)

    def pause(self, number: int, tp: TopicPartition) -> None:
        if (member := self.member(number)) is not None:
            member.pause = tp

    def rewind(self, number: int, tp: TopicPartition) -> None:
        if (member := self.member(number)) is not None:
            member.rewind = tp

    def produce(self, tp: TopicPartition, count: int) -> None:
        self.world.produce(tp.topic, tp.partition, count)

    def restart(self, pause: int) -> None:
        self.world.broker.kill()
        self.pass_time(pause)
        self.world.broker.start()

    def heal_everything(self) -> None:
        """Remove all faults, and check that all records are handled."""
        for member in self.checks.members:
            self.world.network.rejoin(member.app.name)
        self.join(True, 500)
        for tp in ALL:
            self.world.produce(tp.topic, tp.partition, 1)
        limit = self.world.now.mono + 300_000
        while not self.all_handled():
            assert self.world.clock.step(limit), self.missing()
            self.checks.look()

    def missing(self) -> dict[TopicPartition, list[int]]:
        handled = {(record.partition, record.offset) for member in self.checks.members for record in member.app.handled}
        found = {tp: [o for o in range(count) if (tp.partition, o) not in handled] for tp, count in self.world.produced.items()}
        return {tp: offsets for tp, offsets in found.items() if offsets}

    def all_handled(self) -> bool:
        return not self.missing()


def play(history: list[tuple[tuple[Any, ...], int]], seed: int, protocol: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = History(Path(folder), seed, protocol)
        world.join(True, 7)
        world.produce(ALL[0], 20)
        for action, pause in history:
            world.do(action)
            world.pass_time(pause)
        world.heal_everything()
        world.checks.listeners_in_turns()
        world.checks.states_follow_the_table()
        world.world.broker.kill()


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps, st.integers(0, 1000))
def test_no_record_is_lost(history: list[tuple[tuple[Any, ...], int]], seed: int) -> None:
    play(history, seed, "classic")


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps, st.integers(0, 1000))
def test_no_record_is_lost_with_client_side_assignors(history: list[tuple[tuple[Any, ...], int]], seed: int) -> None:
    play(history, seed, "consumer")
