"""Whatever is dropped, delayed, doubled or refused: a transaction is read as a whole, or not at all, as its producer has said.

A whole producer writes to the broker's core over the simulated network, in virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from hypothesis import given, settings, strategies as st

from ottla import Delivery
from ottla.broker.faults.rules import Action, Delay, Drop, Fail, FailAppends, LoseReply, Moment, MoveCoordinator
from ottla.client.produce.transactions.calls import TransactionCalls
from ottla.client.produce.transactions.commands import Begin, EndTransaction
from ottla.errors import OttlaError, TransactionAbortedError, TransactionOutcomeUnknownError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.records.batch_states import BatchState
from ottla.simulation.application import Sleep
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.example_counts import examples
from tests.simulation.producers import ProducerApp, ProducerWorld, Program
from tests.simulation.transactions import committed_values, has_stable_offset, refused, with_version_1

PARTITIONS = (0, 1)
REQUEST_TIMEOUT, DELIVERY_TIMEOUT, MAX_BLOCK = 150, 700, 600
LATER = 8_000
"""Milliseconds after which nothing more arrives, and no transaction is open."""
INPUT = TopicPartition("in", 0)
GROUP = ConsumerGroupMetadata("g")

APIS = (Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN, Api.PRODUCE)
OF_COORDINATOR = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out,
    ErrorCode.unknown_server_error,
)
OF_LEADER = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
    ErrorCode.request_timed_out,
    ErrorCode.concurrent_transactions,
    ErrorCode.invalid_record,
    ErrorCode.unknown_server_error,
)
"""What a broker may answer to a request that it has not executed."""
UNCLEAR = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out,
    ErrorCode.unknown_server_error,
)
"""What it may answer to one that it has executed."""

apis = st.sampled_from([*APIS, Api.END_TXN, Api.END_TXN])
durations = st.sampled_from([1, 5, 40, 160, 400])
nothing = st.just(0)
moments = st.integers(0, 2)
faults = st.one_of(
    st.just(("none", 0, 0, 0)),
    apis.flatmap(
        lambda api: st.tuples(
            st.just("fail"), st.just(api), st.sampled_from(OF_LEADER if api is Api.PRODUCE else OF_COORDINATOR), moments
        )
    ),
    st.tuples(st.just("execute and fail"), apis, st.sampled_from(UNCLEAR), moments),
    st.tuples(st.just("lose"), apis, nothing, moments),
    st.tuples(st.just("drop"), apis, st.sampled_from(Moment), moments),
    st.tuples(st.just("delay"), apis, durations, moments),
    st.tuples(st.just("hold"), durations, nothing, nothing),
    st.tuples(st.just("break"), nothing, nothing, nothing),
    st.tuples(st.just("kill"), st.sampled_from([1, 2]), durations, nothing),
    st.tuples(st.just("move"), durations, nothing, nothing),
    st.tuples(st.just("fill"), st.sampled_from(["t", "__transaction_state", "__consumer_offsets"]), durations, nothing),
    st.tuples(st.just("fence"), nothing, st.sampled_from([0, 20, 60, 120, 200]), nothing),
    st.tuples(st.just("lose and fence"), st.just(Api.END_TXN), st.sampled_from([40, 80, 120, 200]), nothing),
)
transaction = st.tuples(
    st.lists(faults, min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 0, 1, 3, 10, 60, 300]), max_size=4),
    st.sampled_from(["commit"] * 3 + ["commit with offsets"] * 3 + ["abort", "prepare", "die", "die in commit", "die in commit"]),
    st.sampled_from([0, 1, 2, 4, 8, 20, 160]),
)
"""Faults; the milliseconds after each record of the transaction, one of each partition; how it ends; and when a producer dies."""
histories = st.lists(transaction, min_size=1, max_size=7)


class Attempt:
    """One transaction: what was sent in it, and what the producer said of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[tuple[int, str, Delivery]] = []
        self.has_offsets = False
        self.outcome = "aborted"

    def add(self, partition: int, delivery: Delivery, value: str) -> None:
        self.sent.append((partition, value, delivery))


class Transacting:
    """A transactional producer, and the transactions that it has attempted."""

    def __init__(self, seed: int, version: int, transaction_timeout: int) -> None:
        self.world = ProducerWorld(brokers=2, chance=random.Random(seed))
        self.world.create_topic("in", 1)
        self.version = version
        self.changes: dict[Api, list[int]] = {}
        """API -> for the next responses: the code with which each is answered, 0 for none."""
        self.plain = self.world.broker.cluster.rewrite
        self.world.broker.cluster.rewrite = self.rewrite  # type: ignore[method-assign]
        self.settings = {
            "transactional_id": "tx",
            "transaction_timeout_ms": transaction_timeout,
            "request_timeout_ms": REQUEST_TIMEOUT,
            "delivery_timeout_ms": DELIVERY_TIMEOUT,
            "max_block_ms": MAX_BLOCK,
            "retry_backoff_ms": 10,
        }
        self.attempts: list[Attempt] = []
        self.producers = count(1)
        self.driver = self.world.producer("driver")
        """Runs the program, and survives the producers."""
        self.app = self.producer()

    def producer(self) -> ProducerApp:
        return self.world.producer(f"p{next(self.producers)}", **self.settings)

    @property
    def calls(self) -> TransactionCalls:
        return self.app.transactions

    def rewrite(self, api: Api, response: Any) -> Any:
        response = self.plain(api, response)
        if api is Api.API_VERSIONS and self.version == 1:
            return with_version_1(response)
        if self.changes.get(api) and (code := self.changes[api].pop(0)):
            return refused(response, ErrorCode(code))
        return response

    # -- what happens -----------------------------------------------------------------------------------------------------

    def program(self, history: list[Any]) -> Program:
        for faults, pauses, end, died_after in history:
            for fault in faults:
                self.disturb(*fault)
            yield from self.transaction(pauses, end, died_after)
        yield Sleep(LATER)
        self.world.broker.clear_faults()
        self.changes.clear()
        while self.attempts[-1:] == [] or self.attempts[-1].outcome != "committed":
            yield from self.transaction([0], "commit with offsets", 0)
        yield Sleep(LATER)

    def transaction(self, pauses: list[int], end: str, died_after: int) -> Program:
        attempt = Attempt(len(self.attempts))
        self.attempts.append(attempt)
        try:
            begin = self.calls.new_begin(self.driver.now)
            yield from self.calls.begin(begin, self.driver.now)
        except OttlaError:
            yield from self.recover()
            return
        try:
            yield from self.fill(attempt, begin, pauses, end)
        except OttlaError:
            end = "abort"
        if end.startswith("die"):
            yield from self.die(begin, attempt, died_after if end == "die in commit" else None)
            return
        try:
            if end == "prepare":
                yield from self.calls.prepare(begin, self.driver.now)
                yield from self.recover()
                return
            yield from self.calls.end(begin, commit=end != "abort", now=self.driver.now)
            attempt.outcome = "aborted" if end == "abort" else "committed"
        except OttlaError as error:
            yield from self.after(error, attempt, begin)
            yield from self.recover()

    def fill(self, attempt: Attempt, begin: Begin, pauses: list[int], end: str) -> Program:
        for index, pause in enumerate(pauses):
            for partition in PARTITIONS:
                value = f"{attempt.number}.{index}"
                delivery = yield from self.app.send("t", value, partition)
                attempt.add(partition, delivery, value)
            yield Sleep(pause)
        if end in ("commit with offsets", "die in commit"):
            attempt.has_offsets = True
            offsets = {INPUT: OffsetAndMetadata(attempt.number + 1)}
            yield from self.calls.commit_offsets(begin, GROUP, offsets, self.driver.now)

    def die(self, begin: Begin, attempt: Attempt, after: int | None) -> Program:
        """Let the producer end as if killed, perhaps in the middle of a commit, and another one take over."""
        if after is not None:
            attempt.outcome = "unknown"
            self.app.submit(EndTransaction(begin, commit=True))
            yield Sleep(after)
        self.app.closed = True
        for number in list(self.app.numbers.values()):
            self.world.broker.break_connection(number)
        self.app = self.producer()
        yield from self.recover()

    def after(self, error: OttlaError, attempt: Attempt, begin: Begin) -> Program:
        while isinstance(error, TransactionOutcomeUnknownError):
            attempt.outcome = "unknown"
            try:
                yield from self.calls.end(begin, commit=True, now=self.driver.now)
                attempt.outcome = "committed"
                return
            except OttlaError as another:
                if type(another) is not TransactionOutcomeUnknownError or self.manager.error is not None:
                    break
                error = another
        if attempt.outcome != "unknown" and isinstance(error, TransactionAbortedError):
            try:
                yield from self.calls.end(begin, commit=False, now=self.driver.now)
            except OttlaError:
                return

    @property
    def manager(self) -> Any:
        return self.app.assembly.transactions

    def recover(self) -> Program:
        """Wait until the producer can go on; initialize it if it has to be."""
        for _ in range(30):
            if self.manager.state.name == "READY":
                return
            if self.manager.state.name == "ABORTABLE_ERROR":
                yield from self.ignoring(self.calls.end(self.manager._transaction, commit=False, now=self.driver.now))
            yield from self.ignoring(self.calls.initialize(self.driver.now))
            yield Sleep(20)

    def ignoring(self, call: Program) -> Program:
        try:
            yield from call
        except OttlaError:
            return

    def disturb(self, what: str, first: Any, second: Any, third: int) -> None:
        broker, cluster = self.world.broker, self.world.broker.cluster
        match what:
            case "execute and fail":
                self.changes.setdefault(first, []).extend([0] * third + [second])
            case "hold":
                for number in self.app.numbers.values():
                    self.world.network.hold((number, "to the broker"), first)
            case "break":
                for number in list(self.app.numbers.values()):
                    broker.break_connection(number)
            case "kill" if first in cluster.up:
                broker.kill(first)
                self.world.clock.after(second, partial(broker.start, first))
            case "fence":
                self.world.clock.after(second, self.fence)
            case "lose and fence" if broker.up:
                self.set_fault("lose", first, 0, third)
                self.world.clock.after(second, self.fence)
            case _ if broker.up:
                self.set_fault(what, first, second, third)

    def fence(self) -> None:
        """Let a producer that came later have the id for a while, and go away."""
        later = self.producer()
        later.start(self.ignoring(later.transactions.initialize(later.now)))

    def set_fault(self, what: str, first: Any, second: Any, third: int) -> None:
        faults: dict[str, Callable[[], Action]] = {
            "fail": lambda: Fail(ErrorCode(second)),
            "lose": LoseReply,
            "drop": lambda: Drop(second),
            "delay": lambda: Delay(second),
        }
        if what in faults:
            self.world.broker.set_fault(faults[what](), first, after=third)
        elif what == "move":
            self.world.broker.set_fault(MoveCoordinator(), times=None, lasts=first)
        elif what == "fill":
            self.world.broker.set_fault(FailAppends(first), times=None, lasts=second)

    # -- what holds -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        read = {partition: committed_values(self.world, partition) for partition in PARTITIONS}
        offset = self.world.committed("g", "in", 1).get(0, 0)
        with_offsets = 0
        for attempt in self.attempts:
            found = [values.count(value) for partition, values in read.items() for at, value, _ in attempt.sent if at == partition]
            if attempt.outcome == "committed":
                assert found == [1] * len(attempt.sent), f"{attempt.number} was committed: {found}"
                assert all(
                    delivery.batch.part_of(delivery.index)[0].state is BatchState.ACKNOWLEDGED for *_, delivery in attempt.sent
                )
            elif attempt.outcome == "aborted":
                assert not any(found), f"{attempt.number} was aborted: {found}"
            else:
                assert set(found) <= {0} or found == [1] * len(attempt.sent), f"{attempt.number} is half committed: {found}"
            is_committed = attempt.outcome == "committed" or (attempt.outcome == "unknown" and any(found))
            if is_committed and attempt.has_offsets:
                with_offsets = attempt.number + 1
        unclear = {one.number + 1 for one in self.attempts if one.outcome == "unknown" and one.has_offsets and not one.sent}
        assert offset == with_offsets or offset in unclear
        assert has_stable_offset(self.world, "g", INPUT), "offsets of a transaction are pending"
        for partition, values in read.items():
            numbers = [tuple(map(int, value.split("."))) for value in values]
            assert numbers == sorted(numbers), f"partition {partition} is out of order"
        assert not self.app.accumulator.incomplete
        assert self.app.accumulator.used == 0


worlds = st.fixed_dictionaries(
    {"seed": st.integers(0, 99), "version": st.sampled_from([1, 2]), "transaction_timeout": st.sampled_from([250, 4_000, 4_000])}
)


@settings(max_examples=examples(150), deadline=None)
@given(histories, worlds)
def test_a_transaction_is_read_as_a_whole_or_not_at_all(history: list[Any], world: dict[str, Any]) -> None:
    transacting = Transacting(**world)
    transacting.world.finish(transacting.driver, transacting.program(history), limit=1_000_000)
    transacting.check()
