"""The metrics of a consumer: their names and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla import MetricName
from ottla.client.calls.listeners import Listeners
from ottla.client.health.metrics import CONSUMER, COORDINATOR, FETCH
from ottla.client.health.names import NAMES
from ottla.simulation.application import App, Program, Sleep, member
from ottla.types import TopicPartition
from tests.scenarios.groups import STABLE
from tests.simulation.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OF_T0 = (("topic", "t"), ("partition", "0"))
RECORD = 8
"""Bytes of the records that ``World.produce`` makes first: one digit as the value."""


def metrics_of(app: App) -> dict[MetricName, float]:
    """As ``Consumer.metrics``."""
    view = app.assembly.inspection.view(app.now)
    return {**view.metrics, **app.calls.shared.metrics(view.at)}


def consumer(app: App, name: str) -> float:
    return metrics_of(app)[MetricName(name, CONSUMER)]


def fetch(app: App, name: str, *tags: tuple[str, str]) -> float:
    return metrics_of(app)[MetricName(name, FETCH, tags)]


def coordinator(app: App, name: str) -> float:
    return metrics_of(app)[MetricName(name, COORDINATOR)]


def reader(app: App, *, timeout: int = 500, work: int = 0, until: Callable[[], bool] = lambda: False) -> Program:
    """Read the assigned partitions."""
    yield from app.calls.assign([T0, T1], app.now)
    while not until():
        records = yield from app.calls.poll(timeout, app.now)
        app.handled.extend(records)
        if work:
            yield Sleep(work)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_metric_names_are_those_of_the_table(world: World, protocol: str) -> None:
    app = world.app("a", group_id="g", group_protocol=protocol)
    world.produce("t", 0, 5)
    world.produce("t", 1, 5)
    app.start(member(app, commits=True))
    world.run_until(lambda: len(app.handled) == 10)
    world.run(2_000)
    given: dict[str, dict[str, set[tuple[str, ...]]]] = {}
    for metric in metrics_of(app):
        levels = given.setdefault(metric.group, {}).setdefault(metric.name, set())
        levels.add(tuple(tag for tag, _ in metric.tags))
    table = {group: {name: set(row.levels) for name, row in rows.items()} for group, rows in NAMES.items()}
    assert given == table


def test_returned_records_are_counted_by_topic_in_records_and_bytes(world: World) -> None:
    app = world.app("a", max_poll_records=4)
    world.produce("t", 0, 10)
    world.produce("t", 1, 6)
    app.start(reader(app, until=lambda: len(app.handled) == 8))
    world.run_until(lambda: not app.running)
    of_topic: tuple[str, str] = ("topic", "t")
    for tags in ((), (of_topic,)):
        assert fetch(app, "records-consumed-total", *tags) == 8
        assert fetch(app, "bytes-consumed-total", *tags) == 8 * RECORD
        assert fetch(app, "records-per-request-avg", *tags) == 0  # no answer was consumed to its end
    app.start(reader(app, until=lambda: len(app.handled) == 16))
    world.run_until(lambda: not app.running)
    for tags in ((), (of_topic,)):
        assert fetch(app, "records-consumed-total", *tags) == 16
        assert fetch(app, "records-consumed-rate", *tags) == pytest.approx(16 / 30, rel=0.1)
        assert fetch(app, "bytes-consumed-total", *tags) == 16 * RECORD
        assert fetch(app, "bytes-consumed-rate", *tags) == pytest.approx(16 * RECORD / 30, rel=0.1)
    assert fetch(app, "fetch-size-max", of_topic) == fetch(app, "fetch-size-max")
    world.run(120_000)
    app.start(reader(app, until=lambda: True))
    world.run(100_000)
    assert fetch(app, "records-consumed-total") == 16
    assert fetch(app, "fetch-size-max", of_topic) == 0


def test_a_fetch_response_counts_once_it_is_fully_consumed(world: World) -> None:
    app = world.app("a", max_poll_records=4)
    world.produce("t", 0, 10)
    app.start(reader(app))
    world.run_until(lambda: len(app.handled) == 10)
    world.run(1_000)
    assert fetch(app, "records-per-request-avg") == 10
    assert fetch(app, "records-per-request-avg", ("topic", "t")) == 10


def test_records_that_are_iterated_again_count_once(world: World) -> None:
    app = world.app("a")
    world.produce("t", 0, 10)

    def program() -> Program:
        yield from app.calls.assign([T0], app.now)
        while app.calls.collector.delivery is None:
            yield from app.calls.poll(500, app.now)
        next(app.calls.collector.walk(app.calls.collector.delivery))
        return len((yield from app.calls.poll(500, app.now)))

    assert world.call(app, program()) == 9
    assert fetch(app, "records-consumed-total") == 10


def test_lag_and_lead_are_the_distances_to_both_ends(world: World) -> None:
    app = world.app("a", max_poll_records=4)
    world.produce("t", 0, 10)
    app.start(reader(app, until=lambda: len(app.handled) == 4))
    world.run_until(lambda: not app.running)
    assert fetch(app, "records-lag", *OF_T0) == fetch(app, "records-lag-max") == 6
    assert fetch(app, "records-lag-max", *OF_T0) == 10  # the value when the records arrived
    assert fetch(app, "records-lead", *OF_T0) == 4
    assert fetch(app, "records-lead-min", *OF_T0) == 0
    assert fetch(app, "preferred-read-replica", *OF_T0) == -1
    world.run(120_000)
    assert (
        fetch(app, "records-lag-max", *OF_T0) == fetch(app, "records-lag-avg", *OF_T0) == 6
    )  # the consumer is stuck, and the lag shows it
    assert fetch(app, "records-lead-min") == fetch(app, "records-lead-min", *OF_T0) == 4
    world.call(app, app.calls.unsubscribe(app.now))
    assert MetricName("records-lag", FETCH, OF_T0) not in metrics_of(app)
    assert fetch(app, "records-consumed-total", ("topic", "t")) == 4


def test_metrics_of_a_topic_that_is_not_read_any_more_expire(world: World) -> None:
    app = world.app("a")
    world.create_topic("other", 1)
    world.produce("t", 0, 1)
    app.start(reader(app, until=lambda: bool(app.handled)))
    world.run_until(lambda: not app.running)

    def elsewhere() -> Program:
        yield from app.calls.assign([TopicPartition("other", 0)], app.now)
        while True:
            yield from app.calls.poll(500, app.now)

    app.start(elsewhere())
    world.run(20_000)
    assert fetch(app, "records-consumed-total", ("topic", "t")) == 1
    world.run(120_000)
    assert MetricName("records-consumed-total", FETCH, (("topic", "t"),)) not in metrics_of(app)
    assert fetch(app, "records-consumed-total") == 1


def test_poll_metrics_distinguish_waiting_from_processing(world: World) -> None:
    app = world.app("a")
    assert consumer(app, "last-poll-seconds-ago") == -1
    app.start(reader(app, timeout=300, work=100))
    world.run(20_000)
    assert consumer(app, "time-between-poll-avg") == pytest.approx(400, rel=0.05)
    assert consumer(app, "time-between-poll-max") == pytest.approx(400, rel=0.05)
    assert consumer(app, "poll-idle-ratio-avg") == pytest.approx(0.75, rel=0.05)
    assert 0 <= consumer(app, "last-poll-seconds-ago") <= 0.4


def test_listeners_and_commits_are_timed(world: World) -> None:
    app = world.app("a", group_id="g")
    listeners = Listeners(lambda _: app.busy(300), lambda _: app.busy(200), None)
    world.produce("t", 0, 1)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], listeners, app.now)
        while not app.handled:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        yield from app.calls.commits.commit(None, 5_000, app.now)
        yield from app.calls.commits.committed([T0], 5_000, app.now)
        yield from app.calls.unsubscribe(app.now)

    world.call(app, program())
    for told, spent in (("assigned", 300), ("revoked", 200), ("lost", 0)):
        assert coordinator(app, f"partition-{told}-latency-avg") == coordinator(app, f"partition-{told}-latency-max") == spent
    assert consumer(app, "commit-sync-time-ns-total") >= 1_000_000
    assert consumer(app, "committed-time-ns-total") >= 1_000_000


def test_lost_partitions_are_timed_separately(world: World) -> None:
    app = world.app("a", group_id="g", max_poll_interval_ms=6_000)
    lost: list[Any] = []
    listeners = Listeners(None, None, lambda partitions: (app.busy(50), lost.append(partitions)))

    def program() -> Program:
        yield from app.calls.subscribe(["t"], listeners, app.now)
        while not app.calls.owned:
            yield from app.calls.poll(500, app.now)
        yield Sleep(10_000)
        while not lost:
            yield from app.calls.poll(500, app.now)

    world.call(app, program())
    assert coordinator(app, "partition-lost-latency-max") == 50


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_leaving_is_not_a_failed_rebalance_but_giving_one_up_is(world: World, protocol: str) -> None:
    app = world.app("a", group_id="g", group_protocol=protocol)
    app.start(member(app))
    world.run_until(lambda: app.membership.state in STABLE and bool(app.calls.owned))
    app.stop = True
    world.run_until(lambda: not app.running)
    assert (coordinator(app, "rebalance-total"), coordinator(app, "failed-rebalance-total")) == (1, 0)
    other = world.app("b", group_id="g", group_protocol=protocol)

    def impatient() -> Program:
        yield from other.calls.subscribe(["t"], other.listeners(), other.now)
        while not other.assembly.recorder.under_way:
            yield from other.calls.poll(0, other.now)
            yield Sleep(1)
        yield from other.calls.unsubscribe(other.now)

    world.call(other, impatient())
    assert coordinator(other, "failed-rebalance-total") == coordinator(other, "failed-rebalance-rate-per-hour") == 1
    world.run(3_600_000)
    assert coordinator(other, "failed-rebalance-rate-per-hour") == 0


def test_connections_are_counted(world: World) -> None:
    app = world.app("a")
    assert consumer(app, "connection-count") == 0
    app.start(reader(app))
    world.run(2_000)
    count = consumer(app, "connection-count")
    assert count > 0
    world.broker.kill()
    world.run(2_000)
    assert (consumer(app, "connection-count"), consumer(app, "connection-close-total")) == (0, count)
    world.broker.start()
    world.run(5_000)
    assert consumer(app, "connection-creation-total") > count
    assert consumer(app, "request-total") >= consumer(app, "response-total") > 0
