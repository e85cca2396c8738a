"""One test for each question that the design of the consumer's threads left open (answered in client-assignors.md)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ottla import OttlaConfigWarning
from ottla.broker.faults.rules import LoseReply
from ottla.client.calls.listeners import Listeners
from ottla.client.groups.consumer.states import State
from ottla.errors import OttlaTimeoutError
from ottla.protocol import milliseconds
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.groups import ALL, HEARTBEAT, filled, goodbyes, join, new, sent, settle
from tests.simulation.world import QUICK_GROUPS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = filled(tmp_path, **QUICK_GROUPS)
    world.protocol = "consumer"
    return world


def state_of(app: App) -> State:
    state: State = app.membership.state
    return state


class Slowly:
    """Listeners that take 2.5 s each and record the member's states meanwhile."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ran: list[tuple[str, State, int, int]] = []

    def listeners(self) -> Listeners:
        return Listeners(on_assign=lambda _: self.run("assign"), on_revoke=lambda _: self.run("revoke"))

    def run(self, what: str) -> None:
        began = self.app.now.mono
        self.app.busy(2_500)
        self.ran.append((what, state_of(self.app), began, self.app.now.mono))


def rebalance_slowly(world: World) -> Slowly:
    """Have a second member join the group of a member with slow listeners, and return those."""
    first = new(world, "a")
    slowly = Slowly(first)

    def program() -> Program:
        yield from first.calls.subscribe(["t"], slowly.listeners(), first.now)
        while not first.stop:
            yield from first.calls.poll(500, first.now)

    first.start(program())
    world.run_until(lambda: first.calls.owned == set(ALL))
    second = join(world, "b")
    settle(world, first, second)
    return slowly


def test_heartbeats_continue_between_revocation_and_assignment_and_acknowledge_only_after_both(world: World) -> None:
    slowly = rebalance_slowly(world)
    (revoked,) = [one for one in slowly.ran if one[0] == "revoke"]
    given = next(one for one in slowly.ran if one[0] == "assign" and one[2] >= revoked[3])
    membership = slowly.app.membership
    assert membership is not None
    beats = [(at, one) for at, one in sent(world, HEARTBEAT, revoked[2]) if one.member_id == membership.metadata().member_id]
    during = [one for at, one in beats if at <= given[3]]
    assert len(during) >= 5, "one a second"
    assert {one.topic_partitions for one in during} == {None}
    acknowledged_at = next(at for at, one in beats if one.topic_partitions is not None)
    assert acknowledged_at - given[3] <= 5, "at once after on_assign has returned"


def test_revocation_and_assignment_are_steps_of_one_state(world: World) -> None:
    slowly = rebalance_slowly(world)
    assert {what for what, *_ in slowly.ran} == {"revoke", "assign"}
    assert {state for _, state, *_ in slowly.ran} == {State.RECONCILING}


def test_a_member_leaves_with_a_last_heartbeat_and_is_no_member_after_its_response(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    seen: list[State] = []
    first.stop = True
    while first.running:
        assert world.clock.step(world.now.mono + 10_000)
        if not seen or seen[-1] is not state_of(first):
            seen.append(state_of(first))
    assert seen[-1] is State.UNSUBSCRIBED
    (said,) = goodbyes(world)
    settle(world, second)
    assert world.now.mono - said.at < 3_000


def test_an_expelled_member_can_rejoin(world: World) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not app.calls.owned:
            yield from app.calls.poll(500, app.now)
        yield Sleep(30_000)
        while not app.stop:
            yield from app.calls.poll(500, app.now)

    app.start(program())
    world.run_until(lambda: state_of(app) is State.STALE, limit=40_000)
    world.run_until(lambda: state_of(app) is State.STABLE, limit=40_000)
    assert [what for what, _ in app.listener_calls] == ["assign", "lost", "assign"]


def test_the_coordinator_lookup_has_the_request_timeout_and_poll_does_not_wait_for_it(world: World) -> None:
    world.broker.set_fault(LoseReply(), Api.FIND_COORDINATOR, times=2)
    app = new(world, "a", request_timeout_ms=3_000)
    polled: list[int] = []

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not app.calls.owned:
            began = app.now.mono
            yield from app.calls.poll(200, app.now)
            polled.append(app.now.mono - began)

    world.call(app, program())
    asked = [at for at, _ in sent(world, Api.FIND_COORDINATOR)]
    assert len(asked) == 3
    assert all(3_000 <= later - earlier <= 4_500 for earlier, later in pairwise(asked))
    assert max(polled) <= 201


def test_a_commit_has_the_timeout_of_its_caller(world: World) -> None:
    app = join(world, "a")
    settle(world, app)
    app.stop = True
    world.run_until(lambda: not app.running)
    other = new(world, "b", request_timeout_ms=1_000)
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}

    def program() -> Program:
        yield from other.calls.subscribe(["t"], other.listeners(), other.now)
        while not other.calls.owned:
            yield from other.calls.poll(200, other.now)
        world.broker.set_fault(LoseReply(), Api.OFFSET_COMMIT, times=None)
        began = other.now.mono
        with pytest.raises(OttlaTimeoutError):
            yield from other.calls.commits.commit(offsets, 4_000, other.now)
        return other.now.mono - began

    assert 4_000 <= world.call(other, program()) <= 4_100
    assert len(sent(world, Api.OFFSET_COMMIT)) > 1, "within that time it is tried again"


def test_a_rebalance_waits_for_up_to_the_poll_interval(world: World) -> None:
    first = join(world, "a", max_poll_interval_ms=40_000, request_timeout_ms=2_000)
    settle(world, first)
    (_, joined), *_ = sent(world, HEARTBEAT)
    assert milliseconds(joined.rebalance_timeout) == 40_000


@pytest.mark.parametrize("interval", [1_000, 2_000])
def test_heartbeat_intervals_follow_the_broker_s_settings_at_run_time(world: World, interval: int) -> None:
    with pytest.warns(OttlaConfigWarning, match=r"group.protocol=consumer ignores heartbeat.interval.ms, session.timeout.ms"):
        first = join(world, "a", heartbeat_interval_ms=100, session_timeout_ms=500)
    settle(world, first)
    set_interval(world, interval)
    world.run(3_000)
    began = world.now.mono
    world.run(10_000)
    beats = [at for at, _ in sent(world, HEARTBEAT, began)]
    assert len(beats) == pytest.approx(10_000 / interval, abs=1)


def set_interval(world: World, interval: int) -> None:
    """Set this group's heartbeat interval while it runs, as an operator does."""
    from ottla.protocol.messages import incremental_alter_configs_request as messages

    config = messages.AlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=0, value=str(interval))
    resource = messages.AlterConfigsResource(resource_type=32, resource_name="g", configs=(config,))
    request: Any = messages.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    answer = world.broker.ask(Api.INCREMENTAL_ALTER_CONFIGS, request)
    assert not answer.responses[0].error_code, answer
