"""What the settings of a topic ask of a batch that comes in, beyond its being sound.

Owns the checks of stamps and keys, and the change of codec. Must not know requests or logs. Invariant: a batch is refused whole
or stored whole; one that already is as the settings ask is not touched.
"""

from __future__ import annotations

from ottla.broker.api_errors import InvalidRecordsError, RecordError
from ottla.broker.topic_config import TopicConfig
from ottla.coordinator.api_error import ApiError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader, Compression, iter_records, recompressed

_CODECS = {codec.name.lower(): codec for codec in Compression} | {"uncompressed": Compression.NONE}
_AS_IT_CAME = "producer"
_NO_STAMP = -1


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
    stamps, keys = [], []
    for index, record in enumerate(iter_records(batch)):
        if suspicious and record.timestamp != _NO_STAMP and not earliest <= record.timestamp <= latest:
            stamps.append(RecordError(index, f"the stamp {record.timestamp} is not within [{earliest}, {latest}]"))
        elif config.compacted and record.key is None:
            keys.append(RecordError(index, "a compacted topic cannot accept a record without a key"))
    if stamps or keys:
        raise InvalidRecordsError(ErrorCode.invalid_timestamp if stamps else ErrorCode.invalid_record, sorted(stamps + keys))
    if by_client and header.max_timestamp > latest:
        raise ApiError(
            ErrorCode.invalid_timestamp, "The batch says that it holds a stamp too far ahead, but none of its records has it."
        )


def as_stored(config: TopicConfig, batch: bytes, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """The batch with the codec that the topic is stored with."""
    if config.compression_type == _AS_IT_CAME or header.compression is _CODECS[config.compression_type]:
        return batch, header
    header, batch = recompressed(header, batch, _CODECS[config.compression_type], config.compression_level)
    return batch, header
