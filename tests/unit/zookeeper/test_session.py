"""The client's side of a session: each operation has one outcome, watches end with the connection, the lease ends in time."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.errors import KeeperCode, OttlaError, ZooKeeperError
from ottla.types import Now
from ottla.zookeeper.operations import Create, Delete, Exists, GetChildren, GetData, Operation, Sync
from ottla.zookeeper.session import Ask, Disconnect, Perform, Session, SessionChanged, SessionState, WatchFired, WatchType
from tests.work_counter import work

TIMEOUT, LEASE = 6_000, 4_500
ANSWERED = [KeeperCode.NONODE, KeeperCode.NODEEXISTS]
UNANSWERED = [KeeperCode.CONNECTIONLOSS, KeeperCode.SESSIONEXPIRED]


def at(mono: int) -> Now:
    return Now(mono, mono)


class Outcomes:
    """Counts the outcomes of asks."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.errors: list[OttlaError] = []

    def ask(self, operation: Operation[Any], timeout: int = 2_000) -> Ask[Any]:
        return Ask(
            operation, timeout, lambda result, now: self.results.append(result), lambda error, now: self.errors.append(error)
        )

    def take(self, session: Session, now: Now) -> None:
        for _, ask, result, error in session.take_completions():
            if error is not None:
                ask.on_failure(error, now)
            else:
                ask.on_result(result, now)


def connected() -> Session:
    """A connected session whose first renewal is answered."""
    session = Session(TIMEOUT)
    session.on_connected(1, at(1))
    ((number, _),) = session.poll(at(1)).effects
    session.on_answered(number, None, at(1))
    session.take_events()
    return session


def test_operations_wait_for_a_connection_and_keep_their_order() -> None:
    session, outcomes = Session(TIMEOUT), Outcomes()
    first, second = Create("/a"), GetData("/a")
    session.ask(self_ := object(), outcomes.ask(first), at(0))
    session.ask(self_, outcomes.ask(second), at(0))
    assert session.poll(at(0)).effects == []
    session.on_connected(1, at(10))
    effects = session.poll(at(10)).effects
    assert [effect.operation for effect in effects] == [first, second]


def test_an_operation_that_was_never_performed_has_a_known_outcome() -> None:
    session, outcomes = Session(TIMEOUT), Outcomes()
    session.ask(None, outcomes.ask(Create("/a"), timeout=100), at(0))
    assert session.poll(at(0)).wake_at == 100
    session.poll(at(100))
    outcomes.take(session, at(100))
    (error,) = outcomes.errors
    assert isinstance(error, ZooKeeperError)
    assert not error.outcome_unknown


def test_the_outcome_of_an_operation_without_an_answer_is_unknown_and_its_late_answer_is_dropped() -> None:
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(Create("/a"), timeout=100), at(2))
    (effect,) = session.poll(at(2)).effects
    session.poll(at(102))
    outcomes.take(session, at(102))
    (error,) = outcomes.errors
    assert isinstance(error, ZooKeeperError)
    assert (error.code, error.outcome_unknown) == (KeeperCode.OPERATIONTIMEOUT, True)
    session.on_answered(effect.number, "/a", at(103))
    outcomes.take(session, at(103))
    assert (outcomes.results, len(outcomes.errors)) == ([], 1)


def test_the_lease_counts_from_the_sending_and_is_renewed_without_work() -> None:
    session = connected()
    assert session.lease_until == 1 + LEASE
    assert session.poll(at(1_500)).effects == []
    ((number, operation),) = session.poll(at(1_501)).effects
    assert operation == Sync("/")
    session.on_answered(number, None, at(4_000))
    assert session.lease_until == 1_501 + LEASE
    assert session.has_lease(at(6_000))
    assert not session.has_lease(at(6_001))


@pytest.mark.parametrize("read", [GetData("/a"), Exists("/a"), GetChildren("/a")], ids=repr)
def test_reads_do_not_renew_the_lease_and_do_not_put_off_its_renewal(read: Operation[object]) -> None:
    """A server that is cut off from its leader answers them, also after the leader has ended the session."""
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(read), at(1_000))
    (effect,) = session.poll(at(1_000)).effects
    session.on_answered(effect.number, None, at(1_001))
    assert session.lease_until == 1 + LEASE
    assert session.poll(at(1_001)).wake_at == 1_501


def test_a_refusal_renews_the_lease_but_a_lost_connection_does_not() -> None:
    session, outcomes = connected(), Outcomes()
    for now, code, until in ((100, KeeperCode.NONODE, 100 + LEASE), (200, KeeperCode.CONNECTIONLOSS, 100 + LEASE)):
        session.ask(None, outcomes.ask(Delete("/a")), at(now))
        (effect,) = session.poll(at(now)).effects
        session.on_failed(effect.number, ZooKeeperError(code, "/a"), at(now + 1))
        assert session.lease_until == until


@pytest.mark.parametrize("code", KeeperCode)
def test_only_what_a_server_sends_renews_the_lease(code: KeeperCode) -> None:
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(Delete("/a")), at(100))
    (effect,) = session.poll(at(100)).effects
    session.on_failed(effect.number, ZooKeeperError(code, "/a"), at(101))
    sent = {"NONODE", "NOAUTH", "BADVERSION", "NOCHILDRENFOREPHEMERALS", "NODEEXISTS", "NOTEMPTY", "INVALIDACL"}
    assert session.lease_until == (100 if code.name in sent else 1) + LEASE


def test_operations_that_are_never_sent_do_not_put_off_the_renewal_of_the_lease() -> None:
    session, outcomes = connected(), Outcomes()
    renewals = []
    for now in range(100, 12_000, 100):
        session.ask(None, outcomes.ask(Delete("bad")), at(now))
        for number, operation in session.poll(at(now)).effects:
            if operation == Delete("bad"):
                session.on_failed(number, ZooKeeperError(KeeperCode.BADARGUMENTS, "bad"), at(now))
            else:
                renewals.append(now)
                session.on_answered(number, None, at(now))
        assert session.has_lease(at(now))
    assert len(renewals) == 7, "once in a quarter of the session time-out"


def test_a_renewal_that_is_never_sent_is_not_repeated_at_once() -> None:
    session = connected()
    ((number, _),) = session.poll(at(3_000)).effects
    session.on_failed(number, ZooKeeperError(KeeperCode.AUTHFAILED, "/"), at(3_000))
    assert session.poll(at(3_001)).effects == []
    assert session.poll(at(3_001)).wake_at == 4_500


def test_a_server_that_answers_nothing_is_left() -> None:
    session, outcomes = connected(), Outcomes()
    for mono in (100, 1_000, 3_000):
        session.ask(None, outcomes.ask(GetData("/a"), timeout=1_000), at(mono))
        (effect, *_) = session.poll(at(mono)).effects
        if mono == 100:
            session.on_answered(effect.number, None, at(101))
    # The operation of 1,000 was not answered, and its own time-out makes no difference.
    assert session.poll(at(4_999)).disconnect == ()
    assert session.poll(at(4_999)).wake_at == 5_000
    assert session.poll(at(5_000)).disconnect == (Disconnect(),)
    assert session.poll(at(5_000)).disconnect == ()
    session.on_disconnected()
    session.on_connected(1, at(5_100))
    assert session.poll(at(5_100)).disconnect == ()


def test_a_server_that_answers_slowly_or_owes_no_answer_is_not_left() -> None:
    session, outcomes = connected(), Outcomes()
    numbers = deque[int]()
    for mono in range(100, 20_000, 500):
        session.ask(None, outcomes.ask(GetData("/a"), timeout=30_000), at(mono))
        effects, _, disconnect = session.poll(at(mono))
        numbers += [effect.number for effect in effects]
        assert disconnect == ()
        if mono % 2_000 == 100:
            session.on_answered(numbers.popleft(), None, at(mono))
    while numbers:
        session.on_answered(numbers.popleft(), None, at(20_000))
    session.on_disconnected()
    assert session.poll(at(90_000)).disconnect == ()


def test_an_answer_in_the_next_session_is_no_lease() -> None:
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(Sync()), at(100))
    (effect,) = session.poll(at(100)).effects
    session.on_disconnected()
    session.on_connected(2, at(9_000))
    session.on_answered(effect.number, None, at(9_001))
    assert session.lease_until is None
    assert session.take_events() == [SessionChanged(SessionState.SUSPENDED), SessionChanged(SessionState.CONNECTED, True)]


def test_a_disconnection_drops_all_watches_and_keeps_the_lease() -> None:
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(GetChildren("/a", watch=True)), at(2))
    (effect,) = session.poll(at(2)).effects
    session.on_answered(effect.number, None, at(3))
    assert session.watches == {(WatchType.CHILDREN, "/a")}
    session.on_disconnected()
    assert session.watches == set()
    assert session.has_lease(at(4))
    session.on_expired()
    assert not session.has_lease(at(4))


def test_an_answer_that_is_reported_after_a_reconnect_sets_no_watch() -> None:
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(GetData("/a", watch=True)), at(2))
    (effect,) = session.poll(at(2)).effects
    session.on_disconnected()
    session.on_connected(1, at(3))
    session.on_answered(effect.number, None, at(4))
    assert session.watches == set()


def test_a_watch_that_fires_before_the_answer_of_its_read_is_reported_and_not_set() -> None:
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(GetData("/a", watch=True)), at(2))
    (effect,) = session.poll(at(2)).effects
    session.on_watch_fired(WatchType.DATA, "/a")
    session.on_answered(effect.number, None, at(3))
    assert session.watches == set()
    assert session.take_events() == [WatchFired(WatchType.DATA, "/a")]


@pytest.mark.parametrize("steps", ["answer, fire", "fire, answer", "answer"])
def test_the_work_grows_with_the_reads_in_flight_and_not_with_their_square(steps: str) -> None:
    def lines(count: int) -> int:
        def read_all() -> None:
            session, outcomes = connected(), Outcomes()
            for number in range(count):
                session.ask(None, outcomes.ask(GetData(f"/{number // 2 if 'fire' in steps else 0}", watch=True)), at(2))
            for effect in session.poll(at(2)).effects:
                for step in steps.split(", "):
                    if step == "answer":
                        session.on_answered(effect.number, None, at(3))
                    else:
                        session.on_watch_fired(WatchType.DATA, effect.operation.path)
                assert session.poll(at(3)).wake_at is not None
            assert len(session.watches) == ("fire" not in steps)

        return work(read_all).lines

    assert lines(400) < 4.5 * lines(100)


def test_operations_that_wait_in_vain_cost_nothing_later() -> None:
    session, outcomes = Session(TIMEOUT), Outcomes()
    for number in range(6):
        session.ask(None, outcomes.ask(Create(f"/{number}"), timeout=100 if number % 2 else 200), at(0))
    assert session.poll(at(99)).wake_at == 100
    assert session.poll(at(100)).wake_at == 200
    outcomes.take(session, at(100))
    assert len(outcomes.errors) == 3
    session.on_connected(1, at(150))
    assert [effect.operation.path for effect in session.poll(at(150)).effects] == ["/0", "/2", "/4"]
    session.poll(at(200))
    outcomes.take(session, at(200))
    codes = [error.code.name for error in outcomes.errors if isinstance(error, ZooKeeperError)]
    assert codes == ["SESSIONEXPIRED"] * 3 + ["OPERATIONTIMEOUT"] * 3


def test_a_watch_is_not_set_twice_by_reads_of_which_one_is_answered_before_it_fires() -> None:
    session, outcomes = connected(), Outcomes()
    for _ in range(3):
        session.ask(None, outcomes.ask(GetData("/a", watch=True)), at(2))
    first, second, third = session.poll(at(2)).effects
    session.on_answered(first.number, None, at(3))
    assert session.watches == {(WatchType.DATA, "/a")}
    session.on_watch_fired(WatchType.DATA, "/a")
    session.on_answered(second.number, None, at(4))
    session.on_answered(third.number, None, at(4))
    assert session.watches == set()


def test_close_ends_everything_and_later_operations_fail() -> None:
    session, outcomes = connected(), Outcomes()
    session.ask(None, outcomes.ask(Create("/sent")), at(2))
    session.poll(at(2))
    session.ask(None, outcomes.ask(Create("/waiting")), at(3))
    session.close()
    session.ask(None, outcomes.ask(Create("/late")), at(4))
    outcomes.take(session, at(4))
    assert [str(error) for error in outcomes.errors] == [
        "ZooKeeper: CONNECTIONLOSS at /sent: the connection broke before the answer",
        "ZooKeeper: SESSIONEXPIRED at /waiting: there is no session, or it has expired",
        "ZooKeeper: SESSIONEXPIRED at /late: there is no session, or it has expired",
    ]
    session.on_connected(3, at(5))
    assert session.state is SessionState.CLOSED


class Sessions(RuleBasedStateMachine):
    """Random reports of a shell, also late ones and in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.session, self.outcomes, self.mono, self.asked, self.ids = Session(TIMEOUT), Outcomes(), 1, 0, 0
        self.performed: dict[int, tuple[int, int | None]] = {}
        self.answered_at = {0: 0}
        self.operations = {0: Perform(0, Sync())}

    @rule(step=st.integers(0, 4_000))
    def time_passes(self, step: int) -> None:
        self.mono += step

    @rule(
        operation=st.sampled_from([Create("/a"), GetData("/a", True), GetChildren("/a", True), Exists("/b", True)]),
        timeout=st.integers(1, 9_000),
    )
    def ask(self, operation: Operation[Any], timeout: int) -> None:
        self.session.ask(self, self.outcomes.ask(operation, timeout), at(self.mono))
        self.asked += 1

    @rule()
    def poll(self) -> None:
        for effect in self.session.poll(at(self.mono)).effects:
            assert self.session.state is SessionState.CONNECTED
            self.performed[effect.number] = (self.mono, self.session.session_id)
        self.outcomes.take(self.session, at(self.mono))

    @rule(continued=st.booleans())
    def connect(self, continued: bool) -> None:
        self.ids += not continued or self.session.session_id is None
        self.session.on_connected(self.ids, at(self.mono))

    @rule()
    def disconnect(self) -> None:
        self.session.on_disconnected()

    @rule()
    def expire(self) -> None:
        self.session.on_expired()

    @rule(data=st.data(), code=st.sampled_from([None, *ANSWERED, *UNANSWERED]))
    def answer(self, data: st.DataObject, code: KeeperCode | None) -> None:
        if self.performed:
            number = data.draw(st.sampled_from(sorted(self.performed)))
            if code is None:
                self.session.on_answered(number, None, at(self.mono))
            else:
                self.session.on_failed(number, ZooKeeperError(code, "/a"), at(self.mono))
            self.outcomes.take(self.session, at(self.mono))

    @rule(watch=st.sampled_from(WatchType), path=st.sampled_from(["/a", "/b"]))
    def fire(self, watch: WatchType, path: str) -> None:
        self.session.on_watch_fired(watch, path)
        assert (watch, path) not in self.session.watches

    @invariant()
    def each_ask_has_at_most_one_outcome(self) -> None:
        assert len(self.outcomes.results) + len(self.outcomes.errors) <= self.asked

    @invariant()
    def no_lease_lasts_longer_than_the_session(self) -> None:
        sent = [mono for mono, session_id in self.performed.values() if session_id == self.session.session_id is not None]
        until = self.session.lease_until
        assert until is None or until - LEASE in sent

    @invariant()
    def watches_are_set_only_while_connected(self) -> None:
        assert not self.session.watches or self.session.state is SessionState.CONNECTED

    def teardown(self) -> None:
        self.session.close()
        self.outcomes.take(self.session, at(self.mono))
        assert len(self.outcomes.results) + len(self.outcomes.errors) == self.asked


TestSessions = Sessions.TestCase
TestSessions.settings = settings(stateful_step_count=40, max_examples=100)
