"""Fetch (1): returns ranges of log files; a request waits until there is enough, or until ``max_wait`` has passed."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, CancelTimer, Reply, RequestContext, SetTimer
from ottla.broker.fetch_sessions import FINAL_EPOCH, without_records
from ottla.broker.log import PartitionLog
from ottla.broker.purgatory import DelayedFetch
from ottla.broker.topics import Topic
from ottla.broker.transaction_index import AbortedTransaction
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode, milliseconds
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.messages import fetch_request, fetch_response
from ottla.types import IsolationLevel, Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


_MAX_COPIED = 1 << 23
"""The maximum bytes that a response reads into memory while too many files are open: other clients wait meanwhile, and each client
that is slow to read its response takes as much memory."""


class _ReadResult(NamedTuple):
    """The result of reading all partitions. ``enough``: whether there is no reason to wait. ``logs``: one for each partition,
    unless one failed."""

    response: fetch_response.FetchResponse
    enough: bool
    logs: tuple[PartitionLog, ...]

    def without_records(self) -> _ReadResult:
        """Return the result without records, for the time while the fetch is delayed."""
        topics = tuple(
            replace(topic, partitions=tuple(map(without_records, topic.partitions))) for topic in self.response.responses
        )
        return self._replace(response=replace(self.response, responses=topics))


@serves(Api.FETCH)
def fetch(state: BrokerState, context: RequestContext, request: fetch_request.FetchRequest, now: Now) -> list[BrokerEffect]:
    """Reply at once, or delay the fetch until there is enough to return."""
    if request.isolation_level not in tuple(IsolationLevel):
        return [Reply(context.ticket, _no_isolation(request))]
    try:
        request = state.fetch_sessions.full_request(request, VersionRule.BY_TOPIC_ID in context.version_rules, now)
    except ApiError as api_error:
        return [Reply(context.ticket, _response(api_error.code, ()))]
    ended = _release(state, context, request, now) if request.session_epoch == FINAL_EPOCH else []
    answer = _read(state, context, request)
    wait = milliseconds(request.max_wait)
    if answer.enough or wait <= 0:
        return [*ended, _reply(state, context, request, answer, now)]
    state.fetch_purgatory.park(DelayedFetch(context, request, tuple(dict.fromkeys(answer.logs)), answer.without_records()))
    return [*ended, SetTimer(("fetch", context.ticket), now.mono + wait)]


def _release(state: BrokerState, context: RequestContext, request: fetch_request.FetchRequest, now: Now) -> list[BrokerEffect]:
    """Complete the delayed fetches of a session that its client ends, so that the client can close at once."""
    parked = [
        one for one in state.fetch_purgatory.of_connection(context.connection) if one.request.session_id == request.session_id != 0
    ]
    return [
        effect for one in parked for effect in (CancelTimer(("fetch", one.context.ticket)), *retry(state, one, (), now, last=True))
    ]


def retry(
    state: BrokerState, parked: DelayedFetch, changed: Container[PartitionLog], now: Now, *, last: bool
) -> list[BrokerEffect]:
    """Retry a delayed fetch, because some of its logs have ``changed`` or (``last``) because ``max_wait`` has passed."""
    answer = _read(state, parked.context, parked.request, _PreviousRead(parked.last_result, changed))
    if not (answer.enough or last):
        state.fetch_purgatory.update_result(parked.context.ticket, answer.without_records())
        return []
    ticket = parked.context.ticket
    state.fetch_purgatory.take(ticket)
    timer: list[BrokerEffect] = [] if last else [CancelTimer(("fetch", ticket))]
    return [*timer, _reply(state, parked.context, parked.request, answer, now)]


def _reply(
    state: BrokerState, context: RequestContext, request: fetch_request.FetchRequest, answer: _ReadResult, now: Now
) -> Reply:
    if state.catalog.faults.active:
        return Reply(
            context.ticket, answer.response
        )  # without sessions: faults match the partitions in a request, and an incremental one omits most
    by_id = VersionRule.BY_TOPIC_ID in context.version_rules
    return Reply(context.ticket, state.fetch_sessions.incremental_response(request, by_id, answer.response, now))


class _PreviousRead(NamedTuple):
    """The previous result of a delayed fetch, and the logs that have changed since."""

    answer: _ReadResult
    changed: Container[PartitionLog]


def _read(
    state: BrokerState, context: RequestContext, request: fetch_request.FetchRequest, before: _PreviousRead | None = None
) -> _ReadResult:
    """Read the partitions of a request, except those that were at the end of the log ``before`` and whose log is unchanged."""
    reading = _PartitionReads(state, request, by_id=VersionRule.BY_TOPIC_ID in context.version_rules)
    if before is None:
        topics = [reading.topic(topic) for topic in request.topics]
    else:
        logs = iter(before.answer.logs)
        known = before.answer.response.responses
        topics = [reading.reread(*pair, logs, before.changed) for pair in zip(request.topics, known, strict=True)]
    enough = reading.failed or reading.is_cut or reading.taken >= min(request.min_bytes, request.max_bytes) or not reading.logs
    return _ReadResult(_response(ErrorCode.none, tuple(topics)), enough, tuple(reading.logs))


class _PartitionReads:
    """Reads the logs of a request, in its order, and counts the bytes.

    A request may name a thousand partitions of which one has records, so the others must cost little.
    """

    def __init__(self, state: BrokerState, request: fetch_request.FetchRequest, *, by_id: bool) -> None:
        self.taken = 0
        self.failed = False
        self.is_cut = False
        """Whether there may be more records, for which waiting is not necessary."""
        self.logs: list[PartitionLog] = []
        self._state = state
        self._by_id = by_id
        self._committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        self._budget = min(request.max_bytes, state.catalog.config.fetch_max_bytes)
        self._copied = 0

    def topic(self, asked: fetch_request.FetchTopic) -> fetch_response.FetchableTopicResponse:
        """Read the partitions of one topic."""
        try:
            topic = self._state.catalog.topic_by_id(asked.topic_id) if self._by_id else self._state.catalog.topic(asked.topic)
        except ApiError as api_error:
            self.failed = True
            partitions = [_refused(wanted.partition, api_error) for wanted in asked.partitions]
        else:
            partitions = [self._partition(topic, wanted) for wanted in asked.partitions]
        return fetch_response.FetchableTopicResponse(topic_id=asked.topic_id, topic=asked.topic, partitions=tuple(partitions))

    def reread(
        self,
        asked: fetch_request.FetchTopic,
        known: fetch_response.FetchableTopicResponse,
        logs: Iterator[PartitionLog],
        changed: Container[PartitionLog],
    ) -> fetch_response.FetchableTopicResponse:
        """Read the partitions of one topic, except those at the end of a log that has not ``changed``: reuse their results.
        ``logs``: the logs of the partitions."""
        partitions: list[fetch_response.PartitionData] = []
        for wanted, data, log in zip(asked.partitions, known.partitions, logs, strict=False):
            if wanted.fetch_offset != data.high_watermark or log in changed:
                partitions += self.topic(replace(asked, partitions=(wanted,))).partitions
            else:
                self.logs.append(log)
                partitions.append(data)
        return replace(known, partitions=tuple(partitions))

    def _partition(self, topic: Topic, wanted: fetch_request.FetchPartition) -> fetch_response.PartitionData:
        try:
            log = self._state.catalog.log_of(topic, wanted.partition)
            self.logs.append(log)
            log.check_leader_epoch(wanted.current_leader_epoch)
            end = log.high_watermark
            if wanted.fetch_offset == end:
                return _at_end(log, wanted.partition, end, committed=self._committed)
            return self._records(log, wanted, end)
        except ApiError as api_error:
            self.failed = True
            return _refused(wanted.partition, api_error)

    def _records(self, log: PartitionLog, wanted: fetch_request.FetchPartition, end: int) -> fetch_response.PartitionData:
        if not log.start_offset <= wanted.fetch_offset <= end:
            raise ApiError(
                ErrorCode.offset_out_of_range, f"Offset {wanted.fetch_offset} is not between {log.start_offset} and {end}."
            )
        limit = max(0, min(wanted.partition_max_bytes, self._budget - self.taken))
        if limit > _MAX_COPIED - self._copied and self._state.catalog.has_too_many_open_files:
            limit, self.is_cut = max(0, _MAX_COPIED - self._copied), True
        # A batch larger than every limit is still returned if it is the first: otherwise readers could never get past it.
        data, aborted = _data(log, wanted.fetch_offset, limit, at_least_one=not self.taken, committed=self._committed)
        self.taken += len(data)
        self._copied += len(data) if isinstance(data, bytes) else 0
        return _partition(log, wanted.partition, data, aborted)


def _at_end(log: PartitionLog, index: int, end: int, *, committed: bool) -> fetch_response.PartitionData:
    """Return the result for a reader at the end of the log: the same object as long as the log does not change."""
    known: fetch_response.PartitionData | None = log.responses_at_end.get(committed)
    # The last stable offset moves only with the end: a transaction ends with a batch, too.
    if known is None or known.high_watermark != end or known.log_start_offset != log.start_offset:
        known = log.responses_at_end[committed] = _partition(log, index, b"", [] if committed else None)
    return known


def _data(
    log: PartitionLog, offset: int, limit: int, *, at_least_one: bool, committed: bool
) -> tuple[bytes, list[AbortedTransaction] | None]:
    """Return a range of the log, and its aborted transactions for a ``read_committed`` reader; ``None`` for others."""
    aborted = None
    if committed:
        data, aborted = log.read_committed(offset, limit, at_least_one=at_least_one)
    else:
        data = log.read(offset, limit, at_least_one=at_least_one)
    return cast("bytes", data) if data is not None else b"", aborted


def _partition(
    log: PartitionLog, index: int, records: bytes, aborted: list[AbortedTransaction] | None
) -> fetch_response.PartitionData:
    return fetch_response.PartitionData(
        partition_index=index,
        error_code=ErrorCode.none,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.start_offset,
        aborted_transactions=None
        if aborted is None
        else tuple(
            fetch_response.AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted
        ),
        records=records,
    )


def _refused(index: int, api_error: ApiError) -> fetch_response.PartitionData:
    return fetch_response.PartitionData(
        partition_index=index, error_code=api_error.code, high_watermark=-1, aborted_transactions=None, records=b""
    )


def _no_isolation(request: fetch_request.FetchRequest) -> fetch_response.FetchResponse:
    """Return Kafka's response to an unknown isolation level."""
    api_error = ApiError(ErrorCode.unknown_server_error, f"There is no isolation level {request.isolation_level}.")
    topics = tuple(
        fetch_response.FetchableTopicResponse(
            topic_id=topic.topic_id,
            topic=topic.topic,
            partitions=tuple(
                replace(_refused(wanted.partition, api_error), aborted_transactions=()) for wanted in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return _response(api_error.code, topics)


def _response(code: ErrorCode, topics: tuple[fetch_response.FetchableTopicResponse, ...]) -> fetch_response.FetchResponse:
    return fetch_response.FetchResponse(throttle_time=NO_THROTTLE, error_code=code, responses=topics)
