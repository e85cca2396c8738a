"""What holds of a member of a central group whatever happens: a second member, failovers, broken and slow channels.

The coordinator is a model that measures the session by itself: the member's lease is checked against that.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given, settings, strategies as st

from ottla.client.effects import Answer, Send
from ottla.client.events import AssignmentReceived, RebalanceNeeded
from ottla.client.groups.central.states import HOLDING, TRANSITIONS, Input, State
from ottla.errors import DisconnectedError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import TopicPartition
from tests.example_counts import examples
from tests.unit.client.central.member import PING, SESSION, Member
from tests.unit.client.managers import T0, T1, T2, Replies

ALL = frozenset({T0, T1, T2})
POLL_INTERVAL = 20_000


class Group:
    """The coordinator of a group with this member and another one, which always takes what this one does not have."""

    def __init__(self) -> None:
        self.member = Member(max_poll_interval_ms=POLL_INTERVAL)
        self.member.on_hang_up = self._hang_up
        self.member.generation = 3
        self.share: frozenset[TopicPartition] = frozenset()
        """What the member owns in the present generation."""
        self.others = frozenset(ALL)
        self.next_share: frozenset[TopicPartition] | None = None
        """The share in the generation that is about to begin; ``None``: there is no rebalance."""
        self.is_member = False
        self.heard_at = 0
        self.client_end = self.server_end = False
        """Whether each side takes the connection for open."""
        self.in_flight: list[Any] = []
        self.has_channel = False
        self.to_member: deque[Any] = deque()
        self.to_coordinator: deque[Any] = deque()
        self.unanswered_ping = False
        self.pinged_at = 0
        self.stops: dict[int, int] = {}
        """Correlation id of each Stop on the present channel -> how often it was answered."""
        self.in_hand: set[TopicPartition] = set()
        """The partitions that the application has taken over, and that it was not asked to give up."""
        self.shares: dict[int, frozenset[TopicPartition]] = {}

    # -- the coordinator --------------------------------------------------------------------------------------------------

    def rebalance(self, choice: int) -> None:
        if self.next_share is not None:
            return
        self.next_share = frozenset(tp for bit, tp in enumerate(sorted(ALL)) if choice >> bit & 1)
        if self.has_channel:
            self.to_member.append(("stop", self.member.generation))
        self._start_if_stopped(has_answered=not self.is_member and not self.share)

    def _start_if_stopped(self, *, has_answered: bool) -> None:
        if self.next_share is None or not has_answered:
            return
        self.share = self.next_share if self.is_member else frozenset()
        self.member.generation += 1
        self.shares[self.member.generation] = self.share
        self.others, self.next_share = ALL - self.share, None
        if self.has_channel:
            self.to_member.append(("start", self.member.generation, self.share))

    def _evict(self) -> None:
        self.is_member = False
        if self.has_channel:
            self._break()
        self.next_share = frozenset() if self.next_share is None else self.next_share
        self._start_if_stopped(has_answered=True)

    def fail_over(self) -> None:
        """Another broker is elected: it knows the owners, and waits for them for one session."""
        self._break()
        self.member.epoch += 1
        self.next_share, self.is_member, self.heard_at = None, bool(self.share), self.member.mono

    def take_one(self) -> None:
        """Handle one frame of the member."""
        if not self.to_coordinator:
            return
        item = self.to_coordinator.popleft()
        if isinstance(item, Answer):
            self._take_answer(item)
        elif item.api is Api.LEAVE:
            self.is_member = False
            self.to_member.append(("left", item))
            self.next_share = frozenset() if self.next_share is None else self.next_share
            self.has_channel = False
            self._start_if_stopped(has_answered=True)
        else:
            self._register(item)

    def _register(self, send: Any) -> None:
        held = {TopicPartition(each.topic, item.partition) for each in send.message.owned_topics for item in each.partitions}
        holds = held if send.message.generation == self.member.generation else set()
        self.is_member = self.has_channel = True
        self.heard_at, self.unanswered_ping = self.member.mono, False
        self.to_member.append(("registered", send, self.member.epoch, self.member.generation))
        if self.next_share is not None:
            self.to_member.append(("stop", self.member.generation))
        elif holds == self.share and send.message.generation == self.member.generation:
            self.to_member.append(("start", self.member.generation, self.share))
        else:
            self.rebalance(len(ALL))

    def _take_answer(self, answer: Answer) -> None:
        if answer.api is Api.STOP and answer.correlation_id in self.stops:
            self.stops[answer.correlation_id] += 1
        if answer.message.error_code or answer.message.generation < self.member.generation:
            return
        self.heard_at = self.member.mono
        if answer.api is Api.PING:
            self.unanswered_ping = False
        elif answer.api is Api.STOP:
            self._start_if_stopped(has_answered=True)

    def ping(self) -> None:
        if self.has_channel and not self.unanswered_ping:
            self.unanswered_ping, self.pinged_at = True, self.member.mono
            self.to_member.append(("ping", self.member.generation))

    # -- the network ------------------------------------------------------------------------------------------------------

    def _break(self) -> None:
        """The connection is gone; the member does not know yet."""
        self.has_channel = self.server_end = False
        self.to_coordinator.clear()
        self.to_member.clear()
        self.stops.clear()

    def _hang_up(self) -> None:
        """The member has closed the connection; the coordinator notices at once."""
        self.client_end = False
        self._break()

    def notice(self) -> None:
        """The member notices that the connection is gone: requests in flight fail, and then the channel is reported."""
        if self.server_end:
            return
        was_open, self.client_end = self.client_end, False
        lost, self.in_flight = self.in_flight, []
        for send in lost:
            self.member.fail(send, DisconnectedError("the broker is gone"))
        if was_open:
            self.member.lose_channel()

    def deliver_one(self) -> None:
        """The member gets one frame."""
        if not self.to_member:
            return
        kind, *rest = self.to_member.popleft()
        member = self.member
        if kind in ("registered", "left"):
            self.in_flight.remove(rest[0])
        if kind == "registered":
            member.registered(rest[0], epoch=rest[1], generation=rest[2])
        elif kind == "left":
            member.left(rest[0])
        elif kind == "ping":
            member.ping(rest[0])
        elif kind == "stop":
            self.stops[member.stop(rest[0])] = 0
        else:
            member.start(*rest[1], generation=rest[0])

    def poll(self) -> None:
        """The network thread's turn; a request opens a connection if there is none."""
        self.member.coordinator.node_id = 1
        sent = self.member.poll()
        assert self.member.state not in HOLDING or self.member.manager.lease_until > self.member.mono, "lost with the lease"
        for item in sent:
            if isinstance(item, Send):
                self.in_flight.append(item)
                if not self.client_end:
                    self.client_end = self.server_end = True
                if item.on_sent is not None:
                    item.on_sent()
            if self.server_end:
                self.to_coordinator.append(item)

    def tick(self, milliseconds: int) -> None:
        self.member.mono += milliseconds
        if (self.is_member or self.share) and self.member.mono - self.heard_at >= SESSION:
            self._evict()

    # -- the application --------------------------------------------------------------------------------------------------

    def apply(self) -> None:
        """The application polls, and does the oldest of what it was asked to."""
        self.member.polled()
        if self.member.notifications:
            item = self.member.notifications.pop(0)
            if isinstance(item, RebalanceNeeded):
                self.in_hand.clear()
                self.member.manager.prepared(item.token, self.member.now)
            elif isinstance(item, AssignmentReceived):
                self.in_hand |= item.added
                self.member.manager.accepted(item.token)

    # -- what must hold ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        member, manager = self.member, self.member.manager
        assert not member.readable & self.others, "another member has them"
        assert self.in_hand <= member.partitions, "nothing is taken away without a word"
        assert manager.failure is None
        assert all(count <= 1 for count in self.stops.values())
        if manager.state in HOLDING:
            assert member.partitions <= self.shares[manager.held.generation], "of one generation"
            assert manager.identity().generation == manager.held.generation
        elif manager.state not in (State.LOST, State.STALE):
            assert not member.partitions

    def settle(self) -> None:
        """Everything that is under way arrives, and the application acts."""
        for _ in range(60):
            self.poll()
            self.take_one()
            self.deliver_one()
            self.notice()
            self.apply()
            self.check()
            self.tick(20)


ACTIONS = ("tick", "take", "deliver", "poll", "apply") * 2 + ("ping", "rebalance", "break", "notice", "fail over", "doubt")


def act(group: Group, action: str, amount: int) -> None:
    match action:
        case "tick":
            group.tick(amount * 800)
        case "ping":
            group.ping()
        case "rebalance":
            group.rebalance(amount)
        case "take":
            group.take_one()
        case "deliver":
            group.deliver_one()
        case "poll":
            group.poll()
        case "apply":
            group.apply()
        case "break":
            group._break()
        case "notice":
            group.notice()
        case "fail over":
            group.fail_over()
        case "doubt" if group.member.state in HOLDING:
            manager = group.member.manager
            manager.commit_refused(ErrorCode.unknown_member_id, manager.identity(), group.member.now)


EVENTS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7)), max_size=100)


@settings(max_examples=examples(300), deadline=None)
@given(EVENTS, st.booleans())
def test_whatever_happens(events: list[tuple[str, int]], joined: bool) -> None:
    group = Group()
    group.apply()
    if joined:
        group.settle()
        assert group.member.state is State.STABLE
    for action, amount in events:
        act(group, action, amount)
        group.check()
    group.settle()
    group.tick(PING)
    group.ping()
    group.settle()
    assert group.member.state is State.STABLE, "it recovers from everything"
    assert all(count == 1 for count in group.stops.values()), "each Stop is answered once, or its channel is lost"
    replies = Replies()
    group.member.manager.leave("close()", replies, group.member.now)
    for _ in range(5):
        group.poll()
        group.take_one()
        group.deliver_one()
    assert replies.got == [(None, None)]
    assert group.member.state is State.UNSUBSCRIBED


@settings(max_examples=examples(200), deadline=None)
@given(EVENTS, st.booleans())
def test_a_close_always_ends(events: list[tuple[str, int]], answered: bool) -> None:
    group = Group()
    group.apply()
    for action, amount in events:
        act(group, action, amount)
    replies = Replies()
    group.member.manager.leave("close()", replies, group.member.now)
    group.poll()
    for _ in range(20 * answered):
        group.take_one()
        group.deliver_one()
        group.poll()
    group._break()
    group.notice()
    assert replies.got == [(None, None)]
    assert group.member.state is State.UNSUBSCRIBED
    assert (group.member.partitions, group.member.poll()) == (set(), [])


def test_every_state_can_be_left_by_leaving_except_the_final_one() -> None:
    for state, row in TRANSITIONS.items():
        if state not in (State.UNSUBSCRIBED, State.LEAVING, State.FATAL):
            assert row[Input.LEAVE] is State.LEAVING
    assert TRANSITIONS[State.FATAL] == {}
    assert set(TRANSITIONS) == set(State)


def test_a_member_that_was_removed_while_its_register_was_under_way() -> None:
    group = Group()
    group.apply()
    group.settle()
    group.rebalance(7)
    group.settle()
    assert group.member.readable == ALL
    group._break()
    group.notice()
    group.poll()
    group.tick(SESSION - 500)
    assert group.others == ALL, "its latest answer was before its Register"
    for step in (group.take_one, group.deliver_one, group.poll, group.deliver_one, group.poll):
        step()
        group.check()
    group.settle()
    assert group.member.state is State.STABLE
