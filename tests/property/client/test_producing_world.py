"""Whatever is dropped, delayed, doubled or refused: the broker's log has each acknowledged record once, in order.

A whole producer writes to the broker's core over the simulated network, in virtual time. ``test_written_once`` has a model of the
broker instead, which may do what no Ottla broker does.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from hypothesis import given, settings, strategies as st

from ottla import Delivery
from ottla.broker.faults.rules import Action, Delay, Drop, Fail, FailAppends, LoseReply, Moment
from ottla.client.produce.calls import metadata_of
from ottla.client.produce.sender import NOT_WRITTEN, REACTIONS, ProduceReaction
from ottla.errors import BrokerError, OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import Sleep
from ottla.simulation.clock import START
from tests.example_counts import examples
from tests.simulation.producers import ProducerWorld, Program, without_topic_ids

PARTITIONS = (0, 1)
REQUEST_TIMEOUT, DELIVERY_TIMEOUT = 150, 700
LATER = 1_500
"""Milliseconds after which nothing more arrives."""
HONEST = set(REACTIONS) - {code for code, reaction in REACTIONS.items() if reaction is ProduceReaction.SEQUENCE}
"""Codes that a broker may send whatever it has written. What it says about sequence numbers is true."""
FIXED = sorted(code for code in HONEST if REACTIONS[code] in (ProduceReaction.RETRY, ProduceReaction.NEW_LEADER))
"""Those that a retry may fix."""
FATAL = [
    *(code for code in HONEST if REACTIONS[code] is ProduceReaction.SPLIT),
    ErrorCode.invalid_record,
    ErrorCode.unknown_server_error,
]

moments = st.integers(0, 3)
durations = st.sampled_from([1, 5, 40, 160, 400])
part = st.sampled_from(PARTITIONS)
nothing = st.just(0)
fixable = (
    st.tuples(st.just("fail"), st.sampled_from(FIXED), moments),
    st.tuples(st.just("write and fail"), st.sampled_from([code for code in FIXED if code not in NOT_WRITTEN]), moments),
    st.tuples(st.just("lose"), nothing, moments),
    st.tuples(st.just("drop"), st.sampled_from(Moment), moments),
    st.tuples(st.just("delay"), durations, moments),
    st.tuples(st.just("hold"), durations, nothing),
    st.tuples(st.just("break"), nothing, nothing),
    st.tuples(st.just("kill"), st.sampled_from([1, 2]), durations),
    st.tuples(st.just("fill"), part, durations),
    st.tuples(
        st.just("refuse id"), st.sampled_from([ErrorCode.coordinator_load_in_progress, ErrorCode.request_timed_out]), nothing
    ),
)
others = (
    st.tuples(st.just("fail"), st.sampled_from(FATAL), moments),
    st.tuples(st.just("write and fail"), st.just(ErrorCode.unknown_server_error), moments),
    st.tuples(st.just("recreate"), durations, nothing),
    st.tuples(st.just("refuse id"), st.just(ErrorCode.cluster_authorization_failed), nothing),
)
pauses = st.lists(st.sampled_from([0, 0, 1, 1, 3, 3, 10, 40, 120]), max_size=6)
"""Milliseconds between the records that are sent after a fault, one to each partition."""


Step = tuple[tuple[str, Any, int], list[int]]


class Producing:
    """A producer, the records that it was given, and the logs of topics that are gone."""

    def __init__(self, seed: int, *, last_epochs: bool, has_ids: bool, **more: Any) -> None:
        self.world = ProducerWorld(brokers=2, chance=random.Random(seed))
        times = {"request_timeout_ms": REQUEST_TIMEOUT, "delivery_timeout_ms": DELIVERY_TIMEOUT, "max_block_ms": 200}
        self.app = self.world.producer(retry_backoff_ms=10, **{**times, **more})
        self.sent: dict[int, list[Delivery]] = {partition: [] for partition in PARTITIONS}
        self.values: dict[int, list[str]] = {partition: [] for partition in PARTITIONS}
        self.former: list[dict[int, list[str]]] = []
        self.changes: list[int] = []
        """For the next Produce responses: the code with which each is answered, 0 for none."""
        self.last_epochs = last_epochs
        self.has_ids = has_ids
        self.is_idempotent = more.get("enable_idempotence", True)
        self.count = 0
        self.plain = self.world.broker.cluster.rewrite
        self.world.broker.cluster.rewrite = self.rewrite  # type: ignore[method-assign]

    def rewrite(self, api: Api, response: Any) -> Any:
        response = self.plain(api, response)
        if api is Api.INIT_PRODUCER_ID and self.last_epochs and not response.error_code:
            return dataclasses.replace(response, producer_epoch=2**15 - 2)
        if api is Api.API_VERSIONS and not self.has_ids:
            return without_topic_ids(response)
        if api is Api.PRODUCE and self.changes and (code := self.changes.pop(0)):
            topics = []
            for topic in response.responses:
                parts = [
                    one if one.error_code else dataclasses.replace(one, error_code=ErrorCode(code), base_offset=-1)
                    for one in topic.partition_responses
                ]
                topics.append(dataclasses.replace(topic, partition_responses=tuple(parts)))
            return dataclasses.replace(response, responses=tuple(topics))
        return response

    # -- what happens -----------------------------------------------------------------------------------------------------

    def send(self, partition: int) -> Program:
        with suppress(OttlaError):
            value = str(self.count)
            self.count += 1
            delivery = yield from self.app.send("t", value, partition)
            self.sent[partition].append(delivery)
            self.values[partition].append(value)

    def program(self, history: list[Step]) -> Program:
        for (what, first, second), pauses in history:
            if what == "recreate":
                yield from self.recreate(first)
            else:
                self.disturb(what, first, second)
            for pause in pauses:
                for partition in PARTITIONS:
                    yield from self.send(partition)
                yield Sleep(pause)
        yield Sleep(LATER)
        self.world.broker.clear_faults()
        self.changes.clear()
        yield from self.settle()
        for partition in PARTITIONS:
            yield from self.send(partition)
        yield from self.settle()

    def recreate(self, pause: int) -> Program:
        yield from self.until_up()
        self.former.append(self.logs())
        self.world.delete_topic("t")
        yield Sleep(pause)
        yield from self.until_up()
        self.world.create_topic("t", len(PARTITIONS))

    def until_up(self) -> Program:
        while not self.world.broker.up:
            yield Sleep(10)

    def settle(self) -> Program:
        with suppress(OttlaError):
            yield from self.app.calls.flush(None)

    def disturb(self, what: str, first: Any, second: int) -> None:
        broker, cluster = self.world.broker, self.world.broker.cluster
        match what:
            case "write and fail":
                self.changes += [0] * second + [first]
            case "hold":
                for number in self.app.numbers.values():
                    self.world.network.hold((number, "to the broker"), first)
            case "break":
                for number in list(self.app.numbers.values()):
                    broker.break_connection(number)
            case "kill" if first in cluster.up:
                broker.kill(first)
                self.world.clock.after(second, partial(broker.start, first))
            case _ if broker.up:
                self.set_fault(what, first, second)

    def set_fault(self, what: str, first: Any, second: int) -> None:
        faults: dict[str, Callable[[], Action]] = {
            "fail": lambda: Fail(ErrorCode(first)),
            "lose": LoseReply,
            "drop": lambda: Drop(first),
            "delay": lambda: Delay(first),
        }
        if what in faults:
            self.world.broker.set_fault(faults[what](), Api.PRODUCE, after=second, client_id="p")
        elif what == "fill":
            self.world.broker.set_fault(FailAppends("t", first), times=None, lasts=second)
        elif what == "refuse id":
            self.world.broker.set_fault(Fail(ErrorCode(first)), Api.INIT_PRODUCER_ID, client_id="p")

    # -- what holds -------------------------------------------------------------------------------------------------------

    def logs(self) -> dict[int, list[str]]:
        return {partition: self.world.log(partition) for partition in PARTITIONS}

    def check(self) -> None:
        logs = [*self.former, self.logs()]
        for partition in PARTITIONS:
            of_partition = [log[partition] for log in logs]
            acknowledged = {
                value for value, one in zip(self.values[partition], self.sent[partition], strict=True) if is_written(one)
            }
            # A late request of a record that has failed is refused because of its epoch, but not after a change of the producer id.
            is_fenced = self.is_idempotent and not self.last_epochs
            for number, log in enumerate(of_partition):
                if self.is_idempotent:
                    assert sorted(log) == sorted(set(log)), log
                # Without topic ids a recreated topic accepts a batch of which an earlier one was sent to the former topic.
                if self.has_ids or not number:
                    in_order = log if is_fenced else [value for value in dict.fromkeys(log) if value in acknowledged]
                    assert in_order == sorted(in_order, key=int), log
            for value, delivery in zip(self.values[partition], self.sent[partition], strict=True):
                self.check_outcome(value, delivery, of_partition)
            assert metadata_of(self.sent[partition][-1]).offset == len(of_partition[-1]) - 1, "all is well again"
        assert self.app.accumulator.used == 0
        assert not self.app.accumulator.incomplete

    def check_outcome(self, value: str, delivery: Delivery, logs: list[list[str]]) -> None:
        assert delivery.done()
        found = [at for log in logs for at, one in enumerate(log) if one == value]
        batch, _ = delivery.batch.part_of(delivery.index)
        if batch.error is None:
            assert found, f"{value} was acknowledged, and is not in the log"
            assert metadata_of(delivery).offset in (-1, *found)
        elif isinstance(batch.error, BrokerError) and "may have " not in str(batch.error):
            assert not found, f"{value} was refused, and is in the log: {batch.error}"


def is_written(delivery: Delivery) -> bool:
    with suppress(OttlaError):
        return metadata_of(delivery).partition >= 0
    return False


worlds = st.fixed_dictionaries({"seed": st.integers(0, 99), "last_epochs": st.booleans(), "has_ids": st.booleans()})
producers = st.fixed_dictionaries(
    {
        "batch_size": st.sampled_from([0, 0, 80, 16_384]),
        "max_in_flight_requests_per_connection": st.sampled_from([1, 2, 5, 5]),
        "linger_ms": st.sampled_from([0, 3]),
    }
)
any_steps = st.lists(st.tuples(st.one_of(*fixable, *others), pauses), min_size=2, max_size=16)
fixable_steps = st.lists(st.tuples(st.one_of(*fixable), pauses), min_size=2, max_size=12)


def play(history: list[Step], world: dict[str, Any], producer: dict[str, Any]) -> Producing:
    producing = Producing(**world, **producer)
    producing.world.finish(producing.app, producing.program(history))
    producing.world.run(LATER)
    producing.check()
    return producing


@settings(max_examples=examples(80), deadline=None)
@given(any_steps, worlds, producers)
def test_each_acknowledged_record_is_in_the_log_once_and_in_order(
    history: list[Step], world: dict[str, Any], producer: dict[str, Any]
) -> None:
    play(history, world, producer)


@settings(max_examples=examples(40), deadline=None)
@given(fixable_steps, worlds, producers)
def test_what_a_retry_can_fix_fails_no_record(history: list[Step], world: dict[str, Any], producer: dict[str, Any]) -> None:
    producing = play(history, world, {**producer, "delivery_timeout_ms": 30_000, "max_block_ms": 30_000})
    assert producing.logs() == producing.values
    assert producing.world.now.mono - START.mono < 20_000, "no batch has waited for nothing"


@settings(max_examples=examples(20), deadline=None)
@given(any_steps, worlds, producers)
def test_without_idempotence_records_are_in_order_if_one_request_is_in_flight(
    history: list[Step], world: dict[str, Any], producer: dict[str, Any]
) -> None:
    """They may be doubled."""
    play(history, world, {**producer, "enable_idempotence": False, "max_in_flight_requests_per_connection": 1})
