"""The duration of ``close()``: with its default timeout if the broker is gone, and never longer than its timeout."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from ottla import Admin, AsyncConsumer, Broker, Consumer, TopicPartition
from ottla.client.events import Inspect
from ottla.errors import ClosedError, OttlaTimeoutError
from ottla.faults import Fault
from tests.end_to_end.programs import broker as broker_process
from tests.interop.other_clients import create_topic

pytestmark = pytest.mark.slow

PATIENCE = 60.0
DEFAULT = 5.0
"""The default timeout of ``close()`` in seconds."""
OVERSHOOT = 0.1
"""Seconds that ``close()`` may take beyond its timeout."""
SLACK = 10.0
"""Seconds beyond the limit that a busy machine may take, in tests that measure once. Without a timeout ``close()`` took 29."""
TRIES = 3
"""Tests with a limit of hundredths of a second take the shortest of so many measurements: the machine may be busy."""
TIMEOUTS = (0.0, 0.05, 0.3)
SESSION = 45.0
"""Seconds after which a broker removes a member that did not leave."""
NUMBERS = itertools.count(1)


def fresh() -> str:
    """The name of a new group."""
    return f"group-{next(NUMBERS)}"


def filled(address: str, topic: str = "orders") -> None:
    create_topic(address, topic, 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    producer.produce(topic, b"value")
    assert producer.flush(PATIENCE) == 0


def settings(address: str, group: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": address, "group_id": group, "auto_offset_reset": "earliest", **more}


def reading(address: str, group: str, topic: str = "orders", **more: Any) -> Consumer:
    """A member that has read a record and has not committed it."""
    consumer = Consumer(settings(address, group, auto_commit_interval=3_600, **more))
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE
    while not consumer.poll(0.2):
        assert time.monotonic() < deadline
    return consumer


def seconds(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def ended(consumer: Consumer) -> bool:
    network = consumer._network
    assert network is not None
    network._thread.join(PATIENCE)
    return not network._thread.is_alive()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        filled(broker.bootstrap_servers)
        yield broker


# -- without a broker ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_close_waits_at_most_five_seconds_for_a_dead_broker(tmp_path: Path, protocol: str, end: signal.Signals) -> None:
    """A stopped process accepts connections but does not respond. At once: ``close()``, a ``with``, an async consumer."""
    took: dict[str, float] = {}

    def close(name: str, consumer: Consumer) -> None:
        took[name] = seconds(consumer.close)

    def leave(name: str, consumer: Consumer) -> None:
        with contextlib.suppress(ZeroDivisionError):
            began = time.monotonic()
            with consumer:
                raise ZeroDivisionError
        took[name] = time.monotonic() - began

    async def asynchronous(gone: threading.Event, ready: threading.Event, address: str) -> None:
        consumer = AsyncConsumer(settings(address, "async", group_protocol=protocol))
        await consumer.subscribe(["orders"])
        while not await consumer.poll(0.2):
            pass
        ready.set()
        await asyncio.to_thread(gone.wait, PATIENCE)
        began = time.monotonic()
        await consumer.close()
        took["async"] = time.monotonic() - began

    with broker_process("--data-dir", str(tmp_path), "--set", "group.initial.rebalance.delay.ms=0") as (process, address):
        filled(address)
        first, second = (reading(address, f"g{number}", group_protocol=protocol) for number in range(2))
        gone, ready = threading.Event(), threading.Event()
        threads = [
            threading.Thread(target=close, args=("close", first)),
            threading.Thread(target=leave, args=("block", second)),
            threading.Thread(target=lambda: asyncio.run(asynchronous(gone, ready, address))),
        ]
        threads[2].start()
        assert ready.wait(PATIENCE)
        os.kill(process.pid, end)
        gone.set()
        for thread in threads[:2]:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        process.kill()
        process.wait(PATIENCE)
    assert took.keys() == {"close", "block", "async"}
    assert max(took.values()) < DEFAULT + SLACK
    assert min(took.values()) < DEFAULT + 1


@pytest.mark.parametrize("how", ["classic", "consumer", "assigned"])
def test_close_does_not_wait_for_a_deleted_topic(broker: Broker, how: str) -> None:
    name = f"short-lived-{how}"
    stays_away = {"allow_auto_create_topics": False}
    filled(broker.bootstrap_servers, name)
    if how == "assigned":
        consumer = Consumer(settings(broker.bootstrap_servers, name, auto_commit_interval=3_600, **stays_away))
        consumer.assign([TopicPartition(name, 0)])
        while not consumer.poll(0.2):
            pass
    else:
        consumer = reading(broker.bootstrap_servers, name, name, group_protocol=how, **stays_away)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([name])
    assert seconds(consumer.close) < 1 + SLACK


# -- the timeout ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def a_listener() -> Iterator[str]:
    """A port that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def no_answers(broker: Broker) -> Iterator[Consumer]:
    consumer = reading(broker.bootstrap_servers, fresh())
    with broker.faults.delay(None, 30, times=None):
        yield consumer


@contextlib.contextmanager
def no_answer_to_an_asynchronous_commit(broker: Broker) -> Iterator[Consumer]:
    consumer = reading(broker.bootstrap_servers, fresh())
    with broker.faults.delay("OffsetCommit", 30, times=None):
        consumer.commit_async()
        yield consumer


@contextlib.contextmanager
def a_fetch_under_way(broker: Broker) -> Iterator[Consumer]:
    yield reading(broker.bootstrap_servers, fresh(), fetch_max_wait=20)


@contextlib.contextmanager
def a_busy_network_thread(broker: Broker) -> Iterator[Consumer]:
    """A busy network thread: with a long response, or without the GIL."""
    consumer = reading(broker.bootstrap_servers, fresh())
    release = threading.Event()
    assert consumer._network is not None
    consumer._network.submit(Inspect(lambda _: release.wait(PATIENCE)))
    yield consumer
    release.set()


@contextlib.contextmanager
def a_tls_handshake(broker: Broker) -> Iterator[Consumer]:
    with a_listener() as address:
        consumer = Consumer(settings(address, "g", security_protocol="SSL"))
        consumer.subscribe(["orders"])
        with contextlib.suppress(Exception):
            consumer.poll(0.2)
        yield consumer


@contextlib.contextmanager
def a_port_that_says_nothing(broker: Broker) -> Iterator[Consumer]:
    with a_listener() as address:
        consumer = Consumer(settings(address, "g"))
        consumer.assign([TopicPartition("orders", 0)])
        yield consumer


@contextlib.contextmanager
def a_name_server_that_says_nothing(broker: Broker) -> Iterator[Consumer]:
    release, look_up = threading.Event(), socket.getaddrinfo

    def wait(*args: Any, **kwargs: Any) -> Any:
        release.wait(PATIENCE)
        return look_up(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", wait)
        consumer = Consumer(settings("localhost:1", "g"))
        consumer.subscribe(["orders"])
        consumer.poll(0.1)
        yield consumer
        release.set()


CASES = [
    no_answers,
    no_answer_to_an_asynchronous_commit,
    a_fetch_under_way,
    a_busy_network_thread,
    a_tls_handshake,
    a_port_that_says_nothing,
    a_name_server_that_says_nothing,
]


@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize("case", CASES)
def test_close_takes_no_longer_than_its_timeout(broker: Broker, case: Any, timeout: float) -> None:
    took = []
    for _ in range(TRIES):
        with case(broker) as consumer:
            took.append(seconds(functools.partial(close_quietly, consumer, timeout)))
        assert ended(consumer)
        if took[-1] <= timeout + OVERSHOOT:
            return
    pytest.fail(f"close({timeout}) took {took}")


def close_quietly(consumer: Consumer, timeout: float) -> None:
    """An asynchronous commit without a response is an error; the consumer is closed nevertheless."""
    with contextlib.suppress(OttlaTimeoutError):
        consumer.close(timeout)


# -- the timeout of an ``AsyncConsumer`` -----------------------------------------------------------------------------------


async def async_reading(broker: Broker, **more: Any) -> AsyncConsumer:
    """As ``reading``."""
    consumer = AsyncConsumer(settings(broker.bootstrap_servers, fresh(), auto_commit_interval=3_600, **more))
    await consumer.subscribe(["orders"])
    while not await consumer.poll(0.2):
        pass
    return consumer


@contextlib.asynccontextmanager
async def async_no_answers(broker: Broker) -> AsyncIterator[AsyncConsumer]:
    consumer = await async_reading(broker)
    with broker.faults.delay(None, 30, times=None):
        yield consumer


@contextlib.asynccontextmanager
async def async_no_answer_to_an_asynchronous_commit(broker: Broker) -> AsyncIterator[AsyncConsumer]:
    consumer = await async_reading(broker)
    with broker.faults.delay("OffsetCommit", 30, times=None):
        await consumer.commit_async()
        yield consumer


@contextlib.asynccontextmanager
async def async_a_fetch_under_way(broker: Broker) -> AsyncIterator[AsyncConsumer]:
    yield await async_reading(broker, fetch_max_wait=20)


@contextlib.asynccontextmanager
async def async_a_busy_network_thread(broker: Broker) -> AsyncIterator[AsyncConsumer]:
    consumer = await async_reading(broker)
    release = threading.Event()
    assert consumer._network is not None
    consumer._network.submit(Inspect(lambda _: release.wait(PATIENCE)))
    try:
        yield consumer
    finally:
        release.set()


@contextlib.asynccontextmanager
async def async_other_tasks_in_calls(broker: Broker) -> AsyncIterator[AsyncConsumer]:
    """One task polls, another commits, and no broker responds."""
    consumer = await async_reading(broker)
    with broker.faults.delay(None, 30, times=None):
        tasks = [asyncio.create_task(call) for call in (consumer.poll(PATIENCE), consumer.commit())]
        await asyncio.sleep(0.05)
        yield consumer
        done, _ = await asyncio.wait(tasks, timeout=PATIENCE)
        assert {type(task.exception()) for task in done} == {ClosedError}


@contextlib.asynccontextmanager
async def async_a_port_that_says_nothing(broker: Broker) -> AsyncIterator[AsyncConsumer]:
    with a_listener() as address:
        consumer = AsyncConsumer(settings(address, "g"))
        await consumer.assign([TopicPartition("orders", 0)])
        yield consumer


ASYNC_CASES = [
    async_no_answers,
    async_no_answer_to_an_asynchronous_commit,
    async_a_fetch_under_way,
    async_a_busy_network_thread,
    async_other_tasks_in_calls,
    async_a_port_that_says_nothing,
]


@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize("case", ASYNC_CASES)
def test_close_of_an_async_consumer_takes_no_longer_than_its_timeout(broker: Broker, case: Any, timeout: float) -> None:
    async def close() -> float:
        async with case(broker) as consumer:
            began = time.monotonic()
            with contextlib.suppress(OttlaTimeoutError):
                await consumer.close(timeout)
            return time.monotonic() - began

    took = [asyncio.run(asyncio.wait_for(close(), PATIENCE))]
    while len(took) < TRIES and took[-1] > timeout + OVERSHOOT:
        took.append(asyncio.run(asyncio.wait_for(close(), PATIENCE)))
    assert min(took) <= timeout + OVERSHOOT, took


# -- requests that a short close() sends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_close_0_sends_the_commit_and_leaves_the_group(broker: Broker, protocol: str) -> None:
    group = f"hurried-{protocol}"
    reading(broker.bootstrap_servers, group, group_protocol=protocol).close(0)
    deadline = time.monotonic() + PATIENCE
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        while admin.describe_groups([group])[group].members:
            assert time.monotonic() < deadline
    with Consumer(settings(broker.bootstrap_servers, group)) as consumer:
        (found,) = consumer.committed(TopicPartition("orders", 0)).values()
    assert found is not None
    assert found.offset == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_close_waits_for_the_commit_of_a_preceding_assign(broker: Broker, is_async: bool) -> None:
    group = fresh()
    old, new = TopicPartition("orders", 0), TopicPartition(f"others-{group}", 0)
    filled(broker.bootstrap_servers, new.topic)
    chosen = settings(broker.bootstrap_servers, group, auto_commit_interval=3_600)

    async def asynchronous() -> None:
        async with AsyncConsumer(chosen) as consumer:
            await consumer.assign([old])
            while not await consumer.poll(0.2):
                pass
            await consumer.assign([new])

    if is_async:
        asyncio.run(asyncio.wait_for(asynchronous(), PATIENCE))
    else:
        with Consumer(chosen) as consumer:
            consumer.assign([old])
            while not consumer.poll(0.2):
                pass
            consumer.assign([new])
    with Consumer(settings(broker.bootstrap_servers, group)) as consumer:
        found = consumer.committed(old)[old]
    assert found is not None
    assert found.offset == 1


def test_assign_does_not_commit_records_whose_processing_failed(broker: Broker) -> None:
    old, new = TopicPartition("orders", 0), TopicPartition("elsewhere", 0)
    filled(broker.bootstrap_servers, "elsewhere")

    async def asynchronous(group: str) -> None:
        async with AsyncConsumer(settings(broker.bootstrap_servers, group, auto_commit_interval=3_600)) as consumer:
            await consumer.assign([old])
            while not await consumer.poll(0.2):
                pass
            try:
                raise ZeroDivisionError
            except ZeroDivisionError:
                await consumer.assign([new])

    with Consumer(settings(broker.bootstrap_servers, "failed", auto_commit_interval=3_600)) as consumer:
        consumer.assign([old])
        while not consumer.poll(0.2):
            pass
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            consumer.assign([new])
    asyncio.run(asynchronous("failed-async"))
    for group in ("failed", "failed-async"):
        with Consumer(settings(broker.bootstrap_servers, group)) as consumer:
            found = consumer.committed(old)[old]
        assert found is None or found.offset == 0


# -- an interrupted close() --------------------------------------------------------------------------------------------------


def has_left(broker: Broker, group: str) -> bool:
    """Whether the group has no members, long before their sessions expire."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        deadline = time.monotonic() + SESSION / 3
        while admin.describe_groups([group])[group].members:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_cancelled_close_leaves_the_group(broker: Broker, protocol: str, turns: int) -> None:
    """The commit comes first and gets no response, so the cancellation arrives before the member has left."""

    async def main() -> str:
        consumer = await async_reading(broker, group_protocol=protocol)
        group = consumer.group_metadata().group_id
        with broker.faults.delay("OffsetCommit", PATIENCE):
            closing = asyncio.create_task(consumer.close(PATIENCE))
            for _ in range(turns):
                await asyncio.sleep(0)
            assert closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
        return group

    assert has_left(broker, asyncio.run(asyncio.wait_for(main(), PATIENCE)))


def interrupt_once_it_strikes(fault: Fault) -> None:
    while not fault.struck:
        time.sleep(0.01)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_close_interrupted_by_ctrl_c_leaves_the_group(broker: Broker, protocol: str) -> None:
    group = fresh()
    consumer = reading(broker.bootstrap_servers, group, group_protocol=protocol)
    with broker.faults.delay("OffsetCommit", PATIENCE) as unanswered:
        interrupting = threading.Thread(target=interrupt_once_it_strikes, args=(unanswered,))
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.close(PATIENCE)
        interrupting.join(PATIENCE)
    assert has_left(broker, group)
