"""Produce (0): validates a batch, appends it unchanged, acknowledges it.

A batch is validated before anything is written (format, checksum, lengths, count, size, time, sequence), and stored as received,
except for base offset and leader epoch. The response waits for the disk only if the topic's ``flush.messages`` requires that.
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
from ottla.broker.transaction_coordinator_service import TransactionalWriter, error_for_client
from ottla.coordinator.effects import ApiError
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
    """An error in one record of a batch; ``record`` is its index."""

    record: int
    message: str


class InvalidRecordsError(ApiError):
    """A batch is rejected because of some of its records; clients get their indexes, and can retry the others (KIP-467)."""

    def __init__(self, code: ErrorCode, errors: Sequence[RecordError]) -> None:
        first = "; ".join(f"record {error.record}: {error.message}" for error in errors[:3])
        more = f" The first of {len(errors)}:" if len(errors) > 3 else ""
        super().__init__(code, f"One or more records of the batch have been rejected.{more} {first}")
        self.errors = errors


_CODECS = {codec.name.lower(): codec for codec in Compression} | {"uncompressed": Compression.NONE}
_PRODUCER_CODEC = "producer"
_NO_TIMESTAMP = -1


def check_records(config: TopicConfig, header: BatchHeader, batch: bytes, now: int) -> None:
    """Check that the timestamp of each record is near enough to ``now`` (ms since 1970), and that it has a key if the log is
    compacted.

    Raises ``InvalidRecordsError``: INVALID_TIMESTAMP if any timestamp is wrong, else INVALID_RECORD.
    """
    earliest, latest = now - config.message_timestamp_before_max_ms, now + config.message_timestamp_after_max_ms
    by_client = config.message_timestamp_type == "CreateTime"
    # The header of a batch has the latest timestamp, but not the earliest.
    suspicious = by_client and (header.max_timestamp > latest or earliest > 0)
    if not suspicious and not config.compacted:
        return
    bad_timestamps, missing_keys = [], []
    for index, record in enumerate(iter_records(batch)):
        if suspicious and record.timestamp != _NO_TIMESTAMP and not earliest <= record.timestamp <= latest:
            bad_timestamps.append(RecordError(index, f"the timestamp {record.timestamp} is not within [{earliest}, {latest}]"))
        elif config.compacted and record.key is None:
            missing_keys.append(RecordError(index, "a compacted topic cannot accept a record without a key"))
    if bad_timestamps or missing_keys:
        raise InvalidRecordsError(
            ErrorCode.invalid_timestamp if bad_timestamps else ErrorCode.invalid_record, sorted(bad_timestamps + missing_keys)
        )
    if by_client and header.max_timestamp > latest:
        raise ApiError(
            ErrorCode.invalid_timestamp, "The header of the batch has a timestamp too far ahead, which none of its records has."
        )


def in_stored_codec(config: TopicConfig, batch: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """Return the batch with the codec of the topic's ``compression.type``."""
    if config.compression_type == _PRODUCER_CODEC or header.compression is _CODECS[config.compression_type]:
        return batch, header
    header, batch = recompressed(header, batch, _CODECS[config.compression_type], config.compression_level)
    return batch, header


_ALL = -1
_ADMIN_CLIENT = "__admin_client"
"""The one client id that Kafka allows to write to internal topics."""
_PREFIX = 12
"""The size of the fields that a batch's length does not count: the base offset and that length."""
_ACKS = (_ALL, 0, 1)


@serves(Api.PRODUCE)
def produce(state: BrokerState, context: RequestContext, request: produce_request.ProduceRequest, now: Now) -> list[BrokerEffect]:
    """Append the batch of each partition; a rejected one does not prevent the others.

    The first batch of a transaction in a log waits until the transaction coordinator has added or verified the partition (KIP-890).
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
    # For a partition about which the coordinator was not asked: 1. When the request arrived, it had an open transaction. 2. While
    # the request waited for the answer about others, a marker ended that. So the client retries. A producer without an id has no
    # transactions.
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
                error = verified.get(log.topic_partition, unverified)
                result = _append(state, context, log, data, now, error)
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
    """Complete a delayed produce after its flush, which may have failed for some partitions."""
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
    """Return the partitions in which a producer has no open transaction yet, by producer."""
    found: dict[TransactionalWriter, list[TopicPartition]] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            # Errors are reported when the batch is appended.
            with suppress(ApiError, InvalidBatchError):
                log = _log_of(state, context, topic, data)
                header = read_header(data.records or b"")
                if header.is_transactional and not log.producers.has_open_transaction(header.producer_id, header.producer_epoch):
                    writer = TransactionalWriter(request.transactional_id or "", header.producer_id, header.producer_epoch)
                    found.setdefault(writer, []).append(log.topic_partition)
    return found


def _check_verified(context: RequestContext, log: PartitionLog, header: BatchHeader, verified: ErrorCode) -> None:
    """Raise ``ApiError`` if the coordinator does not allow a transaction to begin in a log, with a code that the client's version
    knows."""
    has_transaction = log.producers.has_open_transaction(header.producer_id, header.producer_epoch)
    if verified is ErrorCode.none or not header.is_transactional or has_transaction:
        return
    raise ApiError(
        error_for_client(context, verified),
        "The transaction coordinator does not allow this producer to write to the partition now.",
    )


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
    """Return the header of the one batch in ``records``. Raises ``ApiError`` if that cannot be stored as it is."""
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
        # There is no response that could have the error. Kafka closes the connection, so that the client notices.
        code = next((one.error_code for topic in response.responses for one in topic.partition_responses if one.error_code), None)
        if code is not None:
            return [CloseConnection(context.ticket, f"a produce request with acks=0 failed: {code.name}")]
        return [NoReply(context.ticket)]
    if unflushed:
        jobs = {spot: log.flush() for spot, log in unflushed.items()}
        ends = {spot: (log, log.end_offset) for spot, log in unflushed.items()}
        state.delayed_produces[context.ticket] = DelayedProduce(context, response, ends)
        return [RunJob(("flush", context.ticket), partial(_flush_each, jobs))]
    return [Reply(context.ticket, response)]


def _flush_each(jobs: Mapping[ResponsePosition, DiskJob]) -> dict[ResponsePosition, Exception]:
    """Force each log to disk; return the errors by position in the response."""
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
