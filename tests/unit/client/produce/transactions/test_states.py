"""The states of a transactional producer: each command in each state, as the table of transitions has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.client.produce.transactions.commands import Begin
from ottla.client.produce.transactions.states import OPEN_STATES, TRANSITIONS, TransactionInput as Input, TransactionState as State
from ottla.errors import IllegalStateError, OttlaError, ProducerFencedError, TransactionAbortedError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.unit.client.managers import T0
from tests.unit.client.transacting import Transacts, failed, succeeded


def _uninitialized(_: Transacts) -> Begin:
    return Begin(0)


def _initializing(tx: Transacts) -> Begin:
    tx.initialize()
    tx.one(Api.INIT_PRODUCER_ID)
    return Begin(0)


def _ready(tx: Transacts) -> Begin:
    begin, _ = tx.written()
    tx.go_on(tx.commit(begin))
    return begin


def _in_transaction(tx: Transacts) -> Begin:
    return tx.written()[0]


def _preparing(tx: Transacts) -> Begin:
    begin = tx.begun()
    tx.write("a")
    tx.prepare(begin)
    tx.next(Api.PRODUCE)
    return begin


def _prepared(tx: Transacts) -> Begin:
    begin, _ = tx.written()
    tx.go_on(tx.prepare(begin))
    return begin


def _committing(tx: Transacts) -> Begin:
    return tx.ending()[0]


def _aborting(tx: Transacts) -> Begin:
    return tx.ending(commit=False)[0]


def _abortable(tx: Transacts) -> Begin:
    begin = tx.begun()
    tx.write("a")
    tx.refuse(tx.next(Api.PRODUCE), ErrorCode.invalid_record)
    return begin


def _fatal(tx: Transacts) -> Begin:
    begin, _, end = tx.ending()
    tx.refuse(end, ErrorCode.producer_fenced)
    return begin


REACHED: dict[State, Callable[[Transacts], Begin]] = {
    State.UNINITIALIZED: _uninitialized,
    State.INITIALIZING: _initializing,
    State.READY: _ready,
    State.IN_TRANSACTION: _in_transaction,
    State.PREPARING_TRANSACTION: _preparing,
    State.PREPARED_TRANSACTION: _prepared,
    State.COMMITTING_TRANSACTION: _committing,
    State.ABORTING_TRANSACTION: _aborting,
    State.ABORTABLE_ERROR: _abortable,
    State.FATAL_ERROR: _fatal,
}
"""State -> how a producer gets there, and its latest transaction."""

INPUTS = {
    "initialize": Input.INITIALIZE,
    "begin": Input.BEGIN,
    "prepare": Input.PREPARE,
    "commit": Input.COMMIT,
    "abort": Input.ABORT,
}

WAITS = {
    ("begin", State.UNINITIALIZED),
    ("begin", State.INITIALIZING),
    ("begin", State.COMMITTING_TRANSACTION),
    ("begin", State.ABORTING_TRANSACTION),
    ("initialize", State.INITIALIZING),
    ("initialize", State.COMMITTING_TRANSACTION),
    ("initialize", State.ABORTING_TRANSACTION),
    ("commit", State.COMMITTING_TRANSACTION),
    ("abort", State.ABORTING_TRANSACTION),
}
"""What is accepted without a transition of its own: it waits for the one that is due. (A second commit() is refused only while the
first one waits for the outcome.)"""

REFUSALS: dict[State, tuple[type[OttlaError], str]] = {
    State.UNINITIALIZED: (IllegalStateError, "the transaction has ended"),
    State.INITIALIZING: (IllegalStateError, "the transaction has ended"),
    State.READY: (IllegalStateError, "the transaction has ended: it was committed"),
    State.IN_TRANSACTION: (IllegalStateError, r"a transaction is open \(.* only one thread or task"),
    State.PREPARING_TRANSACTION: (IllegalStateError, "the transaction is being prepared"),
    State.PREPARED_TRANSACTION: (IllegalStateError, r"the transaction is prepared, and finish\(\) ends it; initialize\(\)"),
    State.COMMITTING_TRANSACTION: (IllegalStateError, "the transaction is being committed"),
    State.ABORTING_TRANSACTION: (IllegalStateError, "the transaction is being aborted"),
    State.ABORTABLE_ERROR: (TransactionAbortedError, "the transaction has to be aborted: writing 1 record to t-0"),
    State.FATAL_ERROR: (ProducerFencedError, "transactional id 'tx' has a newer epoch"),
}


def test_the_table_knows_each_state_and_leads_to_each() -> None:
    assert set(TRANSITIONS) == set(State) == set(REACHED)
    reachable = {State.UNINITIALIZED}
    while more := {after for state in reachable for after in TRANSITIONS[state].values()} - reachable:
        reachable |= more
    assert reachable == set(State)
    assert all(Input.FAIL in TRANSITIONS[state] for state in OPEN_STATES)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("command", ["initialize", "begin", "prepare", "commit", "abort", "commit_offsets"])
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_each_command_in_each_state(state: State, command: str, version: int) -> None:
    tx = Transacts(version)
    begin = REACHED[state](tx)
    assert tx.state is state
    if state in (State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION):
        tx.mono += 60_000
        tx.poll()  # the first call has waited long enough
    outcome = (
        tx.initialize() if command == "initialize" else tx.begin().outcome if command == "begin" else getattr(tx, command)(begin)
    )
    following = TRANSITIONS[state].get(INPUTS[command]) if command in INPUTS else None
    if command == "initialize" and state is State.READY:
        assert succeeded(outcome), "it has the latest epoch"
        assert tx.state is State.READY
    elif following is not None:
        assert tx.state is following
        assert outcome.done is (following is State.IN_TRANSACTION)
    elif (command, state) in WAITS:
        assert not outcome.done
        assert tx.state is (State.INITIALIZING if state is State.UNINITIALIZED else state)
    elif command == "commit_offsets" and state is State.IN_TRANSACTION:
        assert not outcome.done
    elif command == "commit" and state is State.READY:
        assert succeeded(outcome), "it is committed"
    else:
        kind, text = REFUSALS[state]
        if command == "initialize" and state is State.UNINITIALIZED:
            text = "no transaction is open"
        if command == "begin" and state is State.FATAL_ERROR:
            text = rf"^beginning a transaction: the producer cannot go on until initialize\(\): .*{text}"
        assert tx.state is state
        with pytest.raises(kind, match=text):
            raise failed(outcome)


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_records_are_accepted_only_in_a_transaction(state: State) -> None:
    tx = Transacts()
    REACHED[state](tx)
    assert tx.accumulator.accepts is (state is State.IN_TRANSACTION)
    accepted = tx.accumulator.append("t", "more", partition=0) is not None
    assert accepted is (state is State.IN_TRANSACTION)
    refusal = tx.transactions.refusal()
    assert isinstance(refusal, REFUSALS[state][0])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_close_in_each_state(state: State, version: int) -> None:
    """A transaction that is open is aborted, the end of one is awaited, and one that is prepared stays so."""
    tx = Transacts(version)
    REACHED[state](tx)
    outcome = tx.close()
    awaited = state in (
        State.IN_TRANSACTION,
        State.PREPARING_TRANSACTION,
        State.ABORTABLE_ERROR,
        State.COMMITTING_TRANSACTION,
        State.ABORTING_TRANSACTION,
    )
    assert outcome.done is not awaited
    if state in (State.PREPARING_TRANSACTION, State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION):
        tx.succeed(tx.sent[-1])
    tx.go_on(outcome)
    assert outcome.error is None
    ends = [send.message.committed for send in tx.sent if send.api is Api.END_TXN]
    expected: dict[State, list[bool]] = {
        State.READY: [True],
        State.COMMITTING_TRANSACTION: [True],
        State.FATAL_ERROR: [True],
        State.UNINITIALIZED: [],
        State.INITIALIZING: [],
        State.PREPARED_TRANSACTION: [],
    }
    assert ends == expected.get(state, [False])
    assert awaited or tx.state is state


def test_close_waits_for_a_commit_that_another_call_waits_for() -> None:
    tx = Transacts()
    _, committed, end = tx.ending()
    closed = tx.close()
    tx.poll()
    assert not closed.done
    tx.succeed(end)
    assert succeeded(committed)
    assert succeeded(closed)


def test_a_transaction_whose_begin_was_interrupted_is_not_begun() -> None:
    tx = Transacts()
    begin = tx.begin()
    send = tx.one(Api.INIT_PRODUCER_ID)
    assert tx.abort(begin).done
    tx.succeed(send)
    assert tx.state is State.READY
    assert not begin.outcome.done
    assert tx.works()


def test_a_transaction_that_has_begun_when_begin_is_interrupted_is_aborted() -> None:
    tx = Transacts()
    begin = tx.begun()
    tx.abort(begin)
    tx.poll()
    assert tx.state is State.READY
    assert tx.works()


def test_commands_of_an_earlier_transaction_are_refused() -> None:
    tx = Transacts()
    earlier = _ready(tx)
    later = tx.begun()
    for outcome in (tx.commit(earlier), tx.abort(earlier), tx.prepare(earlier), tx.commit_offsets(earlier)):
        with pytest.raises(IllegalStateError, match="the transaction has ended"):
            raise failed(outcome)
    assert tx.state is State.IN_TRANSACTION
    tx.write("a", to=T0)
    tx.go_on(tx.commit(later))


def test_the_name_of_the_state_is_in_the_representation() -> None:
    assert repr(Transacts().transactions) == "<TransactionManager 'tx' UNINITIALIZED>"
