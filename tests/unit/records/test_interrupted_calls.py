"""What is left of ``append`` and ``send_arrow`` when something raises between two of their steps: a lack of memory, or Ctrl-C."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_input import RowEncoder
from tests.arrow_input import accumulator, written

# -- memory -------------------------------------------------------------------------------------------------------------------


class NoMemory(RecordAccumulator):
    """There is no memory for the last buffers of batches: only for so many before them."""

    buffers = 0

    def take_spare(self, size: int) -> bytearray | None:
        self.buffers -= 1
        if self.buffers < 0:
            raise MemoryError
        return super().take_spare(size)


@pytest.mark.parametrize("buffers", [0, 1])
def test_a_record_without_memory_takes_none(buffers: int) -> None:
    """For its batch, or for a batch that grows."""
    target = accumulator(kind=NoMemory)
    target.buffers = buffers  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        [target.append("t", b"x" * 500) for _ in range(3)]
    batches = target.close_all()
    assert target.used == sum(batch.memory_size for batch in batches)
    assert [len(rows) for rows in written(target).values()] == [1] * buffers
    for batch in batches:
        target.release(batch)
    assert target.used == 0


@pytest.mark.parametrize("buffers", [0, 1, 2])
def test_rows_without_memory_take_none(buffers: int) -> None:
    """For the first batch, for one that grows with the second array, or for the next batch."""
    target = accumulator(max_record=1000, kind=NoMemory)
    target.buffers = buffers  # type: ignore[attr-defined]
    woken: list[None] = []
    target.waiters.append(lambda: woken.append(None))
    rows = pa.chunked_array([[b"x" * 200] * 2] * 5)
    encoder = RowEncoder(target, pa.table({"value": rows}), "t")
    with pytest.raises(MemoryError):
        list(encoder.steps())
    assert target.used == sum(batch.memory_size for batch in encoder.delivery.batches)
    assert woken == [None], "who waits for memory tries again"
