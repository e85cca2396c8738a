"""The queue from a network thread to the application: it loses nothing, wakes each wait, and gives way to the application."""

from __future__ import annotations

import threading
import time

from ottla.runtime.network_thread import NotificationQueue

LONG = 30.0
"""Seconds: a limit that is reached only if a test hangs."""


class Sleeper(threading.Thread):
    """An application thread that waits on the queue, drains it, and waits again once ``may_wait`` is set."""

    def __init__(self, queue: NotificationQueue) -> None:
        super().__init__(daemon=True)
        self.queue = queue
        self.may_wait = threading.Event()
        self.found: bool | None = None
        self.drained: list[object] = []

    def run(self) -> None:
        self.found = self.queue.wait(LONG)
        self.drained = self.queue.drain()
        self.may_wait.wait(LONG)
        self.queue.wait(0)

    def wake(self, *items: object) -> None:
        """Put items once the thread waits."""
        deadline = time.monotonic() + LONG
        while not self.queue.sleeping:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert self.queue.put_all(items)


def test_notifications_are_drained_once_and_in_order() -> None:
    queue = NotificationQueue()
    assert not queue.put_all([1, 2])
    assert not queue.put_all(iter([3]))
    assert queue.wait(0)
    assert not queue.put_all([4])
    assert queue.drain() == [1, 2, 3, 4]
    assert queue.drain() == []
    assert not queue.wait(0)


def test_a_wait_ends_at_its_timeout_or_by_a_wake_up_of_its_own() -> None:
    queue = NotificationQueue()
    assert not queue.wait(0.001)
    queue.wake()
    assert not queue.wait(LONG)
    assert not queue.wait(0)


def test_a_put_wakes_a_waiting_thread_and_returns_true() -> None:
    sleeper = Sleeper(NotificationQueue())
    sleeper.may_wait.set()
    sleeper.start()
    sleeper.wake("news")
    sleeper.join(LONG)
    assert sleeper.found
    assert sleeper.drained == ["news"]


def test_giving_way_lasts_until_the_application_waits_again() -> None:
    sleeper = Sleeper(NotificationQueue())
    sleeper.start()
    sleeper.wake("news")
    threading.Timer(0.05, sleeper.may_wait.set).start()
    began = time.monotonic()
    sleeper.queue.give_way(LONG)
    assert sleeper.may_wait.is_set()
    assert time.monotonic() - began < LONG
    sleeper.join(LONG)


def test_giving_way_ends_at_its_timeout() -> None:
    sleeper = Sleeper(NotificationQueue())
    sleeper.start()
    sleeper.wake("news")
    sleeper.queue.give_way(0.001)
    assert not sleeper.may_wait.is_set()
    sleeper.may_wait.set()
    sleeper.join(LONG)


def test_an_armed_callback_is_called_once() -> None:
    queue, called = NotificationQueue(), []
    assert queue.arm(lambda: called.append("a"))
    assert queue.put_all([1]), "an armed event loop counts as waiting"
    queue.put_all([2])
    assert called == ["a"]
    assert not queue.arm(lambda: called.append("b")), "there are notifications already"
    assert queue.drain() == [1, 2]
    assert queue.arm(lambda: called.append("c"))
    queue.disarm()
    queue.put_all([3])
    assert called == ["a"]
