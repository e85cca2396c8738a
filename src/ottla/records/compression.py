"""Compresses and decompresses batches with ``cramjam``, up to a limit.

Owns Kafka's framing of codecs (the Java snappy stream) and the limit of a decompressed batch. Must not know the meaning of the
bytes. Invariant: at most ``limit`` bytes are allocated for a result, and a longer one is refused as soon as its length is known;
errors of a codec become ``InvalidBatchError``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import cramjam

from ottla.records.header import INVALID_RECORD, Compression, InvalidBatchError

DEFAULT_MAX_BATCH_BYTES = 128 * 1024 * 1024
"""The default maximum of a decompressed batch, in bytes."""

_SPARE_SIZE = 1024 * 1024
_FIRST_GUESS, _GROWTH = 16, 4
"""The first buffer has this many times the compressed size, and grows by this factor while it is too short. The first factor is
large, since a failed attempt costs more than a buffer that is too long."""

_spares: list[bytearray] = []
"""Reusable buffers for results of unknown, probably short length: allocating and clearing one takes as long as decompressing. Only
one thread uses a buffer at a time; there are as many as there were threads that decompressed at once."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")
_XERIAL_BLOCK = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")
_ZSTD_LEVEL = 3
_LZ4_FAST = 9
"""Kafka's default level, by which it means the fast compressor of lz4; at other levels it uses the one that compresses more."""
_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")
"""Version 1, independent blocks of 64 KiB, and the checksum of these two bytes."""
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 1 << 31
"""Marks the length of a block that is not compressed."""
_OUTPUT_FULL = "failed to write whole buffer"


def compress(codec: Compression, data: bytes | bytearray, level: int | None = None) -> bytes | bytearray:
    """Compress ``data``; ``Compression.NONE`` returns it unchanged. gzip, lz4 and zstd have levels, those of Kafka."""
    return _COMPRESS[codec](data, level)


def decompress(codec: Compression, data: memoryview, limit: int = DEFAULT_MAX_BATCH_BYTES) -> bytes | bytearray | memoryview:
    """Decompress ``data``. Raises ``InvalidBatchError`` if it is damaged or would be longer than ``limit`` bytes."""
    return _DECOMPRESS[codec](data, limit)


def _too_long(limit: int, declared: int | None = None) -> InvalidBatchError:
    size = "more than that" if declared is None else f"{declared} bytes"
    return InvalidBatchError(
        f"compressed batch refused: it may inflate to {limit} bytes and declares or holds {size}",
        code=INVALID_RECORD,
        hint="raise the limit on the size of an inflated batch if the sender can be trusted",
    )


def _unreadable(error: Exception) -> InvalidBatchError:
    return InvalidBatchError(f"compressed records cannot be read: {error}", code=INVALID_RECORD)


def _into(codec: Any, data: memoryview, limit: int, declared: int | None) -> bytes | bytearray:
    """Decompress into a buffer of the declared size, or of a guessed size that grows until the result fits or exceeds the limit."""
    if declared is not None and declared > limit:
        raise _too_long(limit, declared)
    size = min(limit, _FIRST_GUESS * len(data)) if declared is None else declared
    if declared is None and size <= _SPARE_SIZE:
        answer = _into_spare(codec, data, limit)
        if answer is not None:
            return answer
        size = _GROWTH * _SPARE_SIZE
    while True:
        size = min(size, limit)
        output = bytearray(size)
        length = _attempt(codec, data, output)
        if length is not None:
            del output[length:]
            return output
        if size == limit:
            raise _too_long(limit)
        size = max(_SPARE_SIZE, _GROWTH * size)


def _into_spare(codec: Any, data: memoryview, limit: int) -> bytes | None:
    """Decompress into a reusable buffer and copy the result; ``None`` if the buffer is too short."""
    spare = _spares.pop() if _spares else bytearray(_SPARE_SIZE)
    try:
        with memoryview(spare) as whole, whole[:limit] as room:
            length = _attempt(codec, data, room)
            return None if length is None else bytes(room[:length])
    finally:
        _spares.append(spare)


def _attempt(codec: Any, data: memoryview, output: bytearray | memoryview) -> int | None:
    """Decompress; return the length of the result, or ``None`` if ``output`` is too short."""
    try:
        return int(codec(data, output))
    except cramjam.DecompressionError as error:
        if _OUTPUT_FULL in str(error):
            return None
        raise _unreadable(error) from error


def _none(data: memoryview, limit: int) -> memoryview:
    return data


def _gzip(data: memoryview, limit: int) -> bytes | bytearray:
    # The size at the end is that of the last gzip member only, and arbitrary if the data is truncated: it is only a hint.
    hint = int.from_bytes(data[-4:], "little") if len(data) >= 18 else limit + 1
    return _into(cramjam.gzip.decompress_into, data, limit, hint if hint <= limit else None)


def _lz4(data: memoryview, limit: int) -> bytes | bytearray:
    has_size = len(data) >= 14 and data[4] & 0x08
    return _into(cramjam.lz4.decompress_into, data, limit, int.from_bytes(data[6:14], "little") if has_size else None)


def _zstd(data: memoryview, limit: int) -> bytes | bytearray:
    return _into(cramjam.zstd.decompress_into, data, limit, _zstd_content_size(data))


def _zstd_content_size(data: memoryview) -> int | None:
    """The size that the first frame declares (RFC 8878, 3.1.1.1), or ``None`` if it declares none."""
    if len(data) < 18 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if width == 0:
        return None
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 0x03]
    return int.from_bytes(data[start : start + width], "little") + (256 if width == 2 else 0)


def _snappy_size(block: memoryview) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise _unreadable(error) from error


def _snappy(data: memoryview, limit: int) -> bytearray:
    """One raw block, or the Java library's stream of blocks, each of which declares its size."""
    blocks = list(_java_blocks(data)) if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC else [data]
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > limit:
        raise _too_long(limit, sum(sizes))
    output = bytearray(sum(sizes))
    with memoryview(output) as view:
        at = 0
        for block, size in zip(blocks, sizes, strict=True):
            try:
                cramjam.snappy.decompress_raw_into(block, view[at : at + size])
            except cramjam.DecompressionError as error:
                raise _unreadable(error) from error
            at += size
    return output


def _java_blocks(data: memoryview) -> Iterator[memoryview]:
    """The blocks of the Java library's stream: a header, then blocks with their lengths in front."""
    position = _XERIAL_HEADER.size
    while position < len(data):
        start = position + _BLOCK_SIZE.size
        size = _BLOCK_SIZE.unpack_from(data, position)[0] if start <= len(data) else -1
        if size < 0 or start + size > len(data):
            raise InvalidBatchError(f"snappy stream cut short at byte {position} of {len(data)}", code=INVALID_RECORD)
        yield data[start : start + size]
        position = start + size


def _snappy_stream(data: bytes | bytearray, level: int | None) -> bytearray:
    output = bytearray(_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1))
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        output += _BLOCK_SIZE.pack(len(block)) + block
    return output


def _lz4_frame(data: bytes | bytearray, level: int | None) -> bytes | bytearray:
    """A frame of independent blocks: Java's clients and tools do not read linked blocks."""
    if level is None or level == _LZ4_FAST:
        return _fast_lz4_frame(data)
    compressor = cramjam.lz4.Compressor(level, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def _fast_lz4_frame(data: bytes | bytearray) -> bytearray:
    """A frame without checksums, which a batch has itself: they cost 15 to 30 % of the time, and Kafka's clients write none."""
    output = bytearray(_LZ4_HEADER)
    with memoryview(data) as view:
        for start in range(0, len(data), _LZ4_BLOCK):
            part = view[start : start + _LZ4_BLOCK]
            block = bytes(cramjam.lz4.compress_block(part, store_size=False))
            if len(block) < len(part):
                output += len(block).to_bytes(4, "little") + block
            else:
                output += (len(part) | _LZ4_STORED).to_bytes(4, "little") + part
    output += bytes(4)
    return output


_COMPRESS: dict[int, Callable[[bytes | bytearray, int | None], bytes | bytearray]] = {
    Compression.NONE: lambda data, level: data,
    Compression.GZIP: lambda data, level: bytes(cramjam.gzip.compress(data, level)),
    Compression.SNAPPY: _snappy_stream,
    Compression.LZ4: _lz4_frame,
    Compression.ZSTD: lambda data, level: bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL if level is None else level)),
}

_DECOMPRESS: dict[int, Callable[[memoryview, int], bytes | bytearray | memoryview]] = {
    Compression.NONE: _none,
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
