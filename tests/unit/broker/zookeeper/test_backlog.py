"""Backlog: what is due, in progress, or waits after a failure."""

from __future__ import annotations

import time

from ottla.broker.zookeeper.backlog import Backlog
from ottla.types import Now


def at(mono: int) -> Now:
    return Now(mono, mono)


def test_keys_are_taken_in_their_order_and_not_too_many_at_once() -> None:
    backlog: Backlog[int] = Backlog(2)
    for key in (1, 2, 3):
        backlog.add(key)
    assert backlog.take(at(0)) == [1, 2]
    assert backlog.take(at(0)) == []
    backlog.done(1)
    assert backlog.take(at(0)) == [3]
    assert 3 in backlog
    backlog.done(2)
    backlog.done(3)
    assert backlog.is_empty


def test_a_key_that_is_added_while_it_is_in_progress_is_due_again() -> None:
    backlog: Backlog[int] = Backlog(2)
    backlog.add(1)
    assert backlog.take(at(0)) == [1]
    backlog.add(1)
    assert backlog.take(at(0)) == []
    backlog.done(1)
    assert backlog.take(at(0)) == [1]
    backlog.done(1)
    assert backlog.is_empty


def test_each_failure_in_a_row_takes_twice_the_time() -> None:
    backlog: Backlog[int] = Backlog(2)
    backlog.add(1)
    now = 0
    delays = []
    for _ in range(12):
        assert backlog.take(at(now)) == [1]
        assert backlog.fail(1, at(now))
        assert backlog.wake_at is not None
        delays.append(backlog.wake_at - now)
        now = backlog.wake_at
        assert backlog.take(at(now - 1)) == []
    assert delays == [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000]
    assert backlog.take(at(now)) == [1]
    backlog.done(1)
    backlog.add(1)
    backlog.take(at(now))
    backlog.fail(1, at(now))
    assert backlog.wake_at == now + 100


def test_a_key_that_has_failed_waits_although_it_is_added() -> None:
    backlog: Backlog[int] = Backlog(2)
    backlog.add(1)
    backlog.add(2)
    backlog.take(at(0))
    assert backlog.fail(1, at(0))
    assert not backlog.fail(2, at(0)), "it is not the first"
    backlog.add(1)
    assert backlog.take(at(99)) == []
    assert backlog.take(at(100)) == [1, 2]


def test_drop_restart_and_clear() -> None:
    backlog: Backlog[int] = Backlog(2)
    for key in (1, 2, 3):
        backlog.add(key)
    backlog.take(at(0))
    backlog.add(1)
    backlog.drop(1)
    backlog.drop(3)
    backlog.done(1)
    backlog.restart()
    assert backlog.take(at(0)) == [2]
    backlog.clear()
    assert backlog.is_empty
    assert backlog.wake_at is None


def seconds_for(count: int) -> float:
    """The processor time in which so many keys are taken, a few at a time."""
    backlog: Backlog[int] = Backlog(500)
    for key in range(count):
        backlog.add(key)
    began = time.process_time()
    while not backlog.is_empty:
        for key in backlog.take(at(0)):
            backlog.done(key)
    return time.process_time() - began


def test_ten_times_the_keys_take_about_ten_times_the_time() -> None:
    """All partitions of a broker are due after each connection."""
    few, many = min(seconds_for(10_000) for _ in range(5)), seconds_for(100_000)
    assert many < 40 * few, f"{few:.3f} s, and {many:.3f} s"
