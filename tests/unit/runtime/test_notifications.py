"""The queue from a network thread to the application: nothing lost, no one asleep for ever, and the moment of taking over."""

from __future__ import annotations

import threading
import time

from ottla.runtime.network_thread import NotificationQueue

LONG = 30.0
"""Seconds that nothing here takes, unless it hangs."""


class Sleeper(threading.Thread):
    """Waits on the queue, drains it, and waits again when told."""

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
        """Put once it sleeps."""
        deadline = time.monotonic() + LONG
        while not self.queue.sleeping:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert self.queue.put_all(items)


def test_what_was_put_is_drained_once_and_in_order() -> None:
    queue = NotificationQueue()
    assert not queue.put_all([1, 2])
    assert not queue.put_all(iter([3]))
    assert queue.wait(0)
    assert not queue.put_all([4])
    assert queue.drain() == [1, 2, 3, 4]
    assert queue.drain() == []
    assert not queue.wait(0)


def test_a_wait_ends_with_its_time_or_a_wake_up_and_each_wake_up_ends_one() -> None:
    queue = NotificationQueue()
    assert not queue.wait(0.001)
    queue.wake()
    assert not queue.wait(LONG)
    assert not queue.wait(0)


def test_a_put_wakes_whoever_sleeps_and_says_so() -> None:
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


def test_giving_way_ends_without_an_application_that_takes_anything() -> None:
    sleeper = Sleeper(NotificationQueue())
    sleeper.start()
    sleeper.wake("news")
    sleeper.queue.give_way(0.001)
    assert not sleeper.may_wait.is_set()
    sleeper.may_wait.set()
    sleeper.join(LONG)


def test_an_event_loop_is_told_once_of_what_comes_after_it_has_armed() -> None:
    queue, told = NotificationQueue(), []
    assert queue.arm(lambda: told.append("a"))
    assert queue.put_all([1]), "it counts as asleep"
    queue.put_all([2])
    assert told == ["a"]
    assert not queue.arm(lambda: told.append("b")), "there is something already"
    assert queue.drain() == [1, 2]
    assert queue.arm(lambda: told.append("c"))
    queue.disarm()
    queue.put_all([3])
    assert told == ["a"]
