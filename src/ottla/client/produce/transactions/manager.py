"""The transactions of a producer: their state, from InitProducerId to EndTxn.

Owns the state. Must not know how batches are filled, sent or repeated, nor how coordinators are found. Invariants: ``TRANSITIONS``
has every change of the state; EndTxn is sent only when no record of the transaction is on its way, and, to commit, when all are
acknowledged; that a transaction was committed, or was not, is reported only when it is certain.

Version 1 registers each partition with the coordinator before records are written to it, and each group before its offsets. Version
2 (KIP-890) leaves both to the brokers, and each EndTxn begins a new epoch, so that nothing of one transaction can become part of
the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.coordinator import CoordinatorKind, CoordinatorManager
from ottla.client.effects import Poll, ToCoordinator, Unreachable
from ottla.client.produce.sequences import ProducerIdAndEpoch, Sequences
from ottla.client.produce.transactions import requests
from ottla.client.produce.transactions.commands import (
    Begin,
    CloseTransaction,
    CommitOffsets,
    EndTransaction,
    Initialize,
    Prepare,
)
from ottla.client.produce.transactions.contents import TransactionContents
from ottla.client.produce.transactions.coordinators import CoordinatorRequest, CoordinatorRequests
from ottla.client.produce.transactions.prepared import Prepared
from ottla.client.produce.transactions.requests import OF_MEMBER, Identity, TransactionReaction, reaction_to
from ottla.client.produce.transactions.states import OPEN_STATES, TRANSITIONS, TransactionInput as Input, TransactionState as State
from ottla.config.producer import ProducerConfig
from ottla.errors import (
    ClosedError,
    CommitFailedError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OttlaError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
)
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import end_txn_response, init_producer_id_response
from ottla.records.accumulator import RecordAccumulator
from ottla.types import Now, TopicPartition

_log = logging.getLogger(__name__)

FEATURE = "transaction.version"
"""The feature of a cluster that says which version of transactions it has."""

_NO_ID = ProducerIdAndEpoch(-1, -1)

_NOT_OPEN = "no transaction is open"

_REFUSED: Mapping[State, str] = {
    State.UNINITIALIZED: _NOT_OPEN,
    State.INITIALIZING: _NOT_OPEN,
    State.READY: _NOT_OPEN,
    State.IN_TRANSACTION: "a transaction is open",
    State.PREPARING_TRANSACTION: "the transaction is being prepared",
    State.PREPARED_TRANSACTION: "the transaction is prepared, and finish() ends it; initialize() lets this producer go on",
    State.COMMITTING_TRANSACTION: "the transaction is being committed",
    State.ABORTING_TRANSACTION: "the transaction is being aborted",
}
"""State -> why a call is not allowed in it, for the states without an error."""

_ONE_AT_A_TIME = "a producer has one transaction at a time, and only one thread or task at a time may use it"

_ENDING: Mapping[bool, State] = {True: State.COMMITTING_TRANSACTION, False: State.ABORTING_TRANSACTION}
"""Whether a transaction is committed -> the state in which it ends."""

_AWAITED = frozenset({State.INITIALIZING, State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION})
"""The states that end by themselves."""


class Batches(Protocol):
    """What the sender offers the transactions."""

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""

    def abort_unsent(self, error: OttlaError, now: Now) -> None:
        """Fail all batches that are not in flight."""


class TransactionManager:
    """A ``RequestManager``, polled after the sender. ``batches`` is set before the first poll. See ``CoordinatorRequests`` for
    ``coordinator_of`` and ``features``.
    """

    batches: Batches

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        sequences: Sequences,
        backoff: ExponentialBackoff,
        coordinator_of: Callable[[CoordinatorKind, str], CoordinatorManager],
        features: Callable[[ToCoordinator], Mapping[str, int] | None],
        unreachable: Unreachable,
    ) -> None:
        assert config.transactional_id is not None
        self.state = State.UNINITIALIZED
        self.error: OttlaError | None = None
        """Why the state is ``ABORTABLE_ERROR`` or ``FATAL_ERROR``."""
        self._id = config.transactional_id
        self._timeout_ms = config.transaction_timeout_ms
        self._max_block_ms = config.max_block_ms
        self._accumulator = accumulator
        self._sequences = sequences
        self._coordinators = CoordinatorRequests(config, backoff, coordinator_of, features, unreachable, self._on_failure)
        self._contents = TransactionContents(accumulator, self._coordinators, self._who, self._refused)
        self._is_latest = False
        """Whether InitProducerId has the present id and epoch, so that it succeeds only if no other producer has a newer one."""
        self._initializing: list[Initialize] = []
        self._begin: Begin | None = None
        """The transaction that begins as soon as the state allows it."""
        self._transaction: Begin | None = None
        """The open transaction, or the latest one."""
        self._was_committed: bool | None = None
        """How that one ended; ``None``: it has not ended, or that is not known."""
        self._ending: EndTransaction | Prepare | CloseTransaction | None = None
        self._end_by: int | None = None
        self._is_in_doubt = False
        """Whether an EndTxn was sent to which no response came."""
        self._needs_epoch = False
        """Whether batches of the transaction may be written that were not acknowledged, so that the next one needs a new epoch."""
        self._is_forgotten = False
        """Whether the coordinator knows no transaction of the producer, so that EndTxn would be refused."""
        accumulator.accepts = False

    def __repr__(self) -> str:
        return f"<TransactionManager {self._id!r} {self.state.name}>"

    # -- what the sender asks and reports -----------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of transactions."""
        return self._contents.version

    def may_send(self, tp: TopicPartition) -> bool:
        """Whether batches of a partition may be sent now."""
        return self.state in OPEN_STATES and (self.version > 1 or tp in self._contents.partitions)

    @property
    def may_retry(self) -> bool:
        """Whether batches may be sent again."""
        return self.state in OPEN_STATES

    def sent(self, tp: TopicPartition) -> None:
        """Note that a batch becomes part of a request."""
        self._contents.sent(tp)

    def failed(self, error: OttlaError, now: Now, *, was_sent: bool) -> None:
        """Note that a batch has failed."""
        self._needs_epoch = self._needs_epoch or was_sent
        if isinstance(error, InvalidProducerEpochError | ProducerFencedError):
            error = requests.refusal(error.code, str(error.args[0]), self._id, self._timeout_ms)
            if self.state in OPEN_STATES:
                self._cannot_go_on(error, now, is_final=True)
        else:
            self._fail(error, now)

    def refusal(self, what: str | None = None) -> OttlaError:
        """The error for a call, ``what``, that is not allowed in the present state. Any thread may call this."""
        return _refusal(self.state, self.error, what)

    def current(self) -> object:
        """The open transaction, or the latest one. Any thread may call this."""
        return self._transaction

    # -- commands -----------------------------------------------------------------------------------------------------------

    def initialize(self, command: Initialize, now: Now) -> None:
        """Handle the command."""
        del now
        if self.state is State.READY:
            command.outcome.settle()
        elif self.state in _AWAITED:
            self._initializing.append(command)
        elif Input.INITIALIZE in TRANSITIONS[self.state]:
            self._is_latest = False
            self._initializing.append(command)
            self._move(Input.INITIALIZE)
        else:
            command.outcome.settle(error=self.refusal())

    def begin(self, command: Begin, now: Now) -> None:
        """Handle the command. It waits while the transaction before is being ended."""
        del now
        if self._begin is not None or self.state not in (*_AWAITED, State.UNINITIALIZED, State.READY):
            return command.outcome.settle(error=self.refusal("beginning a transaction"))
        self._begin = command
        if self.state is State.UNINITIALIZED or (
            self.state is State.READY and self._version_of_cluster() not in (None, self.version)
        ):
            self._move(Input.INITIALIZE)  # with a new version of transactions another epoch begins (KIP-890)
        return self._begin_if_ready()

    def commit_offsets(self, command: CommitOffsets, now: Now) -> None:
        """Handle the command."""
        del now
        if self.state is State.IN_TRANSACTION and command.transaction is self._transaction:
            self._contents.offsets.append(command)
        else:
            command.outcome.settle(error=self._not_open(command.transaction))

    def prepare(self, command: Prepare, now: Now) -> None:
        """Handle the command."""
        del now
        if self.state is State.IN_TRANSACTION and command.transaction is self._transaction:
            self._send_all(Input.PREPARE, command)
        else:
            command.outcome.settle(error=self._not_open(command.transaction))

    def end(self, command: EndTransaction, now: Now) -> None:
        """Handle the command."""
        is_latest = command.transaction is self._transaction
        if command.transaction is self._begin:  # the call that begins it was interrupted
            self._begin = None
            command.outcome.settle()
        elif is_latest and self._ending is None and self.state is _ENDING[command.commit]:
            self._ending, self._end_by = command, now.mono + self._max_block_ms  # the call before has not waited for the outcome
        elif is_latest and isinstance(self._ending, EndTransaction) and self.state is _ENDING[command.commit]:
            first = self._ending.outcome  # its call was interrupted, or is another thread's
            first.waiters.append(lambda: command.outcome.settle(first.value, first.error))
        elif is_latest and command.commit and self.state is State.IN_TRANSACTION:
            self._send_all(Input.COMMIT, command)
        elif is_latest and not command.commit and Input.ABORT in TRANSITIONS[self.state]:
            self._abort(command, now)
        elif is_latest and self._was_committed is command.commit:
            command.outcome.settle()
        else:
            command.outcome.settle(error=self._not_open(command.transaction))

    def close(self, command: CloseTransaction, now: Now) -> None:
        """Handle the command: abort an open transaction, or wait for the end of one."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin.outcome.settle(error=ClosedError("the producer is closed"))
        if Input.ABORT in TRANSITIONS[self.state]:
            self._abort(command, now)
        elif self.state not in (State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION):
            command.outcome.settle()
        elif self._ending is None:
            self._ending, self._end_by = command, now.mono + self._max_block_ms
        else:  # another call waits for the end, or was interrupted while it did
            self._ending.outcome.waiters.append(command.outcome.settle)

    def _abort(self, command: EndTransaction | CloseTransaction | None, now: Now) -> None:
        aborted = TransactionAbortedError("the transaction was aborted")
        self._settle_ending(aborted)
        self._move(Input.ABORT)
        self.error, self._accumulator.accepts = None, False
        self._ending, self._end_by = command, now.mono + self._max_block_ms
        self._contents.settle_offsets(aborted)
        self.batches.abort_unsent(aborted, now)

    def _send_all(self, what: Input, command: EndTransaction | Prepare) -> None:
        """Send what the transaction still has, then end or prepare it."""
        self._move(what)
        self._ending, self._end_by = command, None
        self._accumulator.accepts = False
        self._accumulator.close_all()

    def _not_open(self, transaction: Begin) -> OttlaError:
        if transaction is not self._transaction:
            return IllegalStateError("the transaction has ended")
        if self.error is None and self._was_committed is not None:
            return IllegalStateError(f"the transaction has ended: it was {'committed' if self._was_committed else 'aborted'}")
        return self.refusal()

    # -- polling ------------------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Take the next step."""
        self._time_out(now)
        before = None
        while self.state is not before and self._coordinators.is_ready(now):
            before = self.state
            self._step(now)
        sends, at = self._coordinators.poll(now)
        wake_at = [command.deadline for command in self._initializing]
        wake_at += [command.deadline for command in self._contents.offsets]
        wake_at += [self._begin.deadline] if self._begin is not None else []
        wake_at += [when for when in (self._end_by, at) if when is not None]
        return Poll(sends, min(wake_at, default=None))

    def _step(self, now: Now) -> None:
        if self.state in (State.INITIALIZING, State.ABORTING_TRANSACTION):
            # A request that is still on its way could write to the next transaction, and its batch be sent again there.
            if self._accumulator.incomplete or self.batches.in_flight:
                return
            if self.state is State.INITIALIZING:
                self._init_producer_id()
            else:
                self._end_txn(now)
        elif self.state in OPEN_STATES and not self._contents.ask() and self._contents.is_acknowledged:
            if self.state is State.PREPARING_TRANSACTION:
                self._prepared()
            elif self.state is State.COMMITTING_TRANSACTION:
                self._end_txn(now)

    def _who(self) -> Identity:
        return Identity(self._id, self._sequences.current or _NO_ID)

    def _init_producer_id(self) -> None:
        producer = self._who().producer if self._is_latest else _NO_ID
        self._coordinators.ask(
            CoordinatorRequest(
                rpcs.INIT_PRODUCER_ID,
                requests.init_producer_id(Identity(self._id, producer), self._timeout_ms),
                self._on_producer_id,
                "initializing the producer",
                requires=None if producer is _NO_ID else VersionRule.KEEPS_PRODUCER_ID,
            )
        )

    def _on_producer_id(self, response: init_producer_id_response.InitProducerIdResponse, now: Now) -> None:
        if response.error_code:
            return self._refused(int(response.error_code), "initializing the producer", None, now)
        self._coordinators.succeeded()
        self._sequences.restart(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
        self._is_latest, self._needs_epoch, self._is_forgotten, self.error = True, False, False, None
        self._contents.version = self._version_of_cluster() or self.version
        self._move(Input.INITIALIZED)
        return self._begin_if_ready()

    def _end_txn(self, now: Now) -> None:
        if not self._contents.is_registered or self._is_forgotten:
            return self._ended(None, now)
        commit = self.state is State.COMMITTING_TRANSACTION
        if self._end_by is None and self._ending is not None:
            self._end_by = now.mono + self._max_block_ms
        rule = VersionRule.TRANSACTION_V2
        self._coordinators.ask(
            CoordinatorRequest(
                rpcs.END_TXN,
                requests.end_txn(self._who(), commit=commit),
                self._on_ended,
                "committing the transaction" if commit else "aborting the transaction",
                requires=rule if self.version > 1 else None,
                excludes=rule if self.version == 1 else None,
                on_lost=self._on_end_lost,
            )
        )
        return None

    def _on_end_lost(self) -> None:
        self._is_in_doubt = True

    def _on_ended(self, response: end_txn_response.EndTxnResponse, now: Now) -> None:
        if response.error_code:
            self._is_in_doubt = self._is_in_doubt or response.error_code not in requests.NOT_ENDED
            what = f"{'committing' if self.state is State.COMMITTING_TRANSACTION else 'aborting'} the transaction"
            return self._refused(int(response.error_code), what, None, now)
        self._coordinators.succeeded()
        is_new = self.version > 1 and response.producer_id >= 0
        return self._ended(ProducerIdAndEpoch(response.producer_id, response.producer_epoch) if is_new else None, now)

    # -- outcomes -----------------------------------------------------------------------------------------------------------

    def _ended(self, producer: ProducerIdAndEpoch | None, now: Now) -> None:
        """Note that the transaction has ended; ``producer``: the new epoch, if the end has begun one."""
        if producer is not None:
            self._sequences.restart(producer)
            self._needs_epoch = False
        self._was_committed = self.state is State.COMMITTING_TRANSACTION
        if self._ending is None:  # a call has raised that the outcome is not known yet
            _log.info("the latest transaction of %r was %s", self._id, "committed" if self._was_committed else "aborted")
        self._move(Input.ENDED)
        self.error = None
        self._settle_ending(None)
        if self._needs_epoch:
            self._move(Input.INITIALIZE)
        self._begin_if_ready()

    def _prepared(self) -> None:
        producer = self._who().producer
        prepared = Prepared(self._id, *producer, self.version, is_empty=not self._contents.is_registered)
        self._move(Input.PREPARED)
        self._settle_ending(None, prepared)

    def _refused(self, code: int, what: str, group_id: str | None, now: Now) -> None:
        """React to an error code of a coordinator."""
        error = requests.refusal(code, what, self._id, self._timeout_ms)
        reaction = reaction_to(code)
        if reaction in (TransactionReaction.RETRY, TransactionReaction.FIND_COORDINATOR):
            has_moved = reaction is TransactionReaction.FIND_COORDINATOR
            return self._coordinators.refused(code, error, group_id, now, has_moved=has_moved)
        if code in OF_MEMBER:
            error = CommitFailedError(f"{error.args[0]}: the group has rebalanced", cause=error)
        self._is_forgotten = self._is_forgotten or reaction is TransactionReaction.NEW_EPOCH
        self._needs_epoch = self._needs_epoch or self._is_forgotten
        if self.state is State.ABORTING_TRANSACTION and (self._is_forgotten or self._was_never_open(code)):
            return self._ended(None, now)
        # The coordinator aborts a transaction that takes too long. In version 2 it then refuses to commit, and does not fence.
        was_aborted = code == ErrorCode.invalid_txn_state and self.state is State.COMMITTING_TRANSACTION
        return self._cannot_go_on(error, now, is_final=reaction is TransactionReaction.FATAL and not was_aborted)

    def _was_never_open(self, code: int) -> bool:
        """Whether the coordinator refuses to abort since no request that opens a transaction of version 1 was executed."""
        return code == ErrorCode.invalid_txn_state and self.version == 1 and not self._contents.is_confirmed

    def _on_failure(self, error: OttlaError, group_id: str | None, now: Now) -> None:
        """React to a request, or a look-up, that failed in a way that a retry does not fix."""
        if group_id is not None and all(command.group.group_id != group_id for command in self._contents.offsets):
            return  # the look-up for an earlier transaction, which goes on
        if Input.FATAL in TRANSITIONS[self.state]:
            self._cannot_go_on(error, now, is_final=False)

    def _cannot_go_on(self, error: OttlaError, now: Now, *, is_final: bool) -> None:
        if self.state is State.COMMITTING_TRANSACTION and self._is_in_doubt and not isinstance(error, InvalidTxnStateError):
            # 1. An EndTxn was executed, or not: its response was lost. 2. The answer to its repetition does not tell which.
            text = f"whether the transaction was committed is not known: a response was lost, and then: {error.args[0]}"
            return self._fatal(TransactionOutcomeUnknownError(text, cause=error), now)
        if is_final or self.state in (State.INITIALIZING, State.ABORTING_TRANSACTION):
            return self._fatal(error, now)
        return self._fail(error, now)

    def _fail(self, error: OttlaError, now: Now) -> None:
        """Let the transaction be one that can only be aborted."""
        if self.state not in OPEN_STATES:
            return
        was_committing = self.state is State.COMMITTING_TRANSACTION
        self._move(Input.FAIL)
        aborted = TransactionAbortedError(f"the transaction has to be aborted: {error.args[0]}", hint=error.hint, cause=error)
        self._stop(error if isinstance(error, CommitFailedError) else aborted, aborted, now)
        if was_committing:  # the call to commit may have been interrupted, and then no other call would abort
            self._abort(None, now)

    def _fatal(self, error: OttlaError, now: Now) -> None:
        """Let the producer be one that cannot go on."""
        self._move(Input.FATAL)
        self._stop(error, error, now)
        outcomes = [command.outcome for command in self._initializing]
        outcomes += [self._begin.outcome] if self._begin is not None else []
        self._initializing, self._begin = [], None
        for outcome in outcomes:
            outcome.settle(error=error)

    def _stop(self, of_offsets: OttlaError, error: OttlaError, now: Now) -> None:
        self.error, self._accumulator.accepts = error, False
        self._contents.settle_offsets(of_offsets)
        self._settle_ending(error)
        self.batches.abort_unsent(error, now)

    def _settle_ending(self, error: OttlaError | None, value: object = None) -> None:
        ending, self._ending, self._end_by = self._ending, None, None
        if ending is not None:
            ending.outcome.settle(value, error)

    # -- states -------------------------------------------------------------------------------------------------------------

    def _move(self, what: Input) -> None:
        was_open, self.state = self.state in OPEN_STATES, TRANSITIONS[self.state][what]
        if not (was_open and self.state in OPEN_STATES):
            self._coordinators.enter(object())

    def _begin_if_ready(self) -> None:
        if self.state is not State.READY:
            return
        initializing, self._initializing = self._initializing, []
        for command in initializing:
            command.outcome.settle()
        if self._begin is None:
            return
        self._transaction, self._begin = self._begin, None
        self._was_committed, self._is_in_doubt = None, False
        self._contents.begin()
        self._move(Input.BEGIN)
        self._accumulator.accepts = True
        self._transaction.outcome.settle()

    def _version_of_cluster(self) -> int | None:
        features = self._coordinators.features
        return None if features is None else 2 if features.get(FEATURE, 0) >= 2 else 1

    # -- time-outs ----------------------------------------------------------------------------------------------------------

    def _time_out(self, now: Now) -> None:
        for command in [command for command in self._initializing if command.deadline <= now.mono]:
            self._initializing.remove(command)
            command.outcome.settle(error=self._coordinators.late("the producer was not initialized"))
        if self._begin is not None and self._begin.deadline <= now.mono:
            begin, self._begin = self._begin, None
            begin.outcome.settle(error=self._coordinators.late("no transaction could be begun"))
        late = next((command for command in self._contents.offsets if command.deadline <= now.mono), None)
        if late is not None:
            group_id = late.group.group_id
            self._fail(self._coordinators.late(f"the offsets of group {group_id!r} were not committed", group_id), now)
        if self._end_by is not None and self._end_by <= now.mono:
            self._end_late(now)

    def _end_late(self, now: Now) -> None:
        if self.state is State.ABORTING_TRANSACTION:
            self._settle_ending(self._coordinators.late("the transaction is being aborted, but not ended"))
        elif self._is_in_doubt or self._coordinators.is_in_flight:  # one that waits for a connection will be sent
            late = self._coordinators.late("whether the transaction is committed was not known")
            hint = "commit() waits for the outcome again, and so does the next transaction"
            self._settle_ending(TransactionOutcomeUnknownError(late.args[0], hint=hint, cause=late))
        else:
            self._fail(self._coordinators.late("the transaction was not committed"), now)


def _refusal(state: State, error: OttlaError | None, what: str | None) -> OttlaError:
    """The error for a call, ``what``, in a state; ``error``: that of the state."""
    if error is not None:
        error = error.afresh()
        if state is State.FATAL_ERROR:  # an earlier call has raised it, with its own name
            text = f"the producer cannot go on until initialize(): {error.args[0]}"
            error.args = (f"{what}: {text}" if what else text,)
        return error
    text = _REFUSED.get(state, _NOT_OPEN)
    others = None if state is State.PREPARED_TRANSACTION else _ONE_AT_A_TIME
    return IllegalStateError(text, hint="with producer.transaction(): ..." if text is _NOT_OPEN else others)
