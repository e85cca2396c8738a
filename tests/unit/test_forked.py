"""In a forked child every call of a consumer raises ``ForkedError``; the consumer of the parent is not disturbed."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from ottla import AsyncConsumer, Consumer, TopicPartition
from ottla.errors import ForkedError
from ottla.signals import stop_on_signals

TP = TopicPartition("t", 0)

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "assign": ([TP],),
    "beginning_offsets": ([TP],),
    "end_offsets": ([TP],),
    "lag": (TP,),
    "offsets_for_times": ({TP: 1},),
    "partitions_for": ("t",),
    "pause": (TP,),
    "position": (TP,),
    "resume": (TP,),
    "seek": (TP, 1),
    "streams": ({"t": 1},),
    "subscribe": (["t"],),
}
KEYWORDS: dict[str, dict[str, Any]] = {"processing": {"limit": 1}}


def names(kind: type[Any]) -> list[str]:
    """The names of all public methods and properties."""
    return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]


def use(consumer: Consumer | AsyncConsumer, name: str) -> Any:
    found = getattr(consumer, name)
    result = found(*ARGUMENTS.get(name, ()), **KEYWORDS.get(name, {})) if callable(found) else found
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def in_child(action: Callable[[], object]) -> int:
    """Run something in a forked child; return its exit code: 0 if it raises ``ForkedError`` with a hint."""
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
        except ForkedError as error:
            code = 0 if error.hint in str(error) and str(os.getpid()) in str(error) else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def new(kind: type[Any], **settings: Any) -> Any:
    return kind(bootstrap_servers="127.0.0.1:1", group_id="g", **settings)


@pytest.fixture(scope="module")
def started() -> Any:
    consumer = new(Consumer, enable_auto_commit=False)
    consumer.assign([TP])
    yield consumer
    consumer.close(0)


@pytest.fixture(scope="module")
def started_async() -> Any:
    """A consumer whose event loop is closed, so that a child can start its own."""
    consumer = new(AsyncConsumer, enable_auto_commit=False)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(consumer.assign([TP]))
    yield consumer
    loop.run_until_complete(consumer.close(0))
    loop.close()


@pytest.mark.parametrize("name", names(Consumer))
def test_every_call_of_a_consumer_raises(started: Consumer, name: str) -> None:
    assert in_child(lambda: use(started, name)) == 0
    assert in_child(lambda: use(new_in_parent, name)) == 0


@pytest.mark.parametrize("name", names(AsyncConsumer))
def test_every_call_of_an_async_consumer_raises(started_async: AsyncConsumer, name: str) -> None:
    assert in_child(lambda: use(started_async, name)) == 0


new_in_parent = new(Consumer)
"""A consumer without any call: its member id exists already, and every child would have the same."""


def test_iterating_and_leaving_a_with_raise(started: Consumer) -> None:
    assert in_child(lambda: next(iter(started))) == 0
    assert in_child(lambda: started.__exit__(None, None, None)) == 0
    assert "partitions" in repr(started)


def test_an_exception_that_leaves_a_with_in_a_child_is_not_replaced(started: Consumer) -> None:
    def leave() -> None:
        try:
            with started:
                raise ValueError("mine")
        except ValueError as error:
            if any("process" in note for note in error.__notes__):
                raise ForkedError(f"seen in {os.getpid()}") from None

    assert in_child(leave) == 0


def test_a_child_that_was_forked_while_a_lock_was_held_does_not_hang(started: Consumer) -> None:
    with started._thread_driver._guard, started._monitor.assessing:
        for name in ("wakeup", "health", "metrics", "poll"):
            assert in_child(lambda name=name: use(started, name)) == 0  # type: ignore[misc]


def test_calls_of_a_closed_consumer_raise_as_well() -> None:
    consumer = new(Consumer)
    consumer.close()
    assert in_child(consumer.close) == 0
    assert in_child(consumer.health) == 0


def test_the_parent_can_use_its_consumer(started: Consumer) -> None:
    assert in_child(started.close) == 0
    assert started.health().live
    started.seek(TP, 5)
    assert started.position(TP) == 5


def test_a_signal_in_a_child_calls_the_handler_from_before_the_parents_with(started: Consumer) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
    reads, writes = os.pipe()
    try:
        with stop_on_signals(started) as stop:
            child = os.fork()
            if not child:
                try:
                    os.write(writes, b"!")
                    time.sleep(60)
                finally:
                    os._exit(3)
            os.read(reads, 1)  # Python drops signals that arrive while it starts a child
            os.kill(child, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert not stop
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(reads)
        os.close(writes)
