"""The handler of a signal raises in the middle of a call, or the call is cancelled: what was under way is not lost, and is done by
the next call."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from ottla.client import events
from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import Listeners
from ottla.client.calls.mailbox import Mailbox, Wait
from ottla.client.events import (
    AssignmentReceived,
    Completed,
    Fetched,
    FetchedPartition,
    FetchedResponse,
    Published,
    RebalanceNeeded,
)
from ottla.client.subscription import Mode, PartitionView, Snapshot
from ottla.records import NewRecord, encode_batch
from ottla.types import Now, OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import config, subscribed

TP = TopicPartition("t", 0)
NOW = Now(1_000, 1_700_000_000_000)


class Interrupted:
    """A consumer's calls and their network thread, which interrupts when a command of one class is sent."""

    def __init__(self) -> None:
        self.at: type[Any] | None = None
        self.sent: list[Any] = []
        self.notifications: list[Any] = []
        self.heard: list[str] = []
        self.answers = True
        self.calls = ConsumerCalls(config(), self._submit, lambda: self.notifications)
        listeners = Listeners(lambda _: self.heard.append("assign"), lambda _: self.heard.append("revoke"))
        subscribed(self.calls, listeners)

    def _submit(self, command: object) -> None:
        if type(command) is self.at:
            self.at = None
            raise KeyboardInterrupt
        self.sent.append(command)
        if isinstance(command, events.Command) and self.answers:
            self.notifications.append(Completed(command.completion, {}))

    def show(self, position: int, epoch: int) -> None:
        view = PartitionView(epoch, OffsetAndMetadata(position), paused=False, fetchable=True, since=epoch)
        self.notifications.append(Published(Snapshot(Mode.TOPICS, frozenset({"t"}), MappingProxyType({TP: view}))))

    def arrive(self, number: int, offset: int, epoch: int) -> None:
        data = bytes(encode_batch([NewRecord(None, b"v")] * 4, base_offset=offset))
        part = FetchedPartition(TP, epoch, offset, data, end=100)
        self.notifications.append(Fetched(FetchedResponse(number, 1, (part,), len(data))))

    def poll(self) -> list[int]:
        """Offsets, as a driver runs the call."""
        call = self.calls.deliver(1, NOW)
        try:
            wait = next(call)
            while True:
                assert isinstance(wait, Wait)
                wait = call.send(NOW if self.notifications or wait.until is None else Now(wait.until, NOW.wall))
        except KeyboardInterrupt:
            self.calls.interrupted = True
            raise
        except StopIteration as done:
            return [] if done.value is None else [record.offset for record in done.value.records()]

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.sent if isinstance(one, kind)]


@pytest.mark.parametrize(
    ("asked", "answer", "heard"),
    [
        (AssignmentReceived(3, frozenset({TP})), events.AssignmentAccepted, ["assign"]),
        (RebalanceNeeded(4, frozenset({TP}), True, 10_000), events.RebalancePrepared, ["revoke"]),
    ],
    ids=["assigned", "lost"],
)
def test_a_rebalance_is_answered_by_the_next_poll_and_the_listener_is_not_called_again(
    asked: Any, answer: type[Any], heard: list[str]
) -> None:
    one = Interrupted()
    one.show(0, 1)
    if isinstance(asked, RebalanceNeeded):
        one.calls._rebalancing.owned = frozenset({TP})
    one.notifications.append(asked)
    one.at = answer
    with pytest.raises(KeyboardInterrupt):
        one.poll()
    one.poll()
    (said,) = one.of(answer)
    assert said.token == asked.token
    assert one.heard == heard


def test_what_was_being_handled_is_handled_again_and_nothing_behind_it_is_lost() -> None:
    notifications: list[object] = [1, 2, 3]
    handled: list[int] = []

    def handle(item: int) -> None:
        if item == 2 and handled == [1]:
            handled.append(-2)
            raise KeyboardInterrupt
        handled.append(item)

    mailbox = Mailbox(lambda command: None, lambda: notifications, {int: handle}, 1_000)
    with pytest.raises(KeyboardInterrupt):
        mailbox.take()
    mailbox.take()
    assert handled == [1, -2, 2, 3]
    assert notifications == []


def test_what_was_collected_and_did_not_come_out_is_fetched_again() -> None:
    one = Interrupted()
    one.show(0, 1)
    one.arrive(1, 0, 1)
    assert one.poll() == [0, 1, 2, 3]
    one.calls.interrupted = True
    assert one.poll() == []
    (rewind,) = one.of(events.Rewind)
    assert rewind.positions == {TP: (1, OffsetAndMetadata(0))}
    one.show(0, 2)
    one.arrive(2, 0, 2)
    assert one.poll() == [0, 1, 2, 3]
    assert {number for drained in one.of(events.Drained) for number in drained.numbers} == {1}
    assert one.calls.collector.positions(with_current=True) == {TP: OffsetAndMetadata(0)}, "not handed out yet"


def test_memory_that_was_not_reported_as_free_is_reported_later() -> None:
    one = Interrupted()
    one.show(0, 1)
    one.arrive(1, 0, 1)
    assert one.poll() == [0, 1, 2, 3]
    assert one.calls.collector.delivery is not None
    one.calls.collector.delivery.whole = True
    one.at = events.Drained
    with pytest.raises(KeyboardInterrupt):
        one.poll()
    one.poll()
    assert one.of(events.Drained)[0].numbers == (1,)


def test_a_commit_that_was_not_sent_is_not_waited_for() -> None:
    one = Interrupted()
    one.show(0, 1)
    one.at = events.Commit
    with pytest.raises(KeyboardInterrupt):
        for _ in one.calls.commits.commit_async({TP: OffsetAndMetadata(1)}, None, NOW):
            pass
    assert list(one.calls.commits.commit({TP: OffsetAndMetadata(2)}, 1_000, NOW)) == []


def test_nothing_is_handed_out_before_a_pause_that_was_cancelled_is_known_to_be_made() -> None:
    """It would be handed out again: the partition goes on from the position that the pause has sent."""
    one = Interrupted()
    one.show(0, 1)
    assert one.poll() == []
    one.arrive(1, 0, 1)
    one.answers = False
    pausing = one.calls.positions.pause([TP], NOW)
    next(pausing)
    pausing.close()
    (pause,) = one.of(events.Pause)
    assert pause.positions == {TP: (1, OffsetAndMetadata(0))}
    assert one.poll() == [], "and the deadline of the poll holds"
    one.show(0, 2)
    one.notifications.append(Completed(pause.completion))
    assert one.poll() == [], "what had arrived is of the past"
    one.arrive(2, 0, 2)
    assert one.poll() == [0, 1, 2, 3]


@pytest.mark.parametrize("at", [events.ProcessingBegan, events.ProcessingEnded])
def test_an_interrupted_processing_block_has_ended(at: type[Any]) -> None:
    consumer = Interrupted()
    consumer.at = at
    with pytest.raises(KeyboardInterrupt), consumer.calls.jobs.job(60_000):
        pass
    consumer.calls.jobs.check_idle()
    assert type(consumer.sent[-1]) is events.ProcessingEnded
