"""A manager that asks for operations does not wait for ever, also if one of its functions raises."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.errors import KeeperCode, OttlaError, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper.ask_queue import AskQueue
from ottla.zookeeper.operations import Exists, GetData

NOW = Now(0, 0)


def breaks(*arguments: object) -> None:
    raise RuntimeError("broken")


def test_an_exception_at_a_result_is_a_failure_and_goes_on() -> None:
    queue, failures = AskQueue(1_000), list[OttlaError]()
    queue.ask(Exists("/a"), breaks, lambda error, now: failures.append(error))
    (ask,) = queue.take()
    with pytest.raises(RuntimeError, match="broken"):
        ask.on_result(None, NOW)
    (error,) = failures
    assert str(error) == "handling the outcome of Exists at /a failed: RuntimeError('broken')"
    assert not error.retriable


def test_an_exception_at_a_failure_is_another_failure() -> None:
    queue, failures = AskQueue(1_000), list[OttlaError]()

    def on_failure(error: OttlaError, now: Now) -> None:
        failures.append(error)
        if isinstance(error, ZooKeeperError):
            breaks()

    queue.ask(Exists("/a"), breaks, on_failure)
    (ask,) = queue.take()
    lost = ZooKeeperError(KeeperCode.CONNECTIONLOSS, "/a")
    with pytest.raises(RuntimeError, match="broken"):
        ask.on_failure(lost, NOW)
    assert failures[0] is lost
    assert "broken" in str(failures[1])


def test_an_exception_at_several_outcomes_is_one_of_the_outcomes() -> None:
    queue, calls = AskQueue(1_000), list[list[Any]]()

    def done(outcomes: list[Any], now: Now) -> None:
        calls.append(outcomes)
        if len(calls) == 1:
            breaks()

    queue.ask_all([GetData("/a"), GetData("/b")], done)
    first, second = queue.take()
    second.on_result("b", NOW)
    with pytest.raises(RuntimeError, match="broken"):
        first.on_result("a", NOW)
    assert calls[0] == ["a", "b"]
    assert isinstance(calls[1][0], OttlaError)
    assert calls[1][1] == "b"


def test_after_abandon_nothing_is_called() -> None:
    queue = AskQueue(1_000)
    queue.ask(Exists("/a"), breaks, breaks)
    (ask,) = queue.take()
    queue.ask(Exists("/b"), breaks, breaks)
    queue.abandon()
    ask.on_result(None, NOW)
    assert queue.take() == ()
