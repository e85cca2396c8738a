"""What is left of ``append`` and ``send_arrow`` when something raises between two of their steps: a lack of memory, or Ctrl-C."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from ottla.errors import ClosedError
from ottla.records.accumulator import COMPILED, RecordAccumulator
from ottla.records.arrow_input import RowEncoder
from ottla.records.producer_queues import ProducerBatch
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


# -- Ctrl-C -------------------------------------------------------------------------------------------------------------------


class Network:
    """A network thread that is woken, and the accumulator with two partitions whose batches it would send."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.target = accumulator({"t": 2}, max_record=1000, wake=self.wake)
        self.seen: list[ProducerBatch] = []
        """The batches that it found when it was woken last."""
        self._error = error

    def wake(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.seen = list(self.target.incomplete)

    def encoder(self) -> RowEncoder:
        """A call with several arrays, whose batches grow, and are several in each partition."""
        columns = {"value": [b"x" * 200] * 4, "partition": pa.array([0, 1, 1, 0], pa.int32())}
        return RowEncoder(self.target, pa.Table.from_batches([pa.record_batch(columns)] * 4), "t")

    def check(self, encoder: RowEncoder) -> None:
        queued = [batch for queue in self.target.active() for batch in queue.closed]
        assert all(batch.memory_size for batch in queued), "the memory of a batch that the network thread may send was freed"
        if not COMPILED:  # and so a step can be interrupted in the middle
            return
        assert self.target.used == sum(batch.memory_size for batch in queued)
        assert set(encoder.delivery.batches) <= set(queued) == set(self.target.incomplete) == set(self.seen)


def interrupted(call: Callable[[], object], after: int) -> bool:
    """Whether a call was interrupted by Ctrl-C at the next begin or end of a Python function after so many.

    Without the garbage collector: 1. It begins in the call, and calls a function of ``gc.callbacks``, such as that of Hypothesis.
    2. That is interrupted, and the exception goes no further. 3. The call ends as if it had been too short.
    """
    left = after

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        left -= event in ("call", "return")
        if left < 0:
            raise KeyboardInterrupt

    gc.disable()
    try:
        sys.setprofile(profile)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # ProducerBatch.__del__ after half an __init__
def test_a_call_that_is_interrupted_anywhere_keeps_its_memory_and_leaves_the_batches_of_the_network_thread_alone() -> None:
    """A signal handler runs, and may raise, where Python code is called."""
    count, accepted = 0, set()
    while True:
        network = Network()
        encoder = network.encoder()
        if not interrupted(lambda: list(encoder.steps()), count):  # noqa: B023 - it is called at once
            break
        network.check(encoder)
        accepted.add(len(network.target.incomplete))
        count += 1
    assert max(accepted) > min(accepted) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ClosedError])
def test_a_batch_that_was_accepted_stays_so_if_the_network_thread_cannot_be_woken(error: type[BaseException]) -> None:
    """``ClosedError``: another thread closes the producer meanwhile."""
    network = Network(error("as it is woken"))
    encoder = network.encoder()
    with pytest.raises(error):
        list(encoder.steps())
    (batch,) = encoder.delivery.batches
    assert batch.memory_size == network.target.used
    assert network.seen == ([batch] if error is KeyboardInterrupt else []), "a network thread that ends is not woken"


def test_the_network_thread_is_woken_for_a_record_although_its_call_was_interrupted() -> None:
    network = Network(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        network.target.append("t", b"x")
    assert [batch.count for batch in network.seen] == [1]
