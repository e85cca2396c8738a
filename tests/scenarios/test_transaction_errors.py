"""Transactions against the broker's core: each error code of each request of a transaction, at each moment.

Whatever the code is: each call ends within its deadline; what consumers of committed records read, and the offsets of the group,
are what the producer has said of each transaction; and the next one can be committed, if need be after initialize().
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

import pytest

from ottla import Delivery
from ottla.broker.faults.rules import Action, Delay, Drop, Fail, Moment
from ottla.client.produce import sender
from ottla.client.produce.outcome import Wait
from ottla.client.produce.sender import ProduceReaction
from ottla.client.produce.transactions.commands import Begin, Initialize
from ottla.client.produce.transactions.requests import NOT_ENDED, OF_MEMBER, REACTIONS, TransactionReaction, reaction_to
from ottla.errors import OttlaError, TransactionAbortedError, TransactionOutcomeUnknownError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import Sleep
from ottla.simulation.broker import Exchange
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.simulation.producers import ProducerWorld, Program
from tests.simulation.transactions import committed_values, has_stable_offset, refused, with_version_1

GROUP = ConsumerGroupMetadata("g")
MAX_BLOCK, REQUEST_TIMEOUT, DELIVERY_TIMEOUT = 900, 300, 800
SETTINGS: dict[str, Any] = {
    "transactional_id": "tx",
    "max_block_ms": MAX_BLOCK,
    "request_timeout_ms": REQUEST_TIMEOUT,
    "delivery_timeout_ms": DELIVERY_TIMEOUT,
    "retry_backoff_ms": 20,
}


class Request(NamedTuple):
    """A request of a transaction, and how that transaction ends."""

    api: Api
    version: int
    commit: bool = True
    key_type: str = ""
    """What a look-up is of."""


OF_VERSION_1 = (
    Api.INIT_PRODUCER_ID,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.PRODUCE,
    Api.ADD_OFFSETS_TO_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.END_TXN,
)
OF_VERSION_2 = (Api.INIT_PRODUCER_ID, Api.PRODUCE, Api.TXN_OFFSET_COMMIT, Api.END_TXN)
REQUESTS = {
    **{f"{api.name}-1": Request(api, 1) for api in OF_VERSION_1},
    **{f"{api.name}-2": Request(api, 2) for api in OF_VERSION_2},
    **{f"END_TXN-abort-{version}": Request(Api.END_TXN, version, commit=False) for version in (1, 2)},
    "FIND_COORDINATOR-transaction": Request(Api.FIND_COORDINATOR, 2, key_type="transactional_id"),
    "FIND_COORDINATOR-group": Request(Api.FIND_COORDINATOR, 2, key_type="group"),
}
STARTS = ("INIT_PRODUCER_ID-1", "INIT_PRODUCER_ID-2", "FIND_COORDINATOR-transaction")
"""The requests with which a producer begins."""

CODES = sorted(code for code in ErrorCode if code)
KNOWN = sorted({code for code in CODES if code in REACTIONS or code in NOT_ENDED or code in OF_MEMBER})
"""The codes that mean something to a transaction."""
OTHERS = sorted(set(CODES) - set(KNOWN))
PARTS = 7
"""The number of parts of the codes that mean something: one part is tried for each request at each moment, with a few others. All
codes take minutes.
"""

some_or_all = pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
each_request = pytest.mark.parametrize("name", REQUESTS)


def codes(name: str, moment: int, *, is_all: bool) -> list[ErrorCode]:
    """The codes to try for a request at a moment."""
    if is_all:
        return CODES
    part = (moment + list(REQUESTS).index(name)) % PARTS
    return [*KNOWN[part::PARTS], *OTHERS[part :: 10 * PARTS]]


class Attempt:
    """A transaction, and what its producer has said of it."""

    def __init__(self, number: int) -> None:
        self.value = str(number)
        """That of its records, one in each partition."""
        self.input = TopicPartition("in", min(number, 1))
        """The partition whose offset it commits: later transactions commit that of another one, which hides nothing."""
        self.offset = number + 1
        self.begin: Begin | None = None
        self.sent: list[Delivery] = []
        self.is_committed: bool | None = False
        """``None``: not even the producer knows."""
        self.error: OttlaError | None = None


class Transacting:
    """A transactional producer, and the transactions that it has attempted."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.world = ProducerWorld()
        self.world.create_topic("in", 2)
        self.broker = self.world.broker
        self.broker.cluster.rewrite = self._rewrite  # type: ignore[method-assign]
        self.refusal: ErrorCode | None = None
        """The code with which the next request is answered after it was executed."""
        self.refused = 0
        self.app = self.world.producer(**SETTINGS)
        self.attempts: list[Attempt] = []

    def _rewrite(self, api: Api, response: Any) -> Any:
        if api is Api.API_VERSIONS and self.request.version == 1:
            return with_version_1(response)
        if self.refusal is None or api is not self.request.api:
            return response
        code, self.refusal = self.refusal, None
        self.refused += 1
        return refused(response, code)

    def disturb(self, action: Action, *, times: int | None = 1, after: int = 0) -> None:
        """Let something happen to the request, once by default."""
        keys = {"transactional_id": "tx", "group": "g"}
        match = {key: value for key, value in keys.items() if key == self.request.key_type}
        self.broker.set_fault(action, self.request.api, times=times, after=after, lasts=None, **match)

    # -- what the application does ----------------------------------------------------------------------------------------

    def within(self, limit: int, call: Program) -> Generator[Any, Any, Any]:
        """Make a call, which ends within so many milliseconds."""
        started = self.app.now.mono
        try:
            return (yield from call)
        finally:
            assert self.app.now.mono - started <= limit

    def begun(self, begin: Begin) -> Program:
        """Wait for a transaction to begin."""
        while not begin.outcome.done:
            yield Wait(begin.outcome, lambda: begin.outcome.done, None)
        if begin.outcome.error is not None:
            raise begin.outcome.error

    def attempt(
        self, *, commit: bool = True, begin: Begin | None = None, pause: int = 0, following: Begin | None = None
    ) -> Program:
        """One transaction with records and offsets, as a ``with`` block: an exception in it aborts.

        ``begin``: it was asked to begin before. ``pause``: the milliseconds between its records. ``following`` is asked to begin
        while it ends.
        """
        app, calls = self.app, self.app.transactions
        attempt = Attempt(len(self.attempts))
        self.attempts.append(attempt)
        try:
            begins = self.begun(begin) if begin is not None else calls.begin(begin := calls.new_begin(app.now), app.now)
            yield from self.within(MAX_BLOCK, begins)
            attempt.begin = begin
            try:
                for partition in (0, 1):
                    attempt.sent.append((yield from app.send("t", attempt.value, partition)))
                    yield Sleep(pause)
                offsets = {attempt.input: OffsetAndMetadata(attempt.offset)}
                yield from self.within(MAX_BLOCK, calls.commit_offsets(begin, GROUP, offsets, app.now))
            except OttlaError as error:
                commit, attempt.error = False, error
            if following is not None:
                self.world.clock.after(0, partial(app.submit, following))
            yield from self.within(DELIVERY_TIMEOUT + MAX_BLOCK, calls.end(begin, commit=commit, now=app.now))
            attempt.is_committed = commit
        except OttlaError as error:
            attempt.error = error
            is_unknown = attempt.begin is not None and isinstance(error, TransactionOutcomeUnknownError)
            attempt.is_committed = None if is_unknown else False

    def go_on(self, begin: Begin | None = None) -> Program:
        """Learn what became of the transaction, and commit another one, after initialize() if the producer refuses that."""
        latest = self.attempts[-1]
        if latest.is_committed is None and latest.begin is not None:
            try:
                yield from self.within(MAX_BLOCK, self.app.transactions.end(latest.begin, commit=True, now=self.app.now))
                latest.is_committed = True
            except TransactionOutcomeUnknownError:
                pass
            except TransactionAbortedError:
                latest.is_committed = False
        yield from self.attempt(begin=begin)
        if not self.attempts[-1].is_committed:
            yield from self.within(MAX_BLOCK, self.app.transactions.initialize(self.app.now))
            yield from self.attempt()
        assert self.attempts[-1].is_committed, self.attempts[-1].error

    # -- what holds -------------------------------------------------------------------------------------------------------

    def run(self, program: Program | None = None, following: Begin | None = None) -> None:
        """Run a transaction while something is wrong, and another one when all is well again."""
        self.world.finish(self.app, program or self.attempt(commit=self.request.commit))
        assert self.broker.struck or self.refused
        self.broker.clear_faults()
        self.world.finish(self.app, self.go_on(following))
        self.check()

    def check_retries(self, code: ErrorCode) -> None:
        """What a retry can fix lets nothing fail."""
        match self.request.api:
            case Api.PRODUCE:
                is_retried = sender.REACTIONS.get(code) in (ProduceReaction.RETRY, ProduceReaction.NEW_LEADER)
            case Api.FIND_COORDINATOR:
                is_retried = error_class(code).retriable
            case _:
                is_retried = reaction_to(code) in (TransactionReaction.RETRY, TransactionReaction.FIND_COORDINATOR)
        assert not is_retried or self.attempts[0].error is None, self.attempts[0].error

    def check(self) -> None:
        """What is read is what was reported."""
        read = [committed_values(self.world, partition) for partition in (0, 1)]
        committed = [
            one
            for one in self.attempts
            if one.is_committed or (one.is_committed is None and any(one.value in part for part in read))
        ]
        expected = [one.value for one in committed]
        said = [(one.is_committed, one.error) for one in self.attempts]
        assert read == [expected, expected], said
        assert self.world.committed("g", "in", 2) == {one.input.partition: one.offset for one in committed}, said
        assert all(has_stable_offset(self.world, "g", one.input) for one in self.attempts), "offsets of a transaction are pending"
        assert all(delivery.done() for attempt in self.attempts for delivery in attempt.sent)
        assert not self.app.accumulator.incomplete
        assert self.app.accumulator.used == 0


def is_a_lie(request: Request, code: ErrorCode, *, was_executed: bool) -> bool:
    """Whether no broker gives this answer: the producer takes its word for what became of the request."""
    if request.api is Api.PRODUCE:
        return code is ErrorCode.duplicate_sequence_number and not was_executed
    return request.api is Api.END_TXN and request.commit and was_executed and code in NOT_ENDED


@some_or_all
@each_request
def test_the_first_request(name: str, is_all: bool) -> None:
    for code in codes(name, 0, is_all=is_all):
        one = Transacting(REQUESTS[name])
        if not is_a_lie(one.request, code, was_executed=False):
            one.disturb(Fail(code))
            one.run()
            one.check_retries(code)


@some_or_all
@each_request
def test_a_request_that_was_executed_and_whose_response_was_lost(name: str, is_all: bool) -> None:
    for code in codes(name, 1, is_all=is_all):
        one = Transacting(REQUESTS[name])
        is_of_other_end = one.request.api is Api.END_TXN and code is ErrorCode.invalid_txn_state
        if not is_of_other_end and not is_a_lie(one.request, code, was_executed=False):  # the next records may be other ones
            one.disturb(Drop(Moment.REPLY))
            one.disturb(Fail(code))
            one.run()
            one.check_retries(code)
            assert one.broker.struck == 2


@some_or_all
@pytest.mark.parametrize("name", [name for name, one in REQUESTS.items() if one.api is not Api.FIND_COORDINATOR])
def test_a_request_that_is_executed(name: str, is_all: bool) -> None:
    for code in codes(name, 2, is_all=is_all):
        one = Transacting(REQUESTS[name])
        if not is_a_lie(one.request, code, was_executed=True):
            one.refusal = code
            one.run()
            one.check_retries(code)


@some_or_all
@each_request
def test_until_the_calls_have_ended(name: str, is_all: bool) -> None:
    for code in codes(name, 3, is_all=is_all):
        one = Transacting(REQUESTS[name])
        if not is_a_lie(one.request, code, was_executed=False):
            one.disturb(Fail(code), times=None)
            one.run()


@some_or_all
@pytest.mark.parametrize("name", [name for name, one in REQUESTS.items() if name not in STARTS and one.api is not Api.END_TXN])
def test_while_another_request_is_under_way(name: str, is_all: bool) -> None:
    """While records are, or offsets while it is records that are refused."""
    for code in codes(name, 4, is_all=is_all):
        one = Transacting(REQUESTS[name])
        if is_a_lie(one.request, code, was_executed=False):
            continue
        of_others = (Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT) if one.request.api is Api.PRODUCE else (Api.PRODUCE,)
        is_later = one.request.api is Api.ADD_PARTITIONS_TO_TXN  # that of the second partition, while the first one is written to
        one.broker.set_fault(Delay(50), *of_others)
        if one.request.api is Api.PRODUCE:  # else the coordinator is found too late
            one.disturb(Delay(30))
        one.disturb(Fail(code), after=int(is_later))
        overlaps = overlapping(one, of_others)
        one.run(one.attempt(pause=10 if is_later else 0))
        one.check_retries(code)
        assert True in overlaps


def overlapping(one: Transacting, others: tuple[Api, ...]) -> list[bool]:
    """For each request from now on, as it is answered: whether one of the others has arrived and is not."""
    overlaps: list[bool] = []
    answered: list[Api] = []

    def look(exchange: Exchange) -> None:
        if exchange.api in others:
            answered.append(exchange.api)
        elif exchange.api is one.request.api:
            overlaps.append(len(answered) < sum(api in others for _, api, _ in one.broker.seen))

    one.broker.observers.append(look)
    return overlaps


@some_or_all
@pytest.mark.parametrize("name", STARTS)
def test_while_another_thread_initializes(name: str, is_all: bool) -> None:
    for code in codes(name, 4, is_all=is_all):
        one = Transacting(REQUESTS[name])
        one.disturb(Fail(code))
        initialize = Initialize(one.app.now.mono + MAX_BLOCK)
        one.app.submit(initialize)
        one.run()
        one.check_retries(code)
        assert (initialize.outcome.error is None) is (one.attempts[0].error is None)


@some_or_all
@pytest.mark.parametrize("name", [name for name, one in REQUESTS.items() if one.api is Api.END_TXN])
def test_the_end_while_the_next_transaction_waits(name: str, is_all: bool) -> None:
    for code in codes(name, 4, is_all=is_all):
        one = Transacting(REQUESTS[name])
        one.disturb(Fail(code))
        following = Begin(one.app.now.mono + MAX_BLOCK)
        one.run(one.attempt(commit=one.request.commit, following=following), following)
        one.check_retries(code)
