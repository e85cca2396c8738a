"""Fetch (1): ranges of log files, at once if there is enough, else parked until there is or until the client's time is up.

Fetch sessions (KIP-227) are declined the way the protocol provides for: every answer says session 0, so every request is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.broker.api.registry import serves
from ottla.broker.delayed import Parked
from ottla.broker.effects import CancelTimer, Effect, Reply, RequestContext, SetTimer
from ottla.broker.log import PartitionLog
from ottla.broker.refusal import Refusal
from ottla.protocol import NO_THROTTLE, ErrorCode, milliseconds
from ottla.protocol.apis import Api, Fact
from ottla.protocol.messages import fetch_request, fetch_response
from ottla.types import IsolationLevel, Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore

_NO_SESSION, _NEW_SESSION_EPOCHS = 0, (0, -1)


class _Answer(NamedTuple):
    """What could be answered now: ``enough`` if there is no reason to wait."""

    response: fetch_response.FetchResponse
    enough: bool
    logs: tuple[PartitionLog, ...]


@serves(Api.FETCH)
def fetch(core: BrokerCore, context: RequestContext, request: fetch_request.FetchRequest, now: Now) -> list[Effect]:
    """Answer, or park until there is enough to answer."""
    if request.session_id != _NO_SESSION or request.session_epoch not in _NEW_SESSION_EPOCHS:
        return [Reply(context.ticket, _response(ErrorCode.fetch_session_id_not_found, ()))]
    answer = _read(core, context, request)
    wait = milliseconds(request.max_wait)
    if answer.enough or wait <= 0:
        return [Reply(context.ticket, answer.response)]
    core.delayed.park(Parked(context, request, answer.logs))
    return [SetTimer(("fetch", context.ticket), now.mono + wait)]


def retry(core: BrokerCore, parked: Parked, *, last: bool) -> list[Effect]:
    """Look at a parked request again, because a log changed or (``last``) because its time is up."""
    answer = _read(core, parked.context, parked.request)
    if not (answer.enough or last):
        return []
    ticket = parked.context.ticket
    core.delayed.take(ticket)
    timer: list[Effect] = [] if last else [CancelTimer(("fetch", ticket))]
    return [*timer, Reply(ticket, answer.response)]


def _read(core: BrokerCore, context: RequestContext, request: fetch_request.FetchRequest) -> _Answer:
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
                data = log.read(wanted.fetch_offset, limit, at_least_one=not taken)
                taken += len(data) if data is not None else 0
                partitions.append(_partition(log, wanted.partition, cast("bytes", data) if data is not None else b"", committed))
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


def _partition(log: PartitionLog, index: int, records: bytes, committed: bool) -> fetch_response.PartitionData:
    return fetch_response.PartitionData(
        partition_index=index,
        error_code=ErrorCode.none,
        high_watermark=log.high_watermark,
        last_stable_offset=log.high_watermark,
        log_start_offset=log.start_offset,
        aborted_transactions=() if committed else None,
        records=records,
    )


def _refused(index: int, refusal: Refusal) -> fetch_response.PartitionData:
    return fetch_response.PartitionData(
        partition_index=index, error_code=refusal.code, high_watermark=-1, aborted_transactions=None, records=b""
    )


def _response(code: ErrorCode, topics: tuple[fetch_response.FetchableTopicResponse, ...]) -> fetch_response.FetchResponse:
    return fetch_response.FetchResponse(throttle_time=NO_THROTTLE, error_code=code, responses=topics)
