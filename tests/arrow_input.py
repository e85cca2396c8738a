"""Encodes Arrow data with a real accumulator and a virtual clock, and reads the batches that it has made.

Owns no expectations. Must not know pyarrow. Invariant: batches are read with the reader of a consumer, checksums included.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from ottla.records import Compression, iter_records, verify_batch
from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_delivery import ArrowDelivery
from ottla.records.arrow_input import RowEncoder
from ottla.records.producer_batches import encode_producer_batch
from ottla.records.producer_queues import ProducerBatch

NOW = 1_700_000_000_000
"""Milliseconds, the time of all accumulators."""
MONO = 5
"""Their monotonic milliseconds."""

Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def accumulator(
    topics: dict[str, int] | None = None,
    *,
    memory: int = 1 << 25,
    max_record: int = 1 << 20,
    kind: type[RecordAccumulator] = RecordAccumulator,
    **others: Any,
) -> RecordAccumulator:
    made = kind(
        batch_size=16384,
        memory=memory,
        max_record=max_record,
        lock=threading.Lock(),
        nanoseconds=lambda: NOW * 1_000_000,
        mono=others.pop("mono", lambda: MONO),
        random=random.Random(1),
        wake=others.pop("wake", lambda: None),
        settled=lambda batch: None,
        unseen=lambda batch: None,
        **others,
    )
    for name, count in (topics or {"t": 1}).items():
        made.set_partitions(name, count)
    return made


def encode(target: RecordAccumulator, data: Any, topic: str | None = None) -> ArrowDelivery:
    """Encode data for which there are memory and partitions."""
    encoder = RowEncoder(target, data, topic)
    for step in encoder.steps():
        raise AssertionError(f"it waits for {step}")
    return encoder.delivery


def rows_of(batch: ProducerBatch) -> list[Row]:
    data = bytes(encode_producer_batch(batch, Compression.NONE))
    verify_batch(data)
    return [(record.key, record.value, record.headers, record.timestamp) for record in iter_records(data)]


def written(target: RecordAccumulator) -> dict[tuple[str, int], list[Row]]:
    """The rows in the queues of each partition that has any."""
    return {
        (queue.topic.name, queue.partition): [row for batch in queue.closed for row in rows_of(batch)] for queue in target.active()
    }
