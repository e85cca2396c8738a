"""Produce (0): validate a batch, append it as it is, acknowledge it.

A batch is looked at before anything is written (format, checksum, lengths, count, size, time, sequence), and what is written is
what came, but for base offset and leader epoch. The answer waits for the disk only where the topic's ``flush.messages`` says
so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, CloseConnection, NoReply, Reply, RequestContext, RunJob
from ottla.broker.log import PartitionLog
from ottla.broker.ports import DiskJob
from ottla.broker.purgatory import DelayedProduce, ResponsePosition
from ottla.broker.topic_config import TopicConfig
from ottla.broker.topics import INTERNAL_TOPICS
from ottla.broker.transaction_errors import TransactionalWriter, error_for_client
from ottla.coordinator.api_error import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.messages import produce_request, produce_response
from ottla.records import (
    DEFAULT_MAX_BATCH_BYTES,
    BatchHeader,
    Compression,
    InvalidBatchError,
    iter_records,
    read_header,
    recompressed,
    verify_batch,
)
from ottla.types import Now, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


class RecordError(NamedTuple):
    """What is wrong with one record of a batch, by its place in it."""

    record: int
    message: str


class InvalidRecordsError(ApiError):
    """A batch is refused for some of its records; clients that get their numbers can retry the others (KIP-467)."""

    def __init__(self, code: ErrorCode, errors: Sequence[RecordError]) -> None:
        first = "; ".join(f"record {error.record}: {error.message}" for error in errors[:3])
        more = f" The first of {len(errors)}:" if len(errors) > 3 else ""
        super().__init__(code, f"One or more records of the batch have been rejected.{more} {first}")
        self.errors = errors


_CODECS = {codec.name.lower(): codec for codec in Compression} | {"uncompressed": Compression.NONE}
_PRODUCER_CODEC = "producer"
_NO_TIMESTAMP = -1


def check_records(config: TopicConfig, header: BatchHeader, batch: bytes, now: int) -> None:
    """Whether each record is stamped near enough to ``now`` (ms since 1970), and has a key where a log is compacted by key.

    Raises ``InvalidRecordsError``: INVALID_TIMESTAMP if any stamp is wrong, else INVALID_RECORD.
    """
    earliest, latest = now - config.message_timestamp_before_max_ms, now + config.message_timestamp_after_max_ms
    by_client = config.message_timestamp_type == "CreateTime"
    # A batch says which stamp is the latest, but not which is the earliest.
    suspicious = by_client and (header.max_timestamp > latest or earliest > 0)
    if not suspicious and not config.compacted:
        return
    bad_timestamps, missing_keys = [], []
    for index, record in enumerate(iter_records(batch)):
        if suspicious and record.timestamp != _NO_TIMESTAMP and not earliest <= record.timestamp <= latest:
            bad_timestamps.append(RecordError(index, f"the stamp {record.timestamp} is not within [{earliest}, {latest}]"))
        elif config.compacted and record.key is None:
            missing_keys.append(RecordError(index, "a compacted topic cannot accept a record without a key"))
    if bad_timestamps or missing_keys:
        raise InvalidRecordsError(
            ErrorCode.invalid_timestamp if bad_timestamps else ErrorCode.invalid_record, sorted(bad_timestamps + missing_keys)
        )
    if by_client and header.max_timestamp > latest:
        raise ApiError(
            ErrorCode.invalid_timestamp, "The batch says that it holds a stamp too far ahead, but none of its records has it."
        )


def in_stored_codec(config: TopicConfig, batch: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """The batch with the codec that the topic is stored with."""
    if config.compression_type == _PRODUCER_CODEC or header.compression is _CODECS[config.compression_type]:
        return batch, header
    header, batch = recompressed(header, batch, _CODECS[config.compression_type], config.compression_level)
    return batch, header


_ALL = -1
_ADMIN_CLIENT = "__admin_client"
"""The one client that Kafka lets write to internal topics: a tool that knows what it does."""
_PREFIX = 12
"""Bytes of a batch before what its length counts: the base offset and that length."""
_ACKS = (_ALL, 0, 1)


@serves(Api.PRODUCE)
def produce(state: BrokerState, context: RequestContext, request: produce_request.ProduceRequest, now: Now) -> list[BrokerEffect]:
    """Append the batch of each partition; one that is refused does not keep the others from being written.

    A transactional batch that would be the first of its transaction in a log waits for the transaction coordinator's word.
    """
    unknown = _first_of_transactions(state, context, request) if request.transactional_id is not None else None
    if not unknown:
        return _write(state, context, request, {}, now)
    state.transactions.add_or_verify_partitions(
        context, unknown, lambda verified, at: _write(state, context, request, verified, at), now
    )
    return []


def _write(
    state: BrokerState,
    context: RequestContext,
    request: produce_request.ProduceRequest,
    verified: Mapping[TopicPartition, ErrorCode],
    now: Now,
) -> list[BrokerEffect]:
    # What was in an open transaction a moment ago and is in none now is sent again; a producer without an id has no transactions.
    no_id = request.transactional_id is None
    unverified = ErrorCode.transactional_id_authorization_failed if no_id else ErrorCode.coordinator_not_available
    responses: list[produce_response.TopicProduceResponse] = []
    unflushed: dict[ResponsePosition, PartitionLog] = {}
    for topic in request.topic_data:
        results: list[produce_response.PartitionProduceResponse] = []
        for data in topic.partition_data:
            try:
                log = _log_of(state, context, topic, data)
                _check_request(request)
                word = verified.get(log.topic_partition, unverified)
                result = _append(state, context, log, data, now, word)
                if result.error_code is ErrorCode.none and log.flush_due():
                    unflushed[len(responses), len(results)] = log
            except ApiError as api_error:
                result = _refused(data.index, api_error)
            results.append(result)
        responses.append(
            produce_response.TopicProduceResponse(topic_id=topic.topic_id, name=topic.name, partition_responses=tuple(results))
        )
    response = produce_response.ProduceResponse(responses=tuple(responses))
    return _answer(state, context, request.acks, response, unflushed)


def flushed(flushing: DelayedProduce, outcome: object) -> list[BrokerEffect]:
    """What an answer was waiting for is on disk, or has failed for some partitions."""
    failed: Mapping[ResponsePosition, Exception] = (
        dict.fromkeys(flushing.logs, outcome)
        if isinstance(outcome, Exception)
        else cast("dict[ResponsePosition, Exception]", outcome)
    )
    for spot, (log, offset) in flushing.logs.items():
        if spot not in failed:
            log.flushed(offset)
    topics = []
    for row, topic in enumerate(flushing.response.responses):
        results = list(topic.partition_responses)
        for column, result in enumerate(results):
            if (row, column) in failed:
                reason = f"The log could not be forced to disk: {failed[row, column]}"
                results[column] = _refused(result.index, ApiError(ErrorCode.kafka_storage_error, reason))
        topics.append(replace(topic, partition_responses=tuple(results)))
    return [Reply(flushing.context.ticket, replace(flushing.response, responses=tuple(topics)))]


def _check_request(request: produce_request.ProduceRequest) -> None:
    if request.acks not in _ACKS:
        raise ApiError(ErrorCode.invalid_required_acks, f"acks={request.acks}: it can be -1, 0 or 1.")
    if request.transactional_id is None:
        return
    if request.acks != _ALL:
        raise ApiError(ErrorCode.invalid_required_acks, f"acks={request.acks}: in a transaction it can only be -1.")


def _first_of_transactions(
    state: BrokerState, context: RequestContext, request: produce_request.ProduceRequest
) -> dict[TransactionalWriter, list[TopicPartition]]:
    """The partitions in which a producer has no open transaction yet, by who writes there."""
    found: dict[TransactionalWriter, list[TopicPartition]] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            # What is wrong with one of these is verified when it shall be written.
            with suppress(ApiError, InvalidBatchError):
                log = _log_of(state, context, topic, data)
                header = read_header(data.records or b"")
                if header.is_transactional and not log.producers.has_open_transaction(header.producer_id, header.producer_epoch):
                    writer = TransactionalWriter(request.transactional_id or "", header.producer_id, header.producer_epoch)
                    found.setdefault(writer, []).append(log.topic_partition)
    return found


def _check_verified(context: RequestContext, log: PartitionLog, header: BatchHeader, verified: ErrorCode) -> None:
    """Whether the coordinator lets a transaction begin in a log; raises ``ApiError``, in words that the client's version knows."""
    has_transaction = log.producers.has_open_transaction(header.producer_id, header.producer_epoch)
    if verified is ErrorCode.none or not header.is_transactional or has_transaction:
        return
    raise ApiError(error_for_client(context, verified), "The transaction coordinator does not let this producer write here now.")


def _log_of(
    state: BrokerState,
    context: RequestContext,
    topic: produce_request.TopicProduceData,
    data: produce_request.PartitionProduceData,
) -> PartitionLog:
    by_id = VersionRule.BY_TOPIC_ID in context.version_rules
    return state.catalog.log_by_id(topic.topic_id, data.index) if by_id else state.catalog.log(topic.name, data.index)


def _append(
    state: BrokerState,
    context: RequestContext,
    log: PartitionLog,
    data: produce_request.PartitionProduceData,
    now: Now,
    verified: ErrorCode,
) -> produce_response.PartitionProduceResponse:
    header = _validated(log, data.records or b"", context, now)
    if log.topic_partition.topic in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT:
        raise ApiError(ErrorCode.invalid_topic_exception, f"Only the broker writes to {log.topic_partition.topic}.")
    _check_verified(context, log, header, verified)
    repeated = log.producers.check(header) if header.producer_id >= 0 else None
    append_time = -1
    if repeated is not None:
        base_offset = repeated.base_offset
    else:
        appended = state.catalog.append(log, *in_stored_codec(log.config, data.records or b"", header), now)
        base_offset, append_time = appended.base_offset, appended.append_time
    return produce_response.PartitionProduceResponse(
        index=data.index,
        error_code=ErrorCode.none,
        base_offset=base_offset,
        log_append_time_ms=append_time,
        log_start_offset=log.start_offset,
        record_errors=(),
    )


def _validated(log: PartitionLog, records: bytes, context: RequestContext, now: Now) -> BatchHeader:
    """The header of the one batch in ``records``, if that can be stored as it is; raises ``ApiError`` otherwise."""
    limit = log.config.max_message_bytes
    if len(records) > limit:
        raise ApiError(ErrorCode.message_too_large, f"A batch of {len(records)} bytes; max.message.bytes is {limit}.")
    if not records:
        raise ApiError(ErrorCode.invalid_record, "A produce request must hold one record batch a partition, this one holds none.")
    if len(records) < _PREFIX + int.from_bytes(records[8:_PREFIX]):
        raise ApiError(ErrorCode.invalid_record, "The record batch is truncated.")
    try:
        header: BatchHeader = verify_batch(records, max_uncompressed=DEFAULT_MAX_BATCH_BYTES)
    except InvalidBatchError as error:
        raise ApiError(ErrorCode(error.code), str(error)) from error
    if header.size != len(records):
        raise ApiError(ErrorCode.invalid_record, "A produce request must hold one record batch a partition, this one holds more.")
    if header.is_control:
        raise ApiError(ErrorCode.invalid_record, "Clients cannot write control batches.")
    if header.compression is Compression.ZSTD and VersionRule.ZSTD not in context.version_rules:
        raise ApiError(ErrorCode.unsupported_compression_type, "Produce before version 7 cannot carry zstd.")
    if header.is_transactional and header.producer_id < 0:
        raise ApiError(ErrorCode.invalid_record, "A transactional batch needs a producer id.")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise ApiError(ErrorCode.invalid_record, f"Producer {header.producer_id} gave no epoch or no sequence.")
    check_records(log.config, header, records, now.wall)
    return header


def _answer(
    state: BrokerState,
    context: RequestContext,
    acks: int,
    response: produce_response.ProduceResponse,
    unflushed: Mapping[ResponsePosition, PartitionLog],
) -> list[BrokerEffect]:
    if acks == 0:
        # There is no answer in which to say what went wrong: closing the connection is how Kafka says it.
        code = next((one.error_code for topic in response.responses for one in topic.partition_responses if one.error_code), None)
        if code is not None:
            return [CloseConnection(context.ticket, f"a produce request that wants no answer failed: {code.name}")]
        return [NoReply(context.ticket)]
    if unflushed:
        jobs = {spot: log.flush() for spot, log in unflushed.items()}
        ends = {spot: (log, log.end_offset) for spot, log in unflushed.items()}
        state.delayed_produces[context.ticket] = DelayedProduce(context, response, ends)
        return [RunJob(("flush", context.ticket), partial(_flush_each, jobs))]
    return [Reply(context.ticket, response)]


def _flush_each(jobs: Mapping[ResponsePosition, DiskJob]) -> dict[ResponsePosition, Exception]:
    """Force each log to disk; return the errors, by their place in the answer."""
    failed: dict[ResponsePosition, Exception] = {}
    for spot, job in jobs.items():
        try:
            job()
        except Exception as error:
            failed[spot] = error
    return failed


def _refused(index: int, api_error: ApiError) -> produce_response.PartitionProduceResponse:
    errors = api_error.errors if isinstance(api_error, InvalidRecordsError) else ()
    return produce_response.PartitionProduceResponse(
        index=index,
        error_code=api_error.code,
        base_offset=-1,
        record_errors=tuple(
            produce_response.BatchIndexAndErrorMessage(batch_index=one.record, batch_index_error_message=one.message)
            for one in errors
        ),
        error_message=api_error.message,
    )
