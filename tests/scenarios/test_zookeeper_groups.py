"""Members of ZooKeeper groups, with ZooKeeper, its sessions and the processes of the members under virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from ottla.broker.faults.rules import Delay
from ottla.client.groups.zookeeper.states import State
from ottla.client.health.verdicts import WaitsFor
from ottla.errors import CommitFailedError
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Thread, member
from ottla.simulation.world import World
from ottla.types import OffsetAndMetadata, TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import GenerationNode
from ottla.zookeeper.operations import Create, GetData, Operation, SetData

PARTITIONS = 4
SESSION = 6_000


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        world.produce("t", partition, 50)
    return world


def join(world: World, name: str, **settings: Any) -> App:
    app = world.app(name, group_id="g", group_protocol="zookeeper", zookeeper_session_timeout_ms=SESSION, **settings)
    app.start(member(app, commits=True))
    return app


def settle(world: World, *apps: App, limit: int = 60_000) -> None:
    """Run until these members share all partitions, and each of them is stable."""

    def settled() -> bool:
        owned = sorted(tp for app in apps for tp in app.calls.owned)
        stable = all(app.membership.state is State.STABLE for app in apps)
        return stable and owned == [TopicPartition("t", number) for number in range(PARTITIONS)]

    world.run_until(settled, limit)


def all_is_read(world: World, settings: Mapping[str, Any] | None = None) -> bool:
    stored = world.committed if "offsets_storage" in (settings or {}) else world.committed_in_zookeeper
    return stored("g", "t", PARTITIONS) == {tp.partition: count for tp, count in world.produced.items()}


def test_the_brokers_are_in_zookeeper_as_kafka_1_1_1_writes_them(world: World) -> None:
    nodes = world.zookeeper.model
    broker = nodes.data("/brokers/ids/1")
    assert broker is not None
    assert broker.startswith(
        b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:9092"]'
    )
    assert nodes.data("/brokers/topics/t") == b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1],"3":[1]}}'
    state = nodes.data("/brokers/topics/t/partitions/0/state")
    assert state == b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
    world.grow("t", 5)
    assert b'"4":[1]' in (nodes.data("/brokers/topics/t") or b"")
    world.delete_topic("t")
    assert nodes.children("/brokers/topics") == ()
    world.broker.kill()
    world.run(5_000)
    assert nodes.children("/brokers/ids") == ("1",)
    world.run(2_000)
    assert nodes.children("/brokers/ids") == ()
    world.broker.start()
    assert nodes.children("/brokers/ids") == ("1",)


def test_members_share_the_partitions_commit_and_leave(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    world.run_until(lambda: all_is_read(world))
    first.stop = True
    world.run_until(lambda: not first.running)
    assert first.error is None
    settle(world, second, limit=1_000)
    world.produce("t", 0, 10)
    world.run_until(lambda: all_is_read(world))
    assert (first.errors, second.errors) == ([], [])
    assert len(world.zookeeper.model.children(paths.ids("g"))) == 1


def test_the_partitions_of_a_killed_member_are_read_after_its_session(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    first.kill()
    world.run(SESSION - 1_000)
    assert len(second.calls.owned) == PARTITIONS // 2
    settle(world, second, limit=3_000)


@pytest.mark.parametrize("first_thread", Thread)
def test_a_process_that_was_stopped_beyond_its_session_loses_its_partitions(world: World, first_thread: Thread) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    world.run_until(lambda: all_is_read(world))
    first.sigstop()
    settle(world, second, limit=SESSION + 1_000)
    for number in range(PARTITIONS):
        world.produce("t", number, 10)
    world.run_until(lambda: all_is_read(world))
    handled = len(first.handled)
    first.sigcont(first_thread)
    settle(world, first, second)
    assert ("lost", [TopicPartition("t", 0), TopicPartition("t", 1)]) in first.listener_calls
    world.produce("t", 0, 5)
    world.run_until(lambda: all_is_read(world))
    assert {record.offset for record in first.handled[handled:]} == {60, 61, 62, 63, 64}


def test_a_restart_of_zookeeper_within_the_session_moves_no_partition(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    world.run_until(lambda: all_is_read(world))
    calls = list(first.listener_calls)
    world.zookeeper.stop()
    world.run(2_000)
    world.produce("t", 0, 10)
    world.zookeeper.start()
    world.run_until(lambda: all_is_read(world))
    settle(world, first, second)
    assert first.listener_calls == calls


STORES: dict[str, dict[str, Any]] = {
    "zookeeper": {},
    "kafka": {"offsets_storage": "kafka", "dual_commit_enabled": False},
    "both": {"offsets_storage": "kafka"},
}


@pytest.mark.parametrize("settings", STORES.values(), ids=STORES)
def test_a_member_that_reaches_zookeeper_no_more_stops_before_another_takes_over(world: World, settings: dict[str, Any]) -> None:
    first, second = join(world, "a", **settings), join(world, "b", **settings)
    settle(world, first, second)
    world.run_until(lambda: all_is_read(world, settings))
    world.broker.set_fault(Delay(0), Api.OFFSET_COMMIT, times=None, client_id="a")
    world.run_until(lambda: world.broker.struck > 0 or "offsets_storage" not in settings)
    world.network.separate("a", "zookeeper")
    world.run_until(lambda: not first.assembly.core.session.has_lease(world.now))
    seen = first.assembly.inspection.view(world.now).partitions.values()
    assert {part.waits_for for part in seen} == {WaitsFor.LEASE}
    before = world.broker.struck
    settle(world, second, limit=SESSION + 2_000)
    handled = len(first.handled)
    for number in range(PARTITIONS):
        world.produce("t", number, 10)
    world.run_until(lambda: all_is_read(world, settings))
    world.run(3_000)  # it tries to commit after each poll
    assert len(first.handled) == handled
    assert world.broker.struck == before, "it commits after its lease, when others may own the partitions"
    world.network.join("a", "zookeeper")
    settle(world, first, second)


def test_the_consumed_offsets_are_committed_periodically(world: World) -> None:
    app = world.app("a", group_id="g", group_protocol="zookeeper", auto_commit_interval_ms=100, max_poll_records=5)
    app.start(member(app, work=50))
    commits: list[int] = []
    for _ in range(100):
        world.run(50)
        committed = world.committed_in_zookeeper("g", "t", PARTITIONS)
        handled = Counter(record.partition for record in app.handled)
        assert all(offset <= handled[partition] for partition, offset in committed.items())
        commits.append(sum(committed.values()))
    assert app.running
    assert commits == sorted(commits)
    assert len(set(commits)) > 10
    assert commits[-1] == 50 * PARTITIONS


def test_the_same_pattern_again_changes_nothing(world: World) -> None:
    app = world.app("a", group_id="g", group_protocol="zookeeper")
    seen: list[int] = []

    def program() -> Program:
        yield from app.calls.subscribe((), app.listeners(), app.now, "t.*")
        for number in range(40):
            records = yield from app.calls.poll(500, app.now)
            seen.append(len(records))
            if number == 20:
                yield from app.calls.subscribe((), app.listeners(), app.now, "t.*")

    app.start(program())
    world.run(30_000)
    assert sum(seen) > 0
    assert app.assembly.subscription.topics == {"t"}


def test_a_commit_of_a_foreign_partition_reaches_neither_store(world: World) -> None:
    world.create_topic("u", 1)
    app = world.app("a", group_id="g", group_protocol="zookeeper", offsets_storage="kafka", dual_commit_enabled=True)
    foreign = {TopicPartition("u", 0): OffsetAndMetadata(7)}

    def program() -> Program:
        yield from app.calls.subscribe(("t",), app.listeners(), app.now)
        for _ in range(10):
            yield from app.calls.poll(500, app.now)
        with pytest.raises(CommitFailedError, match="does not own u-0"):
            yield from app.calls.commits.commit(foreign, 5_000, app.now)

    app.start(program())
    world.run(20_000)
    assert app.error is None
    assert world.committed("g", "u", 1) == {}


# -- central groups -------------------------------------------------------------------------------------------------------


def put_generation(world: World, generation: int, members: int) -> None:
    nodes, session = world.zookeeper.model, world.zookeeper.model.open(1 << 40, world.clock.now)
    data, path = GenerationNode(generation, members, SESSION, 1).encode(), paths.generation("g")
    for parent in paths.parents(path):
        nodes.execute(session, Create(parent), world.clock.now)
    write: Operation[Any] = Create(path, data) if nodes.data(path) is None else SetData(path, data)
    executed = nodes.execute(session, write, world.clock.now)
    assert executed.error is None


def test_a_member_waits_while_the_group_has_members_of_the_central_coordinator(world: World) -> None:
    put_generation(world, 3, 2)
    first = join(world, "a", rebalance_max_retries=2)
    world.run(10_000)
    assert first.membership.state is State.REGISTERING
    assert world.zookeeper.model.children(paths.ids("g")) == ()
    assert first.membership.status.obstacle == "the central coordinator coordinates group 'g', which has members there"
    assert "the central coordinator coordinates group 'g'" in str(first.errors[0])
    assert "group_protocol='central'" in str(getattr(first.errors[0], "hint", ""))
    put_generation(world, 3, 0)
    settle(world, first)
    first.stop = True
    world.run_until(lambda: not first.running)


def test_a_member_registers_in_a_group_that_was_never_central(world: World) -> None:
    first = join(world, "a")
    settle(world, first)
    assert world.zookeeper.model.data(paths.generation("g")) is None


def test_a_generation_that_begins_while_a_member_registers_is_noticed(world: World) -> None:
    """The look and the registration are two steps; the second one fails."""
    put_generation(world, 3, 0)
    begun: list[int] = []

    def begin(session: int, operation: Operation[Any], executed: Any) -> None:
        if not begun and isinstance(operation, GetData) and operation.path == paths.generation("g"):
            begun.append(session)
            put_generation(world, 4, 1)

    world.zookeeper.observers.append(begin)
    first = join(world, "a")
    world.run(10_000)
    assert begun
    assert world.zookeeper.model.children(paths.ids("g")) == ()
    put_generation(world, 5, 0)
    settle(world, first)
