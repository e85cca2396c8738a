"""Consumer groups (KIP-848): joining, incremental rebalances, slow handlers and listeners, commits, static members, patterns."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Drop, ExpireMember, Fail, Moment
from ottla.client.calls import Listeners
from ottla.client.consumer_states import State
from ottla.errors import CommitFailedError, IllegalStateError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.world import QUICK_GROUPS, App, Program, Sleep, World, member, offsets

PARTITIONS = 4
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]
HEARTBEAT = Api.CONSUMER_GROUP_HEARTBEAT


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, **QUICK_GROUPS)
    world.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        world.produce("t", partition, 100)
    return world


def new(world: World, name: str, **settings: object) -> App:
    return world.app(name, group_id="g", **{"group_protocol": "consumer", **settings})


def join(world: World, name: str, **settings: object) -> App:
    """A member that runs ``member`` in the background."""
    program: dict[str, Any] = {key: settings.pop(key) for key in ("topics", "work", "commits", "timeout") if key in settings}
    app = new(world, name, **settings)
    app.start(member(app, **program))
    return app


def settle(world: World, *apps: App, limit: int = 60_000) -> None:
    """Until these members share all partitions, each has some, and all have settled."""

    def settled() -> bool:
        owned = [tp for app in apps for tp in app.calls.owned]
        return sorted(owned) == ALL and all(app.calls.owned and app.assembly.membership.state is State.STABLE for app in apps)

    world.run_until(settled, limit)


def beats(world: World, app: App, since: int = 0) -> list[tuple[int, Any]]:
    """The heartbeats of one member."""
    mine = app.assembly.membership.member_id
    return [(at, one) for at, api, one in world.broker.seen if api is HEARTBEAT and at >= since and one.member_id == mine]


def owned_in(message: Any) -> list[int] | None:
    """The partitions that a heartbeat says are held; ``None``: it does not say."""
    if message.topic_partitions is None:
        return None
    return [number for item in message.topic_partitions for number in item.partitions]


def check_told(app: App) -> None:
    """Each partition was assigned, then revoked or lost, in turns."""
    held: set[TopicPartition] = set()
    for what, partitions in app.told:
        if what == "assign":
            assert held.isdisjoint(partitions)
            held |= set(partitions)
        else:
            assert held >= set(partitions)
            held -= set(partitions)
    assert held == app.calls.owned


def test_the_dialogue_of_a_member_alone(world: World) -> None:
    app = join(world, "a")
    settle(world, app)
    world.run(3_000)
    assert app.told == [("assign", ALL)]
    for partition in range(PARTITIONS):
        assert offsets(app.handled, partition) == list(range(100))
    first, acknowledgement, *others = [message for _, message in beats(world, app)]
    assert (first.member_epoch, first.subscribed_topic_names, owned_in(first)) == (0, ("t",), [])
    assert (acknowledgement.subscribed_topic_names, owned_in(acknowledgement)) == (None, [0, 1, 2, 3])
    assert len(others) in (2, 3), "one a second"
    assert {(one.subscribed_topic_names, one.topic_partitions) for one in others} == {(None, None)}
    assert app.assembly.membership.metadata().generation_id == acknowledgement.member_epoch > 0


def test_what_stays_is_read_on_while_the_rest_goes(world: World) -> None:
    first = join(world, "a", max_poll_records=10)
    settle(world, first)
    start = world.now.mono
    second = join(world, "b", max_poll_records=10)
    settle(world, first, second)
    world.run(5_000)
    assert [what for what, _ in first.told] == ["assign", "revoke", "assign"]
    assert (len(first.told[1][1]), first.told[2][1]) == (2, [])
    both = [(record.partition, record.offset) for record in first.handled + second.handled]
    assert sorted(both) == [(p, o) for p in range(PARTITIONS) for o in range(100)]
    # Committed, then acknowledged: the other member begins where this one ended.
    committed = next(at for at, api, one in world.broker.seen if api is Api.OFFSET_COMMIT and at >= start)
    acknowledged = next(at for at, one in beats(world, first, start) if len(owned_in(one) or ()) == 2)
    assert committed < acknowledged
    check_told(first)
    check_told(second)


def test_a_pause_survives_a_rebalance_that_keeps_the_partition(world: World) -> None:
    first = new(world, "a")

    def program() -> Program:
        yield from first.calls.subscribe(["t"], first.listeners(), first.now)
        while not first.calls.owned:
            yield from first.calls.poll(100, first.now)
        yield from first.calls.pause(ALL, first.now)
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


def test_a_member_that_closes_commits_and_hands_over(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    world.run(6_000)
    first.stop = True
    closed_at = world.now.mono
    settle(world, second)
    assert world.now.mono - closed_at < 2_500
    assert first.error is None
    assert first.told[-1][0] == "revoke"
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 100)
    assert [message.member_epoch for _, message in beats(world, first, closed_at)][-1] == -1
    check_told(second)


def test_a_member_that_dies_is_missed_after_its_session(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    first.kill()
    killed_at = world.now.mono
    settle(world, second)
    assert 4_000 < world.now.mono - killed_at < 8_000


def test_heartbeats_go_on_however_slow_the_handler_is(world: World) -> None:
    app = join(world, "a", work=15_000)
    settle(world, app)
    start = world.now.mono
    world.run(60_000)
    assert len(beats(world, app, start)) >= 59
    assert [what for what, _ in app.told] == ["assign"]


def test_heartbeats_go_on_while_a_listener_takes_its_time(world: World) -> None:
    first = new(world, "a")

    def slowly(partitions: list[TopicPartition]) -> None:
        first.told.append(("revoke", partitions))
        first.busy(15_000)

    def program() -> Program:
        yield from first.calls.subscribe(["t"], Listeners(on_revoke=slowly), first.now)
        while not first.stop:
            first.handled.extend((yield from first.calls.poll(500, first.now)))

    first.start(program())
    world.run(3_000)
    second = join(world, "b")
    world.run_until(lambda: bool(first.told))
    asked_at = world.now.mono - 15_000
    mine = beats(world, first, asked_at)
    assert len(mine) >= 14
    assert max(later - earlier for (earlier, _), (later, _) in pairwise(mine)) <= 1_010
    assert [one for _, one in mine if owned_in(one) is not None] == [], "nothing is acknowledged before the listener has run"
    assert second.calls.owned == frozenset()
    settle(world, first, second)
    both = [(record.partition, record.offset) for record in first.handled + second.handled]
    assert len(set(both)) == 400


def test_a_handler_beyond_the_poll_interval_leaves_once_and_is_told_why(world: World, caplog: pytest.LogCaptureFixture) -> None:
    slow = new(world, "slow", max_poll_records=7)
    quick = join(world, "quick")

    def handle_slowly() -> Program:
        yield from slow.calls.subscribe(["t"], slow.listeners(), slow.now)
        while not (yield from slow.calls.poll(500, slow.now)):
            pass
        yield Sleep(30_000)
        with pytest.raises(CommitFailedError, match="max_poll_interval"):
            yield from slow.calls.commit(None, 5_000, slow.now)
        slow.told.append(("polls again", []))
        while not slow.stop:
            yield from slow.calls.poll(500, slow.now)

    with caplog.at_level(logging.WARNING, "ottla.client.liveness"):
        slow.start(handle_slowly())
        world.run_until(lambda: len(slow.told) >= 1 and bool(slow.told[-1][1]))
        settle(world, quick)
    (line,) = [record.getMessage() for record in caplog.records if "since its last poll()" in record.getMessage()]
    assert "20.0 s since its last poll(), max_poll_interval is 20.0 s" in line
    goodbye = beats(world, slow)[-1]
    assert goodbye[1].member_epoch == -1
    world.run(3_000)
    assert beats(world, slow)[-1] == goodbye, "silence until the next poll"
    settle(world, slow, quick)
    assert [what for what, _ in slow.told if _ or what != "assign"] == ["assign", "polls again", "lost", "assign"]
    assert [one.member_epoch for _, one in beats(world, slow)].count(-1) == 1
    check_told(quick)


def test_a_fenced_member_loses_everything_and_joins_again_as_itself(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    before = world.now.mono
    assert world.broker.expire(ExpireMember("g", client_id="a")) == 1
    world.run(1_500)
    settle(world, first, second)
    assert [what for what, _ in first.told if what != "assign"][-1] == "lost"
    assert [one.member_epoch for _, one in beats(world, first, before)].count(0) == 1
    check_told(first)
    check_told(second)


def test_a_lost_acknowledgement_is_sent_again_with_everything(world: World) -> None:
    world.broker.set_fault(Drop(Moment.REQUEST), HEARTBEAT, times=1, after=1)
    app = join(world, "a")
    settle(world, app)
    world.run(2_000)
    joined, lost, again, *_ = [message for _, message in beats(world, app)]
    assert (joined.member_epoch, owned_in(lost), owned_in(again)) == (0, [0, 1, 2, 3], [0, 1, 2, 3])
    assert again.subscribed_topic_names == ("t",)
    assert app.told == [("assign", ALL)]


def test_commit_in_on_revoke_is_accepted(world: World) -> None:
    first = new(world, "a", enable_auto_commit=False)
    committed: list[dict[TopicPartition, OffsetAndMetadata]] = []

    def commit(partitions: list[TopicPartition]) -> None:
        committed.append(first.inside(first.calls.commit(None, 5_000, first.now)))

    def program() -> Program:
        yield from first.calls.subscribe(["t"], Listeners(on_revoke=commit), first.now)
        while True:
            yield from first.calls.poll(500, first.now)

    first.start(program())
    world.run(2_000)
    settle(world, first, join(world, "b"))
    assert committed == [{tp: OffsetAndMetadata(100, leader_epoch=0) for tp in ALL}]


def test_a_commit_by_nobody_of_the_group_is_refused(world: World) -> None:
    app = new(world, "a")
    world.call(app, app.calls.subscribe(["t"], app.listeners(), world.now))
    with pytest.raises(CommitFailedError, match="no member of group 'g'"):
        world.call(app, app.calls.commit({ALL[0]: OffsetAndMetadata(1)}, 2_000, world.now))


def test_a_commit_with_an_epoch_that_is_out_of_date_is_signed_anew(world: World) -> None:
    app = new(world, "a", enable_auto_commit=False)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        world.broker.set_fault(Fail(ErrorCode.stale_member_epoch), Api.OFFSET_COMMIT, times=2)
        yield from app.calls.commit(None, 5_000, app.now)

    world.call(app, program())
    epochs = [one.generation_id_or_member_epoch for _, api, one in world.broker.seen if api is Api.OFFSET_COMMIT]
    assert len(epochs) == 3
    assert min(epochs) > 0
    assert world.committed("g", "t", PARTITIONS)


def test_changing_the_subscription_lets_go_of_what_is_not_wanted_and_keeps_the_rest(world: World) -> None:
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
    assert app.told == [("assign", ALL), ("assign", [TopicPartition("u", 0)]), ("revoke", ALL)] or app.told == [
        ("assign", ALL),
        ("assign", [TopicPartition("u", 0)]),
        ("revoke", ALL),
        ("assign", []),
    ]
    assert len([one for _, one in beats(world, app) if one.member_epoch == 0]) == 1


def test_a_topic_that_appears_later_is_assigned(world: World) -> None:
    app = join(world, "a", topics=("t", "later"), allow_auto_create_topics=False)
    settle(world, app)
    world.create_topic("later", 1)
    world.run_until(lambda: TopicPartition("later", 0) in app.calls.owned, 5_000)
    check_told(app)


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
    assert len(beats(world, app)) < 10, "no heartbeat is wasted on names that are not known yet"
    world.create_topic("orders-asia", 1)
    world.run_until(lambda: TopicPartition("orders-asia", 0) in app.calls.owned, 700_000)
    check_told(app)


def test_unsubscribe_leaves_at_once_and_subscribing_joins_again(world: World) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        yield from app.calls.unsubscribe(app.now)
        with pytest.raises(IllegalStateError, match="neither subscribed nor assigned"):
            yield from app.calls.poll(500, app.now)
        assert app.assembly.membership.metadata().member_id == ""
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not app.calls.owned:
            yield from app.calls.poll(500, app.now)

    world.call(app, program())
    assert [one.member_epoch for _, one in beats(world, app)].count(-1) == 1
    assert app.told == [("assign", ALL), ("revoke", ALL), ("assign", ALL)]


@pytest.mark.parametrize("timeout", [0, 300, 10_000])
def test_close_leaves_and_commits_even_with_little_time(world: World, timeout: int) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        yield Sleep(500)
        yield from app.calls.close(timeout, app.now)

    world.call(app, program())
    world.run(100)
    assert beats(world, app)[-1][1].member_epoch == -1
    assert app.told == [("assign", ALL), ("revoke", ALL)]
    if timeout:
        assert sum(world.committed("g", "t", PARTITIONS).values()) > 0


def test_close_ends_within_its_time_without_a_coordinator(world: World) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        world.broker.kill()
        yield from app.calls.close(5_000, app.now)

    before = world.now.mono
    world.call(app, program())
    assert world.now.mono - before < 8_000
    assert app.told == [("assign", ALL), ("revoke", ALL)]


def test_a_static_member_comes_back_to_what_it_had(world: World) -> None:
    first = join(world, "a", group_instance_id="one", commits=True)
    second = join(world, "b", group_instance_id="two", commits=True)
    settle(world, first, second)
    owned, told = first.calls.owned, list(second.told)
    first.stop = True
    world.run_until(lambda: not first.running)
    assert beats(world, first)[-1][1].member_epoch == -2
    again = join(world, "a2", group_instance_id="one", commits=True)
    world.run_until(lambda: bool(again.calls.owned))
    assert again.calls.owned == owned
    world.run(2_000)
    assert second.told == told


def test_of_two_members_with_one_instance_id_the_newer_one_is_refused_for_good(world: World) -> None:
    older = join(world, "a", group_instance_id="one")
    settle(world, older)
    newer = join(world, "b", group_instance_id="one")
    world.run(10_000)
    assert older.errors == []
    assert sorted(older.calls.owned) == ALL
    assert {type(error) for error in newer.errors} == {error_class(111)}
    assert "give each its own" in str(newer.errors[0])
    assert len(beats(world, newer)) == 1


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


def test_a_restarted_broker_finds_the_group_as_it_was(world: World) -> None:
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
    assert 0 not in [one.member_epoch for app in (first, second) for _, one in beats(world, app, restarted_at)]
    for partition in range(PARTITIONS):
        assert offsets(first.handled + second.handled, partition) == list(range(120))


def test_a_member_that_was_cut_off_loses_its_partitions_and_comes_back(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    first.cut()
    cut_at = world.now.mono
    world.run_until(lambda: sorted(second.calls.owned) == ALL, 20_000)
    assert world.now.mono - cut_at < 10_000
    first.heal()
    world.run(10_000)
    settle(world, first, second)
    assert "lost" in [what for what, _ in first.told]
    check_told(first)
    check_told(second)


def test_a_remote_assignor_that_the_broker_does_not_know_is_named(world: World) -> None:
    ranged = join(world, "a", group_remote_assignor="range")
    settle(world, ranged)
    odd = join(world, "b", group_remote_assignor="odd")
    world.run(3_000)
    assert {type(error) for error in odd.errors} == {error_class(112)}
    assert "range" in str(odd.errors[0])
    assert sorted(ranged.calls.owned) == ALL
