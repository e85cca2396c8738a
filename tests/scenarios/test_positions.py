"""One consumer with ``assign()``: positions, seeks, pauses, resets and errors."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ottla.errors import (
    ConnectionFailedError,
    IllegalStateError,
    InvalidTopicError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    OttlaTimeoutError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from ottla.simulation.application import App, Program, offsets
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.assigned_consumer import TP0, TP1, assigned, poll
from tests.simulation.world import World


def test_reads_all_records_in_order_and_no_more(world: World) -> None:
    world.produce("t", 0, 700)
    app = assigned(world, TP0, max_poll_records=500)
    assert poll(world, app) == [(0, offset) for offset in range(500)]
    assert poll(world, app) == [(0, offset) for offset in range(500, 700)]
    before = world.now.mono
    assert poll(world, app) == []
    assert world.now.mono - before == 1_000


def test_a_poll_without_time_does_not_wait(world: World) -> None:
    world.produce("t", 0, 1)
    app = assigned(world, TP0)
    before = world.now.mono
    assert poll(world, app, timeout=0) == []
    assert world.now.mono == before
    world.run(100)
    assert poll(world, app, timeout=0) == [(0, 0)]


def test_a_poll_returns_as_soon_as_a_record_is_there(world: World) -> None:
    app = assigned(world, TP0)
    world.run(2_000)
    app.start(app.calls.poll(30_000, world.now))
    world.run(700)
    produced_at = world.now.mono
    world.produce("t", 0, 1)
    world.run_until(lambda: not app.running)
    assert len(app.result) == 1
    assert world.now.mono - produced_at < 10


def test_latest_starts_after_existing_records(world: World) -> None:
    world.produce("t", 0, 5)
    app = assigned(world, TP0, auto_offset_reset="latest")
    assert poll(world, app) == []
    world.produce("t", 0, 2)
    assert poll(world, app) == [(0, 5), (0, 6)]


def test_seek_takes_effect_at_once_and_drops_fetched_records(world: World) -> None:
    world.produce("t", 0, 100)
    app = assigned(world, TP0, max_poll_records=10)
    assert poll(world, app)[-1] == (0, 9)
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(90)}, world.now))
    assert world.call(app, app.calls.positions.position(TP0, 0, world.now)) == 90
    assert poll(world, app) == [(0, offset) for offset in range(90, 100)]
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(3)}, world.now))
    assert poll(world, app)[0] == (0, 3)


def test_seek_to_the_ends(world: World) -> None:
    world.produce("t", 0, 4)
    app = assigned(world, TP0)
    poll(world, app)
    world.call(app, app.calls.positions.seek_to_beginning((), world.now))
    assert world.call(app, app.calls.positions.position(TP0, 5_000, world.now)) == 0
    assert len(poll(world, app)) == 4
    world.call(app, app.calls.positions.seek_to_beginning((TP0,), world.now))
    world.call(app, app.calls.positions.seek_to_end((TP0,), world.now))
    assert world.call(app, app.calls.positions.position(TP0, 5_000, world.now)) == 4


def test_a_paused_partition_is_not_delivered_and_continues_at_its_position(world: World) -> None:
    world.produce("t", 0, 30)
    world.produce("t", 1, 30)
    app = assigned(world, TP0, TP1, max_poll_records=10)
    first = poll(world, app)
    world.call(app, app.calls.positions.pause((TP0,), world.now))
    seen: list[tuple[int, int]] = []
    for _ in range(6):
        seen += poll(world, app, timeout=600)
    assert {partition for partition, _ in seen} == {1}
    world.call(app, app.calls.positions.resume((TP0,), world.now))
    for _ in range(6):
        seen += poll(world, app, timeout=600)
    assert sorted(first + seen) == [(partition, offset) for partition in (0, 1) for offset in range(30)]


def test_a_seek_after_a_pause_drops_earlier_fetched_records(world: World) -> None:
    world.produce("t", 0, 30)
    app = assigned(world, TP0, max_poll_records=10)
    assert poll(world, app)[-1] == (0, 9)
    world.call(app, app.calls.positions.pause((TP0,), world.now))
    assert poll(world, app, timeout=300) == []
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(25)}, world.now))
    assert poll(world, app, timeout=300) == []
    world.call(app, app.calls.positions.resume((TP0,), world.now))
    assert poll(world, app) == [(0, offset) for offset in range(25, 30)]


def test_assign_keeps_the_position_of_retained_partitions(world: World) -> None:
    world.produce("t", 0, 20)
    world.produce("t", 1, 20)
    app = assigned(world, TP0, max_poll_records=5)
    assert poll(world, app) == [(0, offset) for offset in range(5)]
    world.call(app, app.calls.assign((TP0, TP1), world.now))
    seen = [item for _ in range(8) for item in poll(world, app)]
    assert [offset for partition, offset in seen if partition == 0] == list(range(5, 20))
    assert [offset for partition, offset in seen if partition == 1] == list(range(20))


def test_the_position_of_a_partition_whose_topic_is_known_is_looked_up_at_once(world: World) -> None:
    """No other event would start another pass of the network thread then."""
    app = assigned(world, TP0, group_id="g")
    assert world.call(app, app.calls.positions.position(TP0, 5_000, world.now)) == 0
    world.call(app, app.calls.unsubscribe(world.now))
    world.run(2_000)
    world.call(app, app.calls.assign([TP1], world.now))
    began = world.now.mono
    assert world.call(app, app.calls.positions.position(TP1, 5_000, world.now)) == 0
    assert world.now.mono - began < 100


def test_out_of_range_resets_after_fetched_records_are_delivered(world: World) -> None:
    world.produce("t", 0, 10)
    app = assigned(world, TP0)
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(500)}, world.now))
    assert poll(world, app, timeout=3_000) == [(0, offset) for offset in range(10)]


def test_out_of_range_without_a_policy_is_raised_until_a_seek(world: World) -> None:
    world.produce("t", 0, 10)
    app = assigned(world, TP0, auto_offset_reset="none")
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(500)}, world.now))
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match=r"t-0 from offset 500 .*seek"):
            poll(world, app)
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(8)}, world.now))
    assert poll(world, app) == [(0, 8), (0, 9)]


def test_no_position_without_a_policy_is_raised_until_a_seek(world: World) -> None:
    world.produce("t", 0, 2)
    app = assigned(world, TP0, auto_offset_reset="none")
    for _ in range(2):
        with pytest.raises(NoOffsetForPartitionError, match="t-0"):
            poll(world, app)
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(1)}, world.now))
    assert poll(world, app) == [(0, 1)]


def commit(world: World, by: App, committed: dict[TopicPartition, int]) -> None:
    """Commit for the group without a member, as an operator does."""
    world.call(by, by.calls.commits.commit({tp: OffsetAndMetadata(offset) for tp, offset in committed.items()}, 5_000, world.now))


def test_the_next_poll_begins_at_an_offset_committed_after_the_error(world: World) -> None:
    """Like Java's consumer, which fetches committed offsets at every poll."""
    world.produce("t", 0, 10)
    world.produce("t", 1, 10)
    operator = world.app("operator", group_id="g")
    app = assigned(world, TP0, TP1, group_id="g", auto_offset_reset="none")
    for _ in range(2):
        with pytest.raises(NoOffsetForPartitionError, match=r"t-0, t-1 .*commit one"):
            poll(world, app)
    commit(world, operator, {TP0: 4})
    with pytest.raises(NoOffsetForPartitionError, match=r"none: t-1 "):
        _ = [poll(world, app) for _ in range(10)]
    assert world.call(app, app.calls.positions.position(TP0, 1_000, world.now)) in (4, 10)
    commit(world, operator, {TP1: 7})
    assert world.call(app, app.calls.positions.position(TP1, 1_000, world.now)) == 7
    seen = [record for _ in range(5) for record in poll(world, app)]
    assert [offset for partition, offset in seen if partition == 1] == [7, 8, 9]


def test_reading_begins_at_an_offset_committed_before_the_first_poll(world: World) -> None:
    world.produce("t", 0, 10)
    app = assigned(world, TP0, group_id="g", auto_offset_reset="none")
    world.run(1_000)  # the lookup has found no commit by now
    commit(world, app, {TP0: 6})
    assert poll(world, app)[0] == (0, 6)


def test_polls_with_timeout_zero_raise_for_a_missing_offset_and_look_it_up_again(world: World) -> None:
    world.produce("t", 0, 10)
    app = assigned(world, TP0, group_id="g", auto_offset_reset="none")
    raised = 0
    for _ in range(10):
        try:
            assert poll(world, app, timeout=0) == []
        except NoOffsetForPartitionError:
            raised += 1
        world.run(100)
    assert raised == 4  # unknown at first, and looked up again after each error
    commit(world, app, {TP0: 6})
    world.run(100)
    with suppress(NoOffsetForPartitionError):  # of the look-up before the commit
        assert poll(world, app, timeout=0) == []
    seen: list[tuple[int, int]] = []
    for _ in range(5):
        seen += poll(world, app, timeout=0)
        world.run(100)
    assert seen == [(0, offset) for offset in range(6, 10)]


def test_a_partition_with_an_error_does_not_block_the_others(world: World) -> None:
    world.produce("t", 0, 20)
    app = world.app("a", group_id="manual", group_protocol="classic", auto_offset_reset="none", max_poll_records=1)
    well, ill = TopicPartition("t", 0), TopicPartition("t", 1)
    world.call(app, app.calls.assign([well, ill], app.now))
    world.call(app, app.calls.positions.seek({well: OffsetAndMetadata(0)}, app.now))
    found: list[int] = []
    raised = 0
    for _ in range(25):
        try:
            found += offsets(world.call(app, app.calls.poll(1_000, app.now)), 0)
        except NoOffsetForPartitionError:
            raised += 1
        world.run(50)
    assert found == list(range(20))
    assert raised


def test_the_error_names_an_unknown_partition(world: World) -> None:
    app = assigned(world, TopicPartition("t", 7))
    with pytest.raises(UnknownTopicOrPartitionError, match=r"t-7.*2 partitions"):
        poll(world, app, timeout=5_000)


def test_offset_lookups(world: World) -> None:
    world.produce("t", 0, 12)
    app = world.app("a")
    ask = app.calls.positions.list_offsets
    assert world.call(app, ask({TP0: -2, TP1: -1}, 5_000, world.now)) == {TP0: (0, -1, 0), TP1: (0, -1, 0)}
    found = world.call(app, ask({TP0: world.now.wall - 1_000_000, TP1: 0}, 5_000, world.now))
    assert found[TP1] is None
    with pytest.raises(InvalidTopicError, match="no/pe"):
        world.call(app, ask({TopicPartition("no/pe", 0): -1}, 2_000, world.now))
    with pytest.raises(UnknownTopicOrPartitionError, match=r"t-9: the topic has 2 partitions"):
        world.call(app, ask({TopicPartition("t", 9): -1}, 2_000, world.now))


def test_lag_counts_unread_records(world: World) -> None:
    world.produce("t", 0, 30)
    app = assigned(world, TP0, max_poll_records=10)
    assert world.call(app, app.calls.positions.lag(TP0, 5_000, world.now)) == 30
    poll(world, app)
    assert world.call(app, app.calls.positions.lag(TP0, 5_000, world.now)) == 20


def test_describing_a_topic_does_not_create_it(world: World) -> None:
    app = world.app("a")
    topics = world.call(app, app.calls.describe_topics(None, 5_000, world.now))
    assert [len(topics[name].partitions) for name in topics] == [2]
    with pytest.raises(UnknownTopicOrPartitionError, match="nope"):
        world.call(app, app.calls.describe_topics(("nope",), 5_000, world.now))
    assert list(world.call(app, app.calls.describe_topics(None, 5_000, world.now))) == ["t"]


def test_polling_without_a_subscription_raises(world: World) -> None:
    app = world.app("a")
    with pytest.raises(IllegalStateError, match="neither subscribed nor assigned"):
        poll(world, app)
    with pytest.raises(IllegalStateError, match="not assigned to this consumer: t-0"):
        world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(0)}, world.now))


def test_assign_and_subscribe_exclude_each_other(world: World) -> None:
    app = world.app("a", group_id="g")
    world.call(app, app.calls.assign((TP0,), world.now))
    with pytest.raises(IllegalStateError, match=r"by hand .*unsubscribe"):
        world.call(app, app.calls.subscribe(("t",), app.listeners(), world.now))
    world.call(app, app.calls.unsubscribe(world.now))
    world.call(app, app.calls.subscribe(("t",), app.listeners(), world.now))
    with pytest.raises(IllegalStateError, match=r"from the group .*unsubscribe"):
        world.call(app, app.calls.assign((TP0,), world.now))


def test_an_unreachable_cluster_raises_within_the_timeout(world: World) -> None:
    world.broker.kill()
    app = assigned(world, TP0)
    before = world.now.mono
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:9092: connection refused"):
        poll(world, app, timeout=3_000)
    assert world.now.mono - before == 3_000
    with pytest.raises((ConnectionFailedError, OttlaTimeoutError), match="connection refused"):
        world.call(app, app.calls.positions.list_offsets({TP0: -1}, 2_000, world.now))
    with pytest.raises(ConnectionFailedError, match="connection refused"):
        world.call(app, app.calls.describe_topics(None, 2_000, world.now))


def test_a_cluster_that_drops_packets_raises_after_a_while(world: World) -> None:
    app = world.app("a")
    world.network.isolate(app.name)
    world.call(app, app.calls.assign((TP0,), world.now))
    assert poll(world, app, timeout=1_000) == []
    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:9092: no TCP connection"):
        poll(world, app, timeout=2_000)


def test_a_lost_cluster_is_retried_for_a_limited_time(world: World) -> None:
    app = assigned(world, TP0, default_api_timeout_ms=30_000)
    poll(world, app)
    world.broker.kill()
    died_at = world.now.mono
    while world.now.mono - died_at < 29_000:
        assert poll(world, app, timeout=1_000) == []
    with pytest.raises(ConnectionFailedError, match="connection refused"):
        poll(world, app, timeout=5_000)


def test_reading_continues_without_a_gap_after_a_broker_restart(world: World) -> None:
    world.produce("t", 0, 50)
    app = assigned(world, TP0, max_poll_records=20)
    seen = poll(world, app)
    world.broker.kill()
    world.run(300)
    seen += poll(world, app, timeout=2_000)
    seen += poll(world, app, timeout=2_000)
    world.broker.start()
    world.produce("t", 0, 10)
    while len(seen) < 60:
        more = poll(world, app, timeout=10_000)
        assert more
        seen += more
    assert seen == [(0, offset) for offset in range(60)]


def test_wakeup_ends_one_waiting_poll(world: World) -> None:
    app = assigned(world, TP0)
    app.start(app.calls.poll(30_000, world.now))
    world.run(1_000)
    app.wakeup()
    world.run(10)
    assert isinstance(app.error, WakeupError)
    assert poll(world, app) == []


def test_a_wakeup_before_a_poll_ends_it_and_loses_no_records(world: World) -> None:
    world.produce("t", 0, 3)
    app = assigned(world, TP0)
    world.run(100)
    app.wakeup()
    app.wakeup()
    with pytest.raises(WakeupError):
        poll(world, app)
    assert len(poll(world, app)) == 3


def test_iterating_over_records_one_by_one(world: World) -> None:
    world.produce("t", 0, 10)
    app = assigned(world, TP0)

    def program() -> Program:
        yield from app.calls.poll(1_000, app.now)
        delivery = app.calls.collector.delivery
        assert delivery is not None
        for record in app.calls.collector.walk(delivery):
            app.handled.append(record)
            if record.offset == 4:
                break
        assert app.calls.collector.positions(with_current=True)[TP0].offset == 5
        assert app.calls.collector.positions(with_current=False)[TP0].offset == 4
        return (yield from app.calls.poll(1_000, app.now))

    rest = world.call(app, program())
    assert offsets(app.handled, 0) + offsets(rest, 0) == list(range(10))
