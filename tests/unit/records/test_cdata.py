"""Columns in other libraries' hands: what was handed out lives until it is let go, and not longer."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from ottla.records import NewRecord, PartitionReader, Records, cdata, encode_batch

if TYPE_CHECKING:
    from ottla.records.columns import Node


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


def test_a_stream_that_nobody_takes_is_freed() -> None:
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


def test_a_failure_reaches_who_reads_the_stream() -> None:
    def nodes() -> Iterator[Node]:
        yield 1, 0, (None,), ((1, 0, (None, bytearray(b"\x07\0\0\0")), ()),)
        raise ValueError("no more of that")

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return cdata.stream_capsule(("+s", "", (("i", "number", ()),)), nodes())

    reader = pa.RecordBatchReader.from_stream(Stream())
    assert reader.read_next_batch().to_pydict() == {"number": [7]}
    with pytest.raises((OSError, pa.ArrowException), match="no more of that"):
        reader.read_next_batch()


def test_a_released_array_lets_go_of_all_its_children() -> None:
    child: Node = (1, 0, (None, bytearray(4)), ())
    address = cdata.export_array((1, 0, (None,), (child, (1, 0, (None,), (child, child)))))
    assert len(cdata._alive) == 1  # type: ignore[attr-defined]
    cdata.release_array(address)


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
