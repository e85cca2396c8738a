"""The pool of a process's idle clients, by that of consumers, and the frozen heap of a worker process."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from ottla import Admin, Consumer
from ottla.errors import DisconnectedError, IllegalStateError
from ottla.spark import reading
from ottla.spark.client_pool import ClientPool, Settings
from ottla.spark.reading import consumers


def settings(number: int = 1) -> Settings:
    """Settings with an address where nothing listens; a client connects only when it is used."""
    return (("bootstrap.servers", f"127.0.0.1:{number}"),)


@pytest.fixture
def admins() -> Iterator[ClientPool[Admin]]:
    pool = ClientPool(lambda settings: Admin(dict(settings)), Admin.close, max_idle=2)
    yield pool
    pool.close()


def is_open(client: Consumer | Admin) -> bool:
    if isinstance(client, Admin):
        return "closed" not in repr(client)
    try:
        client.assignment()
    except IllegalStateError:
        return False
    return True


def test_a_task_gets_the_consumer_of_the_task_before() -> None:
    with consumers.borrow(settings()) as first:
        pass
    with consumers.borrow(settings()) as second:
        assert second is first
        with consumers.borrow(settings()) as third:
            assert third is not first


def test_other_settings_get_another_consumer() -> None:
    with consumers.borrow(settings(1)) as first:
        pass
    with consumers.borrow(settings(2)) as second:
        assert second is not first


def test_a_consumer_that_a_task_failed_with_is_closed() -> None:
    with pytest.raises(ZeroDivisionError), consumers.borrow(settings()) as first:
        raise ZeroDivisionError
    assert not is_open(first)
    with consumers.borrow(settings()) as second:
        assert second is not first


def test_a_task_that_is_cut_short_leaves_a_good_consumer() -> None:
    def rows() -> Generator[Consumer]:
        with consumers.borrow(settings()) as consumer:
            yield consumer

    of_task = rows()
    first = next(of_task)
    of_task.close()
    with consumers.borrow(settings()) as second:
        assert second is first
        assert is_open(second)


def test_only_some_are_kept() -> None:
    lent = []
    for number in range(1, consumers.max_idle + 2):
        with consumers.borrow(settings(number)) as consumer:
            lent.append(consumer)
    assert [is_open(consumer) for consumer in lent] == [False, *[True] * consumers.max_idle]


def test_a_forked_child_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with consumers.borrow(settings()) as first:
        pass
    monkeypatch.setattr("os.getpid", lambda: -1)
    with consumers.borrow(settings()) as second:
        assert second is not first


def test_queries_beside_each_other_have_clients_of_their_own(admins: ClientPool[Admin]) -> None:
    """Four at a time with the same settings, of which two clients are kept: none is forgotten without being closed."""
    barrier = Barrier(4)

    def use(number: int) -> Admin:
        with admins.borrow(settings()) as admin:
            barrier.wait(10)
            return admin

    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            used = list(threads.map(use, range(4)))
            assert len(set(map(id, used))) == 4
            assert sorted(map(is_open, used)) == [False, False, True, True]
    admins.close()
    assert not any(map(is_open, used))


def test_a_client_that_cannot_be_reset_is_closed() -> None:
    def reset(admin: Admin) -> None:
        raise DisconnectedError("gone")

    pool = ClientPool(lambda settings: Admin(dict(settings)), Admin.close, max_idle=2, reset=reset)
    with pool.borrow(settings()) as admin:
        pass
    assert not is_open(admin)


def test_the_heap_is_frozen_at_a_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = []
    monkeypatch.setattr(reading, "_tasks", 0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(reading._tasks))
    for _ in range(100):
        reading.freeze_heap()
    assert frozen == [1, 2, 4, 8, 64]
