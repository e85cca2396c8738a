"""The memory of foreign streams is released, once, whatever happens; no Arrow library is needed; threads may encode at once."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ottla import Records
from ottla.errors import OttlaError
from ottla.records import NewRecord, PartitionReader, cdata, encode_batch
from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_delivery import MemoryShort
from ottla.records.arrow_input import RowEncoder
from ottla.records.batch_states import BatchInput
from tests.arrow_input import accumulator, encode, rows_of, written


def allocated() -> int:
    gc.collect()
    return pa.total_allocated_bytes()


def a_table(rows: int = 1000) -> pa.Table:
    return pa.table({"value": pa.array([b"%d" % number for number in range(rows)]), "topic": ["t"] * rows})


def finish(encoder: RowEncoder) -> None:
    assert list(encoder.steps()) == []


def give_up(encoder: RowEncoder) -> None:
    steps = encoder.steps()
    next(steps)
    steps.close()


def forget(encoder: RowEncoder) -> None:
    next(encoder.steps())


def never_start(encoder: RowEncoder) -> None:
    encoder.steps()


@pytest.mark.parametrize(("topics", "use"), [({"t": 1}, finish), ({"u": 1}, give_up), ({"u": 1}, forget), ({"t": 1}, never_start)])
def test_arrays_are_released(topics: dict[str, int], use: Callable[[RowEncoder], None]) -> None:
    before = allocated()
    use(RowEncoder(accumulator(topics), a_table()))
    assert allocated() == before


def test_arrays_are_released_when_a_row_or_a_type_is_wrong() -> None:
    before = allocated()
    wrong_types: list[pa.Table] = [a_table().set_column(1, "topic", pa.array([7] * 1000)), a_table().drop_columns(["value"])]
    for table in wrong_types:
        with pytest.raises((TypeError, ValueError)):
            encode(accumulator(), table)
    with pytest.raises(ValueError, match="row 999: the topic is empty"):
        encode(accumulator(), a_table().set_column(1, "topic", pa.array(["t"] * 999 + [""])))
    del table, wrong_types
    assert allocated() == before


def test_the_structures_of_records_are_released() -> None:
    part = PartitionReader(encode_batch([NewRecord(b"k", b"v")]), topic="t", partition=0, fetch_offset=0).read(1)
    assert part is not None
    target = accumulator()
    encode(target, Records([part]))
    assert written(target) == {("t", 0): [(b"k", b"v", (), -1)]}
    gc.collect()
    assert cdata._alive == {}  # type: ignore[attr-defined]


def test_each_array_is_released_before_the_next_one_is_asked_for() -> None:
    held = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(4):
            batch = a_table(10_000).to_batches()[0]
            yield batch
            del batch
            held.append(allocated())

    reader = pa.RecordBatchReader.from_batches(a_table(1).schema, batches())
    encode(accumulator(), reader)
    assert held[1:] == [held[0]] * 3


class Exported:
    """A stream that is exported once."""

    def __init__(self) -> None:
        self._capsule = a_table().__arrow_c_stream__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._capsule


def test_a_stream_is_read_once() -> None:
    data = Exported()
    assert encode(accumulator(), data).count == 1000
    with pytest.raises(ValueError, match=r"^the Arrow stream was already read$"):
        encode(accumulator(), data)


def test_the_text_of_a_streams_error() -> None:
    field: cdata.Field = ("+s", "", (("z", "value", ()),))

    class Broken:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            def arrays() -> Iterator[int]:
                raise RuntimeError("no more disk")
                yield 0

            return cdata.stream_capsule(field, arrays())

    with pytest.raises(OttlaError, match=r"^the Arrow stream failed to return an array: RuntimeError\('no more disk'\)$"):
        encode(accumulator(), Broken(), "t")
    gc.collect()
    assert cdata._alive == {}  # type: ignore[attr-defined]


def test_a_stream_that_does_not_say_why_it_fails() -> None:
    pointer = ctypes.c_void_p
    refuse = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)(lambda stream, out: 22)
    released: list[int] = []
    release = ctypes.CFUNCTYPE(None, pointer)(released.append)
    words = (ctypes.c_void_p * 5)(ctypes.cast(refuse, pointer).value, None, None, ctypes.cast(release, pointer).value, None)
    new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, pointer, ctypes.c_char_p, pointer)(("PyCapsule_New", ctypes.pythonapi))

    class Silent:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return new_capsule(ctypes.addressof(words), b"arrow_array_stream", None)

    with pytest.raises(OttlaError, match=r"^the Arrow stream failed to return its types: Invalid argument$"):
        encode(accumulator(), Silent(), "t")
    assert released == [ctypes.addressof(words)]


def test_no_arrow_library_is_needed() -> None:
    code = """
import sys
sys.modules["pyarrow"] = None
from ottla.records import *
from tests.arrow_input import accumulator, encode, written
data = encode_batch([NewRecord(b"k", b"v", (("h", None),), 5)])
records = Records([PartitionReader(data, topic="t", partition=0, fetch_offset=0).read(1)])
target = accumulator()
encode(target, records)
assert written(target) == {("t", 0): [(b"k", b"v", (("h", None),), 5)]}
sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 7


def drain(target: RecordAccumulator, found: list[bytes | None], over: Callable[[], bool]) -> None:
    """What the network thread does, without brokers."""
    while not (over() and not target.active()):
        for queue in target.active():
            while queue.closed:
                batch = queue.closed.popleft()
                found += [row[1] for row in rows_of(batch)]
                batch.move(BatchInput.SEND)
                batch.settle(BatchInput.ACKNOWLEDGE, 0)
                target.release(batch)
            target.set_idle(queue)


def test_threads_that_share_little_memory() -> None:
    target = accumulator({"t": 3}, memory=60_000, max_record=20_000)
    found: list[bytes | None] = []

    def send(name: int) -> None:
        values = [b"%d-%05d" % (name, number) + b"x" * 80 for number in range(3000)]
        for step in RowEncoder(target, pa.table({"key": values, "value": values}), "t").steps():
            assert isinstance(step, MemoryShort)
            while not step.is_met():
                bell = threading.Event()
                target.waiters.append(bell.set)
                if not step.is_met():
                    assert bell.wait(30)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    drain(target, found, lambda: not any(thread.is_alive() for thread in threads))
    for name in range(4):
        assert len({value for value in found if value is not None and value.startswith(b"%d-" % name)}) == 3000
    assert len(found) == 12_000
    assert target.used == 0
