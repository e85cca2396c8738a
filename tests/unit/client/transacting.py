"""What tests of transactions share: the real sender and transaction manager of a producer, under a virtual clock.

Owns the coordinators' half: what they answer unless the test answers in their place. Must not know which behaviour is tested.
Invariant: only look-ups are answered without the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ottla import Delivery
from ottla.client.cluster.coordinator import CoordinatorKind, CoordinatorManager, FindCoordinator
from ottla.client.effects import AnySend, Poll
from ottla.client.produce.outcome import Outcome
from ottla.client.produce.sequences import Sequences
from ottla.client.produce.transactions.commands import (
    Begin,
    CloseTransaction,
    CommitOffsets,
    EndTransaction,
    Initialize,
    Prepare,
)
from ottla.client.produce.transactions.manager import TransactionManager
from ottla.client.produce.transactions.states import TransactionState
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    add_offsets_to_txn_response,
    add_partitions_to_txn_response,
    end_txn_response,
    find_coordinator_response,
    init_producer_id_response,
    txn_offset_commit_response,
)
from ottla.types import ConsumerGroupMetadata, Now, OffsetAndMetadata, TopicPartition
from tests.unit.client.managers import NO_THROTTLE, T0, T1, backoff
from tests.unit.client.producing import PRODUCER_ID, Writes

ID = "tx"
GROUP = ConsumerGroupMetadata("g", 7, "member", None)
OFFSETS = {T1: OffsetAndMetadata(5)}
MAX_BLOCK = 60_000


class _Both:
    """The sender and the transactions as one manager, polled in the order of a producer."""

    def __init__(self, *managers: Any) -> None:
        self._managers = managers
        self._sends: list[Any] = []

    def poll(self, now: Now) -> Poll:
        wake_at = []
        for manager in self._managers:
            sends, at = manager.poll(now)
            self._sends += sends
            wake_at += [] if at is None else [at]
        sends, self._sends = tuple(self._sends), []
        return Poll(sends, min(wake_at, default=None))


class Transacts(Writes):
    """A transactional producer of topic ``t``. Node 1 coordinates its transactions, node 2 all groups."""

    transactions: TransactionManager

    def __init__(self, version: int | None = 2, **settings: Any) -> None:
        self.features: dict[str, int] | None = None if version is None else {"transaction.version": version}
        self.epoch = 3
        """The latest epoch that a coordinator has assigned."""
        self.leaves = True
        """Whether requests leave at once; else they wait for a connection."""
        self.lookup: int | None = 0
        """The error code of the answer to a look-up; ``None``: there is no answer."""
        self.lookups: list[AnySend] = []
        self._found: list[AnySend] = []
        super().__init__(producer_id=None, transactional_id=ID, **settings)
        assert self.sequences is not None
        self.transactions.batches = self.sender = self.manager
        self.manager = _Both(self.sender, self.transactions)  # type: ignore[assignment]

    def _new_transactions(self) -> TransactionManager:
        self.sequences = Sequences(begins_epochs=False)

        def coordinator_of(kind: CoordinatorKind, key: str) -> CoordinatorManager:
            question = FindCoordinator(kind, key, 30_000)
            return CoordinatorManager(question, question.name, backoff(), lambda *_: None, lambda *_: None)

        return TransactionManager(
            self.config,
            self.accumulator,
            self.sequences,
            backoff(),
            coordinator_of,
            lambda _: self.features,
            lambda *_: self.reason,
        )

    # -- requests ---------------------------------------------------------------------------------------------------------

    def poll(self, at: int | None = None) -> list[AnySend]:
        """What goes out now, apart from look-ups, which are answered."""
        while True:
            sends = super().poll(at)
            self._found += [send for send in sends if send.api is not Api.FIND_COORDINATOR]
            lookups = [send for send in sends if send.api is Api.FIND_COORDINATOR]
            self.lookups += lookups
            if self.lookup is None or not lookups:
                break
            for send in lookups:
                self.answer(send, found_coordinator(send, self.lookup))
        found, self._found = self._found, []
        for send in found if self.leaves else ():
            leave(send)
        return found

    def succeed(self, send: AnySend) -> None:
        """Answer as a coordinator, or a broker, that has executed the request."""
        self.refuse(send, 0)

    def refuse(self, send: AnySend, code: int) -> None:
        """Answer with an error code."""
        if send.api is Api.PRODUCE:
            return self.reply(send, code)
        is_new = not code and (send.api is Api.INIT_PRODUCER_ID or (send.api is Api.END_TXN and send.requires is not None))
        self.epoch += is_new
        return self.answer(send, answer_to(send, code, self.epoch if is_new else None))

    def go_on(
        self, until: Callable[[], bool] | Outcome, *, answer: Callable[[AnySend], None] | None = None, limit: int = 100_000
    ) -> int:
        """Answer requests, as if executed, until something is true; return how many there were."""
        is_over = (lambda: until.done) if isinstance(until, Outcome) else until
        count, end = 0, self.mono + limit
        while True:
            sends = self.poll()
            for send in sends:
                count += 1
                (answer or self.succeed)(send)
            if is_over():
                return count
            assert self.mono < end, f"{self.transactions!r} does not go on"
            at = self.wake_at
            self.mono = min(self.mono + 1 if sends or at is None or at <= self.mono else at, end)

    def next(self, api: Api) -> AnySend:
        """The next request of an API; those before it are answered as if executed."""
        found: list[AnySend] = []
        self.go_on(lambda: bool(found), answer=lambda send: found.append(send) if send.api is api else self.succeed(send))
        (send,) = found
        return send

    # -- commands ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> TransactionState:
        return self.transactions.state

    def initialize(self, within: int = MAX_BLOCK) -> Outcome:
        command = Initialize(self.mono + within)
        self.transactions.initialize(command, self.now)
        return command.outcome

    def begin(self, within: int = MAX_BLOCK) -> Begin:
        command = Begin(self.mono + within)
        self.transactions.begin(command, self.now)
        return command

    def commit_offsets(self, transaction: Begin, group: ConsumerGroupMetadata = GROUP, within: int = MAX_BLOCK) -> Outcome:
        command = CommitOffsets(transaction, group, OFFSETS, self.mono + within)
        self.transactions.commit_offsets(command, self.now)
        return command.outcome

    def end(self, transaction: Begin, *, commit: bool) -> Outcome:
        command = EndTransaction(transaction, commit)
        self.transactions.end(command, self.now)
        return command.outcome

    def commit(self, transaction: Begin) -> Outcome:
        return self.end(transaction, commit=True)

    def abort(self, transaction: Begin) -> Outcome:
        return self.end(transaction, commit=False)

    def prepare(self, transaction: Begin) -> Outcome:
        command = Prepare(transaction)
        self.transactions.prepare(command, self.now)
        return command.outcome

    def close(self) -> Outcome:
        command = CloseTransaction()
        self.transactions.close(command, self.now)
        return command.outcome

    # -- transactions that have come so far -------------------------------------------------------------------------------

    def begun(self) -> Begin:
        """A transaction that is open."""
        begin = self.begin()
        self.go_on(begin.outcome)
        assert begin.outcome.error is None
        return begin

    def written(self, *values: str, to: TopicPartition = T0) -> tuple[Begin, list[Delivery]]:
        """A transaction with acknowledged records."""
        begin = self.begun()
        deliveries = self.write(*(values or ("a",)), to=to)
        self.go_on(lambda: not self.accumulator.incomplete)
        return begin, deliveries

    def ending(self, *, commit: bool = True) -> tuple[Begin, Outcome, AnySend]:
        """A transaction whose EndTxn is on its way: it, the outcome of its end, and EndTxn."""
        begin, _ = self.written()
        outcome = self.end(begin, commit=commit)
        return begin, outcome, self.one(Api.END_TXN)

    def works(self) -> bool:
        """Whether another transaction can be committed."""
        begin, _ = self.written("more")
        outcome = self.commit(begin)
        self.go_on(outcome)
        return outcome.error is None


def leave(send: AnySend) -> None:
    """Hand a request to a connection."""
    if send.on_sent is not None:
        send.on_sent()


def found_coordinator(send: AnySend, code: int = 0) -> Any:
    (key,) = send.message.coordinator_keys
    node = -1 if code else 1 if send.message.key_type == CoordinatorKind.TRANSACTION else 2
    found: Any = find_coordinator_response.Coordinator(
        key=key, node_id=node, host="" if code else "one", port=-1 if code else 9092, error_code=ErrorCode(code), error_message=None
    )
    return find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(found,))


def partitions_answer(codes: Iterable[tuple[TopicPartition, int]]) -> Any:
    """An answer to AddPartitionsToTxn."""
    results = tuple(
        add_partitions_to_txn_response.AddPartitionsToTxnTopicResult(
            name=tp.topic,
            results_by_partition=(
                add_partitions_to_txn_response.AddPartitionsToTxnPartitionResult(
                    partition_index=tp.partition, partition_error_code=ErrorCode(code)
                ),
            ),
        )
        for tp, code in codes
    )
    one = add_partitions_to_txn_response.AddPartitionsToTxnResult(transactional_id=ID, topic_results=results)
    return add_partitions_to_txn_response.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=(one,)
    )


def offsets_answer(codes: Iterable[tuple[TopicPartition, int]]) -> Any:
    """An answer to TxnOffsetCommit."""
    topics = tuple(
        txn_offset_commit_response.TxnOffsetCommitResponseTopic(
            name=tp.topic,
            partitions=(
                txn_offset_commit_response.TxnOffsetCommitResponsePartition(
                    partition_index=tp.partition, error_code=ErrorCode(code)
                ),
            ),
        )
        for tp, code in codes
    )
    return txn_offset_commit_response.TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)


def answer_to(send: AnySend, code: int, epoch: int | None) -> Any:
    """An answer of a coordinator with one code; ``epoch``: the new one, if there is one."""
    error: Any = ErrorCode(code)
    producer_id, new = (-1, -1) if epoch is None else (PRODUCER_ID, epoch)
    match send.api:
        case Api.INIT_PRODUCER_ID:
            return init_producer_id_response.InitProducerIdResponse(
                throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=new
            )
        case Api.ADD_PARTITIONS_TO_TXN:
            (transaction,) = send.message.transactions
            return partitions_answer(
                (TopicPartition(topic.name, number), code) for topic in transaction.topics for number in topic.partitions
            )
        case Api.ADD_OFFSETS_TO_TXN:
            return add_offsets_to_txn_response.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=error)
        case Api.TXN_OFFSET_COMMIT:
            return offsets_answer(
                (TopicPartition(topic.name, part.partition_index), code)
                for topic in send.message.topics
                for part in topic.partitions
            )
        case Api.END_TXN:
            return end_txn_response.EndTxnResponse(
                throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=new
            )
    raise AssertionError(send)


def failed(outcome: Outcome) -> OttlaError:
    """The error of a command."""
    assert outcome.done
    assert outcome.error is not None
    return outcome.error


def succeeded(outcome: Outcome) -> bool:
    """Whether a command has been carried out."""
    return outcome.done and outcome.error is None
