"""Exported columns: they live until the consumer releases them, and not longer."""

from __future__ import annotations

import ctypes
import gc
import itertools
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from ottla import Records
from ottla.records import NewRecord, PartitionReader, cdata, encode_batch


def records(count: int = 3) -> Records:
    data = encode_batch([NewRecord(b"k%d" % number, b"v", (("h", b"x"),)) for number in range(count)])
    read = PartitionReader(data, topic="t", partition=0, fetch_offset=0).read(count)
    assert read is not None
    return Records([read])


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert cdata._alive == {}  # type: ignore[attr-defined]
    assert cdata._capsules == {}  # type: ignore[attr-defined]


def test_an_unused_stream_is_freed() -> None:
    capsule = records().__arrow_c_stream__()
    assert "arrow_array_stream" in repr(capsule)


def test_a_stream_can_be_taken_and_not_read() -> None:
    reader = pa.RecordBatchReader.from_stream(records())
    assert reader.schema.names[0] == "key"


def test_a_column_outlives_its_batch_and_its_records() -> None:
    its = records()
    key, headers = its.to_arrow()["key"], pa.table(its)["headers"]
    del its
    gc.collect()
    assert key.to_pylist() == [b"k0", b"k1", b"k2"]
    assert headers.to_pylist() == [[{"key": "h", "value": b"x"}]] * 3


def an_array() -> int:
    """The address of a struct array with one child, the number 7."""
    block = cdata.Block(100)
    array = block.take(80)
    block.array(array, 1, 1, 1)
    block.array(block.child(array, 0), 1, 2, 0)
    ctypes.c_int.from_address(block.buffer(block.child(array, 0), 1, 4)).value = 7
    block.hand_out()
    return array


def test_an_error_reaches_the_reader_of_the_stream() -> None:
    def arrays() -> Iterator[int]:
        yield an_array()
        raise ValueError("no more of that")

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return cdata.stream_capsule(("+s", "", (("i", "number", ()),)), arrays())

    reader = pa.RecordBatchReader.from_stream(Stream())
    assert reader.read_next_batch().to_pydict() == {"number": [7]}
    with pytest.raises((OSError, pa.ArrowException), match="no more of that"):
        reader.read_next_batch()


def test_a_released_array_lets_go_of_all_its_children() -> None:
    address = an_array()
    assert len(cdata._alive) == 1  # type: ignore[attr-defined]
    cdata.release_array(address)


def test_pieces_are_aligned_and_do_not_overlap_even_beyond_the_expected_size() -> None:
    block = cdata.Block(200)
    sizes = (1, 100, 0, 64, 1000, 8)
    pieces = [block.take(size) for size in sizes]
    assert [piece % 64 for piece in pieces] == [0] * 6
    taken = sorted((piece, piece + size) for piece, size in zip(pieces, sizes, strict=True) if size)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))


def test_a_stream_needs_no_pyarrow() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
from ottla.records import *
data = encode_batch([NewRecord(b"k", b"v")])
records = Records([PartitionReader(data, topic="t", partition=0, fetch_offset=0).read(1)])
assert "arrow_array_stream" in repr(records.__arrow_c_stream__())
sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
