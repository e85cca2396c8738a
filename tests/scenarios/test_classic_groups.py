"""Classic groups: their requests, rebalances, commits that race with them, static members, assignors.

The behaviour that consumer groups share is in ``test_groups_of_both_protocols``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.client.calls.listeners import Listeners
from ottla.client.calls.mailbox import Await
from ottla.errors import (
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    OffsetMetadataTooLargeError,
    OttlaTimeoutError,
    RebalanceInProgressError,
    UnknownTopicOrPartitionError,
)
from ottla.protocol.apis import Api
from ottla.simulation.application import Program, Sleep, member, offsets
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.groups import ALL, PARTITIONS, check_listeners, filled, join, sent, settle
from tests.simulation.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return filled(tmp_path)


def test_the_requests_are_those_of_kafka_s_consumer(world: World) -> None:
    app = join(world, "a")
    settle(world, app)
    first, second = (message for _, message in sent(world, Api.JOIN_GROUP))
    assert (first.member_id, second.member_id) == ("", app.membership.metadata().member_id)
    assert second.reason == f"need to re-join with the given member-id: {second.member_id}"
    assert [protocol.name for protocol in first.protocols] == ["range", "cooperative-sticky"]
    assert len(sent(world, Api.SYNC_GROUP)) == 1
    start = world.now.mono
    world.run(10_000)
    beats = [at for at, _ in sent(world, Api.HEARTBEAT, start)]
    assert 9 <= len(beats) <= 11
    assert len(sent(world, Api.FIND_COORDINATOR)) == 1


def test_a_second_member_takes_a_share_and_no_record_is_handled_twice(world: World) -> None:
    first = join(world, "a", max_poll_records=10)
    settle(world, first)
    second = join(world, "b", max_poll_records=10)
    settle(world, first, second)
    world.run(10_000)
    both = first.handled + second.handled
    assert sorted((record.partition, record.offset) for record in both) == [(p, o) for p in range(PARTITIONS) for o in range(100)]
    assert first.listener_calls == [("assign", ALL), ("revoke", ALL), ("assign", ALL[:2])]
    assert second.listener_calls == [("assign", ALL[2:])]


def test_roundrobin_when_both_sides_offer_it(world: World) -> None:
    first = join(world, "a", partition_assignment_strategy=["roundrobin"])
    second = join(world, "b", partition_assignment_strategy=["roundrobin", "range"])
    settle(world, first, second)
    assert [sorted(tp.partition for tp in app.calls.owned) for app in (first, second)] in ([[0, 2], [1, 3]], [[1, 3], [0, 2]])


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


def test_a_commit_during_a_rebalance_raises_rebalance_in_progress(world: World) -> None:
    first = join(world, "a", work=10)
    settle(world, first)
    app = world.app("b", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        yield from app.calls.poll(0, app.now)
        yield Sleep(5)
        yield from app.calls.commits.commit({ALL[0]: OffsetAndMetadata(1)}, 2_000, app.now)

    with pytest.raises(RebalanceInProgressError, match="poll"):
        world.call(app, program())


def test_auto_commit_covers_only_records_of_earlier_polls(world: World) -> None:
    app = world.app("a", group_id="g", max_poll_records=10, auto_commit_interval_ms=100)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        for _ in range(6):
            records: Any = []
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
    assert world.call(app, app.calls.commits.commit(None, 5_000, world.now)) == {ALL[0]: OffsetAndMetadata(100, leader_epoch=0)}
    assert world.committed("g", "t", PARTITIONS) == {0: 100}
    other = world.app("b", group_id="g")
    world.call(other, other.calls.assign(ALL[:2], world.now))
    assert world.call(other, other.calls.commits.committed(ALL[:2], 5_000, world.now)) == {
        ALL[0]: OffsetAndMetadata(100, leader_epoch=0),
        ALL[1]: None,
    }
    assert world.call(other, other.calls.positions.position(ALL[0], 5_000, world.now)) == 100
    assert world.call(other, other.calls.positions.position(ALL[1], 5_000, world.now)) == 0


def test_commit_callbacks_run_in_order_and_before_a_later_commit_returns(world: World) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL, world.now))
    heard: list[object] = []
    for offset in (1, 2, 3):
        offsets = {ALL[0]: OffsetAndMetadata(offset)}
        world.call(
            app,
            app.calls.commits.commit_async(offsets, lambda found, error: heard.append((found[ALL[0]].offset, error)), world.now),
        )
    assert heard == []
    world.call(app, app.calls.commits.commit({ALL[0]: OffsetAndMetadata(4)}, 5_000, world.now))
    assert heard == [(1, None), (2, None), (3, None)]
    assert world.committed("g", "t", PARTITIONS) == {0: 4}


def test_too_much_metadata_is_refused_with_a_hint(world: World) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL[:1], world.now))
    with pytest.raises(OffsetMetadataTooLargeError, match=r"offset\.metadata\.max\.bytes"):
        world.call(app, app.calls.commits.commit({ALL[0]: OffsetAndMetadata(1, "x" * 5_000)}, 5_000, world.now))


def test_a_commit_without_a_coordinator_times_out_with_the_reason(world: World) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL[:1], world.now))
    world.call(app, app.calls.poll(1_000, world.now))
    world.broker.kill()
    before = world.now.mono
    with pytest.raises(OttlaTimeoutError, match=r"refused|broke|reached"):
        world.call(app, app.calls.commits.commit(None, 3_000, world.now))
    assert 3_000 <= world.now.mono - before <= 4_000


def test_a_changed_subscription_triggers_a_join(world: World) -> None:
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
    assert app.listener_calls == [("assign", ALL), ("revoke", ALL), ("assign", [TopicPartition("u", 0)])]


def test_leaving_does_not_wait_for_a_parked_join(world: World) -> None:
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
    assert [what for what, _ in second.listener_calls][-1] == "assign"


def test_a_static_leader_that_did_not_poll_finds_the_partitions_that_were_added_meanwhile(world: World) -> None:
    """It returns to the assignment that it has computed, and must not assign again (KIP-814), but knows what it assigned."""
    app = world.app("a", group_id="g", group_instance_id="one", max_poll_interval_ms=10_000, metadata_max_age_ms=5_000)

    def stall_once() -> Program:
        yield from app.calls.subscribe(("t",), app.listeners(), app.now, None)
        while not app.calls.owned:
            yield from app.calls.poll(500, app.now)
        yield Sleep(15_000)
        while True:
            yield from app.calls.poll(500, app.now)

    app.start(stall_once())
    world.run_until(lambda: app.calls.owned == frozenset(ALL))
    world.grow("t", PARTITIONS + 1)
    world.run_until(lambda: TopicPartition("t", PARTITIONS) in app.calls.owned, 60_000)
    generations = [message.generation_id for _, message in sent(world, Api.SYNC_GROUP)]
    assert generations == [1, 1, 2], "it returned to generation 1, and then began the next one itself"


def test_the_older_of_two_members_with_one_instance_id_is_fenced(world: World) -> None:
    older = join(world, "a", group_instance_id="one")
    settle(world, older)
    newer = join(world, "b", group_instance_id="one")
    world.run(30_000)
    assert newer.errors == []
    assert sorted(newer.calls.owned) == ALL
    assert len(older.errors) > 1
    assert {type(error) for error in older.errors} == {FencedInstanceIdError}
    assert "give each its own" in str(older.errors[0])
    assert [what for what, _ in older.listener_calls] == ["assign", "lost"]
    joins = len(sent(world, Api.JOIN_GROUP))
    world.run(10_000)
    assert len(sent(world, Api.JOIN_GROUP)) == joins


def test_members_without_a_common_assignor_raise(world: World) -> None:
    first = join(world, "a", partition_assignment_strategy=["range"])
    settle(world, first)
    second = join(world, "b", partition_assignment_strategy=["roundrobin"])
    world.run(3_000)
    assert {type(error) for error in second.errors} == {InconsistentGroupProtocolError}
    assert "share at least one assignor" in str(second.errors[0])
    assert sorted(first.calls.owned) == ALL


def test_a_seek_in_on_assign_wins_over_the_committed_offset(world: World) -> None:
    app = world.app("a", group_id="g", max_poll_records=1)

    def program() -> Program:
        def rewind(partitions: list[TopicPartition]) -> None:
            for tp in partitions:
                app.inside(app.calls.positions.seek({tp: OffsetAndMetadata(42)}, app.now))

        yield from app.calls.subscribe(["t"], Listeners(on_assign=rewind), app.now)
        while len(app.handled) < 4:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    assert {record.offset for record in app.handled} <= {42, 43, 44, 45}


def test_a_group_with_a_missing_topic_raises(tmp_path: Path) -> None:
    world = World(tmp_path, **{"auto.create.topics.enable": False})
    app = join(world, "a", topics=("nope",), timeout=5_000)
    world.run(20_000)
    assert {type(error) for error in app.errors} == {UnknownTopicOrPartitionError}
    assert "nope" in str(app.errors[0])
    assert "create the topic" in str(app.errors[0])


@pytest.mark.parametrize("raises", [False, True])
def test_a_call_that_is_cancelled_while_its_listener_is_awaited_acknowledges_the_rebalance(world: World, raises: bool) -> None:
    class Awaitable:
        def __await__(self) -> Any:
            yield

    def on_revoke(partitions: list[TopicPartition]) -> Awaitable:
        app.listener_calls.append(("revoke", partitions))
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
                    call.throw(ZeroDivisionError())  # the call reads the clock, then raises
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
    assert app.listener_calls[:2] == [("assign", ALL), ("revoke", ALL)]
    check_listeners(other)


def test_the_outcome_of_a_commit_that_was_cancelled_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = world.app("a", group_id="g", enable_auto_commit=False)
    world.call(app, app.calls.assign(ALL, world.now))
    for offset, metadata in ((OffsetAndMetadata(1, "x" * 5_000), "too large"), (OffsetAndMetadata(2), "")):
        caplog.clear()
        call = app.calls.commits.commit({ALL[0]: offset}, 5_000, world.now)
        next(call)
        call.close()
        world.call(app, app.calls.commits.commit({ALL[1]: OffsetAndMetadata(5)}, 5_000, world.now))
        assert ("failed" in caplog.text) is bool(metadata)
    assert world.committed("g", "t", PARTITIONS) == {0: 2, 1: 5}
