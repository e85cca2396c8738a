"""The consumer pool of a worker process, and its frozen heap."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest

from ottla import Consumer
from ottla.errors import IllegalStateError
from ottla.spark import consumer_pool, reading
from ottla.spark.consumer_pool import MAX_IDLE_CONSUMERS, borrowed_consumer


def settings(number: int = 1) -> consumer_pool.Settings:
    """Settings with an address where nothing listens; a consumer connects only when it is used."""
    return (("bootstrap.servers", f"127.0.0.1:{number}"),)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    while consumer_pool._idle:
        consumer_pool._idle.popitem()[1].close(timeout=0)


def is_open(consumer: Consumer) -> bool:
    try:
        consumer.assignment()
    except IllegalStateError:
        return False
    return True


def test_a_task_gets_the_consumer_of_the_task_before() -> None:
    with borrowed_consumer(settings()) as first:
        pass
    with borrowed_consumer(settings()) as second:
        assert second is first
        with borrowed_consumer(settings()) as third:
            assert third is not first


def test_other_settings_get_another_consumer() -> None:
    with borrowed_consumer(settings(1)) as first:
        pass
    with borrowed_consumer(settings(2)) as second:
        assert second is not first


def test_a_consumer_that_a_task_failed_with_is_closed() -> None:
    with pytest.raises(ZeroDivisionError), borrowed_consumer(settings()) as first:
        raise ZeroDivisionError
    assert not is_open(first)
    with borrowed_consumer(settings()) as second:
        assert second is not first


def test_a_task_that_is_cut_short_leaves_a_good_consumer() -> None:
    def rows() -> Generator[Consumer]:
        with borrowed_consumer(settings()) as consumer:
            yield consumer

    reading = rows()
    first = next(reading)
    reading.close()
    with borrowed_consumer(settings()) as second:
        assert second is first
        assert is_open(second)


def test_only_some_are_kept() -> None:
    lent = []
    for number in range(1, MAX_IDLE_CONSUMERS + 2):
        with borrowed_consumer(settings(number)) as consumer:
            lent.append(consumer)
    assert [is_open(consumer) for consumer in lent] == [False, *[True] * MAX_IDLE_CONSUMERS]


def test_a_forked_child_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with borrowed_consumer(settings()) as first:
        pass
    monkeypatch.setattr("os.getpid", lambda: -1)
    with borrowed_consumer(settings()) as second:
        assert second is not first
    consumer_pool._idle.pop((-1, settings())).close(timeout=0)


def test_the_heap_is_frozen_at_a_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = []
    monkeypatch.setattr(reading, "_tasks", 0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(reading._tasks))
    for _ in range(100):
        reading.freeze_heap()
    assert frozen == [1, 2, 4, 8, 64]
