"""While the commit before a revocation is in flight, polls end in time, by wakeups and by cancellation; it is sent once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Delay, Drop, ExpireMember, Fail, Moment, MoveCoordinator
from ottla.client.calls.listeners import COMMIT_HOLD
from ottla.errors import WakeupError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep, member
from ottla.types import TopicPartition
from tests.scenarios.groups import ALL, PARTITIONS, check_listeners, filled, settle
from tests.simulation.connections import lose_coordinator
from tests.simulation.world import World

KINDS: dict[str, dict[str, Any]] = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "range", "session_timeout_ms": 60_000},
    "cooperative": {
        "group_protocol": "classic",
        "partition_assignment_strategy": "cooperative-sticky",
        "session_timeout_ms": 60_000,
    },
    "consumer": {"group_protocol": "consumer"},
}
SETTINGS: dict[str, Any] = {
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.assignment.interval.ms": 0,
}
FOR_EVER = Delay(600_000)
TIMEOUT = 100


@pytest.fixture
def world(tmp_path: Path) -> World:
    return filled(tmp_path, **SETTINGS)


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def app_of(world: World, name: str, kind: str, **settings: Any) -> App:
    return world.app(
        name, group_id="g", **{"auto_commit_interval_ms": 600_000, "max_poll_interval_ms": 60_000, **KINDS[kind], **settings}
    )


def impatient(kind: str) -> dict[str, Any]:
    """Settings of a group with a poll interval of 8 s; a classic group applies the longer of the two settings (KIP-62)."""
    return {"max_poll_interval_ms": 8_000, **({} if kind == "consumer" else {"session_timeout_ms": 8_000})}


def reading(world: World, kind: str, **settings: Any) -> App:
    """A member that has read everything and committed nothing, and does nothing for the moment."""
    app = app_of(world, "a", kind, **settings)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while len(app.handled) < 100 * PARTITIONS:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        yield from app.calls.poll(100, app.now)

    world.call(app, program())
    return app


def another(world: World, kind: str, **settings: Any) -> App:
    app = app_of(world, "b", kind, **settings)
    app.start(member(app))
    return app


def poll(world: World, app: App, timeout: int = TIMEOUT) -> int:
    """Poll once; returns the duration. Checks that no record is of a partition that the application does not own."""
    began = world.now.mono
    records = world.call(app, app.calls.poll(timeout, app.now))
    assert {TopicPartition(record.topic, record.partition) for record in records} <= app.calls.owned
    app.handled.extend(records)
    return world.now.mono - began


def poll_until(world: World, app: App, condition: Callable[[], bool], timeout: int = TIMEOUT, limit: int = 60_000) -> None:
    """Poll with 20 ms of work between; checks that each poll ends in time."""
    until = world.now.mono + limit
    while not condition():
        assert poll(world, app, timeout) <= timeout
        world.run(20)
        assert world.now.mono < until, f"not within {limit} ms"


def commits(world: World, app: App) -> int:
    """The number of a member's commits that the broker has received."""
    mine = app.membership.metadata().member_id
    return sum(api is Api.OFFSET_COMMIT and message.member_id == mine for _, api, message in world.broker.seen)


def revoked(app: App) -> int:
    return sum(what == "revoke" for what, _ in app.listener_calls)


def pending(world: World, kind: str, **settings: Any) -> tuple[App, App]:
    """A member whose commit before a revocation is unanswered, and the member that waits for its partitions."""
    first = reading(world, kind, **settings)
    world.broker.set_fault(FOR_EVER, Api.OFFSET_COMMIT, times=None, client_id="a")
    second = another(world, kind, **settings)
    poll_until(world, first, lambda: world.broker.struck > 0)
    assert revoked(first) == 0
    return first, second


def share(world: World, first: App, second: App) -> str:
    """Run the first as an ordinary member until both have their share; returns its member id."""
    world.run_until(lambda: not first.running)
    first.start(member(first))
    settle(world, first, second)
    member_id: str = first.membership.metadata().member_id
    for app in (first, second):
        app.stop = True
    world.run_until(lambda: not (first.running or second.running))
    assert first.error is None
    assert second.error is None
    return member_id


@pytest.mark.parametrize("timeout", [0, 1, 30, 100, 700])
def test_a_poll_ends_within_its_timeout_and_the_next_continues_the_same_commit(world: World, kind: str, timeout: int) -> None:
    first = reading(world, kind)
    world.broker.set_fault(FOR_EVER, Api.OFFSET_COMMIT, times=None, client_id="a")
    second = another(world, kind)
    poll_until(world, first, lambda: world.broker.struck > 0, timeout)
    for _ in range(20):
        assert poll(world, first, timeout) <= timeout
        world.run(20)
    assert commits(world, first) == 1
    assert revoked(first) == 0
    assert first.calls.owned == set(ALL), "no partition is revoked before the commit"
    world.broker.clear_faults()
    poll_until(world, first, lambda: revoked(first) == 1, timeout)
    assert commits(world, first) == 1
    share(world, first, second)
    assert [what for what, _ in first.listener_calls].count("lost") == 0
    assert second.handled == [], "all was committed"


def test_a_wakeup_ends_a_poll_at_once_whenever_it_comes(world: World, kind: str) -> None:
    first, second = pending(world, kind)
    for delay in (0, 1, 2, 10, 49, 50, 51, COMMIT_HOLD, COMMIT_HOLD + 1, 999, 1_000, 1_001):
        first.start(first.calls.poll(5_000, first.now))
        world.run(delay)
        assert first.running
        first.wakeup()
        world.run(0)
        assert isinstance(first.error, WakeupError)
        assert not first.running
    first.wakeup()
    with pytest.raises(WakeupError):
        world.call(first, first.calls.poll(0, first.now))
    assert commits(world, first) == 1
    assert revoked(first) == 0
    world.broker.clear_faults()
    share(world, first, second)
    check_listeners(first)


@pytest.mark.parametrize("interrupted", [False, True], ids=["cancelled", "interrupted"])
def test_a_poll_may_end_at_any_step_and_neither_commit_nor_listener_is_repeated(world: World, kind: str, interrupted: bool) -> None:
    first = reading(world, kind)
    world.broker.set_fault(Delay(300), Api.OFFSET_COMMIT, times=None, client_id="a")
    second = another(world, kind)
    steps = [0]

    def cut_short(length: int) -> Program:
        """End a call at one of its waits, as a cancellation or a signal handler does."""
        call = first.calls.poll(400, first.now)
        try:
            wait = next(call)
            for _ in range(length):
                steps[0] += 1
                wait = call.send((yield wait))
        except StopIteration as done:
            first.handled.extend(done.value)
            return
        call.close()
        first.calls.interrupted = interrupted

    def program() -> Program:
        length = 0
        while revoked(first) == 0:
            yield from cut_short(length % 7)
            length += 1
            yield Sleep(3)

    world.call(first, program())
    assert steps[0] > 5
    assert commits(world, first) == 1
    share(world, first, second)
    assert revoked(first) == 2, "and once at the end"
    assert sorted((record.partition, record.offset) for record in first.handled) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(100)
    ]
    assert second.handled == []


def test_a_polling_application_is_not_expelled_while_the_commit_is_in_flight(
    world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by itself nor by the coordinator, which waits for ``max_poll_interval``; the commit is given up before."""
    first = reading(world, kind, **impatient(kind))
    member_id = first.membership.metadata().member_id
    world.broker.set_fault(FOR_EVER, Api.OFFSET_COMMIT, times=None, client_id="a")
    began = world.now.mono
    with caplog.at_level(logging.WARNING):
        second = another(world, kind, **impatient(kind))
        poll_until(world, first, lambda: revoked(first) == 1)
        assert 3_000 < world.now.mono - began < 8_000
        first.handled.clear()
        world.broker.clear_faults()
        assert share(world, first, second) == member_id
    assert [what for what, _ in first.listener_calls].count("lost") == 0
    (line,) = [record for record in caplog.records if "before a rebalance" in record.getMessage()]
    assert "not answered in time" in line.getMessage()


def test_an_application_that_polls_rarely_loses_nothing(world: World, kind: str) -> None:
    """Each poll is short and counts for the poll interval, though none is long enough for the commit."""
    first = reading(world, kind, **impatient(kind))
    world.broker.set_fault(Delay(3_000), Api.OFFSET_COMMIT, times=None, client_id="a")
    second = another(world, kind, **impatient(kind))
    for _ in range(40):
        assert poll(world, first, 0) == 0
        world.run(400)
    assert revoked(first) == 1
    assert commits(world, first) == 1
    share(world, first, second)
    assert [what for what, _ in first.listener_calls].count("lost") == 0
    assert second.handled == []


def test_poll_does_not_wait_for_a_membership_lost_meanwhile(world: World, kind: str) -> None:
    first = reading(world, kind)
    world.broker.set_fault(FOR_EVER, Api.OFFSET_COMMIT, times=1, client_id="a")
    second = another(world, kind)
    poll_until(world, first, lambda: world.broker.struck > 0)
    assert world.broker.expire(ExpireMember("g", client_id="a")) == 1
    # Its heartbeats wait behind the commit on the same connection, so it learns of the expulsion over the next one.
    lose_coordinator(world, first)
    poll_until(world, first, lambda: "lost" in [what for what, _ in first.listener_calls], limit=5_000)
    assert revoked(first) == (1 if kind == "consumer" else 0), "there the commit is refused before a heartbeat is"
    check_listeners(first)
    share(world, first, second)


@pytest.mark.parametrize("how", ["unsubscribe", "close"])
def test_leaving_meanwhile_calls_the_listener_once_and_waits_for_no_rebalance(world: World, kind: str, how: str) -> None:
    first, second = pending(world, kind)
    world.broker.clear_faults()
    world.call(first, first.calls.unsubscribe(first.now) if how == "unsubscribe" else first.calls.close(5_000, first.now))
    assert revoked(first) == 1
    assert first.listener_calls[-1] == ("revoke", ALL)
    world.run_until(lambda: second.calls.owned == set(ALL))


def test_retained_partitions_are_read_meanwhile_and_revoked_ones_are_not(world: World, kind: str) -> None:
    first, second = pending(world, kind)
    for partition in range(PARTITIONS):
        world.produce("t", partition, 10)
    first.handled.clear()
    for _ in range(10):
        poll(world, first)
    read = {record.partition for record in first.handled}
    assert len(read) == (0 if kind == "eager" else PARTITIONS // 2)
    world.broker.clear_faults()
    share(world, first, second)
    handled = [(record.partition, record.offset) for app in (first, second) for record in app.handled]
    assert sorted(handled) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(100, 110)]


def test_poll_waits_briefly_for_the_commit_before_it_returns_other_records(world: World, kind: str) -> None:
    """Otherwise the group would wait until the application has handled the records of retained partitions."""
    first = reading(world, kind)
    world.broker.set_fault(Delay(COMMIT_HOLD // 2), Api.OFFSET_COMMIT, times=None, client_id="a")
    second = another(world, kind)
    while not (committing := world.broker.struck):
        for partition in range(PARTITIONS):
            world.produce("t", partition, 1)
        before = revoked(first)
        poll(world, first, 1_000)
        committing = world.broker.struck
    assert committing == 1
    assert (before, revoked(first)) == (0, 1), "in one poll"
    share(world, first, second)


def test_an_iteration_does_not_lengthen_the_wait(world: World, kind: str) -> None:
    first, second = pending(world, kind)
    for _ in range(5):
        began = world.now.mono
        world.call(first, first.calls.service(first.now))
        assert world.now.mono - began <= COMMIT_HOLD
    assert revoked(first) == 0
    world.broker.clear_faults()
    world.run(10)
    world.call(first, first.calls.service(first.now))
    assert revoked(first) == 1
    share(world, first, second)


@pytest.mark.parametrize(
    "fault",
    [
        Fail(ErrorCode.coordinator_load_in_progress),
        Fail(ErrorCode.not_coordinator),
        Drop(Moment.REQUEST),
        Drop(Moment.REPLY),
        MoveCoordinator("g"),
    ],
    ids=["loading", "not coordinator", "dropped before", "dropped after", "moving"],
)
@pytest.mark.parametrize("timeout", [0, 100])
def test_polls_end_within_their_timeout_whatever_the_outcome_of_the_commit(
    world: World, kind: str, fault: Any, timeout: int
) -> None:
    first = reading(world, kind)
    if isinstance(fault, MoveCoordinator):
        world.broker.set_fault(Delay(500), Api.OFFSET_COMMIT, times=1, client_id="a")
    else:
        world.broker.set_fault(fault, Api.OFFSET_COMMIT, times=3, client_id="a")
    second = another(world, kind)
    poll_until(world, first, lambda: world.broker.struck > 0, timeout)
    if isinstance(fault, MoveCoordinator):
        world.broker.set_fault(fault, times=None)
        poll_until(world, first, lambda: world.now.mono % 1_000 < 200, timeout)
        world.broker.clear_faults()
    poll_until(world, first, lambda: revoked(first) == 1, timeout)
    share(world, first, second)
    assert [what for what, _ in first.listener_calls].count("lost") == 0
    assert second.handled == []


def test_polls_end_within_their_timeout_without_a_broker(world: World, kind: str) -> None:
    first, second = pending(world, kind)
    world.broker.kill()
    poll_until(world, first, lambda: revoked(first) == 1, 100)
    world.broker.start()
    world.broker.clear_faults()
    share(world, first, second)


def test_polls_end_within_their_timeout_on_a_silent_network(world: World, kind: str) -> None:
    first, second = pending(world, kind)
    world.network.isolate(first.name)
    for timeout in (0, 1, 100) * 10:
        assert poll(world, first, timeout) <= timeout
    world.network.rejoin(first.name)
    world.broker.clear_faults()
    share(world, first, second)


def test_a_poll_longer_than_the_poll_interval_keeps_the_membership(
    world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While it waits for the commit, and then for records: a running poll counts as polling."""
    first = reading(world, kind, **impatient(kind))
    member_id = first.membership.metadata().member_id
    world.broker.set_fault(Delay(3_000), Api.OFFSET_COMMIT, times=1, client_id="a")
    with caplog.at_level(logging.WARNING):
        second = another(world, kind, **impatient(kind))
        began = world.now.mono
        assert len(world.call(first, first.calls.poll(20_000, first.now))) == 0
        assert world.now.mono - began == 20_000
        assert (world.broker.struck, revoked(first)) == (1, 1)
        assert len(first.calls.owned) == PARTITIONS // 2
        assert share(world, first, second) == member_id
    assert [what for what, _ in first.listener_calls].count("lost") == 0
    assert "left the group" not in caplog.text


@pytest.mark.parametrize("timeout", [0, 1, 100, 700])
def test_polls_end_within_their_timeout_with_a_stuck_network_thread(world: World, kind: str, timeout: int) -> None:
    """It may be busy, or not get the GIL."""
    first, second = pending(world, kind)
    first.lag = 5_000
    for _ in range(10):
        assert poll(world, first, timeout) <= timeout
    first.start(first.calls.poll(5_000, first.now))
    world.run(10)
    first.wakeup()
    world.run(0)
    assert isinstance(first.error, WakeupError)
    assert (commits(world, first), revoked(first)) == (1, 0)
    first.lag = 0
    world.broker.clear_faults()
    share(world, first, second)
    assert second.handled == [], "all was committed"
