"""Produce (0): validate a batch, append it as it is, acknowledge it.

A batch is looked at before anything is written (format, checksum, lengths, count, size, time, sequence), and what is written is
what came, but for base offset and leader epoch. The answer waits for the disk only where the topic's ``flush.messages`` says
so.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.api.registry import serves
from ottla.broker.effects import CloseConnection, Effect, NoReply, Reply, RequestContext, RunJob
from ottla.broker.log import PartitionLog
from ottla.broker.refusal import Refusal
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, Fact
from ottla.protocol.messages import produce_request, produce_response
from ottla.records import DEFAULT_MAX_BATCH_BYTES, BatchHeader, Compression, InvalidBatchError, verify_batch
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore

_ACKS = (-1, 0, 1)


class Flushing(NamedTuple):
    """An answer that waits until what it acknowledges is on disk: each log, and up to where."""

    context: RequestContext
    response: produce_response.ProduceResponse
    logs: tuple[tuple[PartitionLog, int], ...]


@serves(Api.PRODUCE)
def produce(core: BrokerCore, context: RequestContext, request: produce_request.ProduceRequest, now: Now) -> list[Effect]:
    """Append the batch of each partition; one that is refused does not keep the others from being written."""
    effects: list[Effect] = []
    responses = []
    unflushed: list[PartitionLog] = []
    for topic in request.topic_data:
        results = []
        for data in topic.partition_data:
            try:
                _check_request(request)
                result, more = _append(core, context, topic, data, now, unflushed)
                effects += more
            except Refusal as refusal:
                result = _refused(data.index, refusal)
            results.append(result)
        responses.append(
            produce_response.TopicProduceResponse(topic_id=topic.topic_id, name=topic.name, partition_responses=tuple(results))
        )
    response = produce_response.ProduceResponse(responses=tuple(responses))
    return effects + _answer(core, context, request.acks, response, unflushed)


def flushed(flushing: Flushing, error: OSError | None) -> list[Effect]:
    """The disk has, or has not, what an answer was waiting for."""
    if error is None:
        for log, offset in flushing.logs:
            log.flushed(offset)
        return [Reply(flushing.context.ticket, flushing.response)]
    refusal = Refusal(ErrorCode.kafka_storage_error, f"The log could not be forced to disk: {error}")
    topics = tuple(
        produce_response.TopicProduceResponse(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_responses=tuple(_refused(one.index, refusal) for one in topic.partition_responses),
        )
        for topic in flushing.response.responses
    )
    return [Reply(flushing.context.ticket, produce_response.ProduceResponse(responses=topics))]


def _check_request(request: produce_request.ProduceRequest) -> None:
    if request.acks not in _ACKS:
        raise Refusal(ErrorCode.invalid_required_acks, f"acks={request.acks}: it can be -1, 0 or 1.")
    if request.transactional_id is not None:
        raise Refusal(ErrorCode.invalid_txn_state, "Transactions are not served by this broker.")


def _append(
    core: BrokerCore,
    context: RequestContext,
    topic: produce_request.TopicProduceData,
    data: produce_request.PartitionProduceData,
    now: Now,
    unflushed: list[PartitionLog],
) -> tuple[produce_response.PartitionProduceResponse, list[Effect]]:
    by_id = Fact.BY_TOPIC_ID in context.facts
    log = core.log_by_id(topic.topic_id, data.index) if by_id else core.log(topic.name, data.index)
    header = _validated(log, data.records or b"", context, now)
    repeated = log.producers.check(header) if header.producer_id >= 0 else None
    effects: list[Effect] = []
    append_time = -1
    if repeated is not None:
        base_offset = repeated.base_offset
    else:
        appended, effects = core.append(log, data.records or b"", header, now)
        base_offset, append_time = appended.base_offset, appended.append_time
        if log.flush_due():
            unflushed.append(log)
    result = produce_response.PartitionProduceResponse(
        index=data.index,
        error_code=ErrorCode.none,
        base_offset=base_offset,
        log_append_time=datetime.fromtimestamp(append_time / 1000, UTC) if append_time >= 0 else None,
        log_start_offset=log.start_offset,
        record_errors=(),
    )
    return result, effects


def _validated(log: PartitionLog, records: bytes, context: RequestContext, now: Now) -> BatchHeader:
    """The header of the one batch in ``records``, if that can be stored as it is; raises ``Refusal`` otherwise."""
    limit = log.config.max_message_bytes
    if len(records) > limit:
        raise Refusal(ErrorCode.message_too_large, f"A batch of {len(records)} bytes; max.message.bytes is {limit}.")
    if not records:
        raise Refusal(ErrorCode.invalid_record, "A produce request must hold one record batch a partition, this one holds none.")
    try:
        header: BatchHeader = verify_batch(records, max_uncompressed=DEFAULT_MAX_BATCH_BYTES)
    except InvalidBatchError as error:
        raise Refusal(ErrorCode(error.code), str(error)) from error
    if header.size != len(records):
        raise Refusal(ErrorCode.invalid_record, "A produce request must hold one record batch a partition, this one holds more.")
    if header.is_control:
        raise Refusal(ErrorCode.invalid_record, "Clients can not write control batches.")
    if header.is_transactional:
        raise Refusal(ErrorCode.invalid_txn_state, "Transactions are not served by this broker.")
    if header.compression is Compression.ZSTD and Fact.ZSTD not in context.facts:
        raise Refusal(ErrorCode.unsupported_compression_type, "Produce before version 7 can not carry zstd.")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise Refusal(ErrorCode.invalid_record, f"Producer {header.producer_id} gave no epoch or no sequence.")
    ahead = header.max_timestamp - now.wall
    if log.config.message_timestamp_type == "CreateTime" and ahead > log.config.message_timestamp_after_max_ms:
        raise Refusal(ErrorCode.invalid_timestamp, f"A record is stamped {ahead} ms ahead of the broker's clock.")
    return header


def _answer(
    core: BrokerCore,
    context: RequestContext,
    acks: int,
    response: produce_response.ProduceResponse,
    unflushed: list[PartitionLog],
) -> list[Effect]:
    if acks == 0:
        # There is no answer in which to say what went wrong: closing the connection is how Kafka says it.
        code = next((one.error_code for topic in response.responses for one in topic.partition_responses if one.error_code), None)
        if code is not None:
            return [CloseConnection(context.ticket, f"a produce request that wants no answer failed: {code.name}")]
        return [NoReply(context.ticket)]
    if unflushed:
        flushes = [log.flush() for log in unflushed]
        logs = tuple((log, log.end_offset) for log in unflushed)
        core.flushing[context.ticket] = Flushing(context, response, logs)
        return [RunJob(("flush", context.ticket), lambda: [flush() for flush in flushes])]
    return [Reply(context.ticket, response)]


def _refused(index: int, refusal: Refusal) -> produce_response.PartitionProduceResponse:
    return produce_response.PartitionProduceResponse(
        index=index, error_code=refusal.code, base_offset=-1, record_errors=(), error_message=refusal.message
    )
