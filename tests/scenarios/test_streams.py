"""Consumers with streams under the virtual clock: rebalances, slow and hung threads, full queues, errors, the end."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla import Record
from ottla.client.calls.listeners import Listeners
from ottla.client.calls.pump import Pump
from ottla.client.calls.streams import StreamQueue, Streams
from ottla.errors import IllegalStateError, OttlaError, UnknownTopicOrPartitionError
from ottla.records import Walk
from ottla.simulation.application import App, Program
from ottla.types import TopicPartition
from tests.scenarios.groups import ALL, PARTITIONS, filled
from tests.simulation.world import World

KINDS: dict[str, dict[str, Any]] = {
    "range": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
    "zookeeper": {"group_protocol": "zookeeper"},
}
SESSION: dict[str, dict[str, int]] = {
    kind: {"session_timeout_ms": 9_000} if settings["group_protocol"] == "classic" else {} for kind, settings in KINDS.items()
}
"""Not longer than the poll interval: a longer one would count instead."""

RECORDS = 100

protocols = pytest.mark.parametrize("kind", KINDS)


class Thread:
    """A thread that iterates over a stream, ``work`` ms a record; ``None``: it hangs in the first one."""

    def __init__(self, app: App, name: str, work: int | None) -> None:
        self.queue = StreamQueue(name, self._go_on, self._ring)
        self.work = work
        self.done: list[Record] = []
        self.in_hand: Record | None = None
        self.errors: list[OttlaError] = []
        self.ended = False
        self._app = app
        self._waits = False

    def start(self) -> None:
        self._app._clock.after(0, self.step)

    def step(self) -> None:
        """Finish the record in hand, and begin the next one."""
        if self.in_hand is not None:
            self.done.append(self.in_hand)
        self._waits = False
        self.in_hand = next(self.queue.walk, None)
        self._app._notified()
        if self.in_hand is None:
            self._waits = not self.queue.ended
            self.ended = self.queue.ended
            self.errors += [error for error, _ in self.queue.errors]
            self.queue.errors.clear()
        elif self.work is not None:
            self._app._clock.after(self.work, self.step)

    def _ring(self) -> None:
        if self._waits:
            self._waits = False
            self._app._clock.after(0, self.step)

    def _go_on(self, walk: Walk) -> bool:
        del walk
        return self.queue.advance()


class Member:
    """A consumer with streams of topic ``t``, for which ``running`` threads run, or all."""

    def __init__(
        self, world: World, name: str, kind: str, works: Sequence[int | None], *, running: int | None = None, **settings: Any
    ) -> None:
        self.app = world.app(name, group_id="g", **KINDS[kind], **settings)
        self.threads = [Thread(self.app, f"t {number}", work) for number, work in enumerate(works)]
        self.pump = Pump(self.app.calls._config, self.app.calls, Streams({"t": [each.queue for each in self.threads]}, 2))
        self.app.start(self._program(self.app.listeners()))
        for thread in self.threads[:running]:
            thread.start()

    def _program(self, listeners: Listeners) -> Program:
        yield from self.pump.begin({"t": len(self.threads)}, None, listeners, self.app.now)
        yield from self.pump.run(self.app.now)

    def close(self, *, mine: Iterable[Thread] = (), counted: Iterable[Thread] = ()) -> None:
        """Close the consumer, in one of the threads or in another."""
        assert self.app._program is not None
        self.app._program.close()
        self.app._program = None
        own, done = ([thread.queue for thread in threads] for threads in (mine, counted))
        self.app.start(self.pump.close(own, done, 10_000, self.app.now))

    @property
    def done(self) -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for thread in self.threads for record in thread.done]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return filled(tmp_path, records=RECORDS)


EVERYTHING = list(itertools.product(range(PARTITIONS), range(RECORDS)))


def committed(world: World, kind: str) -> dict[int, int]:
    """The committed offset of each partition that has one."""
    read = world.committed_in_zookeeper if kind == "zookeeper" else world.committed
    return read("g", "t", PARTITIONS)


def settled(*members: Member) -> bool:
    owned = [tp for member in members for tp in member.app.calls.owned]
    return sorted(owned) == ALL and all(member.app.calls.owned for member in members)


@protocols
def test_members_share_the_records_and_a_rebalance_repeats_none(world: World, kind: str) -> None:
    """Partitions are given up when the records in hand are finished and committed, so the next owner begins right after them."""
    first = Member(world, "a", kind, [20, 30], max_poll_records=5)
    world.run_until(lambda: len(first.done) > 30)
    second = Member(world, "b", kind, [10], max_poll_records=5)
    world.run_until(lambda: settled(first, second))
    world.run(500)
    assert second.done
    second.close()
    world.run_until(lambda: settled(first) and len(first.done) + len(second.done) == len(EVERYTHING))
    assert sorted(first.done + second.done) == EVERYTHING
    for member in (first, second):
        for thread in member.threads:
            for partition in range(PARTITIONS):
                offsets = [record.offset for record in thread.done if record.partition == partition]
                assert offsets == sorted(offsets)


@protocols
def test_a_partition_is_in_one_stream_at_a_time(world: World, kind: str) -> None:
    """The shares of the streams change with those of the members."""
    first = Member(world, "a", kind, [70, 70, 70], max_poll_records=3)
    members = [first]
    for name in "bc":
        world.run(1_500)
        members.append(Member(world, name, kind, [70, 70], max_poll_records=3))
        for _ in range(150):
            world.run(10)
            threads = [thread for member in members for thread in member.threads]
            in_hand = Counter(thread.in_hand.partition for thread in threads if thread.in_hand is not None)
            assert not [partition for partition, count in in_hand.items() if count > 1]
    world.run_until(lambda: len({*(one for member in members for one in member.done)}) == len(EVERYTHING))
    assert sorted(one for member in members for one in member.done) == EVERYTHING


@protocols
def test_only_finished_records_are_committed(world: World, kind: str) -> None:
    member = Member(world, "a", kind, [40, 60], max_poll_records=7, auto_commit_interval_ms=100)
    world.run_until(lambda: settled(member))
    for _ in range(60):
        world.run(50)
        done = Counter(partition for partition, _ in member.done)
        for partition, offset in committed(world, kind).items():
            assert offset <= done[partition]
    assert sum(committed(world, kind).values()) > 20


@protocols
def test_a_stream_that_is_not_read_does_not_stop_the_others(world: World, kind: str) -> None:
    member = Member(world, "a", kind, [1, 1], running=1, max_poll_records=10, fetch_max_bytes=200)
    other, unread = member.threads
    world.run_until(lambda: len(other.done) == RECORDS * PARTITIONS // 2 - 1, limit=5_000)
    assert unread.queue.waiting() == 2
    paused = {tp for tp, view in member.app.calls.snapshot.partitions.items() if view.paused}
    assert paused == set(ALL[2:])
    unread.start()
    world.run_until(lambda: len(member.done) == len(EVERYTHING) - 2)
    world.run(100)
    assert sorted(member.done) == EVERYTHING


@protocols
def test_a_thread_that_hangs_keeps_no_partitions(world: World, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"max_poll_interval_ms": 10_000, **SESSION[kind]}
    first = Member(world, "a", kind, [10, None], **settings)
    second = Member(world, "b", kind, [10], **settings)
    world.run_until(lambda: settled(first, second) and first.threads[1].in_hand is not None)
    began = world.now.mono
    with caplog.at_level(logging.WARNING):
        world.run_until(lambda: settled(second), limit=30_000)
    assert 9_000 <= world.now.mono - began <= 12_000
    (line,) = [record.getMessage() for record in caplog.records if "left the group" in record.getMessage()]
    assert "10.0 s since a stream handed out a record, max_poll_interval is 10.0 s" in line
    assert "It is processing 1 records of t-" in line
    hung = first.threads[1].in_hand
    assert hung is not None
    world.run_until(lambda: len({*first.done, *second.done}) == len(EVERYTHING), limit=60_000)
    assert (hung.partition, hung.offset) in second.done
    first.threads[1].work = 10
    first.threads[1].step()
    world.run_until(lambda: settled(first, second))
    assert [what for what, _ in first.app.listener_calls].count("lost") == 1


@protocols
def test_a_slow_thread_that_goes_on_keeps_its_partitions(world: World, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    member = Member(world, "a", kind, [9_000, 10], max_poll_interval_ms=10_000, **SESSION[kind])
    world.run(120_000)
    assert len(member.threads[0].done) >= 12
    assert not [record for record in caplog.records if "left the group" in record.getMessage()]
    assert settled(member)


@protocols
def test_a_rebalance_waits_for_a_record_in_hand_but_not_for_ever(world: World, kind: str) -> None:
    settings = {"max_poll_interval_ms": 60_000}
    first = Member(world, "a", kind, [8_000, None], **settings)
    world.run_until(lambda: settled(first) and all(thread.in_hand for thread in first.threads))
    second = Member(world, "b", kind, [10], **settings)
    world.run_until(lambda: settled(first, second), limit=60_000)
    assert first.threads[0].done
    assert committed(world, kind)[0] >= 1
    hung = first.threads[1].in_hand
    assert hung is not None
    if TopicPartition("t", hung.partition) in second.app.calls.owned:
        world.run_until(lambda: (hung.partition, hung.offset) in second.done)


@protocols
def test_closing_commits_what_is_finished_and_waits_for_the_records_in_hand(world: World, kind: str) -> None:
    member = Member(world, "a", kind, [2_000, 3_000])
    world.run_until(lambda: len(member.threads[0].done) >= 2)
    member.close()
    world.run_until(lambda: not member.app.running)
    assert member.app.error is None
    assert all(thread.ended for thread in member.threads)
    done = Counter(partition for partition, _ in member.done)
    assert committed(world, kind) == {partition: done[partition] for partition in range(PARTITIONS)}


def test_closing_does_not_wait_for_ever(world: World) -> None:
    member = Member(world, "a", "consumer", [100, None])
    hung = member.threads[1]
    world.run_until(lambda: len(member.threads[0].done) >= 5)
    member.close()
    began = world.now.mono
    world.run_until(lambda: not member.app.running)
    assert 5_000 <= world.now.mono - began <= 6_000
    assert hung.in_hand is not None
    done = Counter(partition for partition, _ in member.done)
    assert committed(world, "consumer")[hung.in_hand.partition] == done[hung.in_hand.partition] == 0


@pytest.mark.parametrize("counts", [True, False])
def test_the_record_in_hand_of_the_thread_that_closes_is_not_waited_for(world: World, counts: bool) -> None:
    member = Member(world, "a", "consumer", [None, 100])
    mine = member.threads[0]
    world.run_until(lambda: mine.in_hand is not None)
    member.close(mine=[mine], counted=[mine] if counts else [])
    began = world.now.mono
    world.run_until(lambda: not member.app.running)
    assert world.now.mono - began < 1_000
    assert committed(world, "consumer")[0] == int(counts)


def test_without_a_lease_nothing_is_handed_out(world: World) -> None:
    """Where a member has a lease, after its end other members may own the partitions."""
    member = Member(world, "a", "consumer", [10, None], max_poll_records=5)
    shared, thread = member.app.calls.shared, member.threads[0]
    world.run_until(lambda: len(thread.done) > 10 and member.threads[1].in_hand is not None)
    shared.lease_until = world.now.mono + 500
    world.run(500)
    done = len(thread.done)
    assert done > 30
    world.run(3_000)
    assert len(thread.done) <= done + 1
    assert not member.pump.streams.has_waiting
    shared.lease_until = world.now.mono + 60_000
    world.run_until(lambda: len(thread.done) == 2 * RECORDS)
    assert sorted(member.done) == EVERYTHING[: 2 * RECORDS]


def test_a_second_call_of_streams_or_another_way_to_read_is_refused(world: World) -> None:
    member = Member(world, "a", "consumer", [10])
    world.run_until(lambda: settled(member))
    calls, now = member.app.calls, world.now
    other = Pump(member.app.calls._config, calls, Streams({"t": []}, 2))
    for call in (
        calls.poll(0, now),
        calls.subscribe(["t"], Listeners(), now),
        calls.unsubscribe(now),
        calls.assign(ALL, now),
        other.begin({"t": 1}, None, Listeners(), now),
    ):
        with pytest.raises(IllegalStateError, match="this consumer has streams"):
            next(call)


def test_streams_after_another_subscription_are_refused_and_change_nothing(world: World) -> None:
    app = world.app("a", group_id="g")
    world.call(app, app.calls.subscribe(["t"], Listeners(), world.now))
    pump = Pump(app.calls._config, app.calls, Streams({"t": []}, 2))
    with pytest.raises(IllegalStateError, match="after subscribe"):
        next(pump.begin({"t": 1}, None, Listeners(), world.now))
    assert app.calls.shared.streams is None


def test_a_topic_that_does_not_exist_is_an_error_of_the_streams_until_it_does(world: World) -> None:
    app = world.app("a", group_id="g", allow_auto_create_topics=False)
    thread = Thread(app, "missing 0", 1)
    pump = Pump(app.calls._config, app.calls, Streams({"missing": [thread.queue]}, 2))

    def program() -> Program:
        yield from pump.begin({"missing": 1}, None, Listeners(), app.now)
        yield from pump.run(app.now)

    app.start(program())
    thread.start()
    world.run_until(lambda: bool(thread.errors))
    assert isinstance(thread.errors[0], UnknownTopicOrPartitionError)
    world.run(10_000)
    assert 5 <= len(thread.errors) <= 12, "once a second"
    world.create_topic("missing", 1)
    world.produce("missing", 0, 3)
    world.run_until(lambda: len(thread.done) >= 2)


def test_an_exception_of_a_listener_is_raised_by_the_streams_and_the_rebalance_goes_on(world: World) -> None:
    member = Member(world, "a", "consumer", [None])
    member.app.calls._rebalancing.listeners = Listeners(on_assign=lambda _: 1 // 0)
    thread = member.threads[0]
    thread.work = 5
    world.run_until(lambda: bool(thread.errors))
    assert "ZeroDivisionError" in str(thread.errors[0])
    assert isinstance(thread.errors[0].cause, ZeroDivisionError)
    world.run_until(lambda: sorted(member.done) == EVERYTHING[: len(member.done)] and len(member.done) > 50)
