"""Slow code: a handler beyond the poll interval, an announced long job, a stuck job, and which of their records are
committed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.client.calls.calls import ProcessingJob
from ottla.errors import CommitFailedError, IllegalStateError
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep, member
from ottla.types import TopicPartition
from tests.simulation.world import World

TOPIC, PARTITIONS, RECORDS = "t", 2, 20
PROTOCOLS = ("classic", "consumer")


@pytest.fixture(params=PROTOCOLS)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path)
    world.protocol = request.param
    world.create_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        world.produce(TOPIC, partition, RECORDS)
    return world


def app_of(world: World, name: str, **settings: Any) -> App:
    return world.app(name, group_id="g", group_protocol=world.protocol, enable_auto_commit=False, **settings)


Work = Callable[[App, ProcessingJob], Program]


def job(app: App, work: Work, *, limit: int) -> Program:
    """Poll once, handle the records in one announced job, commit, and continue to poll."""
    yield from app.calls.subscribe([TOPIC], app.listeners(), app.now)
    handed = False
    while not app.stop:
        records = yield from app.calls.poll(500, app.now)
        if len(records) and not handed:
            handed = True
            with app.calls.jobs.job(limit) as announced:
                yield from work(app, announced)
            try:
                yield from app.calls.commits.commit(None, 5_000, app.now)
            except CommitFailedError as error:
                app.errors.append(error)
                continue
        app.handled.extend(records)
    yield from app.calls.close(10_000, app.now)


def busy(duration: int) -> Work:
    def work(app: App, job: ProcessingJob) -> Program:
        yield Sleep(duration)

    return work


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "left the group" in record.getMessage()]


def everything(app: App) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in app.handled:
        found.setdefault(record.partition, []).append(record.offset)
    return found


ALL = {partition: list(range(RECORDS)) for partition in range(PARTITIONS)}


def test_an_announced_job_keeps_its_membership_for_its_limit(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(world, "a")
    app.start(job(app, busy(90_000), limit=100_000))
    world.run_until(lambda: everything(app) == ALL, 150_000)
    assert world.committed("g", TOPIC, PARTITIONS) != {}
    assert [name for name, _ in app.listener_calls] == ["assign"]
    assert (app.errors, lines(caplog)) == ([], [])
    app.stop = True
    world.run_until(lambda: not app.running)


def test_heartbeats_continue_while_user_code_runs(world: World) -> None:
    app = app_of(world, "a")
    app.start(job(app, busy(60_000), limit=100_000))
    world.run(70_000)
    beats = [at for at, api, _ in world.broker.seen if api in (Api.HEARTBEAT, Api.CONSUMER_GROUP_HEARTBEAT)]
    assert len(beats) > 10
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 6_000


def test_a_stuck_job_is_expelled_and_nothing_is_lost_or_committed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(world, "a")
    app.start(job(app, busy(60_000), limit=30_000))
    world.run_until(lambda: everything(app) == ALL, 150_000)
    (line,) = lines(caplog)
    assert "30.0 s since processing() began or last reported progress, its limit is 30.0 s" in line
    assert "It is processing 20 records of t-" in line or "It is processing 40 records of t-0, t-1" in line
    (error,) = app.errors
    assert isinstance(error, CommitFailedError)
    assert "limit" in (error.hint or "")
    assert [name for name, _ in app.listener_calls] == ["assign", "lost", "assign"]


def test_progress_restarts_the_limit(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def steps(app: App, job: ProcessingJob) -> Program:
        for _ in range(6):
            yield Sleep(12_000)
            job.progress()

    app = app_of(world, "a")
    app.start(job(app, steps, limit=15_000))
    world.run_until(lambda: everything(app) == ALL, 150_000)
    assert (app.errors, lines(caplog)) == ([], [])


def test_the_log_names_the_records_of_an_unannounced_slow_handler(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(world, "a", max_poll_records=7)

    def program() -> Program:
        yield from app.calls.subscribe([TOPIC], app.listeners(), app.now)
        records = yield from app.calls.poll(10_000, app.now)
        assert len(records) == 7
        yield Sleep(40_000)
        with pytest.raises(CommitFailedError):
            yield from app.calls.commits.commit(None, 5_000, app.now)
        while not app.stop:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    app.start(program())
    world.run_until(lambda: everything(app) == ALL, 100_000)
    (line,) = lines(caplog)
    assert "20.0 s since its last poll(), max_poll_interval is 20.0 s" in line
    assert "It is processing 7 records of t-" in line
    assert [name for name, _ in app.listener_calls] == ["assign", "lost", "assign"]


def slow_once(app: App, work: int) -> Program:
    """Handles the first records slowly and later ones quickly."""
    yield from app.calls.subscribe([TOPIC], app.listeners(), app.now)
    yield from app.calls.poll(10_000, app.now)
    yield Sleep(work)
    while not app.stop:
        yield from app.calls.poll(500, app.now)


@pytest.mark.filterwarnings("ignore::ottla.OttlaConfigWarning")
@pytest.mark.parametrize(("interval", "session"), [(15_000, 30_000), (30_000, 15_000)])
def test_a_classic_group_applies_the_longer_of_poll_interval_and_session(
    world: World, interval: int, session: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Both by the member itself, and by the others, whose rebalance waits for it."""
    settings = {"max_poll_interval_ms": interval, **({"session_timeout_ms": session} if world.protocol == "classic" else {})}
    counts = 30_000 if world.protocol == "classic" else interval
    first = app_of(world, "a", **settings)
    first.start(slow_once(first, counts - 2_000))
    world.run_until(lambda: bool(first.calls.owned), 20_000)
    second = app_of(world, "b", **settings)
    second.start(member(second))
    world.run_until(lambda: bool(second.calls.owned), 40_000)
    assert ("lost", [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]) not in first.listener_calls
    assert lines(caplog) == []
    third = app_of(world, "c", **settings)
    third.start(slow_once(third, counts + 2_000))
    world.run_until(lambda: bool(lines(caplog)), 60_000)
    world.run(20_000)
    (line,) = lines(caplog)
    assert f"max_poll_interval is {counts / 1000} s" in line if counts == interval else "session_timeout is 30.0 s" in line


def test_progress_that_another_thread_reports_while_the_job_ends_does_not_bring_its_limit_back(world: World) -> None:
    def work(app: App, announced: ProcessingJob) -> Program:
        jobs = app.calls.jobs
        submit = jobs._submit

        def overtaken(command: object) -> None:
            """A race: the other thread sees the job running; the application ends it; then the other thread submits its command."""
            jobs._submit = submit
            jobs.end(announced)
            submit(command)

        jobs._submit = overtaken
        announced.progress()
        yield Sleep(10)

    app = app_of(world, "a")
    app.start(job(app, work, limit=1_000))
    world.run_until(lambda: bool(app.handled))
    assert not app.assembly.polls.processing


def test_a_rebalance_waits_for_the_end_of_a_job_and_accepts_the_commit_after_it(world: World) -> None:
    waited: list[bool] = []

    def attentive(app: App, job: ProcessingJob) -> Program:
        while not job.rebalancing:
            yield Sleep(500)
        waited.append(True)
        yield Sleep(8_000)

    first = app_of(world, "a")
    first.start(job(first, attentive, limit=60_000))
    world.run_until(lambda: bool(first.calls.owned))
    second = app_of(world, "b")
    second.start(member(second, commits=True))
    world.run_until(lambda: bool(second.calls.owned) and len(first.calls.owned) == 1, 60_000)
    world.run(5_000)
    assert (waited, first.errors, second.errors) == ([True], [], [])
    assert ("lost", [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]) not in first.listener_calls
    # No member gets the records that the job committed.
    both = sorted((record.partition, record.offset) for record in (*first.handled, *second.handled))
    assert both == [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]


def test_a_group_that_did_not_wait_refuses_the_commit_and_no_offset_goes_back(world: World) -> None:
    first = app_of(world, "a")
    first.start(job(first, busy(60_000), limit=100_000))
    world.run_until(lambda: bool(first.calls.owned))
    world.run(1_000)
    second = app_of(world, "b")
    second.start(member(second, commits=True))
    history: list[dict[int, int]] = []
    while not first.errors:
        world.run(500)
        history.append(world.committed("g", TOPIC, PARTITIONS))
        assert len(history) < 300
    (error,) = first.errors
    assert isinstance(error, CommitFailedError)
    # The other member has read and committed all records meanwhile.
    assert everything(second) == ALL
    world.run(30_000)
    history.append(world.committed("g", TOPIC, PARTITIONS))
    assert history[-1] == dict.fromkeys(range(PARTITIONS), RECORDS)
    for earlier, later in itertools.pairwise(history):
        assert all(later[partition] >= offset for partition, offset in earlier.items()), "a commit jumped back"
    assert [name for name, _ in first.listener_calls][:2] == ["assign", "lost"]


def test_poll_inside_a_job_raises(world: World) -> None:
    app = app_of(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe([TOPIC], app.listeners(), app.now)
        yield from app.calls.poll(5_000, app.now)
        with app.calls.jobs.job(10_000):
            with pytest.raises(IllegalStateError, match=r"a processing\(\) block is open"):
                yield from app.calls.poll(0, app.now)
            with pytest.raises(IllegalStateError, match=r"a processing\(\) block is open"), app.calls.jobs.job(1_000):
                pass
        yield from app.calls.poll(0, app.now)
        yield from app.calls.close(5_000, app.now)

    world.call(app, program())


def test_late_progress_is_ignored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(world, "a")
    with app.calls.jobs.job(5_000) as ended:
        pass
    ended.progress()
    app.start(member(app))
    world.run_until(lambda: bool(app.calls.owned))
    world.run(30_000)
    assert lines(caplog) == []
