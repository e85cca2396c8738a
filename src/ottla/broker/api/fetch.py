"""Fetch (1): ranges of log files, at once if there is enough, else parked until there is or until the client's time is up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.broker.aborted import AbortedTransaction
from ottla.broker.api.registry import serves
from ottla.broker.delayed import Parked
from ottla.broker.effects import CancelTimer, Effect, Reply, RequestContext, SetTimer
from ottla.broker.fetch_sessions import FINAL_EPOCH
from ottla.broker.log import PartitionLog
from ottla.broker.refusal import Refusal
from ottla.protocol import NO_THROTTLE, ErrorCode, milliseconds
from ottla.protocol.apis import Api, Fact
from ottla.protocol.messages import fetch_request, fetch_response
from ottla.types import IsolationLevel, Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


class _Answer(NamedTuple):
    """What could be answered now: ``enough`` if there is no reason to wait."""

    response: fetch_response.FetchResponse
    enough: bool
    logs: tuple[PartitionLog, ...]


@serves(Api.FETCH)
def fetch(core: BrokerState, context: RequestContext, request: fetch_request.FetchRequest, now: Now) -> list[Effect]:
    """Answer, or park until there is enough to answer."""
    if request.isolation_level not in tuple(IsolationLevel):
        return [Reply(context.ticket, _no_isolation(request))]
    try:
        request = core.fetch_sessions.begin(request, Fact.BY_TOPIC_ID in context.facts, now)
    except Refusal as refusal:
        return [Reply(context.ticket, _response(refusal.code, ()))]
    ended = _release(core, context, request, now) if request.session_epoch == FINAL_EPOCH else []
    answer = _read(core, context, request)
    wait = milliseconds(request.max_wait)
    if answer.enough or wait <= 0:
        return [*ended, _reply(core, context, request, answer, now)]
    core.delayed.park(Parked(context, request, answer.logs))
    return [*ended, SetTimer(("fetch", context.ticket), now.mono + wait)]


def _release(core: BrokerState, context: RequestContext, request: fetch_request.FetchRequest, now: Now) -> list[Effect]:
    """A client that ends its session waits for no records: what it still has parked is answered, so that it can go at once."""
    parked = [one for one in core.delayed.of_connection(context.connection) if one.request.session_id == request.session_id != 0]
    return [effect for one in parked for effect in (CancelTimer(("fetch", one.context.ticket)), *retry(core, one, now, last=True))]


def retry(core: BrokerState, parked: Parked, now: Now, *, last: bool) -> list[Effect]:
    """Look at a parked request again, because a log changed or (``last``) because its time is up."""
    answer = _read(core, parked.context, parked.request)
    if not (answer.enough or last):
        return []
    ticket = parked.context.ticket
    core.delayed.take(ticket)
    timer: list[Effect] = [] if last else [CancelTimer(("fetch", ticket))]
    return [*timer, _reply(core, parked.context, parked.request, answer, now)]


def _reply(core: BrokerState, context: RequestContext, request: fetch_request.FetchRequest, answer: _Answer, now: Now) -> Reply:
    if core.faults.active:
        return Reply(context.ticket, answer.response)  # without sessions: a fault strikes what stands in a request
    by_id = Fact.BY_TOPIC_ID in context.facts
    return Reply(context.ticket, core.fetch_sessions.finish(request, by_id, answer.response, now))


def _read(core: BrokerState, context: RequestContext, request: fetch_request.FetchRequest) -> _Answer:
    by_id = Fact.BY_TOPIC_ID in context.facts
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    budget = min(request.max_bytes, core.config.fetch_max_bytes)
    taken, failed = 0, False
    logs: list[PartitionLog] = []
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            try:
                log = core.log_by_id(topic.topic_id, wanted.partition) if by_id else core.log(topic.topic, wanted.partition)
                logs.append(log)
                _check(log, wanted)
                limit = max(0, min(wanted.partition_max_bytes, budget - taken))
                # A batch larger than every limit is still given out if it is the first: nobody shall be stuck before it.
                data, aborted = _data(log, wanted.fetch_offset, limit, at_least_one=not taken, committed=committed)
                taken += len(data)
                partitions.append(_partition(log, wanted.partition, data, aborted))
            except Refusal as refusal:
                failed = True
                partitions.append(_refused(wanted.partition, refusal))
        topics.append(
            fetch_response.FetchableTopicResponse(topic_id=topic.topic_id, topic=topic.topic, partitions=tuple(partitions))
        )
    enough = failed or taken >= min(request.min_bytes, request.max_bytes) or not logs
    return _Answer(_response(ErrorCode.none, tuple(topics)), enough, tuple(dict.fromkeys(logs)))


def _check(log: PartitionLog, wanted: fetch_request.FetchPartition) -> None:
    log.check_epoch(wanted.current_leader_epoch)
    if not log.start_offset <= wanted.fetch_offset <= log.high_watermark:
        raise Refusal(
            ErrorCode.offset_out_of_range,
            f"Offset {wanted.fetch_offset} is not between {log.start_offset} and {log.high_watermark}.",
        )


def _data(
    log: PartitionLog, offset: int, limit: int, *, at_least_one: bool, committed: bool
) -> tuple[bytes, list[AbortedTransaction] | None]:
    """A range of the log, and what a reader of committed records must leave out of it; ``None`` for all others."""
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


def _refused(index: int, refusal: Refusal) -> fetch_response.PartitionData:
    return fetch_response.PartitionData(
        partition_index=index, error_code=refusal.code, high_watermark=-1, aborted_transactions=None, records=b""
    )


def _no_isolation(request: fetch_request.FetchRequest) -> fetch_response.FetchResponse:
    """What Kafka answers to an isolation level that there is not."""
    refusal = Refusal(ErrorCode.unknown_server_error, f"There is no isolation level {request.isolation_level}.")
    topics = tuple(
        fetch_response.FetchableTopicResponse(
            topic_id=topic.topic_id,
            topic=topic.topic,
            partitions=tuple(replace(_refused(wanted.partition, refusal), aborted_transactions=()) for wanted in topic.partitions),
        )
        for topic in request.topics
    )
    return _response(refusal.code, topics)


def _response(code: ErrorCode, topics: tuple[fetch_response.FetchableTopicResponse, ...]) -> fetch_response.FetchResponse:
    return fetch_response.FetchResponse(throttle_time=NO_THROTTLE, error_code=code, responses=topics)
