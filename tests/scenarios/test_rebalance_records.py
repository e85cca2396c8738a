"""The record of each rebalance: its cause, the member, the partitions, and for how long partitions were not fetched."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ottla import Rebalance
from ottla.client.calls.listeners import Listeners
from ottla.client.groups.rebalances import KEPT, RebalanceRecorder
from ottla.simulation.application import App, Program, Sleep, member
from ottla.types import TopicPartition
from tests.simulation.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(params=["classic", "cooperative", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path)
    world.protocol = request.param
    world.create_topic("t", 2)
    return world


def protocol_of(world: World) -> str:
    return "consumer" if world.protocol == "consumer" else "classic"


def rebalances(app: App) -> tuple[Rebalance, ...]:
    assert app.assembly.recorder is not None
    return app.assembly.recorder.records


def app_of(world: World, name: str) -> App:
    """A member: eager by ``range``, cooperative, or of a consumer group."""
    if world.protocol == "consumer":
        return world.app(name, group_id="g", group_protocol="consumer")
    assignor = "range" if world.protocol == "classic" else "cooperative-sticky"
    return world.app(name, group_id="g", group_protocol="classic", partition_assignment_strategy=assignor)


def join(world: World, name: str) -> App:
    app = app_of(world, name)
    app.start(member(app))
    world.run_until(lambda: bool(app.calls.owned))
    return app


def test_the_first_rebalance_records_the_member_and_its_partitions(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.client.groups.rebalances")
    began = world.now.wall
    app = join(world, "a")
    world.run(100)
    (record,) = rebalances(app)
    group = app.calls.snapshot.group
    assert group is not None
    assert (record.protocol, record.member_id, record.epoch) == (protocol_of(world), group.member_id, group.generation_id)
    assert (record.assigned, record.revoked, record.lost, record.completed) == ((T0, T1), (), (), True)
    assert record.reason == "the member joins the group"
    assert began <= record.began * 1000 <= world.now.wall
    assert 0 < record.duration < 10
    (line,) = [item.getMessage() for item in caplog.records if item.name == "ottla.client.groups.rebalances"]
    assert "\n" not in line
    assert all(
        part in line for part in ("group 'g'", group.member_id, "the member joins the group", "assigned t-0 t-1", "lost none")
    )


def test_a_rebalance_by_another_member_records_unfetched_partitions_and_durations(world: World) -> None:
    first = join(world, "a")
    second = join(world, "b")
    world.run_until(lambda: len(first.calls.owned) == len(second.calls.owned) == 1)
    world.run(10_000)
    records = rebalances(first)[1:]
    assert records[0].reason in ("group is already rebalancing", "the coordinator has made a new assignment")
    assert records[-1].epoch >= rebalances(first)[0].epoch
    (kept,), (gone,) = first.calls.owned, second.calls.owned
    revoked = {tp for record in records for tp in record.revoked}
    unfetched = {tp: spent for record in records for tp, spent in record.unfetched.items()}
    if world.protocol == "classic":
        # Eager: all partitions are revoked, and also those that return are not fetched until on_assign has returned.
        (record,) = records
        assert (record.revoked, record.assigned) == ((T0, T1), (kept,))
        assert 0 < unfetched[kept] <= record.duration
        assert gone in unfetched
    else:
        assert revoked == {gone}
        assert [record.assigned for record in records if record.assigned] == []
        assert kept not in unfetched, "retained partitions are fetched throughout"


def test_the_time_of_listeners_is_recorded_even_if_they_raise(world: World) -> None:
    app = app_of(world, "a")

    def failing(partitions: list[TopicPartition]) -> None:
        app.busy(2_000)
        raise ValueError("no use")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], Listeners(failing, lambda partitions: app.busy(3_000)), app.now)
        while not app.stop:
            try:
                yield from app.calls.poll(500, app.now)
            except ValueError as error:
                app.errors.append(error)
        yield from app.calls.close(10_000, app.now)

    app.start(program())
    world.run_until(lambda: len(rebalances(app)) == 1)
    assert rebalances(app)[0].in_listeners == 2
    assert [str(error) for error in app.errors] == ["no use"]
    app.stop = True
    world.run_until(lambda: not app.running)
    ended = rebalances(app)[1]
    assert (ended.in_listeners, ended.completed, ended.revoked) == (3, False, (T0, T1))
    assert ended.reason == "the consumer is being closed"
    assert ended.member_id == rebalances(app)[0].member_id


def test_an_expelled_member_records_lost_partitions_and_its_rejoin(world: World) -> None:
    app = app_of(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        yield from app.calls.poll(5_000, app.now)
        yield Sleep(25_000)
        while not app.stop:
            yield from app.calls.poll(500, app.now)

    app.start(program())
    world.run_until(lambda: len(rebalances(app)) == 2)
    record = rebalances(app)[1]
    assert (record.lost, record.revoked, record.assigned) == ((T0, T1), (), (T0, T1))
    reason = {"classic": "consumer pro-actively leaving the group", "consumer": "the application did not poll in time"}
    assert record.reason == reason[protocol_of(world)]
    assert record.unfetched[T0] == pytest.approx(record.duration, abs=0.1)
    assert record.duration > 4


def test_without_a_rebalance_there_is_no_record(world: World) -> None:
    app = world.app("a")
    world.call(app, app.calls.assign([T0], app.now))
    assert app.assembly.recorder is None


def test_only_the_latest_rebalances_are_kept(world: World) -> None:
    app = join(world, "a")
    world.run_until(lambda: len(rebalances(app)) == 1)
    recorder = app.assembly.recorder
    assert recorder is not None
    for _ in range(KEPT + 5):
        recorder.took([T0], 0, world.now)
        recorder.poll(world.now)
    assert len(recorder.records) == KEPT
    assert recorder.completed == KEPT + 6


@pytest.mark.parametrize("name", ["gave_up", "took"])
def test_a_rebalance_goes_on_if_it_cannot_be_recorded(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RebalanceRecorder, name, broken)
    one = app_of(world, "a")
    one.start(member(one))
    world.run(5_000)
    other = app_of(world, "b")
    other.start(member(other))
    world.run_until(lambda: len(one.calls.owned) == len(other.calls.owned) == 1)
    assert any("a bug" in str(error) for error in one.errors)
