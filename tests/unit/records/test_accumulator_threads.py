"""Threads that append records while another one takes the batches: what fits into an open batch is encoded without the lock."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ottla.records import Compression, iter_records
from ottla.records.accumulator import RecordAccumulator
from ottla.records.batch_states import BatchInput
from ottla.records.producer_batches import encode_producer_batch

THREADS, RECORDS = 3, 4_000


@pytest.fixture(autouse=True)
def _frequent_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("batch_size", [300, 20_000])
def test_each_record_is_written_once_and_in_the_order_of_its_thread(batch_size: int) -> None:
    made = RecordAccumulator(
        batch_size=batch_size,
        memory=1 << 30,
        max_record=1 << 20,
        lock=threading.Lock(),
        nanoseconds=time.time_ns,
        mono=lambda: 5,
        random=random.Random(0),
        wake=lambda: None,
        settled=lambda _batch: None,
        unseen=lambda _batch: None,
    )
    made.set_partitions("t", 2)
    written: tuple[list[bytes], list[bytes]] = ([], [])
    callbacks = 0

    def append(thread: int) -> None:
        for number in range(RECORDS):
            partition = None if number % 2 else thread % 2
            key = None if number % 3 else b"%d" % thread
            on_delivery = None if number % 7 else print
            assert made.append("t", b"%d %d" % (thread, number), key, partition, (), None, on_delivery) is not None

    def take_all() -> None:
        nonlocal callbacks
        for queue in made.active():
            made.close(queue)
            while queue.closed:
                batch = queue.closed.popleft()
                batch.move(BatchInput.SEND)
                content = bytes(encode_producer_batch(batch, Compression.NONE))
                written[queue.partition].extend(bytes(record.value or b"") for record in iter_records(content))
                callbacks += len(batch.take_callbacks())
                made.release(batch)
            made.set_idle(queue)

    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(append, thread) for thread in range(THREADS)]
        while not all(one.done() for one in running):
            take_all()
    for one in running:
        one.result()
    take_all()
    rows = [tuple(map(int, value.split())) for value in (*written[0], *written[1])]
    assert sorted(rows) == [(thread, number) for thread in range(THREADS) for number in range(RECORDS)]
    for values in written:
        for thread in range(THREADS):
            numbers = [int(value.split()[1]) for value in values if int(value.split()[0]) == thread]
            assert numbers == sorted(numbers)
    assert callbacks == THREADS * len(range(0, RECORDS, 7))
    assert made.used == 0
