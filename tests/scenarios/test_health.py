"""The health of a consumer: its verdicts, and the reasons why a partition makes no progress."""

from __future__ import annotations

from ottla import MetricName
from ottla.broker.faults.rules import Fail
from ottla.client.health.metrics import COORDINATOR, FETCH
from ottla.client.health.verdicts import WaitsFor
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep, member
from ottla.types import TopicPartition
from tests.scenarios.health_probe import Probe
from tests.simulation.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def assigned(app: App, *partitions: TopicPartition, work: int = 10) -> Program:
    yield from app.calls.assign(partitions or [T0, T1], app.now)
    while not app.stop:
        app.handled.extend((yield from app.calls.poll(500, app.now)))
        yield Sleep(work)


def test_a_member_that_reads_everything_is_healthy(world: World) -> None:
    app = world.app("a", group_id="g")
    probe = Probe(app)
    before = probe.look()
    assert (before.live, before.ready) == (True, False)
    world.produce("t", 0, 5)
    app.start(member(app))
    world.run_until(lambda: len(app.handled) == 5)
    world.run(2_000)
    health = probe.look()
    assert (health.live, health.ready, health.healthy, health.reasons) == (True, True, True, ())
    group = app.calls.snapshot.group
    assert group is not None
    assert (health.member_id, health.epoch, health.joined) == (group.member_id, group.generation_id, True)
    assert health.last_heartbeat is not None
    assert health.last_heartbeat < 1.5
    part = health.partitions[T0]
    assert (part.position, part.end_offset, part.lag, part.waits_for) == (5, 5, 0, WaitsFor.RECORDS)
    assert part.last_progress is not None
    assert part.last_fetch is not None
    assert health.partitions[T1].last_progress is None


def test_a_consumer_is_not_ready_until_it_has_joined(world: World) -> None:
    world.broker.set_fault(Fail(ErrorCode.coordinator_load_in_progress), Api.JOIN_GROUP, times=None)
    app = world.app("a", group_id="g", group_protocol="classic")
    app.start(member(app))
    world.run(5_000)
    health = Probe(app).look()
    assert (health.live, health.ready) == (True, False)
    assert health.reasons == ("it is not a member of group 'g' now: JOINING",)


def test_a_stuck_application_is_not_live(world: World) -> None:
    app = world.app("a", group_id="g")
    app.start(member(app, work=1_000_000))
    world.run(40_000)
    health = Probe(app).look()
    assert (health.live, health.ready, health.healthy) == (False, False, False)
    assert "the application has given no sign of life for" in health.reasons[0]
    assert health.last_poll is not None
    assert health.last_poll > 20


def test_a_long_job_is_live_and_ready(world: World) -> None:
    world.produce("t", 0, 5)
    app = world.app("a", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        yield from app.calls.poll(10_000, app.now)
        with app.calls.jobs.job(100_000):
            yield Sleep(50_000)

    app.start(program())
    world.run(45_000)
    health = Probe(app).look()
    assert (health.live, health.ready, health.processing) == (True, True, True)


def test_a_single_stuck_partition_is_reported(world: World) -> None:
    """The other partitions make progress, so the lag or the last poll of the whole consumer would not show it."""
    world.create_topic("u", 1)
    elsewhere = TopicPartition("u", 0)
    app = world.app("a")
    probe = Probe(app)
    app.start(assigned(app, T0, elsewhere))
    world.produce("t", 0, 5)
    world.produce("u", 0, 5)
    world.run_until(lambda: len(app.handled) == 10)
    assert probe.look().healthy
    # From now on this consumer knows no leader of the other topic.
    world.broker.set_fault(Fail(ErrorCode.leader_not_available), Api.METADATA, times=None, topic="u")
    app.assembly.core.metadata_manager.request_update()
    for _ in range(7):
        world.produce("t", 0, 5)
        world.run(10_000)
        health = probe.look()
    assert (health.live, health.ready, health.healthy) == (True, True, False)
    assert health.partitions[T0].waits_for is WaitsFor.RECORDS
    stuck = health.partitions[elsewhere]
    assert (stuck.waits_for, stuck.position) == (WaitsFor.LEADER, 5)
    assert stuck.stands_still == 60
    (reason,) = health.reasons
    assert reason.startswith("u-0 has been stuck at 5 for 60.0 s: it waits for leader")


def test_paused_and_unconsumed_partitions_are_healthy(world: World) -> None:
    world.produce("t", 0, 5)
    world.produce("t", 1, 5)
    app = world.app("a", max_poll_records=1)

    def program() -> Program:
        yield from app.calls.assign([T0, T1], app.now)
        yield from app.calls.positions.pause([T1], app.now)
        yield from app.calls.poll(5_000, app.now)
        yield Sleep(1_000_000)

    app.start(program())
    probe = Probe(app)
    for _ in range(10):
        world.run(20_000)
        health = probe.look(stuck_after=1_000)
    assert health.healthy
    assert health.partitions[T0].waits_for is WaitsFor.APPLICATION
    assert (health.partitions[T0].position, health.partitions[T0].lag) == (1, 4)
    assert health.partitions[T1].waits_for is WaitsFor.RESUME


def test_the_verdict_names_a_problem_at_once(world: World) -> None:
    world.broker.set_fault(Fail(ErrorCode.topic_authorization_failed), Api.FETCH, times=None)
    app = world.app("a")
    app.start(assigned(app))
    world.run(3_000)
    health = Probe(app).look()
    assert not health.healthy
    assert health.partitions[T0].waits_for is WaitsFor.PROBLEM
    assert "TOPIC_AUTHORIZATION_FAILED" in (health.partitions[T0].problem or "").upper().replace(" ", "_")


def test_a_consumer_is_not_ready_while_the_cluster_is_unreachable(world: World) -> None:
    app = world.app("a", group_id="g")
    app.start(member(app))
    world.run_until(lambda: bool(app.calls.owned))
    world.broker.kill()
    world.run(10_000)
    health = Probe(app).look()
    assert (health.live, health.ready) == (True, False)
    assert any("127.0.0.1:9092" in reason for reason in health.reasons)


def test_health_can_be_serialized_as_json(world: World) -> None:
    import json

    app = world.app("a", group_id="g")
    app.start(member(app))
    world.run(5_000)
    plain = json.loads(json.dumps(Probe(app).look().as_dict()))
    assert plain["partitions"]["t-0"]["waits_for"] == "records"
    assert plain["healthy"] is True


def test_metrics_have_kafka_s_names(world: World) -> None:
    app = world.app("a", group_id="g")
    world.produce("t", 0, 50)
    app.start(member(app, commits=True))
    world.run_until(lambda: len(app.handled) == 50)
    world.run(10_000)
    metrics = app.assembly.inspection.view(world.now).metrics
    assert metrics[MetricName("heartbeat-total", COORDINATOR)] >= 9
    assert 0 < metrics[MetricName("heartbeat-rate", COORDINATOR)] < 2
    assert metrics[MetricName("commit-total", COORDINATOR)] >= 1
    assert metrics[MetricName("rebalance-total", COORDINATOR)] == 1
    assert metrics[MetricName("failed-rebalance-total", COORDINATOR)] == 0
    assert metrics[MetricName("assigned-partitions", COORDINATOR)] == 2
    assert metrics[MetricName("last-heartbeat-seconds-ago", COORDINATOR)] < 2
    assert metrics[MetricName("fetch-latency-max", FETCH)] >= 500
    assert metrics[MetricName("bytes-fetched-total", FETCH)] > 50
    assert app.calls.shared.metrics(world.now)[MetricName("records-consumed-total", FETCH)] == 50
