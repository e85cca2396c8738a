"""``unsubscribe()`` by itself: what the network thread told before it heard of it is void."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client import commands
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.notifications import AssignmentReceived, Completed, RebalanceNeeded
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
