"""Scans of segment files: what counts as a batch, and what a scan of damage costs."""

from __future__ import annotations

from random import Random

import pytest

from ottla.broker.scan import PIECE, Batch, Damage, scan
from ottla.records import BatchHeader, read_header
from ottla.records.header import pack_header
from tests.unit.broker.harness import batch


class Content:
    """A file in memory; ``gap`` zeros follow ``data``. It notes what is read."""

    def __init__(self, data: bytes, gap: int = 0) -> None:
        self._data = data
        self.size = len(data) + gap
        self.largest = self.total = 0

    def read(self, position: int, size: int) -> bytes:
        size = max(0, min(size, self.size - position))
        self.largest, self.total = max(self.largest, size), self.total + size
        return self._data[position : position + size].ljust(size, b"\0")


def placed(*offsets: int, size: int = 20) -> list[bytearray]:
    """Batches of one record each."""
    return [bytearray(batch(size=size, base_offset=offset, leader_epoch=0)) for offset in offsets]


def test_a_damaged_length_does_not_bring_the_rest_of_a_file_into_memory() -> None:
    first, second = placed(0, 1)
    header = read_header(first)
    whole = header._replace(batch_length=50 * PIECE)
    file = Content(pack_header(whole) + bytes(first[61:]) + bytes(second), 60 * PIECE)
    found = list(scan(file, 0))
    assert [one.header.base_offset for one in found if isinstance(one, Batch)] == [1]
    assert file.largest <= PIECE


def test_a_large_batch_is_found_and_its_checksum_read() -> None:
    (large,) = placed(0, size=3 * PIECE)
    assert [type(one) for one in scan(Content(bytes(large)), 0)] == [Batch]
    large[-PIECE] ^= 1
    (damage,) = scan(Content(bytes(large)), 0)
    assert isinstance(damage, Damage)
    assert "fails its checksum" in damage.reason


def test_many_damages_in_a_file_cost_as_much_as_its_size() -> None:
    batches = placed(*range(20_000))
    for one in batches[::2]:
        one[16] ^= 1
    file = Content(b"".join(batches))
    found = list(scan(file, 0))
    assert [one.header.base_offset for one in found if isinstance(one, Batch)] == list(range(1, 20_000, 2))
    assert file.total < 5 * file.size


@pytest.mark.parametrize(
    "content",
    [bytes(30 * PIECE), b"\2" * (8 * PIECE), (bytes(19) + b"\2") * (PIECE // 20), Random(1).randbytes(8 * PIECE)],
    ids=["zeros", "magic bytes", "both", "noise"],
)
def test_what_is_no_batch_is_read_once(content: bytes) -> None:
    file = Content(content)
    (damage,) = scan(file, 0)
    assert (damage.position, damage.end) == (0, file.size) if isinstance(damage, Damage) else False
    assert file.total < 2 * file.size + 2 * PIECE


@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_an_offset_that_a_segment_cannot_hold_is_damage(limit: int | None) -> None:
    """The indexes of a segment hold 31 bits of an offset; ``Segment.note`` refuses others."""
    batches = placed(0, 1 << 30, 3 << 30)
    found = list(scan(Content(b"".join(batches)), 0, limit=limit))
    headers: list[BatchHeader] = [one.header for one in found if isinstance(one, Batch)]
    assert [header.base_offset for header in headers] == [0, 1 << 30]
    assert isinstance(found[-1], Damage)
