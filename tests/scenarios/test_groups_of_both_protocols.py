"""Groups in either protocol: moved partitions, dead members, slow handlers, commits, close, and broker restarts.

The behaviour of a single protocol is in ``test_classic_groups`` (classic) and ``test_consumer_groups`` (KIP-848).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.client.calls.listeners import Listeners
from ottla.errors import CommitFailedError, IllegalStateError
from ottla.simulation.application import App, Program, Sleep, offsets
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.groups import (
    ALL,
    PARTITIONS,
    beats,
    check_listeners,
    filled,
    goodbyes,
    join,
    joins,
    new,
    reason,
    settle,
    the_goodbye,
)
from tests.simulation.world import QUICK_GROUPS, World


@pytest.fixture(params=["classic", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = filled(tmp_path, **QUICK_GROUPS)
    world.protocol = request.param
    return world


def subscribed(app: App) -> Program:
    """Subscribe, and poll until records arrive."""
    yield from app.calls.subscribe(["t"], app.listeners(), app.now)
    while not (yield from app.calls.poll(500, app.now)):
        pass


def test_a_single_member_reads_all_partitions(world: World) -> None:
    app = join(world, "a")
    settle(world, app)
    world.run(3_000)
    assert app.listener_calls == [("assign", ALL)]
    for partition in range(PARTITIONS):
        assert offsets(app.handled, partition) == list(range(100))


def test_a_closing_member_commits_and_its_partitions_move(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    world.run(1_000)
    member_id, owned = first.membership.metadata().member_id, first.calls.owned
    assert world.committed("g", "t", PARTITIONS) == {}, "only close() commits"
    first.stop = True
    closed_at = world.now.mono
    settle(world, second)
    assert world.now.mono - closed_at < 2_500
    assert not first.running
    assert first.error is None
    assert first.listener_calls[-1][0] == "revoke"
    goodbye = the_goodbye(world)
    assert (goodbye.member_id, goodbye.reason) == (member_id, reason(world, "the consumer is being closed"))
    assert world.committed("g", "t", PARTITIONS).items() >= {tp.partition: 100 for tp in owned}.items()
    world.run(6_000)
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 100)
    world.produce("t", 0, 5)
    world.run(2_000)
    assert offsets(second.handled, 0)[-5:] == list(range(100, 105))
    assert len(offsets(second.handled, 0) + offsets(first.handled, 0)) == 105
    check_listeners(second)


def test_a_dead_member_is_removed_after_its_session(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    world.run(2_000)
    first.kill()
    killed_at = world.now.mono
    settle(world, second)
    assert 4_000 < world.now.mono - killed_at < 8_000
    world.produce("t", 3, 1)
    world.produce("t", 0, 1)
    world.run(2_000)
    assert offsets(second.handled, 0)[-1] == 100
    assert offsets(second.handled, 3)[-1] == 100


def test_heartbeats_continue_during_a_slow_handler(world: World) -> None:
    app = join(world, "a", work=15_000)
    settle(world, app)
    start = world.now.mono
    world.run(60_000)
    assert joins(world, start) == []
    assert len(beats(world, app.membership.metadata().member_id, start)) >= 59
    assert [what for what, _ in app.listener_calls] == ["assign"]


def test_a_handler_beyond_the_poll_interval_is_expelled_once_with_a_reason(world: World, caplog: pytest.LogCaptureFixture) -> None:
    slow = new(world, "slow", max_poll_records=7)
    quick = join(world, "quick")

    def handle_slowly() -> Program:
        yield from subscribed(slow)
        yield Sleep(30_000)
        with pytest.raises(CommitFailedError, match="max_poll_interval"):
            yield from slow.calls.commits.commit(None, 5_000, slow.now)
        slow.listener_calls.append(("polls again", []))
        while not slow.stop:
            yield from slow.calls.poll(500, slow.now)

    with caplog.at_level(logging.WARNING, "ottla.client.poll_timer"):
        slow.start(handle_slowly())
        world.run_until(lambda: bool(slow.listener_calls and slow.listener_calls[-1][1]))
        asleep_since = world.now.mono
        settle(world, quick)
    assert 19_000 < world.now.mono - asleep_since < 23_000
    (line,) = [record.getMessage() for record in caplog.records if "since its last poll()" in record.getMessage()]
    assert "20.0 s since its last poll(), max_poll_interval is 20.0 s" in line
    assert "max_poll_records is 7" in line
    world.run(5_000)
    assert the_goodbye(world).reason == reason(world, "consumer poll timeout has expired.")
    assert {what for what, _ in slow.listener_calls} == {"assign"}, "the handler still runs"
    settle(world, slow, quick)
    # In a consumer group ``on_assign`` may also run without partitions.
    told = [what for what, partitions in slow.listener_calls if partitions or what != "assign" or world.protocol == "classic"]
    assert told == ["assign", "polls again", "lost", "assign"]
    check_listeners(slow)
    check_listeners(quick)


def test_commit_in_on_revoke_is_accepted(world: World) -> None:
    first = new(world, "a", enable_auto_commit=False)
    committed: list[dict[TopicPartition, OffsetAndMetadata]] = []

    def commit(partitions: list[TopicPartition]) -> None:
        committed.append(first.inside(first.calls.commits.commit(None, 5_000, first.now)))

    def program() -> Program:
        yield from first.calls.subscribe(["t"], Listeners(on_revoke=commit), first.now)
        while True:
            yield from first.calls.poll(500, first.now)

    first.start(program())
    world.run(2_000)
    settle(world, first, join(world, "b"))
    assert committed == [{tp: OffsetAndMetadata(100, leader_epoch=0) for tp in ALL}]
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 100)


def test_a_commit_of_a_non_member_is_refused(world: World) -> None:
    app = new(world, "a")
    world.call(app, app.calls.subscribe(["t"], app.listeners(), world.now))
    with pytest.raises(CommitFailedError, match="no longer a member of group 'g'"):
        world.call(app, app.calls.commits.commit({ALL[0]: OffsetAndMetadata(1)}, 2_000, world.now))


def test_a_topic_created_later_is_assigned(world: World) -> None:
    # A classic member finds it with the next metadata refresh; the members of a consumer group learn it from the coordinator.
    ages = {"metadata_max_age_ms": 2_000} if world.protocol == "classic" else {}
    app = join(world, "a", topics=("t", "later"), allow_auto_create_topics=False, **ages)
    settle(world, app)
    world.create_topic("later", 1)
    world.run_until(lambda: TopicPartition("later", 0) in app.calls.owned, 5_000)
    check_listeners(app)


def test_repeated_assignments_do_not_postpone_auto_commit(world: World) -> None:
    """Topics are created more often than the auto-commit interval: rebalances that retain partitions do not postpone it."""
    later = [f"later-{number}" for number in range(6)]
    ages: dict[str, Any] = {"metadata_max_age_ms": 500, "partition_assignment_strategy": "cooperative-sticky"}
    ages = ages if world.protocol == "classic" else {}
    app = join(
        world, "a", topics=("t", *later), allow_auto_create_topics=False, auto_commit_interval_ms=5_000, commits=False, **ages
    )
    settle(world, app)
    world.run_until(lambda: len(app.handled) == 400)
    for topic in later:
        world.create_topic(topic, 1)
        world.run_until(lambda topic=topic: TopicPartition(topic, 0) in app.calls.owned, 5_000)  # type: ignore[misc]
        world.run(2_000)
    assert set(world.committed("g", "t", PARTITIONS).values()) == {100}


def test_unsubscribe_leaves_at_once_and_subscribing_joins_again(world: World) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from subscribed(app)
        yield from app.calls.unsubscribe(app.now)
        with pytest.raises(IllegalStateError, match="neither subscribed nor assigned"):
            yield from app.calls.poll(500, app.now)
        the_goodbye(world)
        assert app.listener_calls == [("assign", ALL), ("revoke", ALL)]
        assert app.membership.metadata().member_id == ""
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not app.calls.owned:
            yield from app.calls.poll(500, app.now)

    world.call(app, program())
    assert len(goodbyes(world)) == 1
    assert app.listener_calls == [("assign", ALL), ("revoke", ALL), ("assign", ALL)]


@pytest.mark.parametrize("timeout", [0, 300, 10_000])
def test_close_commits_and_leaves_even_with_a_short_timeout(world: World, timeout: int) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from subscribed(app)
        yield Sleep(500)
        yield from app.calls.close(timeout, app.now)

    world.call(app, program())
    world.run(100)
    the_goodbye(world)
    assert app.listener_calls == [("assign", ALL), ("revoke", ALL)]
    if timeout:
        assert sum(world.committed("g", "t", PARTITIONS).values()) > 0


def test_close_ends_within_its_timeout_without_a_coordinator(world: World) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from subscribed(app)
        world.broker.kill()
        yield from app.calls.close(5_000, app.now)

    before = world.now.mono
    world.call(app, program())
    assert world.now.mono - before < 8_000
    assert app.listener_calls == [("assign", ALL), ("revoke", ALL)]


def test_a_listener_that_raises_does_not_stop_the_rebalance(world: World) -> None:
    app = new(world, "a")

    def fail(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError(partitions)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], Listeners(on_assign=fail), app.now)
        with pytest.raises(ZeroDivisionError):
            yield from app.calls.poll(5_000, app.now)
        while len(app.handled) < 400:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    assert sorted(app.calls.owned) == ALL


def test_a_restarted_broker_restores_the_group(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    world.run(2_000)
    world.broker.kill()
    world.run(2_000)
    world.broker.start()
    restarted_at = world.now.mono
    for partition in range(PARTITIONS):
        world.produce("t", partition, 20)
    world.run(10_000)
    settle(world, first, second)
    assert joins(world, restarted_at) == []
    for partition in range(PARTITIONS):
        assert offsets(first.handled + second.handled, partition) == list(range(120))


def test_a_disconnected_member_loses_its_partitions_and_rejoins(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    world.network.isolate(first.name)
    cut_at = world.now.mono
    world.run_until(lambda: sorted(second.calls.owned) == ALL, 20_000)
    assert world.now.mono - cut_at < 10_000
    world.network.rejoin(first.name)
    world.run(10_000)
    settle(world, first, second)
    assert "lost" in [what for what, _ in first.listener_calls]
    check_listeners(first)
    check_listeners(second)
