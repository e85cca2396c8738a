"""The header of record batches, 61 bytes: finds, reads and writes it.

Owns the layout of the version 2 header and its attribute bits. Must not know the records after it. Invariant: nothing outside the
given buffer is read, and errors name the byte.

Source: "Record Batch" in the protocol's documentation (KIP-98, KIP-101, KIP-360).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple, TypeAlias

from ottla.errors import (
    CorruptMessageError,
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from ottla.types import TimestampType

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap

HEADER_SIZE = 61
"""Bytes from the base offset to the record count, both included."""

LENGTH_OVERHEAD = 12
"""Bytes that ``batch_length`` does not count: the base offset and the length itself."""

CRC_OFFSET = 17
CRC_START = 21
"""The position of the checksum, and of the first byte that it covers."""

MAGIC_OFFSET = 16
MAGIC = 2
"""The only format that Kafka 4 writes."""

CODEC_MASK, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, CONTROL_BIT, DELETE_HORIZON_BIT = 0x07, 0x08, 0x10, 0x20, 0x40

CORRUPT_MESSAGE = CorruptMessageError.code
UNSUPPORTED_FOR_MESSAGE_FORMAT = UnsupportedForMessageFormatError.code
UNSUPPORTED_COMPRESSION_TYPE = UnsupportedCompressionTypeError.code
INVALID_RECORD = InvalidRecordError.code

_HEADER = struct.Struct(">qiibIhiqqqhii")
_SIZE = struct.Struct(">qi")
_MAX_SEQUENCE = 2**31 - 1
_MAX_BASE_OFFSET = 2**63 - 2**32


class InvalidBatchError(CorruptRecordError):
    """A batch is invalid. ``code`` is the protocol's error code for the response of a broker.

    ``CORRUPT_MESSAGE`` (2) if the bytes were damaged, so that sending them again may help; ``INVALID_RECORD`` (87) if the sender
    wrote invalid records; ``UNSUPPORTED_COMPRESSION_TYPE`` (76); ``UNSUPPORTED_FOR_MESSAGE_FORMAT`` (43). ``topic``, ``partition``
    and ``offset`` (the position that cannot be read) are ``None`` if they are not known.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int = CORRUPT_MESSAGE,
        hint: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.topic, self.partition, self.offset = topic, partition, offset


class Compression(enum.IntEnum):
    """The codec of a batch; the numbers are those of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class ControlType(enum.Enum):
    """The type of the marker that ends a transaction."""

    ABORT = "abort"
    COMMIT = "commit"


class BatchHeader(NamedTuple):
    """The header of one batch, field by field in the order of the wire."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header and records."""
        return LENGTH_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record, which compaction may have removed."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec of the records. Raises ``InvalidBatchError`` for an unknown one."""
        try:
            return Compression(self.attributes & CODEC_MASK)
        except ValueError:
            raise InvalidBatchError(
                f"unknown compression codec {self.attributes & CODEC_MASK} in the batch at offset {self.base_offset}",
                code=UNSUPPORTED_COMPRESSION_TYPE,
            ) from None

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker set the timestamps."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch has control records, which are not delivered to applications."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether ``base_timestamp`` is the time after which tombstones may be removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, which follows 2**31 - 1 with 0; -1 without an idempotent producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE


def read_header(data: Buffer, position: int = 0, origin: int = 0) -> BatchHeader:
    """The header at ``position``, whose batch may be longer than the buffer. ``origin`` is added to positions in errors.

    Raises ``InvalidBatchError`` if fewer than 61 bytes are left, if the length is invalid, or if the format is not version 2.
    """
    if position < 0 or position + HEADER_SIZE > len(data):
        left = max(0, len(data) - position)
        raise InvalidBatchError(f"truncated batch header at byte {origin + position}: {left} bytes left of {HEADER_SIZE}")
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise _wrong_magic(header.magic, origin + position)
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
        raise InvalidBatchError(f"batch at byte {origin + position} claims {header.batch_length} bytes, too few for its own header")
    if not 0 <= header.base_offset <= _MAX_BASE_OFFSET:
        raise InvalidBatchError(f"batch at byte {origin + position} claims base offset {header.base_offset}", code=INVALID_RECORD)
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise InvalidBatchError(
            f"batch at byte {origin + position} claims {header.record_count} records up to offset delta {header.last_offset_delta}",
            code=INVALID_RECORD,
        )
    return header


def _wrong_magic(magic: int, position: int) -> InvalidBatchError:
    if magic in (0, 1):
        return InvalidBatchError(
            f"record format {magic} at byte {position}: only version 2 is supported",
            code=UNSUPPORTED_FOR_MESSAGE_FORMAT,
            hint="formats 0 and 1 are older than Kafka 0.11: let a newer broker rewrite the topic",
        )
    return InvalidBatchError(f"magic byte {magic} at byte {position}, expected {MAGIC}: the batch is damaged")


def iter_headers(data: Buffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of each complete batch between ``start`` and ``end``; a partial last one is left out.

    Raises ``InvalidBatchError`` as ``read_header`` does.
    """
    end = len(data) if end is None else min(end, len(data))
    position = start
    while position + LENGTH_OVERHEAD <= end:
        _, batch_length = _SIZE.unpack_from(data, position)
        after = position + LENGTH_OVERHEAD + batch_length
        if after > end:
            return
        yield position, read_header(data, position)
        position = after


def last_header(data: Buffer) -> BatchHeader | None:
    """The header of the last complete batch, or ``None``. Of the batches before it only the lengths are read.

    Raises ``InvalidBatchError`` as ``read_header`` does, for the last batch or one with an invalid length.
    """
    last, position, size = -1, 0, len(data)
    while position + LENGTH_OVERHEAD <= size:
        after = position + LENGTH_OVERHEAD + _SIZE.unpack_from(data, position)[1]
        if after > size:
            break
        if after < position + HEADER_SIZE:
            read_header(data, position)
        last, position = position, after
    return None if last < 0 else read_header(data, last)


def first_offset(data: Buffer) -> int:
    """The base offset of the first batch, which has at least its offset and length."""
    offset: int = _SIZE.unpack_from(data)[0]
    return offset


def pack_header(header: BatchHeader) -> bytes:
    """The 61 bytes of a header."""
    return _HEADER.pack(*header)
