"""The calls of an ``Admin`` about transactions: their end, their description, and the abort of those that hang.

Owns the requests and the meaning of their responses. Must not know time, retries or connections. Invariants: each attempt to end a
transaction repeats the same id, epoch and version of EndTxn, so that it has no effect after one that was executed; an error never
says that a transaction has not ended if a request without a response may have ended it.

Sources: KIP-98, KIP-664, KIP-890; for the end from another process, the resumed transactional ids of Apache Flink's sink.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ottla.client.admin.calls import (
    AdminRequest,
    Call,
    CallAttempt,
    PermanentFailure,
    ask_each,
    by_topic,
    check,
    cluster,
    leaders_of,
)
from ottla.client.admin.results import ProducerState, TransactionDescription, TransactionListing
from ottla.client.cluster.coordinator import CoordinatorKind
from ottla.errors import (
    ConnectionFailedError,
    InvalidRequestError,
    InvalidTxnStateError,
    OttlaError,
    ProtocolError,
    TransactionOutcomeUnknownError,
    UnsupportedApiError,
    broker_error,
)
from ottla.protocol import ErrorCode, duration, milliseconds, rpcs
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import (
    describe_producers_request,
    describe_transactions_request,
    describe_transactions_response,
    end_txn_request,
    find_coordinator_request,
    find_coordinator_response,
    init_producer_id_request,
    list_transactions_request,
    write_txn_markers_request,
)
from ottla.types import Node, TopicPartition

_NONE = -1

_NOT_EXECUTED = frozenset({ErrorCode.coordinator_load_in_progress})
"""The codes that a retry may fix, and with which EndTxn certainly has no effect. CONCURRENT_TRANSACTIONS can mean that the outcome
is stored; NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE are also the answers of a coordinator that has written it, and then has not
heard from the replicas."""

_OUTCOMES: Mapping[bool, str] = {True: "committed", False: "aborted"}

_VERBS: Mapping[bool, str] = {True: "committing", False: "aborting"}

_FORGOTTEN = frozenset({ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
"""The codes after which the coordinator no longer knows how the transaction ended."""


class PreparedTransaction(Protocol):
    """A transaction to end."""

    @property
    def transactional_id(self) -> str:
        """The id of its producer."""

    @property
    def producer_id(self) -> int:
        """The producer's id in its partitions."""

    @property
    def producer_epoch(self) -> int:
        """The epoch of that."""

    @property
    def transaction_version(self) -> int:
        """The version of transactions: 2 with KIP-890, else 1."""


class _UnfinishedError(OttlaError):
    """Some transactions have not ended yet: the next attempt tries those again."""

    retriable = True


# -- the end of transactions ----------------------------------------------------------------------------------------------


def end_transactions(transactions: Iterable[PreparedTransaction], commit: bool) -> Call[None]:
    """Commit or abort transactions."""
    return _Ending(transactions, commit).attempt


class _Ending:
    """The transactions that have not ended, and those whose end was refused."""

    def __init__(self, transactions: Iterable[PreparedTransaction], commit: bool) -> None:
        self._left = dict.fromkeys(transactions)
        self._commit = commit
        self._refused: dict[PreparedTransaction, OttlaError] = {}
        self._in_doubt: set[PreparedTransaction] = set()
        """Those with a request that may have been executed, since no response came."""

    def attempt(self) -> CallAttempt[None]:
        """Try to end all that are left."""
        waiting: dict[PreparedTransaction, OttlaError] = {}
        found = yield from _coordinators(one.transactional_id for one in self._left)
        asked: list[tuple[PreparedTransaction, Node]] = []
        for one in self._left:
            coordinator = found[one.transactional_id]
            if isinstance(coordinator, Node):
                asked.append((one, coordinator))
            else:
                self._failed(one, coordinator, waiting)
        sent: set[PreparedTransaction] = set()
        answers = yield tuple(self._request(one, node, sent) for one, node in asked)
        for (one, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, OttlaError):
                self._in_doubt |= {one} & sent
                self._failed(one, answer, waiting)
            elif answer.error_code:
                self._in_doubt |= {one} if answer.error_code not in _NOT_EXECUTED else set()
                self._failed(one, self._refusal(one, int(answer.error_code)), waiting)
            else:
                del self._left[one]
        for one in self._refused:
            self._left.pop(one, None)
        self._raise(waiting)

    def _request(self, one: PreparedTransaction, node: Node, sent: set[PreparedTransaction]) -> AdminRequest:
        message = end_txn_request.EndTxnRequest(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            committed=self._commit,
        )
        rule, is_v2 = VersionRule.TRANSACTION_V2, one.transaction_version > 1
        return AdminRequest(
            rpcs.END_TXN,
            message,
            node,
            requires=rule if is_v2 else None,
            excludes=None if is_v2 else rule,
            on_sent=lambda: sent.add(one),
            may_fail=True,
        )

    def _failed(self, one: PreparedTransaction, error: OttlaError, waiting: dict[PreparedTransaction, OttlaError]) -> None:
        """Note an error: one that a retry may fix is tried again."""
        (waiting if error.retriable else self._refused)[one] = error

    def _refusal(self, one: PreparedTransaction, code: int) -> OttlaError:
        who, outcome = f"transactional id {one.transactional_id!r}", _OUTCOMES[self._commit]
        if code in _FORGOTTEN:
            cause = broker_error(code)
            return TransactionOutcomeUnknownError(
                f"whether the transaction of {who} was {outcome} is not known: its producer id {one.producer_id} with epoch"
                f" {one.producer_epoch} is no longer the latest one [{cause.name}]",
                hint="a producer was initialized with this id later, or the transaction took longer than transaction.timeout.ms, or"
                " the id has expired; only something that the transaction wrote itself, such as a marker, can tell the outcome",
                cause=cause,
            )
        if code == ErrorCode.invalid_txn_state:
            other = _OUTCOMES[not self._commit]
            return InvalidTxnStateError(
                f"the transaction of {who} cannot be {outcome}: it was {other}",
                hint="another call of finish() has ended it that way"
                + (", or it took longer than transaction.timeout.ms" if self._commit else ""),
            )
        return broker_error(code, f"{_VERBS[self._commit]} the transaction of {who}")

    def _raise(self, waiting: Mapping[PreparedTransaction, OttlaError]) -> None:
        """Raise if some transactions have not ended: as retriable as long as a retry may end some."""
        if not waiting:
            if self._refused:
                raise PermanentFailure(_joined(self._refused))
            return
        first = next(iter(waiting.values()))
        if isinstance(first, ConnectionFailedError) and not self._refused and not self._in_doubt:
            raise first  # it lists the addresses
        texts = [_text(one, error) for one, error in self._refused.items()]
        texts += [_text(one, error) for one, error in waiting.items() if one not in self._in_doubt]
        texts += [f"{_text(one, error)}, so that it may be {_OUTCOMES[self._commit]}" for one, error in self._doubted(waiting)]
        raise _UnfinishedError("; ".join(texts), hint="the same call may be repeated: that does no harm", cause=first)

    def _doubted(self, waiting: Mapping[PreparedTransaction, OttlaError]) -> Iterator[tuple[PreparedTransaction, OttlaError]]:
        return ((one, error) for one, error in waiting.items() if one in self._in_doubt)


def _text(one: PreparedTransaction, error: OttlaError) -> str:
    text = str(error.args[0])
    return text if repr(one.transactional_id) in text else f"transactional id {one.transactional_id!r}: {text}"


def _joined(refused: Mapping[PreparedTransaction, OttlaError]) -> OttlaError:
    """One error for all: of the class that is hardest to handle."""
    errors = list(refused.values())
    kinds = (TransactionOutcomeUnknownError, InvalidTxnStateError, OttlaError)
    leading = next(error for kind in kinds for error in errors if isinstance(error, kind))
    if len(errors) > 1 and all(error is leading for error in errors):
        return leading  # a refused login, for example
    texts = "; ".join(_text(one, error) for one, error in refused.items())
    joined = leading.afresh()
    joined.args = (texts,)
    return joined


# -- coordinators ---------------------------------------------------------------------------------------------------------


def _coordinators(ids: Iterable[str]) -> CallAttempt[dict[str, Node | OttlaError]]:
    """Return the coordinator of each transactional id, or why it was not found: with one request, or, if the broker is too old
    for that, one for each id.
    """
    wanted = list(dict.fromkeys(ids))
    if len(wanted) > 1:
        (answer,) = yield (_lookup(wanted, VersionRule.MANY_KEYS),)
        if not isinstance(answer, UnsupportedApiError):
            return {key: _coordinator(key, answer) for key in wanted}
    answers = yield tuple(_lookup([key]) for key in wanted)
    return {key: _coordinator(key, answer) for key, answer in zip(wanted, answers, strict=True)}


def _lookup(keys: Collection[str], rule: VersionRule | None = None) -> AdminRequest:
    message = find_coordinator_request.FindCoordinatorRequest(key_type=CoordinatorKind.TRANSACTION, coordinator_keys=tuple(keys))
    return AdminRequest(rpcs.FIND_COORDINATOR, message, requires=rule, may_fail=True)


def _coordinator(key: str, answer: find_coordinator_response.FindCoordinatorResponse | OttlaError) -> Node | OttlaError:
    if isinstance(answer, OttlaError):
        return answer
    # Before FindCoordinator 4 the response does not name its only key.
    item = next((item for item in answer.coordinators if item.key in (key, "")), None)
    if item is None:
        return ProtocolError(f"the response to FindCoordinator does not name transactional id {key!r}")
    if item.error_code:
        what = f"the coordinator of transactional id {key!r}"
        return broker_error(int(item.error_code), f"{what}: {item.error_message}" if item.error_message else what)
    return Node(item.node_id, item.host, item.port)


def _all_coordinators(ids: Iterable[str]) -> CallAttempt[dict[str, Node]]:
    """Return the coordinator of each transactional id; raise the first error."""
    found = yield from _coordinators(ids)
    for answer in found.values():
        if isinstance(answer, OttlaError):
            raise answer
    return {key: node for key, node in found.items() if isinstance(node, Node)}


# -- descriptions ---------------------------------------------------------------------------------------------------------


def describe_transactions(ids: Iterable[str]) -> Call[dict[str, TransactionDescription]]:
    """Return transactional ids and their latest transactions, by id."""
    wanted = list(dict.fromkeys(ids))

    def attempt() -> CallAttempt[dict[str, TransactionDescription]]:
        nodes = yield from _all_coordinators(wanted)
        by_node: dict[Node, list[str]] = defaultdict(list)
        for key, node in nodes.items():
            by_node[node].append(key)
        answers = yield from ask_each(
            rpcs.DESCRIBE_TRANSACTIONS,
            [
                (describe_transactions_request.DescribeTransactionsRequest(transactional_ids=tuple(keys)), node)
                for node, keys in by_node.items()
            ],
        )
        states = {state.transactional_id: state for answer in answers for state in answer.transaction_states}
        return {key: _described(states[key], nodes[key]) for key in wanted}

    return attempt


def _described(state: describe_transactions_response.TransactionState, coordinator: Node) -> TransactionDescription:
    check(state.error_code, f"transactional id {state.transactional_id!r}")
    started = state.transaction_start_time_ms
    return TransactionDescription(
        transactional_id=state.transactional_id,
        coordinator=coordinator,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        transaction_timeout_ms=milliseconds(state.transaction_timeout),
        transaction_start_time_ms=None if started == _NONE else started,
        partitions=tuple(sorted(TopicPartition(topic.topic, number) for topic in state.topics for number in topic.partitions)),
    )


@dataclass(frozen=True, slots=True)
class TransactionFilters:
    """Which transactional ids to list. Empty collections are no filters; ``duration_ms`` is the time since a transaction began."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int | None = None
    transactional_id_pattern: str | None = None

    @property
    def rule(self) -> VersionRule | None:
        """The rule that must hold for a request with these filters."""
        if self.transactional_id_pattern is not None:
            return VersionRule.FILTERS_IDS
        return None if self.duration_ms is None else VersionRule.FILTERS_DURATION


def list_transactions(filters: TransactionFilters) -> Call[tuple[TransactionListing, ...]]:
    """Return the transactional ids of all brokers that pass the filters."""
    message = list_transactions_request.ListTransactionsRequest(
        state_filters=filters.states,
        producer_id_filters=filters.producer_ids,
        duration_filter=_NONE if filters.duration_ms is None else filters.duration_ms,
        transactional_id_pattern=filters.transactional_id_pattern,
    )

    def attempt() -> CallAttempt[tuple[TransactionListing, ...]]:
        _, nodes = yield from cluster()
        answers = yield tuple(AdminRequest(rpcs.LIST_TRANSACTIONS, message, node, requires=filters.rule) for node in nodes.values())
        for answer in answers:
            check(answer.error_code, "the transactions of a broker")
            if answer.unknown_state_filters:
                names = ", ".join(map(repr, answer.unknown_state_filters))
                raise PermanentFailure(InvalidRequestError(f"the broker knows no transaction state {names}"))
        listed = {
            state.transactional_id: TransactionListing(state.transactional_id, state.producer_id, state.transaction_state)
            for answer in answers
            for state in answer.transaction_states
        }
        return tuple(listed[key] for key in sorted(listed))

    return attempt


def describe_producers(tps: Iterable[TopicPartition]) -> Call[dict[TopicPartition, tuple[ProducerState, ...]]]:
    """Return the producers that the leader of each partition knows."""
    wanted = list(dict.fromkeys(tps))

    def attempt() -> CallAttempt[dict[TopicPartition, tuple[ProducerState, ...]]]:
        leaders = yield from leaders_of(wanted)
        requests = []
        for node in dict.fromkeys(leaders.values()):
            topics = tuple(
                describe_producers_request.TopicRequest(name=name, partition_indexes=tuple(tp.partition for tp in of_topic))
                for name, of_topic in by_topic(tp for tp in wanted if leaders[tp] == node).items()
            )
            requests.append((describe_producers_request.DescribeProducersRequest(topics=topics), node))
        answers = yield from ask_each(rpcs.DESCRIBE_PRODUCERS, requests)
        found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        for topic in (topic for answer in answers for topic in answer.topics):
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                check(part.error_code, f"the producers of {tp}")
                found[tp] = tuple(
                    ProducerState(
                        producer_id=item.producer_id,
                        producer_epoch=item.producer_epoch,
                        last_sequence=item.last_sequence,
                        last_timestamp=item.last_timestamp,
                        coordinator_epoch=_unless_none(item.coordinator_epoch),
                        current_transaction_start_offset=_unless_none(item.current_txn_start_offset),
                    )
                    for item in part.active_producers
                )
        return {tp: found[tp] for tp in wanted}

    return attempt


def _unless_none(number: int) -> int | None:
    return None if number == _NONE else number


# -- the end of transactions that hang ------------------------------------------------------------------------------------


def fence_producers(ids: Iterable[str], timeout: int) -> Call[None]:
    """Begin a new epoch of transactional ids, which aborts their open transactions. ``timeout`` is for the next ones.

    An id that is fenced is not fenced again, also if the request for another one fails: with thousands of ids one attempt may not
    be enough for all.
    """
    left = dict.fromkeys(ids)

    def attempt() -> CallAttempt[None]:
        nodes = yield from _all_coordinators(left)
        answers = yield tuple(_fencing(key, node, timeout) for key, node in nodes.items())
        errors = []
        for key, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, OttlaError):
                errors.append(answer)
            elif answer.error_code:
                errors.append(broker_error(answer.error_code, f"the producer of transactional id {key!r} was not fenced"))
            else:
                del left[key]
        final = next((error for error in errors if not error.retriable), None)
        if final is not None:
            raise PermanentFailure(final)
        for error in errors:
            raise error

    return attempt


def _fencing(key: str, node: Node, timeout: int) -> AdminRequest:
    message = init_producer_id_request.InitProducerIdRequest(transactional_id=key, transaction_timeout=duration(timeout))
    return AdminRequest(rpcs.INIT_PRODUCER_ID, message, node, may_fail=True)


def abort_transaction(tp: TopicPartition, producer: ProducerState) -> Call[None]:
    """Write the marker of an aborted transaction to one partition."""
    topic = write_txn_markers_request.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=(tp.partition,))
    marker = write_txn_markers_request.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(topic,),
        # 0 is at most the epoch of any coordinator, so that it fences none.
        coordinator_epoch=producer.coordinator_epoch or 0,
    )
    message = write_txn_markers_request.WriteTxnMarkersRequest(markers=(marker,))

    def attempt() -> CallAttempt[None]:
        leaders = yield from leaders_of([tp])
        (answer,) = yield from ask_each(rpcs.WRITE_TXN_MARKERS, [(message, leaders[tp])])
        for code in (part.error_code for item in answer.markers for topic in item.topics for part in topic.partitions):
            check(code, f"the transaction of producer id {producer.producer_id} in {tp} was not aborted")

    return attempt
