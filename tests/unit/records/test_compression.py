"""Codecs: the framings that Kafka's clients write, and the limit of the decompressed size."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc

import cramjam
import pyarrow
import pytest

from ottla.records import Compression, InvalidBatchError
from ottla.records.compression import compress, decompress

CODECS = list(Compression)[1:]
TEXT = b"Ottla was the youngest of Kafka's sisters. " * 3000
WORDS = b" ".join(random.Random(1).choices([b"word%d" % number for number in range(500)], k=20_000))


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(300_000)])
def test_compression_round_trip(codec: Compression, data: bytes) -> None:
    assert bytes(decompress(codec, memoryview(compress(codec, data)))) == data


def test_raw_snappy_as_librdkafka_may_send_it_is_read() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(Compression.SNAPPY, memoryview(raw)) == TEXT


def test_snappy_is_written_in_the_java_framing() -> None:
    data = bytes(compress(Compression.SNAPPY, TEXT))
    assert data.startswith(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    (size,) = struct.unpack_from(">i", data, 16)
    assert cramjam.snappy.decompress_raw_len(data[20 : 20 + size]) == 32 * 1024


@pytest.mark.parametrize("level", [None, 9])
@pytest.mark.parametrize("data", [TEXT, WORDS, random.Random(1).randbytes(150_000), b"short"])
def test_kafkas_default_of_lz4_is_the_fast_compressor_without_checksums(data: bytes, level: int | None) -> None:
    frame = bytes(compress(Compression.LZ4, data, level))
    assert frame[:7] == bytes.fromhex("04224d18604082")  # 64 KiB, independent blocks, no checksums
    sizes, position = [], 7
    while word := int.from_bytes(frame[position : position + 4], "little"):
        sizes.append(word & 0x7FFFFFFF)
        position += 4 + sizes[-1]
    assert len(sizes) == -(-len(data) // 65_536)
    assert (position + 4, max(sizes) <= 65_536) == (len(frame), True)
    assert pyarrow.Codec("lz4").decompress(frame, len(data), asbytes=True) == data


def test_levels() -> None:
    for codec, fast, small in ((Compression.GZIP, 1, 9), (Compression.ZSTD, -50, 19), (Compression.LZ4, 9, 8)):
        assert len(compress(codec, WORDS, small)) < len(compress(codec, WORDS, fast))
    assert compress(Compression.ZSTD, WORDS) == compress(Compression.ZSTD, WORDS, 3)
    assert compress(Compression.GZIP, WORDS) == compress(Compression.GZIP, WORDS, 6)


@pytest.mark.parametrize("cut", [17, 19, 25, -1])
def test_a_snappy_stream_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(InvalidBatchError, match=r"cut short|cannot be read"):
        decompress(Compression.SNAPPY, memoryview(bytes(compress(Compression.SNAPPY, TEXT))[:cut]))


def test_frames_that_do_not_declare_their_size_are_read() -> None:
    compressor = cramjam.zstd.Compressor()
    compressor.compress(TEXT * 20)
    assert decompress(Compression.ZSTD, memoryview(bytes(compressor.finish()))) == TEXT * 20
    many_members = b"".join(gzip.compress(TEXT) for _ in range(20))
    assert decompress(Compression.GZIP, memoryview(many_members)) == TEXT * 20


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_memory_is_spent(codec: Compression) -> None:
    bomb = memoryview(bytes(compress(codec, bytes(64 << 20))))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBatchError, match="may inflate to 1048576 bytes") as caught:
            decompress(codec, bomb, 1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20
    assert caught.value.hint is not None


def test_a_bomb_that_hides_its_size_is_refused_at_the_limit() -> None:
    compressor = cramjam.zstd.Compressor()
    for _ in range(64):
        compressor.compress(bytes(1 << 20))
    lying_gzip = gzip.compress(bytes(64 << 20))[:-4] + b"\x01\0\0\0"
    for codec, data in ((Compression.ZSTD, bytes(compressor.finish())), (Compression.GZIP, lying_gzip)):
        with pytest.raises(InvalidBatchError, match="may inflate to 1048576 bytes"):
            decompress(codec, memoryview(data), 1 << 20)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"\1", b"garbage, no codec wrote this", b"\xff" * 64])
def test_garbage_is_refused(codec: Compression, data: bytes) -> None:
    with pytest.raises(InvalidBatchError):
        decompress(codec, memoryview(data))


@pytest.mark.parametrize("codec", CODECS)
def test_exactly_the_limit_is_allowed(codec: Compression) -> None:
    data = memoryview(bytes(compress(codec, bytes(100_000))))
    assert len(decompress(codec, data, 100_000)) == 100_000
    with pytest.raises(InvalidBatchError):
        decompress(codec, data, 99_999)
