"""What the network thread has told and is void by the time that the application hears of it: it left, or has lost everything."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client import commands
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.rebalancing import Listeners
from ottla.client.notifications import AssignmentReceived, Completed, Published, RebalanceNeeded
from ottla.client.subscription import Mode, Snapshot
from tests.unit.client.managers import T0, config, now


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
    call = calls.unsubscribe(now(0))
    next(call)
    (request,) = [one for one in sent if isinstance(one, commands.Unsubscribe)]
    told += [late, Completed(request.completion)]
    with pytest.raises(StopIteration):
        call.send(now(1))
    assert not calls._rebalancing.pending
    assert calls.owned == frozenset()


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
    calls._rebalancing.listeners = Listeners(on_assign=heard.append, on_revoke=heard.append)
    for _ in calls.poll(0, now(0)):
        pass
    assert heard == []
    assert calls.owned == frozenset()
    answers = [one for one in sent if isinstance(one, commands.RebalancePrepared | commands.AssignmentAccepted)]
    assert [(type(one), one.token) for one in answers] == [(commands.RebalancePrepared, 4)]
