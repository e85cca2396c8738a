"""The commit before a revocation in the application's half of a rebalance: there is one, and many polls wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.assignors import Cluster
from ottla.client import events
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import COMMIT_HOLD, Listeners
from ottla.client.calls.mailbox import ANSWER_GRACE, Wait
from ottla.client.events import (
    AssignmentNeeded,
    Completed,
    Fetched,
    FetchedPartition,
    FetchedResponse,
    Published,
    RebalanceNeeded,
    WakeupRequested,
)
from ottla.client.subscription import Mode, PartitionView, Snapshot
from ottla.errors import OttlaTimeoutError, WakeupError
from ottla.records import NewRecord, encode_batch
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import config, subscribed

STAYS, GOES = TopicPartition("t", 0), TopicPartition("t", 1)
POLL_INTERVAL, API_TIMEOUT = 10_000, 60_000


class Held:
    """A consumer's calls, with two partitions of known positions, whose network thread answers on demand."""

    def __init__(self) -> None:
        self.now = Now(1_000, 1_700_000_000_000)
        self.sent: list[Any] = []
        self.notifications: list[Any] = []
        self.heard: list[str] = []
        settings = config(group_id="g", max_poll_interval_ms=POLL_INTERVAL, default_api_timeout_ms=API_TIMEOUT)
        self.calls = ConsumerCalls(settings, self.sent.append, lambda: self.notifications)
        revoked, lost = (lambda _: self.heard.append("revoke")), (lambda _: self.heard.append("lost"))
        subscribed(self.calls, Listeners(on_revoke=revoked, on_lost=lost))
        self.calls._rebalancing.owned = frozenset({STAYS, GOES})
        views = {tp: PartitionView(1, OffsetAndMetadata(5), paused=False, fetchable=tp == STAYS, since=1) for tp in (STAYS, GOES)}
        self.notifications.append(Published(Snapshot(Mode.TOPICS, frozenset({"t"}), views)))

    def poll(self, timeout: int = 0) -> int:
        """Nothing comes; gives how long it waited."""
        began = self.now.mono
        call = self.calls.deliver(timeout, self.now)
        given: object = call
        try:
            wait = next(call)
            while True:
                assert isinstance(wait, Wait)
                assert wait.until is not None
                self.now = Now(max(self.now.mono, wait.until), self.now.wall)
                wait = call.send(self.now)
        except StopIteration as done:
            given = done.value
        assert given is None
        return self.now.mono - began

    def need(self, token: int, *, lost: bool = False, deadline: int | None = None) -> None:
        until = self.now.mono + POLL_INTERVAL if deadline is None else deadline
        self.notifications.append(RebalanceNeeded(token, frozenset({GOES}), lost, until))

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.sent if isinstance(one, kind)]

    @property
    def prepared(self) -> list[int]:
        return [one.token for one in self.of(events.RebalancePrepared)]


@pytest.mark.parametrize("timeout", [0, 1, COMMIT_HOLD - 1, COMMIT_HOLD, 1_500])
def test_polls_wait_for_one_commit_until_it_has_ended(timeout: int) -> None:
    one = Held()
    one.need(1)
    for _ in range(3):
        assert one.poll(timeout) == timeout
    (commit,) = one.of(events.Commit)
    assert commit.offsets == {STAYS: OffsetAndMetadata(5), GOES: OffsetAndMetadata(5)}
    assert commit.revoking
    assert (one.heard, one.prepared) == ([], [])
    one.notifications.append(Completed(commit.completion, commit.offsets))
    one.poll()
    assert (one.heard, one.prepared) == (["revoke"], [1])
    assert one.calls.owned == {STAYS}
    assert len(one.of(events.Commit)) == 1


def test_each_of_them_is_a_sign_of_life() -> None:
    one = Held()
    one.need(1)
    for _ in range(4):
        before = len(one.of(events.Polled))
        one.poll(0)
        assert len(one.of(events.Polled)) > before
        one.now = Now(one.now.mono + 1_000, one.now.wall)


def test_without_anything_to_commit_the_partitions_go_at_once() -> None:
    one = Held()
    nowhere = {tp: PartitionView(2, None, paused=False, fetchable=False, since=2) for tp in (STAYS, GOES)}
    one.notifications.append(Published(Snapshot(Mode.TOPICS, frozenset({"t"}), nowhere)))
    one.need(1)
    one.poll()
    assert one.of(events.Commit) == []
    assert one.prepared == [1]


def test_a_loss_that_comes_meanwhile_waits_for_nothing() -> None:
    one = Held()
    one.need(1)
    one.poll()
    one.need(2, lost=True)
    one.poll()
    assert (one.heard, one.prepared) == (["lost"], [2])
    (commit,) = one.of(events.Commit)
    one.notifications.append(Completed(commit.completion, None, OttlaTimeoutError("late")))
    one.poll()
    assert (one.heard, one.prepared) == (["lost"], [2])


def test_another_rebalance_has_a_commit_of_its_own_and_only_the_later_one_is_answered() -> None:
    one = Held()
    one.need(1)
    one.poll()
    one.need(2)
    one.poll()
    first, second = one.of(events.Commit)
    one.notifications.append(Completed(first.completion, first.offsets))
    one.poll()
    assert one.prepared == []
    one.notifications.append(Completed(second.completion, second.offsets))
    one.poll()
    assert (one.heard, one.prepared) == (["revoke"], [2])


def test_a_question_of_the_group_is_answered_meanwhile() -> None:
    """In a consumer group a member may have to give partitions up while it assigns for all of them."""
    one = Held()
    one.need(1)
    one.poll()
    one.notifications.append(AssignmentNeeded(7, "unknown", Cluster({}), {}, protocol="consumer"))
    one.poll()
    (answer,) = one.of(events.Assigned)
    assert answer.generation == 7
    assert one.prepared == []
    (commit,) = one.of(events.Commit)
    one.notifications.append(Completed(commit.completion, commit.offsets))
    one.poll()
    assert one.prepared == [1]


def test_a_wakeup_leaves_the_commit_to_the_next_poll() -> None:
    one = Held()
    one.need(1)
    one.notifications.append(WakeupRequested())
    with pytest.raises(WakeupError):
        one.poll(1_000)
    (commit,) = one.of(events.Commit)
    one.notifications.append(Completed(commit.completion, commit.offsets))
    one.poll()
    assert one.heard == ["revoke"]
    assert one.of(events.Commit) == [commit]


@pytest.mark.parametrize(("left", "expected"), [(POLL_INTERVAL, 5_000), (2_000, 1_000), (0, 0), (-5, 0), (10**9, 5_000)])
def test_the_commit_gets_half_of_the_time_that_the_group_waits(left: int, expected: int) -> None:
    one = Held()
    one.need(1, deadline=one.now.mono + left)
    one.poll()
    (commit,) = one.of(events.Commit)
    assert commit.deadline == one.now.mono + expected


def test_a_network_thread_that_says_nothing_at_all_does_not_hold_the_group_up_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    one = Held()
    one.need(1)
    waited = 0
    while not one.prepared:
        waited += one.poll(500)
    assert POLL_INTERVAL // 2 + ANSWER_GRACE <= waited <= POLL_INTERVAL // 2 + ANSWER_GRACE + 500
    assert "did not answer" in caplog.text


def test_nothing_is_kept_of_partitions_that_went() -> None:
    one = Held()
    one.poll()
    one.calls.shared.progress_at.update({STAYS: 1, GOES: 1})
    views = {STAYS: PartitionView(1, OffsetAndMetadata(5), paused=False, fetchable=True, since=1)}
    one.notifications.append(Published(Snapshot(Mode.TOPICS, frozenset({"t"}), views)))
    one.poll()
    assert one.calls.shared.progress_at == {STAYS: 1}


def test_the_commit_before_a_revocation_has_the_record_behind_which_the_application_asks_for_the_next() -> None:
    one = Held()
    view = PartitionView(1, OffsetAndMetadata(0), paused=False, fetchable=True, since=1)
    one.notifications = [Published(Snapshot(Mode.TOPICS, frozenset({"t"}), {GOES: view}))]
    data = bytes(encode_batch([NewRecord(None, b"v")] * 9, base_offset=0))
    one.notifications.append(Fetched(FetchedResponse(1, 1, (FetchedPartition(GOES, 1, 0, data, end=9),), len(data))))
    delivering = one.calls.deliver(0, one.now)
    with pytest.raises(StopIteration) as delivered:
        next(delivering)
    walk = one.calls.collector.walk(delivered.value.value)
    assert [next(walk).offset for _ in range(3)] == [0, 1, 2]
    one.need(1)
    next(one.calls.service(one.now))
    (commit,) = one.of(events.Commit)
    assert commit.offsets[GOES].offset == 3
