"""Converts messages of the formats 0 and 1 (before Kafka 0.11) to batches of version 2, the only format of the readers.

Owns the layout of old messages and of old compressed sets. Must not know the readers. Invariant: the batches have the same offsets,
timestamps, keys and values, and nothing outside the given buffer is read. Brokers no longer write these formats (KIP-724), but
retained segments of old brokers have them, and brokers send those unchanged. The conversion encodes the records again; such topics
are rarely read, so its cost does not matter.

Source: "Message sets" and "Messages" in the protocol's documentation up to 3.x (KIP-31, KIP-32).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from ottla.records.compression import decompress
from ottla.records.encode import NewRecord, encode_compacted
from ottla.records.header import (
    CODEC_MASK,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    Compression,
    InvalidBatchError,
)

_FRONT = struct.Struct(">qiIbb")
"""Offset and size as in a batch; then what the size counts: checksum, format, attributes."""
_OVERHEAD = 12
_CRC_START = 16
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_NO_TIMESTAMP = -1


class _Message(NamedTuple):
    """One message, whose value may be a compressed set of others."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    end: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def append_time(self) -> int | None:
        """The time at which the broker appended the message, if that is its timestamp."""
        return self.timestamp if self.magic and self.attributes & LOG_APPEND_TIME_BIT else None


def is_old(data: memoryview, position: int) -> bool:
    """Whether a message of an old format begins at ``position``, if its format byte is in the buffer."""
    return position + MAGIC_OFFSET < len(data) and 0 <= data[position + MAGIC_OFFSET] < MAGIC


def batch_of(data: memoryview, position: int, *, check_crcs: bool, max_bytes: int) -> tuple[bytes, int] | None:
    """Convert the message at ``position``, and those after it that fit into the same batch; return the batch and their end.

    ``None`` if not even one message is complete. Raises ``InvalidBatchError`` if the first one is damaged, or longer than
    ``max_bytes`` when decompressed.
    """
    first = _message(data, position, check_crcs)
    if first is None:
        return None
    if first.codec:
        return _batch(list(_unpacked(first, max_bytes)), first.append_time), first.end
    run = [first]
    while is_old(data, run[-1].end):
        try:
            following = _message(data, run[-1].end, check_crcs)
        except InvalidBatchError:
            break  # the messages before it are delivered first
        if following is None or following.codec or following.append_time != first.append_time:
            break
        run.append(following)
    return _batch(run, first.append_time), run[-1].end


def _message(data: memoryview, position: int, check_crcs: bool) -> _Message | None:
    """The message at ``position``; ``None`` if it is truncated."""
    if position + _OVERHEAD > len(data):
        return None
    size = _LENGTH.unpack_from(data, position + _OVERHEAD - _LENGTH.size)[0]
    end = position + _OVERHEAD + size
    if end > len(data):
        return None
    if size < _FRONT.size - _OVERHEAD:
        raise InvalidBatchError(f"the message at byte {position} claims {size} bytes, too few for its own front")
    offset, _, crc, magic, attributes = _FRONT.unpack_from(data, position)
    at, timestamp = position + _FRONT.size, _NO_TIMESTAMP
    try:
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(data[:end], at)
            at += _TIMESTAMP.size
        key, at = _sized(data[:end], at)
        value, at = _sized(data[:end], at)
    except struct.error:
        at = -1
    if at != end:
        raise InvalidBatchError(f"the message of format {magic} at byte {position} does not fill the {size} bytes that it claims")
    if check_crcs and zlib.crc32(data[position + _CRC_START : end]) != crc:
        raise InvalidBatchError(f"wrong checksum of the message of format {magic} at byte {position}, offset {offset}")
    return _Message(offset, magic, attributes, timestamp, key, value, end)


def _sized(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """A key or a value and the position after it, which is beyond the end of truncated data."""
    (size,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    return (None, at) if size < 0 else (bytes(data[at : at + size]), at + size)


def _unpacked(outer: _Message, max_bytes: int) -> Iterator[_Message]:
    """The messages of a compressed set. From format 1 on their offsets are relative, and the outer offset is that of the last."""
    if outer.codec not in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4):
        raise InvalidBatchError(f"unknown compression codec {outer.codec} in the message at offset {outer.offset}")
    inner = memoryview(decompress(Compression(outer.codec), memoryview(outer.value or b""), max_bytes))
    messages, position = [], 0
    while position < len(inner):
        message = _message(inner, position, check_crcs=False)
        if message is None or message.codec or message.magic != outer.magic:
            raise InvalidBatchError(f"the compressed set at offset {outer.offset} has an invalid message at its byte {position}")
        messages.append(message)
        position = message.end
    if not messages:
        raise InvalidBatchError(f"the compressed set at offset {outer.offset} is empty")
    start = outer.offset - messages[-1].offset if outer.magic else 0
    return (message._replace(offset=start + message.offset) for message in messages)


def _batch(messages: list[_Message], append_time: int | None) -> bytes:
    first, last = messages[0].offset, messages[-1].offset
    header = BatchHeader(
        base_offset=first,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=0 if append_time is None else LOG_APPEND_TIME_BIT,
        last_offset_delta=last - first,
        base_timestamp=_NO_TIMESTAMP,
        max_timestamp=_NO_TIMESTAMP if append_time is None else append_time,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(messages),
    )
    records = [(message.offset, NewRecord(message.key, message.value, timestamp=message.timestamp)) for message in messages]
    return encode_compacted(header, records, delete_horizon=None)[1]
