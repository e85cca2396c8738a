"""The batches of a producer: their bytes, their halves, and the partitions of keys."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from typing import Any

import pytest

from ottla import Delivery
from ottla.records import Compression, NewRecord, encode_batch, iter_records
from ottla.records.accumulator import RecordAccumulator
from ottla.records.batch_states import BatchInput
from ottla.records.header import TRANSACTIONAL_BIT, read_header
from ottla.records.murmur2 import murmur2
from ottla.records.producer_batches import divide, encode_producer_batch
from ottla.records.producer_queues import ProducerBatch

# Kafka's UtilsTest
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
UNCOMPILED = os.environ.get("OTTLA_RECORDS") == "python"


def accumulator(**settings: Any) -> RecordAccumulator:
    made = RecordAccumulator(
        **{
            "batch_size": 16_384,
            "memory": 1 << 20,
            "max_record": 1 << 20,
            "lock": threading.Lock(),
            "nanoseconds": lambda: 1_700_000_000_000_000_000,
            "mono": lambda: 5,
            "random": random.Random(0),
            "wake": lambda: None,
            "settled": lambda _batch: None,
            "unseen": lambda _batch: None,
            **settings,
        }
    )
    made.set_partitions("t", 1)
    return made


RECORDS = [
    NewRecord(b"k", b"value", (), 1_000),
    NewRecord(None, None, (("name", b"x"), ("empty", None), ("name", b"")), 990),
    NewRecord(b"", b"", (), 2_000),
    NewRecord(b"k", b"v" * 200, (), 2_000),
    NewRecord(None, "\N{SNOWMAN}".encode(), (("\N{SNOWMAN}", b"1"),), 0),
]


def batch_of(records: list[NewRecord] = RECORDS) -> tuple[ProducerBatch, list[Delivery]]:
    made = accumulator()
    deliveries = [
        made.append("t", one.value, one.key, 0, one.headers, one.timestamp, on_delivery=lambda _delivery: None) for one in records
    ]
    made.close_all()
    (batch,) = made.incomplete
    batch.producer, batch.sequence = (7, 3), 40
    return batch, [delivery for delivery in deliveries if delivery is not None]


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_has_the_bytes_of_the_encoder(compression: Compression) -> None:
    batch, _ = batch_of()
    expected = encode_batch(RECORDS, compression=compression, producer_id=7, producer_epoch=3, base_sequence=40)
    assert bytes(encode_producer_batch(batch, compression)) == expected


def test_a_batch_without_an_id_has_no_sequence_number() -> None:
    batch, _ = batch_of()
    batch.producer = batch.sequence = None
    assert bytes(encode_producer_batch(batch, Compression.NONE)) == encode_batch(RECORDS)


def test_a_transactional_batch_says_so() -> None:
    batch, _ = batch_of()
    batch.is_transactional = True
    assert read_header(encode_producer_batch(batch, Compression.NONE)).attributes == TRANSACTIONAL_BIT


def test_the_bytes_of_an_earlier_request_do_not_change() -> None:
    batch, _ = batch_of()
    first = encode_producer_batch(batch, Compression.NONE)
    before = bytes(first)
    batch.attempts, batch.producer, batch.sequence = 1, (7, 4), 0
    second = encode_producer_batch(batch, Compression.NONE)
    assert bytes(first) == before
    assert read_header(second).producer_epoch == 4
    batch.queue.topic.accumulator.release(batch)
    assert bytes(first) == before


def test_both_halves_have_the_records_the_callbacks_and_what_is_known_of_the_batch() -> None:
    batch, deliveries = batch_of()
    batch.attempts = 3
    halves = divide(batch)
    assert [half.count for half in halves] == [3, 2]
    assert [(half.attempts, half.created_at) for half in halves] == [(3, 5), (3, 5)]
    found = [record for half in halves for record in iter_records(bytes(encode_producer_batch(half, Compression.NONE)))]
    assert [NewRecord(one.key, one.value, tuple(one.headers), one.timestamp) for one in found] == RECORDS
    assert [(half.base_timestamp, half.max_timestamp) for half in halves] == [(1_000, 2_000), (2_000, 2_000)]
    assert [[delivery for _, delivery in half.callbacks] for half in halves] == [deliveries[:3], deliveries[3:]]
    assert batch.callbacks == []


def test_a_half_is_divided_like_a_batch() -> None:
    batch, deliveries = batch_of()
    halves = divide(batch)
    batch.move(BatchInput.SEND)
    batch.divide(halves)
    quarters = divide(halves[1])
    halves[1].move(BatchInput.SEND)
    halves[1].divide(quarters)
    assert [[delivery for _, delivery in quarter.callbacks] for quarter in quarters] == [[deliveries[3]], [deliveries[4]]]
    assert [delivery.batch.part_of(delivery.index) for delivery in deliveries] == [
        (halves[0], 0),
        (halves[0], 1),
        (halves[0], 2),
        (quarters[0], 0),
        (quarters[1], 0),
    ]


def signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number


def test_keys_have_the_hashes_of_kafka() -> None:
    assert {key: signed(murmur2(key)) for key in MURMUR2} == MURMUR2


@pytest.mark.skipif(UNCOMPILED, reason="this is the other run")
def test_uncompiled_keys_have_them_too() -> None:
    code = f"from ottla.records.murmur2 import COMPILED, murmur2; print(COMPILED, [murmur2(key) for key in {list(MURMUR2)!r}])"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "OTTLA_RECORDS": "python"}, capture_output=True, text=True, check=True
    )
    assert run.stdout == f"False {[murmur2(key) for key in MURMUR2]}\n"


@pytest.mark.parametrize("size", [100, 1_000, 5_000])
def test_a_batch_keeps_to_its_size(size: int) -> None:
    made = accumulator(batch_size=size)
    for _ in range(200):
        assert made.append("t", b"v" * 20) is not None
    made.close_all()
    assert len(made.incomplete) > 1
    assert max(batch.size for batch in made.incomplete) <= size


def test_a_buffer_is_used_again_when_no_view_of_it_is_left() -> None:
    made = accumulator()

    def new_batch() -> ProducerBatch:
        assert made.append("t", bytes(100_000)) is not None
        (batch,) = made.close_all()
        return batch

    batch = new_batch()
    request = batch.content()
    made.release(batch)
    batch = new_batch()
    buffer = batch.content().obj
    assert buffer is not request.obj, "a request may still be read by the kernel"
    made.release(batch)
    assert new_batch().content().obj is buffer
