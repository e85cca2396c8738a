"""Consumer groups (KIP-848): their requests, incremental rebalances, slow listeners, epochs, static members, patterns.

The behaviour that classic groups share is in ``test_groups_of_both_protocols``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Drop, ExpireMember, Fail, Moment
from ottla.client.calls.listeners import Listeners
from ottla.errors import UnreleasedInstanceIdError, UnsupportedAssignorError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, offsets
from ottla.types import TopicPartition
from tests.scenarios import groups
from tests.scenarios.groups import ALL, HEARTBEAT, PARTITIONS, check_listeners, filled, join, new, settle
from tests.simulation.world import QUICK_GROUPS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = filled(tmp_path, **QUICK_GROUPS)
    world.protocol = "consumer"
    return world


def beats(world: World, app: App, since: int = 0) -> list[tuple[int, Any]]:
    """The heartbeats of one member."""
    return groups.beats(world, app.membership.member_id, since)


def owned_in(message: Any) -> list[int] | None:
    """The owned partitions in a heartbeat; ``None``: the field is left out."""
    if message.topic_partitions is None:
        return None
    return [number for item in message.topic_partitions for number in item.partitions]


def test_the_requests_of_a_single_member(world: World) -> None:
    app = join(world, "a")
    settle(world, app)
    world.run(3_000)
    first, acknowledgement, *others = [message for _, message in beats(world, app)]
    assert (first.member_epoch, first.subscribed_topic_names, owned_in(first)) == (0, ("t",), [])
    assert (acknowledgement.subscribed_topic_names, owned_in(acknowledgement)) == (None, [0, 1, 2, 3])
    assert len(others) in (2, 3), "one a second"
    assert {(one.subscribed_topic_names, one.topic_partitions) for one in others} == {(None, None)}
    assert app.membership.metadata().generation_id == acknowledgement.member_epoch > 0


def test_retained_partitions_are_read_while_others_are_revoked(world: World) -> None:
    first = join(world, "a", max_poll_records=10)
    settle(world, first)
    start = world.now.mono
    second = join(world, "b", max_poll_records=10)
    settle(world, first, second)
    world.run(5_000)
    assert [what for what, _ in first.listener_calls] == ["assign", "revoke", "assign"]
    assert (len(first.listener_calls[1][1]), first.listener_calls[2][1]) == (2, [])
    both = [(record.partition, record.offset) for record in first.handled + second.handled]
    assert sorted(both) == [(p, o) for p in range(PARTITIONS) for o in range(100)]
    # Committed, then acknowledged: the other member begins where this one ended.
    committed = next(at for at, api, one in world.broker.seen if api is Api.OFFSET_COMMIT and at >= start)
    acknowledged = next(at for at, one in beats(world, first, start) if len(owned_in(one) or ()) == 2)
    assert committed < acknowledged
    check_listeners(first)
    check_listeners(second)


def test_a_pause_survives_a_rebalance_that_keeps_the_partition(world: World) -> None:
    first = new(world, "a")

    def program() -> Program:
        yield from first.calls.subscribe(["t"], first.listeners(), first.now)
        while not first.calls.owned:
            yield from first.calls.poll(100, first.now)
        yield from first.calls.positions.pause(ALL, first.now)
        while not first.stop:
            first.handled.extend((yield from first.calls.poll(100, first.now)))

    first.start(program())
    world.run_until(lambda: bool(first.calls.owned))
    before = len(first.handled)
    second = join(world, "b")
    settle(world, first, second)
    for tp in first.calls.owned:
        world.produce("t", tp.partition, 5)
    world.run(3_000)
    assert len(first.handled) == before
    assert all(first.calls.snapshot.partitions[tp].paused for tp in first.calls.owned)


def test_heartbeats_continue_during_a_slow_listener(world: World) -> None:
    first = new(world, "a")

    def slowly(partitions: list[TopicPartition]) -> None:
        first.listener_calls.append(("revoke", partitions))
        first.busy(15_000)

    def program() -> Program:
        yield from first.calls.subscribe(["t"], Listeners(on_revoke=slowly), first.now)
        while not first.stop:
            first.handled.extend((yield from first.calls.poll(500, first.now)))

    first.start(program())
    world.run(3_000)
    second = join(world, "b")
    world.run_until(lambda: bool(first.listener_calls))
    asked_at = world.now.mono - 15_000
    mine = beats(world, first, asked_at)
    assert len(mine) >= 14
    assert max(later - earlier for (earlier, _), (later, _) in pairwise(mine)) <= 1_010
    assert [one for _, one in mine if owned_in(one) is not None] == [], "nothing is acknowledged before the listener has run"
    assert second.calls.owned == frozenset()
    settle(world, first, second)
    both = [(record.partition, record.offset) for record in first.handled + second.handled]
    assert len(set(both)) == 400


def test_a_fenced_member_loses_its_partitions_and_rejoins_with_its_member_id(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    before = world.now.mono
    assert world.broker.expire(ExpireMember("g", client_id="a")) == 1
    world.run(1_500)
    settle(world, first, second)
    assert [what for what, _ in first.listener_calls if what != "assign"][-1] == "lost"
    assert [one.member_epoch for _, one in beats(world, first, before)].count(0) == 1
    check_listeners(first)
    check_listeners(second)


def test_a_lost_acknowledgement_is_resent_as_a_full_heartbeat(world: World) -> None:
    world.broker.set_fault(Drop(Moment.REQUEST), HEARTBEAT, times=1, after=1)
    app = join(world, "a")
    settle(world, app)
    world.run(2_000)
    joined, lost, again, *_ = [message for _, message in beats(world, app)]
    assert (joined.member_epoch, owned_in(lost), owned_in(again)) == (0, [0, 1, 2, 3], [0, 1, 2, 3])
    assert again.subscribed_topic_names == ("t",)
    assert app.listener_calls == [("assign", ALL)]


def test_a_commit_with_a_stale_epoch_is_resent_with_the_current_one(world: World) -> None:
    app = new(world, "a", enable_auto_commit=False)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        world.broker.set_fault(Fail(ErrorCode.stale_member_epoch), Api.OFFSET_COMMIT, times=2)
        yield from app.calls.commits.commit(None, 5_000, app.now)

    world.call(app, program())
    epochs = [one.generation_id_or_member_epoch for _, api, one in world.broker.seen if api is Api.OFFSET_COMMIT]
    assert len(epochs) == 3
    assert min(epochs) > 0
    assert world.committed("g", "t", PARTITIONS)


def test_a_changed_subscription_revokes_only_unsubscribed_topics(world: World) -> None:
    world.create_topic("u", 1)
    world.produce("u", 0, 3)
    app = new(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        yield from app.calls.subscribe(["t", "u"], app.listeners(), app.now)
        while TopicPartition("u", 0) not in app.calls.owned:
            yield from app.calls.poll(500, app.now)
        yield from app.calls.subscribe(["u"], app.listeners(), app.now)
        while len(app.calls.owned) > 1:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    before = world.now.mono
    world.call(app, program())
    assert world.now.mono - before < 2_000
    assert {record.topic for record in app.handled} <= {"u"}
    assert app.listener_calls == [("assign", ALL), ("assign", [TopicPartition("u", 0)]), ("revoke", ALL)] or app.listener_calls == [
        ("assign", ALL),
        ("assign", [TopicPartition("u", 0)]),
        ("revoke", ALL),
        ("assign", []),
    ]
    assert len([one for _, one in beats(world, app) if one.member_epoch == 0]) == 1


def test_a_pattern_is_matched_by_the_coordinator(world: World) -> None:
    world.create_topic("orders-eu", 1)
    world.create_topic("orders-us", 1)
    world.produce("orders-eu", 0, 3)
    app = new(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe((), app.listeners(), app.now, "orders-.*")
        while not app.stop:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    app.start(program())
    both = {TopicPartition("orders-eu", 0), TopicPartition("orders-us", 0)}
    world.run_until(lambda: app.calls.owned == both, 5_000)
    world.run(1_000)
    assert offsets(app.handled, 0) == [0, 1, 2]
    first = beats(world, app)[0][1]
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == ((), "orders-.*")
    assert len(beats(world, app)) < 10, "no heartbeat is sent for unknown topic names"
    world.create_topic("orders-asia", 1)
    world.run_until(lambda: TopicPartition("orders-asia", 0) in app.calls.owned, 700_000)
    check_listeners(app)


def test_a_returning_static_member_gets_its_partitions_back(world: World) -> None:
    first = join(world, "a", group_instance_id="one", commits=True)
    second = join(world, "b", group_instance_id="two", commits=True)
    settle(world, first, second)
    owned, told = first.calls.owned, list(second.listener_calls)
    first.stop = True
    world.run_until(lambda: not first.running)
    assert beats(world, first)[-1][1].member_epoch == -2
    again = join(world, "a2", group_instance_id="one", commits=True)
    world.run_until(lambda: bool(again.calls.owned))
    assert again.calls.owned == owned
    world.run(2_000)
    assert second.listener_calls == told


def test_the_newer_of_two_members_with_one_instance_id_is_refused(world: World) -> None:
    older = join(world, "a", group_instance_id="one")
    settle(world, older)
    newer = join(world, "b", group_instance_id="one")
    world.run(10_000)
    assert older.errors == []
    assert sorted(older.calls.owned) == ALL
    assert {type(error) for error in newer.errors} == {UnreleasedInstanceIdError}
    assert "give each its own" in str(newer.errors[0])
    assert len(beats(world, newer)) == 1


def test_the_error_names_an_unknown_remote_assignor(world: World) -> None:
    ranged = join(world, "a", group_remote_assignor="range")
    settle(world, ranged)
    odd = join(world, "b", group_remote_assignor="odd")
    world.run(3_000)
    assert {type(error) for error in odd.errors} == {UnsupportedAssignorError}
    assert "range" in str(odd.errors[0])
    assert sorted(ranged.calls.owned) == ALL
