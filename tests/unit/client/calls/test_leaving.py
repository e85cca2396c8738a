"""What the network thread has told and is void by the time that the application hears of it: it left, or has lost everything."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from ottla.client import commands
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.rebalancing import Listeners
from ottla.client.notifications import AssignmentReceived, Completed, Published, RebalanceNeeded
from ottla.client.subscription import Mode, Snapshot
from ottla.types import Now
from tests.unit.client.managers import T0, config, now, subscribed


def poll(calls: ConsumerCalls, at: Now) -> None:
    call = calls.poll(0, at)
    with suppress(StopIteration):
        next(call)
        while True:
            call.send(at)


@pytest.mark.parametrize(
    "late", [AssignmentReceived(3, frozenset({T0})), RebalanceNeeded(3, frozenset({T0}), False, 10_000)], ids=["given", "asked"]
)
def test_what_crosses_the_request_to_leave_is_nobodys_any_more(late: Any) -> None:
    sent: list[Any] = []
    told: list[Any] = []

    def drain() -> list[Any]:
        taken = list(told)
        told.clear()
        return taken

    calls = ConsumerCalls(config(), sent.append, drain)
    subscribed(calls)
    call = calls.unsubscribe(now(0))
    next(call)
    (request,) = [one for one in sent if isinstance(one, commands.Unsubscribe)]
    told += [late, Completed(request.completion)]
    with pytest.raises(StopIteration):
        call.send(now(1))
    assert not calls._rebalancing.pending
    assert calls.owned == frozenset()


@pytest.mark.parametrize(
    "late", [AssignmentReceived(3, frozenset({T0})), RebalanceNeeded(3, frozenset({T0}), False, 10_000)], ids=["given", "asked"]
)
def test_what_crosses_a_request_to_leave_whose_call_was_cancelled_is_nobodys_any_more(late: Any) -> None:
    sent: list[Any] = []
    told: list[Any] = []
    heard: list[Any] = []
    calls = ConsumerCalls(config(), sent.append, lambda: told)
    subscribed(calls)
    leaving = calls.unsubscribe(now(0))
    next(leaving)
    leaving.close()
    told.append(late)
    subscribing = calls.subscribe(["t"], Listeners(on_assign=heard.append, on_revoke=heard.append), now(1))
    next(subscribing)
    (request,) = [one for one in sent if isinstance(one, commands.Subscribe)]
    told += [Published(Snapshot(Mode.TOPICS, frozenset({"t"}))), Completed(request.completion)]
    with pytest.raises(StopIteration):
        subscribing.send(now(2))
    poll(calls, now(3))
    assert heard == []
    assert calls.owned == frozenset()
    told.append(AssignmentReceived(5, frozenset({T0})))
    poll(calls, now(4))
    assert heard == [[T0]]


def test_what_was_given_before_everything_was_lost_is_not_taken() -> None:
    sent: list[Any] = []
    heard: list[Any] = []
    told: list[Any] = [
        Published(Snapshot(Mode.TOPICS, frozenset({"t"}))),
        AssignmentReceived(3, frozenset({T0})),
        RebalanceNeeded(4, frozenset({T0}), True, 10_000),
    ]

    def drain() -> list[Any]:
        taken = list(told)
        told.clear()
        return taken

    calls = ConsumerCalls(config(), sent.append, drain)
    subscribed(calls, Listeners(on_assign=heard.append, on_revoke=heard.append))
    for _ in calls.poll(0, now(0)):
        pass
    assert heard == []
    assert calls.owned == frozenset()
    answers = [one for one in sent if isinstance(one, commands.RebalancePrepared | commands.AssignmentAccepted)]
    assert [(type(one), one.token) for one in answers] == [(commands.RebalancePrepared, 4)]
