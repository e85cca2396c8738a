"""Notifications of the network thread that are void when the application receives them, after it left or lost its partitions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from ottla.client import events
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import Listeners
from ottla.client.events import (
    AssignmentReceived,
    Completed,
    ErrorNotification,
    Published,
    RebalanceNeeded,
    TopicErrorNotification,
)
from ottla.client.subscription import Mode, Snapshot
from ottla.errors import GroupAuthorizationFailedError
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
def test_a_notification_that_crosses_an_unsubscribe_is_ignored(late: Any) -> None:
    sent: list[Any] = []
    notifications: list[Any] = []

    def drain() -> list[Any]:
        taken = list(notifications)
        notifications.clear()
        return taken

    calls = ConsumerCalls(config(), sent.append, drain)
    subscribed(calls)
    call = calls.unsubscribe(now(0))
    next(call)
    (request,) = [one for one in sent if isinstance(one, events.Unsubscribe)]
    notifications += [late, Completed(request.completion)]
    with pytest.raises(StopIteration):
        call.send(now(1))
    assert not calls._rebalancing.pending
    assert calls.owned == frozenset()


@pytest.mark.parametrize(
    "late", [AssignmentReceived(3, frozenset({T0})), RebalanceNeeded(3, frozenset({T0}), False, 10_000)], ids=["given", "asked"]
)
def test_a_notification_that_crosses_a_cancelled_unsubscribe_is_ignored(late: Any) -> None:
    sent: list[Any] = []
    notifications: list[Any] = []
    heard: list[Any] = []
    calls = ConsumerCalls(config(), sent.append, lambda: notifications)
    subscribed(calls)
    leaving = calls.unsubscribe(now(0))
    next(leaving)
    leaving.close()
    notifications.append(late)
    subscribing = calls.subscribe(["t"], Listeners(on_assign=heard.append, on_revoke=heard.append), now(1))
    next(subscribing)
    (request,) = [one for one in sent if isinstance(one, events.Subscribe)]
    notifications += [Published(Snapshot(Mode.TOPICS, frozenset({"t"}))), Completed(request.completion)]
    with pytest.raises(StopIteration):
        subscribing.send(now(2))
    poll(calls, now(3))
    assert heard == []
    assert calls.owned == frozenset()
    notifications.append(AssignmentReceived(5, frozenset({T0})))
    poll(calls, now(4))
    assert heard == [[T0]]


class Leaving:
    """A consumer that is subscribed, and asks to leave. The call is cancelled, or is over before the coordinator has answered."""

    def __init__(self, *, cancelled: bool) -> None:
        self.sent: list[Any] = []
        self.notifications: list[Any] = [Published(SUBSCRIBED)]
        self.calls = ConsumerCalls(config(), self.sent.append, lambda: self.notifications)
        subscribed(self.calls)
        poll(self.calls, now(0))
        leaving = self.calls.unsubscribe(now(1))
        next(leaving)
        if cancelled:
            leaving.close()
        else:
            with pytest.raises(StopIteration):
                leaving.send(now(60_001))
        self.now = now(60_001)

    def tell(self, *notifications: Any) -> None:
        self.notifications.extend(notifications)
        poll(self.calls, self.now)

    def begin(self, call: Any, kind: type[events.Command], mode: Mode) -> events.Completion:
        """Ask for something else to read."""
        next(call)
        (request,) = [one for one in self.sent if isinstance(one, kind)]
        self.notifications += [Published(Snapshot(mode, frozenset({"t"}))), Completed(request.completion)]
        with pytest.raises(StopIteration):
            call.send(self.now)
        return request.completion


SUBSCRIBED = Snapshot(Mode.TOPICS, frozenset({"t"}))
REFUSED = GroupAuthorizationFailedError("not for you")
OLD = [ErrorNotification(REFUSED), TopicErrorNotification("t", REFUSED)]


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("late", OLD)
def test_an_error_that_crosses_an_unsubscribe_is_ignored(late: Any, cancelled: bool) -> None:
    one = Leaving(cancelled=cancelled)
    one.tell(late)
    one.notifications.append(late)
    one.begin(one.calls.subscribe(["t"], Listeners(), one.now), events.Subscribe, Mode.TOPICS)
    one.tell()
    with pytest.raises(type(REFUSED)):
        one.tell(late)


@pytest.mark.parametrize("late", OLD)
def test_an_error_that_crosses_an_unsubscribe_does_not_concern_the_next_assignment(late: Any) -> None:
    one = Leaving(cancelled=True)
    one.notifications.append(Published(Snapshot()))
    one.calls.take_news()
    one.notifications.append(late)
    one.begin(one.calls.assign([T0], one.now), events.Assign, Mode.MANUAL)
    one.tell()
    with pytest.raises(type(REFUSED)):
        one.tell(late)


def test_once_the_coordinator_has_answered_errors_count_again() -> None:
    one = Leaving(cancelled=True)
    (request,) = [one for one in one.sent if isinstance(one, events.Unsubscribe)]
    with pytest.raises(type(REFUSED)):
        one.tell(OLD[0], Completed(request.completion), OLD[0])


def test_what_was_given_before_everything_was_lost_is_not_taken() -> None:
    sent: list[Any] = []
    heard: list[Any] = []
    notifications: list[Any] = [
        Published(Snapshot(Mode.TOPICS, frozenset({"t"}))),
        AssignmentReceived(3, frozenset({T0})),
        RebalanceNeeded(4, frozenset({T0}), True, 10_000),
    ]

    def drain() -> list[Any]:
        taken = list(notifications)
        notifications.clear()
        return taken

    calls = ConsumerCalls(config(), sent.append, drain)
    subscribed(calls, Listeners(on_assign=heard.append, on_revoke=heard.append))
    for _ in calls.poll(0, now(0)):
        pass
    assert heard == []
    assert calls.owned == frozenset()
    answers = [one for one in sent if isinstance(one, events.RebalancePrepared | events.AssignmentAccepted)]
    assert [(type(one), one.token) for one in answers] == [(events.RebalancePrepared, 4)]
