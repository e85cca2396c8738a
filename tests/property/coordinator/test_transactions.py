"""Invariants of the transaction coordinator under any order of requests, time, failing appends and restarts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.coordinator.effects import Append, CancelTimer, Reply, RequestContext, SetTimer, TimerKey
from ottla.coordinator.transactions.coordinator import TransactionCoordinator
from ottla.coordinator.transactions.decision import TransactionConfig, TransactionContext, WriteMarkers
from ottla.coordinator.transactions.machine import TRANSITIONS
from ottla.coordinator.transactions.transaction import PREPARED, STATE, TransactionState
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.messages import add_partitions_to_txn_request, end_txn_request, init_producer_id_request
from ottla.protocol.transaction_records import decode_record
from ottla.types import Now, TopicPartition
from tests.example_counts import examples
from tests.unit.coordinator.harness import Topics

IDS = st.sampled_from(["a", "b"])
PARTITIONS = 2
HOUR = 3_600_000
CONFIG = TransactionConfig(state_topic_partitions=PARTITIONS, id_expiration_ms=HOUR)


class ProducerIds:
    """Counting producer ids that outlast the coordinator."""

    def __init__(self) -> None:
        self.last = 0

    def new_producer_id(self) -> int | None:
        self.last += 1
        return self.last


@dataclass
class Client:
    """A producer with its id and epoch."""

    transactional_id: str
    producer_id: int = -1
    epoch: int = -1


class Coordinated(RuleBasedStateMachine):
    """Clients with any behaviour, a log that may fail, and slow markers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Now(1_000, 1_700_000_000_000)
        self.producer_ids = ProducerIds()
        self.log: dict[int, list[tuple[bytes, bytes | None]]] = {number: [] for number in range(PARTITIONS)}
        self.clients = [Client(name) for name in ("a", "a", "b")]
        self.asked: dict[int, tuple[Client, Api]] = {}
        self.given: set[tuple[int, int]] = set()
        self.tickets = 0
        self._start()

    def _start(self) -> None:
        self.appends: list[Append] = []
        self.markers: list[WriteMarkers] = []
        self.timers: dict[TimerKey, int] = {}
        self.coordinator = self._coordinator()
        for number, records in self.log.items():
            self._take(self.coordinator.load(number, records, self.now))

    def _coordinator(self) -> TransactionCoordinator:
        place = TopicPartition("t", 2)
        return TransactionCoordinator(TransactionContext(CONFIG, Topics({"t": 3}), self.producer_ids, lambda group: place))

    def _take(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Append():
                    self.appends.append(effect)
                case WriteMarkers():
                    state = self._states(effect.transactional_id)[-1]
                    assert state is (TransactionState.PREPARE_COMMIT if effect.commit else TransactionState.PREPARE_ABORT)
                    self.markers.append(effect)
                case SetTimer(key, at):
                    self.timers[key] = at
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Reply(ticket, response):
                    self._answered(*self.asked.pop(ticket), response)

    def _answered(self, client: Client, api: Api, response: Any) -> None:
        if api is Api.ADD_PARTITIONS_TO_TXN or response.error_code is not ErrorCode.none:
            return
        if api is Api.INIT_PRODUCER_ID and client.epoch == -1:
            assert (response.producer_id, response.producer_epoch) not in self.given, "two producers got the same id and epoch"
        if response.producer_id >= 0:
            client.producer_id, client.epoch = response.producer_id, response.producer_epoch
            self.given.add((client.producer_id, client.epoch))

    def _states(self, transactional_id: str) -> list[TransactionState]:
        """The states of an id in the log, oldest first."""
        found = []
        for records in self.log.values():
            for key, value in records:
                decoded = decode_record(key, value)
                assert decoded is not None
                name, stored = decoded
                if name == transactional_id:
                    found.append(TransactionState.DEAD if stored is None else STATE[stored.transaction_status])
        return found

    def _ask(self, client: Client, api: Api, message: Any, *version_rules: VersionRule) -> None:
        self.tickets += 1
        self.asked[self.tickets] = (client, api)
        context = RequestContext(self.tickets, api, 1, "test", "/127.0.0.1", frozenset(version_rules))
        self._take(self.coordinator.handle(context, message, self.now))

    @rule(number=st.integers(0, 2), as_known=st.booleans())
    def init(self, number: int, as_known: bool) -> None:
        client = self.clients[number]
        if not as_known:
            client.producer_id = client.epoch = -1  # a new process
        message = init_producer_id_request.InitProducerIdRequest(
            transactional_id=client.transactional_id,
            transaction_timeout=timedelta(minutes=1),
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
        )
        self._ask(client, Api.INIT_PRODUCER_ID, message, VersionRule.PRODUCER_FENCED)

    @rule(number=st.integers(0, 2), partition=st.integers(0, 2), newest=st.booleans())
    def add(self, number: int, partition: int, newest: bool) -> None:
        client = self.clients[number]
        part = add_partitions_to_txn_request.AddPartitionsToTxnTransaction(
            transactional_id=client.transactional_id,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            verify_only=False,
            topics=(add_partitions_to_txn_request.AddPartitionsToTxnTopic(name="t", partitions=(partition,)),),
        )
        message = add_partitions_to_txn_request.AddPartitionsToTxnRequest(transactions=(part,))
        self._ask(client, Api.ADD_PARTITIONS_TO_TXN, message, *([VersionRule.TRANSACTION_V2] if newest else []))

    @rule(number=st.integers(0, 2), commit=st.booleans(), newest=st.booleans())
    def end(self, number: int, commit: bool, newest: bool) -> None:
        client = self.clients[number]
        message = end_txn_request.EndTxnRequest(
            transactional_id=client.transactional_id,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            committed=commit,
        )
        self._ask(client, Api.END_TXN, message, *([VersionRule.TRANSACTION_V2] if newest else []))

    @rule(count=st.integers(1, 4), fails=st.booleans())
    def the_log_answers(self, count: int, fails: bool) -> None:
        for _ in range(min(count, len(self.appends))):
            append = self.appends.pop(0)
            if fails:
                failed = self.coordinator.on_append_failed(append.partition, append.batch, ErrorCode.kafka_storage_error, self.now)
                self._take(failed)
            else:
                self.log[append.partition] += append.records
                self._take(self.coordinator.on_appended(append.partition, append.batch, self.now))

    @rule()
    def markers_are_written(self) -> None:
        while self.markers:
            self._take(self.coordinator.on_markers_written(self.markers.pop(0).transactional_id, self.now))

    @rule(milliseconds=st.sampled_from([1, 600, 60_000, 2 * HOUR]))
    def time_passes(self, milliseconds: int) -> None:
        self.now = Now(self.now.mono + milliseconds, self.now.wall + milliseconds)
        for key in [key for key, at in self.timers.items() if at <= self.now.mono]:
            if self.timers.pop(key, None) is not None:
                self._take(self.coordinator.on_timer(key, self.now))

    @rule(written=st.booleans())
    def killed(self, written: bool) -> None:
        """Kill the coordinator: an open append is in the log or not, and gets no reply."""
        for append in self.appends if written else ():
            self.log[append.partition] += append.records
        self.asked.clear()
        self._start()

    @invariant()
    def the_state_is_what_the_log_says(self) -> None:
        fresh = self._coordinator()
        for number, records in self.log.items():
            fresh.load(number, records, self.now)
        assert self.coordinator.durable_state() == fresh.durable_state()

    @invariant()
    def every_step_in_the_log_is_in_the_table(self) -> None:
        for name in ("a", "b"):
            state = TransactionState.DEAD
            for following in self._states(name):
                reachable = set(TRANSITIONS[state].values())
                if TransactionState.PREPARE_EPOCH_FENCE in reachable:  # passed through, never written
                    reachable.add(TransactionState.PREPARE_ABORT)
                assert following in reachable, (state, following)
                state = following

    @invariant()
    def who_waits_waits_for_something(self) -> None:
        assert not self.asked or self.appends, "every request is answered, or its append is on the way"

    @invariant()
    def what_is_prepared_has_markers_on_the_way(self) -> None:
        on_the_way = {one.transactional_id for one in self.markers}
        in_the_log = {decode_record(*record)[0] for append in self.appends for record in append.records}
        for name, transaction in self.coordinator.transactions().items():
            if transaction.state in PREPARED:
                assert name in on_the_way or name in in_the_log or ("transactions", name, "complete") in self.timers
            if transaction.state is TransactionState.ONGOING and name not in in_the_log:
                assert ("transactions", name, "timeout") in self.timers


Coordinated.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestCoordinated = Coordinated.TestCase
