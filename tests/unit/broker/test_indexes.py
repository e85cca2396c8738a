"""The two indexes and their files."""

from __future__ import annotations

import struct

import pytest

from ottla.broker.indexes import OffsetIndex, TimeIndex


def _index() -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in ((3, 100), (7, 200), (20, 300)):
        index.append(offset, position)
    return index


@pytest.mark.parametrize(("offset", "position"), [(0, 0), (2, 0), (3, 100), (6, 100), (7, 200), (19, 200), (99, 300)])
def test_the_floor_of_an_offset_is_a_place_to_begin(offset: int, position: int) -> None:
    index = _index()
    row = index.floor_row(offset)
    assert (index[row][1] if row >= 0 else 0) == position


def test_an_index_is_big_endian_pairs_on_disk() -> None:
    content = _index().to_bytes()
    assert content == struct.pack(">6i", 3, 100, 7, 200, 20, 300)
    again = OffsetIndex.from_bytes(content, 301)
    assert again is not None
    assert again.to_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        b"1234",
        struct.pack(">4i", 3, 100, 3, 200),
        struct.pack(">4i", 3, 200, 7, 100),
        struct.pack(">2i", -1, 100),
        struct.pack(">2i", 3, 400),
    ],
)
def test_an_index_that_makes_no_sense_is_not_believed(content: bytes) -> None:
    assert OffsetIndex.from_bytes(content, 400) is None


def test_times_only_ascend() -> None:
    index = TimeIndex()
    for timestamp, offset in ((10, 1), (10, 2), (5, 3), (30, 4)):
        index.append(timestamp, offset)
    assert index.to_bytes() == struct.pack(">qiqi", 10, 1, 30, 4)
    assert [index.floor_row(timestamp) for timestamp in (0, 10, 11, 30, 31)] == [-1, -1, 0, 0, 1]
    assert TimeIndex.from_bytes(index.to_bytes()).last == (30, 4)
    assert TimeIndex.from_bytes(struct.pack(">qiqi", 30, 4, 30, 5)) is None
    assert TimeIndex.from_bytes(b"123") is None
