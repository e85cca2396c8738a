"""Classic groups: joining, rebalances, death, slow handlers, commits that race with all that, and the broker's restart."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.client.classic_states import State
from ottla.client.mailbox import Await
from ottla.client.rebalancing import Listeners
from ottla.errors import CommitFailedError, IllegalStateError, OttlaTimeoutError, error_class
from ottla.protocol.apis import Api
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.world import App, Program, Sleep, World, member, offsets

PARTITIONS = 4
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]
FencedInstanceIdError = error_class(82)
RebalanceInProgressError = error_class(27)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        world.produce("t", partition, 100)
    return world


def join(world: World, name: str, **settings: object) -> App:
    """A member that runs ``member`` in the background."""
    program = {key: settings.pop(key) for key in ("topics", "work", "commits", "timeout") if key in settings}
    app = world.app(name, group_id="g", **settings)
    app.start(member(app, **program))
    return app


def settle(world: World, *apps: App, limit: int = 60_000) -> None:
    """Until these members share all partitions and have settled."""

    def settled() -> bool:
        owned = [tp for app in apps for tp in app.calls.owned]
        return sorted(owned) == ALL and all(state(app) is State.STABLE for app in apps)

    world.run_until(settled, limit)


def state(app: App) -> State:
    return app.assembly.membership.state


def sent(world: World, api: Api, since: int = 0) -> list[tuple[int, Any]]:
    return [(at, message) for at, one, message in world.broker.seen if one is api and at >= since]


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


def test_one_member_gets_everything_and_reads_it(world: World) -> None:
    app = join(world, "a")
    settle(world, app)
    world.run(3_000)
    assert app.told == [("assign", ALL)]
    for partition in range(PARTITIONS):
        assert offsets(app.handled, partition) == list(range(100))


def test_the_dialogue_is_that_of_kafka(world: World) -> None:
    app = join(world, "a")
    settle(world, app)
    first, second = (message for _, message in sent(world, Api.JOIN_GROUP))
    assert (first.member_id, second.member_id) == ("", app.assembly.membership.metadata().member_id)
    assert second.reason == f"need to re-join with the given member-id: {second.member_id}"
    assert [protocol.name for protocol in first.protocols] == ["range", "cooperative-sticky"]
    assert len(sent(world, Api.SYNC_GROUP)) == 1
    start = world.now.mono
    world.run(10_000)
    beats = [at for at, _ in sent(world, Api.HEARTBEAT, start)]
    assert 9 <= len(beats) <= 11
    assert len(sent(world, Api.FIND_COORDINATOR)) == 1


def test_a_second_member_shares_and_nothing_is_handled_twice(world: World) -> None:
    first = join(world, "a", max_poll_records=10)
    settle(world, first)
    second = join(world, "b", max_poll_records=10)
    settle(world, first, second)
    world.run(10_000)
    both = first.handled + second.handled
    assert sorted((record.partition, record.offset) for record in both) == [(p, o) for p in range(PARTITIONS) for o in range(100)]
    assert first.told == [("assign", ALL), ("revoke", ALL), ("assign", ALL[:2])]
    assert second.told == [("assign", ALL[2:])]


def test_roundrobin_when_both_sides_offer_it(world: World) -> None:
    first = join(world, "a", partition_assignment_strategy=["roundrobin"])
    second = join(world, "b", partition_assignment_strategy=["roundrobin", "range"])
    settle(world, first, second)
    assert [sorted(tp.partition for tp in app.calls.owned) for app in (first, second)] in ([[0, 2], [1, 3]], [[1, 3], [0, 2]])


def test_a_member_that_closes_commits_and_hands_over(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    world.run(1_000)
    first.stop = True
    closed_at = world.now.mono
    settle(world, second)
    assert world.now.mono - closed_at < 2_500
    assert not first.running
    assert first.error is None
    assert first.told[-1][0] == "revoke"
    assert world.committed("g", "t", PARTITIONS)[0] == 100
    leave = [message for _, message in sent(world, Api.LEAVE_GROUP)]
    assert [item.members[0].reason for item in leave] == ["the consumer is being closed"]
    world.produce("t", 0, 5)
    world.run(2_000)
    assert offsets(second.handled, 0)[-5:] == list(range(100, 105))
    assert len(offsets(second.handled, 0) + offsets(first.handled, 0)) == 105


def test_a_member_that_dies_is_missed_after_its_session(world: World) -> None:
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


def test_heartbeats_go_on_however_slow_the_handler_is(world: World) -> None:
    app = join(world, "a", work=15_000)
    settle(world, app)
    start = world.now.mono
    world.run(60_000)
    assert len(sent(world, Api.JOIN_GROUP, start)) == 0
    assert len(sent(world, Api.HEARTBEAT, start)) >= 55
    assert [what for what, _ in app.told] == ["assign"]


def test_a_handler_beyond_the_poll_interval_loses_its_place_and_is_told_why(world: World, caplog: pytest.LogCaptureFixture) -> None:
    slow = world.app("slow", group_id="g", max_poll_records=7)
    quick = join(world, "quick")

    def handle_slowly() -> Program:
        yield from slow.calls.subscribe(["t"], slow.listeners(), slow.now)
        while not (yield from slow.calls.poll(500, slow.now)):
            pass
        yield Sleep(30_000)
        with pytest.raises(CommitFailedError, match="max_poll_interval"):
            yield from slow.calls.commit(None, 5_000, slow.now)
        slow.told.append(("polls again", []))
        while True:
            yield from slow.calls.poll(500, slow.now)

    with caplog.at_level(logging.WARNING, "ottla.client.liveness"):
        slow.start(handle_slowly())
        world.run_until(lambda: len(slow.told) == 1)
        asleep_since = world.now.mono
        settle(world, quick)
    assert 19_000 < world.now.mono - asleep_since < 23_000
    (line,) = [record.getMessage() for record in caplog.records if "since its last poll()" in record.getMessage()]
    assert "20.0 s since its last poll(), max_poll_interval is 20.0 s" in line
    assert "max_poll_records is 7" in line
    leaves = [message for _, message in sent(world, Api.LEAVE_GROUP)]
    assert [item.members[0].reason for item in leaves] == ["consumer poll timeout has expired."]
    silence_from = world.now.mono
    world.run(5_000)
    assert {message.member_id for _, message in sent(world, Api.HEARTBEAT, silence_from + 10)} == {
        quick.assembly.membership.metadata().member_id
    }
    settle(world, slow, quick)
    assert [what for what, _ in slow.told] == ["assign", "polls again", "lost", "assign"]
    check_told(slow)
    check_told(quick)


def test_a_rebalance_waits_for_the_handler_and_then_for_the_commit(world: World) -> None:
    first = join(world, "a", work=4_000, max_poll_records=50, auto_commit_interval_ms=1_000_000)
    settle(world, first)
    world.run(2_000)
    start = world.now.mono
    second = join(world, "b", work=10)
    world.run_until(lambda: second.calls.owned != frozenset())
    (committed_at, *_) = [at for at, _ in sent(world, Api.OFFSET_COMMIT, start)]
    told_at = next(at for at, message in sent(world, Api.JOIN_GROUP, start) if message.member_id.startswith("a-"))
    assert committed_at <= told_at
    revoked = offsets(first.handled, 3)
    world.run(60_000)
    assert sorted(revoked + offsets(second.handled, 3)) == list(range(100))


def test_commit_in_on_revoke_is_accepted(world: World) -> None:
    first = world.app("a", group_id="g", enable_auto_commit=False)
    committed: list[object] = []

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
    assert world.committed("g", "t", PARTITIONS) == {0: 100, 1: 100, 2: 100, 3: 100}


def test_a_commit_while_the_group_rebalances_says_so(world: World) -> None:
    first = join(world, "a", work=10)
    settle(world, first)
    app = world.app("b", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        yield from app.calls.poll(0, app.now)
        yield Sleep(5)
        yield from app.calls.commit({ALL[0]: OffsetAndMetadata(1)}, 2_000, app.now)

    with pytest.raises(RebalanceInProgressError, match="poll"):
        world.call(app, program())


def test_a_commit_by_nobody_of_the_group_is_refused(world: World) -> None:
    app = world.app("a", group_id="g")
    world.call(app, app.calls.subscribe(["t"], app.listeners(), world.now))
    with pytest.raises(CommitFailedError, match="no member of group 'g'"):
        world.call(app, app.calls.commit({ALL[0]: OffsetAndMetadata(1)}, 2_000, world.now))


def test_auto_commit_covers_only_what_an_earlier_poll_handed_out(world: World) -> None:
    app = world.app("a", group_id="g", max_poll_records=10, auto_commit_interval_ms=100)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        for _ in range(6):
            records = []
            while not records:
                records = yield from app.calls.poll(500, app.now)
            yield Sleep(500)
            committed = world.committed("g", "t", PARTITIONS)
            done = {p: max(offsets(app.handled, p), default=-1) + 1 for p in range(PARTITIONS)}
            assert all(offset <= done[p] for p, offset in committed.items())
            app.handled.extend(records)

    world.call(app, program())
    assert sum(world.committed("g", "t", PARTITIONS).values()) >= 30


def test_commits_of_a_manual_assignment_go_to_the_group_too(world: World) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL[:1], world.now))
    world.call(app, app.calls.poll(1_000, world.now))
    assert world.call(app, app.calls.commit(None, 5_000, world.now)) == {ALL[0]: OffsetAndMetadata(100, leader_epoch=0)}
    assert world.committed("g", "t", PARTITIONS) == {0: 100}
    other = world.app("b", group_id="g")
    world.call(other, other.calls.assign(ALL[:2], world.now))
    assert world.call(other, other.calls.committed(ALL[:2], 5_000, world.now)) == {
        ALL[0]: OffsetAndMetadata(100, leader_epoch=0),
        ALL[1]: None,
    }
    assert world.call(other, other.calls.position(ALL[0], 5_000, world.now)) == 100
    assert world.call(other, other.calls.position(ALL[1], 5_000, world.now)) == 0


def test_callbacks_of_asynchronous_commits_come_in_order_and_before_a_later_commit_returns(world: World) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL, world.now))
    heard: list[object] = []
    for offset in (1, 2, 3):
        offsets = {ALL[0]: OffsetAndMetadata(offset)}
        world.call(
            app, app.calls.commit_async(offsets, lambda found, error: heard.append((found[ALL[0]].offset, error)), world.now)
        )
    assert heard == []
    world.call(app, app.calls.commit({ALL[0]: OffsetAndMetadata(4)}, 5_000, world.now))
    assert heard == [(1, None), (2, None), (3, None)]
    assert world.committed("g", "t", PARTITIONS) == {0: 4}


def test_too_much_metadata_is_refused_with_a_hint(world: World) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL[:1], world.now))
    with pytest.raises(error_class(12), match=r"offset\.metadata\.max\.bytes"):
        world.call(app, app.calls.commit({ALL[0]: OffsetAndMetadata(1, "x" * 5_000)}, 5_000, world.now))


def test_a_commit_without_a_coordinator_ends_in_time_and_says_why(world: World) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL[:1], world.now))
    world.call(app, app.calls.poll(1_000, world.now))
    world.broker.kill()
    before = world.now.mono
    with pytest.raises(OttlaTimeoutError, match=r"refused|broke|reached"):
        world.call(app, app.calls.commit(None, 3_000, world.now))
    assert 3_000 <= world.now.mono - before <= 4_000


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
    assert sent(world, Api.JOIN_GROUP, restarted_at) == []
    for partition in range(PARTITIONS):
        assert offsets(first.handled + second.handled, partition) == list(range(120))


def test_a_member_that_was_cut_off_loses_its_partitions_and_comes_back(world: World) -> None:
    first, second = join(world, "a", commits=True), join(world, "b", commits=True)
    settle(world, first, second)
    first.cut()
    settle_alone = world.now.mono
    world.run_until(lambda: sorted(second.calls.owned) == ALL, 20_000)
    assert world.now.mono - settle_alone < 10_000
    first.heal()
    world.run(40_000)
    settle(world, first, second, limit=60_000)
    assert "lost" in [what for what, _ in first.told]
    check_told(first)
    check_told(second)


def test_changing_the_subscription_rejoins_with_it(world: World) -> None:
    world.create_topic("u", 1)
    world.produce("u", 0, 3)
    app = world.app("a", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        yield from app.calls.subscribe(["u"], app.listeners(), app.now)
        for _ in range(5):
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    assert {record.topic for record in app.handled} == {"u"}
    assert app.told == [("assign", ALL), ("revoke", ALL), ("assign", [TopicPartition("u", 0)])]


def test_a_topic_that_appears_later_is_assigned(world: World) -> None:
    app = join(world, "a", topics=("t", "later"), metadata_max_age_ms=2_000, allow_auto_create_topics=False)
    settle(world, app)
    world.create_topic("later", 1)
    world.run_until(lambda: TopicPartition("later", 0) in app.calls.owned, 20_000)
    check_told(app)


def test_unsubscribe_leaves_at_once(world: World) -> None:
    app = world.app("a", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        yield from app.calls.unsubscribe(app.now)
        with pytest.raises(IllegalStateError, match="neither subscribed nor assigned"):
            yield from app.calls.poll(500, app.now)

    world.call(app, program())
    assert len(sent(world, Api.LEAVE_GROUP)) == 1
    assert app.told == [("assign", ALL), ("revoke", ALL)]
    assert app.assembly.membership.metadata().member_id == ""


def test_leaving_does_not_wait_for_a_join_that_is_parked(world: World) -> None:
    slow = join(world, "a", work=15_000)
    settle(world, slow)
    app = world.app("b", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        yield from app.calls.poll(1_000, app.now)
        yield from app.calls.close(10_000, app.now)

    before = world.now.mono
    world.call(app, program())
    assert world.now.mono - before < 3_000
    assert len(sent(world, Api.LEAVE_GROUP)) == 1


def test_a_static_member_comes_back_without_a_rebalance(world: World) -> None:
    first = join(world, "a", group_instance_id="one", commits=True)
    second = join(world, "b", group_instance_id="two", commits=True)
    settle(world, first, second)
    owned = first.calls.owned
    first.stop = True
    world.run_until(lambda: not first.running)
    assert sent(world, Api.LEAVE_GROUP) == []
    again = world.app("a2", group_id="g", group_instance_id="one")
    again.start(member(again, commits=True))
    world.run_until(lambda: bool(again.calls.owned))
    assert again.calls.owned == owned
    assert [what for what, _ in second.told][-1] == "assign"


def test_two_members_with_one_instance_id_the_older_one_is_fenced_for_good(world: World) -> None:
    older = join(world, "a", group_instance_id="one")
    settle(world, older)
    newer = join(world, "b", group_instance_id="one")
    world.run(30_000)
    assert newer.errors == []
    assert sorted(newer.calls.owned) == ALL
    assert len(older.errors) > 1
    assert {type(error) for error in older.errors} == {FencedInstanceIdError}
    assert "give each its own" in str(older.errors[0])
    assert [what for what, _ in older.told] == ["assign", "lost"]
    joins = len(sent(world, Api.JOIN_GROUP))
    world.run(10_000)
    assert len(sent(world, Api.JOIN_GROUP)) == joins


def test_members_that_share_no_assignor_are_told(world: World) -> None:
    first = join(world, "a", partition_assignment_strategy=["range"])
    settle(world, first)
    second = join(world, "b", partition_assignment_strategy=["roundrobin"])
    world.run(3_000)
    assert {type(error) for error in second.errors} == {error_class(23)}
    assert "share at least one assignor" in str(second.errors[0])
    assert sorted(first.calls.owned) == ALL


def test_a_listener_that_raises_does_not_stop_the_rebalance(world: World) -> None:
    app = world.app("a", group_id="g")

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


def test_a_seek_in_on_assign_wins_over_the_committed_offset(world: World) -> None:
    app = world.app("a", group_id="g", max_poll_records=1)

    def program() -> Program:
        def rewind(partitions: list[TopicPartition]) -> None:
            for tp in partitions:
                app.inside(app.calls.seek({tp: OffsetAndMetadata(42)}, app.now))

        yield from app.calls.subscribe(["t"], Listeners(on_assign=rewind), app.now)
        while len(app.handled) < 4:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    assert {record.offset for record in app.handled} <= {42, 43, 44, 45}


def test_close_ends_within_its_time_without_a_coordinator(world: World) -> None:
    app = world.app("a", group_id="g")

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


def test_a_group_without_any_of_its_topics_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, **{"auto.create.topics.enable": False})
    app = join(world, "a", topics=("nope",), timeout=5_000)
    world.run(20_000)
    assert {type(error) for error in app.errors} == {error_class(3)}
    assert "nope" in str(app.errors[0])
    assert "create the topic" in str(app.errors[0])


@pytest.mark.parametrize("timeout", [0, 300, 10_000])
def test_close_leaves_and_commits_even_with_little_time(world: World, timeout: int) -> None:
    app = world.app("a", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        yield Sleep(500)
        yield from app.calls.close(timeout, app.now)

    world.call(app, program())
    world.run(100)
    assert len(sent(world, Api.LEAVE_GROUP)) == 1
    assert app.told == [("assign", ALL), ("revoke", ALL)]
    if timeout:
        assert sum(world.committed("g", "t", PARTITIONS).values()) > 0


@pytest.mark.parametrize("raises", [False, True])
def test_a_call_that_is_cancelled_while_its_listener_is_awaited_acknowledges_the_rebalance(world: World, raises: bool) -> None:
    class Awaitable:
        def __await__(self) -> Any:
            yield

    def on_revoke(partitions: list[TopicPartition]) -> Awaitable:
        app.told.append(("revoke", partitions))
        return Awaitable()

    def cancelled() -> Program:
        listeners = Listeners(app.listeners().on_assign, on_revoke)
        yield from app.calls.subscribe(["t"], listeners, app.now)
        while True:
            call = app.calls.poll(500, app.now)
            try:
                step = next(call)
                while not isinstance(step, Await):
                    step = call.send((yield step))
                yield Sleep(100)
                if raises:
                    call.throw(ZeroDivisionError())  # the call looks how late it is, then raises
                    with pytest.raises(ZeroDivisionError):
                        call.send(app.now)
                call.close()
            except StopIteration:
                yield Sleep(10)

    app = world.app("a", group_id="g")
    app.start(cancelled())
    world.run_until(lambda: app.calls.owned == set(ALL))
    other = join(world, "b")
    settle(world, app, other)
    assert app.told[:2] == [("assign", ALL), ("revoke", ALL)]
    check_told(other)


def test_the_outcome_of_a_commit_that_was_cancelled_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL, world.now))
    for offset, metadata in ((OffsetAndMetadata(1, "x" * 5_000), "too large"), (OffsetAndMetadata(2), "")):
        caplog.clear()
        call = app.calls.commit({ALL[0]: offset}, 5_000, world.now)
        next(call)
        call.close()
        world.call(app, app.calls.commit({ALL[1]: OffsetAndMetadata(5)}, 5_000, world.now))
        assert ("failed" in caplog.text) is bool(metadata)
    assert world.committed("g", "t", PARTITIONS) == {0: 2, 1: 5}
