"""Every error code of the protocol, in answer to each request of a transaction: once, for ever, and too late.

Whatever the code is: each call ends; commit() says that the transaction was committed only if it was, and that it was not only if
it was not; no broker is flooded; and the producer can be used again, after initialize() if it says so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.client.effects import AnySend
from ottla.client.produce.outcome import Outcome
from ottla.client.produce.transactions.commands import Begin
from ottla.client.produce.transactions.requests import NOT_ENDED
from ottla.client.produce.transactions.states import TransactionState as State
from ottla.errors import DisconnectedError, OttlaError, TransactionOutcomeUnknownError, UnsupportedApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.unit.client.producing import is_done
from tests.unit.client.transacting import Transacts, succeeded

CODES = sorted(int(code) for code in ErrorCode if code)
"""A code that is newer than these is read as UNKNOWN_SERVER_ERROR."""

OF_VERSION = {
    1: [
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS_TO_TXN,
        Api.PRODUCE,
        Api.ADD_OFFSETS_TO_TXN,
        Api.TXN_OFFSET_COMMIT,
        Api.END_TXN,
    ],
    2: [Api.INIT_PRODUCER_ID, Api.PRODUCE, Api.TXN_OFFSET_COMMIT, Api.END_TXN],
}

EACH = [(version, api) for version, apis in OF_VERSION.items() for api in apis]

each_request = pytest.mark.parametrize(("version", "api"), EACH, ids=[f"{api.name}-{version}" for version, api in EACH])

Answer = Callable[[AnySend], None]


class Transaction:
    """One transaction with a record and offsets, to its end, and what became of it at the coordinator."""

    def __init__(self, version: int) -> None:
        # Short times, so that a code that is answered for ever meets all deadlines within few polls.
        self.tx = Transacts(version, max_block_ms=10_000, request_timeout_ms=3_000, delivery_timeout_ms=8_000)
        self.may_be_committed = self.is_committed = False
        self.requests = 0

    def answer(self, send: AnySend, code: int) -> None:
        if send.api is Api.END_TXN and send.message.committed:
            self.is_committed = self.is_committed or not code
            self.may_be_committed = self.may_be_committed or code not in NOT_ENDED
        self.tx.refuse(send, code)

    def lose(self, send: AnySend, error: OttlaError) -> None:
        if send.api is Api.END_TXN and send.message.committed:
            self.may_be_committed = self.may_be_committed or self.tx.leaves
        self.tx.fail(send, error)

    def go_on(self, outcome: Outcome | Callable[[], bool], answer: Answer) -> None:
        self.requests += self.tx.go_on(outcome, answer=answer)

    def run(self, answer: Answer) -> None:
        """Begin, write and commit; abort if that fails."""
        tx = self.tx
        begin = tx.begin(within=10_000)
        self.go_on(begin.outcome, answer)
        if begin.outcome.error is not None:
            return
        deliveries = tx.write("a")
        tx.commit_offsets(begin, within=10_000)
        committed = tx.commit(begin)
        self.go_on(committed, answer)
        self.judge(committed)
        if committed.error is not None and tx.state is State.ABORTABLE_ERROR:
            self.go_on(tx.abort(begin), answer)
        if not is_done(deliveries[0]):
            self.go_on(lambda: is_done(deliveries[0]), answer)

    def judge(self, committed: Outcome) -> None:
        if committed.error is None:
            assert self.is_committed
        elif not isinstance(committed.error, TransactionOutcomeUnknownError):
            assert not self.may_be_committed, committed.error

    def recovers(self) -> None:
        """Whatever has happened, the producer works when its brokers do."""
        tx = self.tx
        tx.leaves = True
        latest = tx.transactions._transaction or Begin(0)
        if tx.state is State.ABORTABLE_ERROR:
            assert succeeded(tx.abort(latest)) or tx.go_on(lambda: tx.state is not State.ABORTING_TRANSACTION)
        tx.go_on(lambda: tx.state in (State.READY, State.FATAL_ERROR))
        if tx.state is State.FATAL_ERROR:
            initialized = tx.initialize()
            tx.go_on(initialized)
            assert succeeded(initialized)
        assert not tx.accumulator.incomplete
        assert tx.accumulator.used == 0
        assert tx.works()


@each_request
def test_once(version: int, api: Api) -> None:
    for code in CODES:
        one, left = Transaction(version), [code]

        def answer(send: AnySend, one: Transaction = one, left: list[int] = left) -> None:
            one.answer(send, left.pop() if send.api is api and left else 0)

        one.run(answer)
        assert not left
        one.recovers()


@each_request
def test_for_ever(version: int, api: Api) -> None:
    for code in CODES:
        one = Transaction(version)

        def answer(send: AnySend, one: Transaction = one, code: int = code) -> None:
            one.answer(send, code if send.api is api else 0)

        one.run(answer)
        assert one.requests <= 12 + one.tx.mono // 100, f"the brokers are flooded after {ErrorCode(code).name}"
        one.recovers()


@each_request
def test_too_late(version: int, api: Api) -> None:
    """The transaction is aborted, or the wait for its end is over, before the answer comes."""
    for code in CODES:
        one = Transaction(version)
        tx = one.tx
        held: list[AnySend] = []

        def answer(send: AnySend, one: Transaction = one, held: list[AnySend] = held) -> None:
            held.append(send) if send.api is api and not held else one.answer(send, 0)

        begin = tx.begin(within=2_000)
        tx.go_on(lambda: begin.outcome.done or bool(held), answer=answer)  # noqa: B023 - called at once
        if api is not Api.INIT_PRODUCER_ID:
            tx.write("a")
            tx.commit_offsets(begin, within=2_000)
            committed = tx.commit(begin) if api is Api.END_TXN else None
            tx.go_on(lambda: bool(held), answer=answer)  # noqa: B023 - called at once
            if committed is None:
                tx.abort(begin)
            else:
                tx.mono += 10_000
                tx.poll()
                assert isinstance(committed.error, TransactionOutcomeUnknownError)
        else:
            tx.go_on(begin.outcome, answer=answer)
        one.answer(held[0], code)
        one.recovers()


@each_request
@pytest.mark.parametrize("leaves", [False, True], ids=["not sent", "sent"])
def test_a_lost_connection(version: int, api: Api, leaves: bool) -> None:
    one = Transaction(version)
    left = [2]

    def answer(send: AnySend) -> None:
        if send.api is not api or not left[0]:
            return one.answer(send, 0)
        left[0] -= 1
        one.tx.leaves = leaves or not left[0]
        return one.lose(send, DisconnectedError("the connection broke"))

    one.tx.leaves = leaves
    one.run(answer)
    assert one.is_committed
    assert not left[0]
    one.recovers()


@each_request
@pytest.mark.parametrize("leaves", [False, True], ids=["not sent", "sent"])
def test_a_connection_that_is_always_lost(version: int, api: Api, leaves: bool) -> None:
    one = Transaction(version)

    def answer(send: AnySend) -> None:
        if send.api is not api:
            return one.answer(send, 0)
        return one.lose(send, DisconnectedError("the connection broke"))

    one.tx.leaves = leaves
    one.run(answer)
    assert one.requests <= 12 + one.tx.mono // 100
    one.recovers()


@each_request
def test_a_broker_that_is_too_old(version: int, api: Api) -> None:
    one = Transaction(version)
    one.tx.leaves = False

    def answer(send: AnySend) -> None:
        one.lose(send, UnsupportedApiError("no common version")) if send.api is api else one.answer(send, 0)

    one.run(answer)
    assert not one.is_committed
    assert one.requests <= 12
    one.recovers()
