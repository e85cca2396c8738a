"""Completes the batches of a producer for a request, and divides those that are too large.

Owns the header, the compression and the checksum of a batch that the accumulator has filled. Must not know requests, nor why a
batch is sent again. Invariant: bytes that are part of a request never change, since the kernel may not have them yet.
"""

from __future__ import annotations

import crc32c

from ottla.records.encode import assemble, encode_records
from ottla.records.header import (
    CRC_OFFSET,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Compression,
    pack_header,
)
from ottla.records.producer_queues import ProducerBatch, closed_batch
from ottla.records.reader import iter_records

_NO_PRODUCER = (-1, -1)


def encode_producer_batch(batch: ProducerBatch, compression: Compression, level: int | None = None) -> bytes | memoryview:
    """Encode a closed batch with its present producer id, epoch and sequence number.

    Without compression the first result is the memory of the batch itself.
    """
    header = _header(batch, compression)
    if compression is not Compression.NONE or batch.attempts:
        return assemble(header, batch.payload(), level)[1]
    content = batch.content()
    content[:HEADER_SIZE] = pack_header(header)
    content[CRC_OFFSET:CRC_START] = crc32c.crc32c(content[CRC_START:]).to_bytes(4, "big")
    return content


def _header(batch: ProducerBatch, compression: Compression) -> BatchHeader:
    producer_id, epoch = batch.producer or _NO_PRODUCER
    return BatchHeader(
        base_offset=0,
        batch_length=batch.size - LENGTH_OVERHEAD,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=int(compression) | TRANSACTIONAL_BIT * batch.is_transactional,
        last_offset_delta=batch.count - 1,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=-1 if batch.sequence is None else batch.sequence,
        record_count=batch.count,
    )


def divide(batch: ProducerBatch) -> list[ProducerBatch]:
    """Return two batches with the records of one that has several: the first half, and the rest."""
    records = list(iter_records(assemble(_header(batch, Compression.NONE), batch.payload())[1]))
    middle = (len(records) + 1) // 2
    # Deliveries have the index in the batch that they were appended to, and this batch may be a part of that one.
    indices = [(item, item[1].batch.part_of(item[1].index)[1]) for item in batch.callbacks]
    parts, first = [], 0
    for half in (records[:middle], records[middle:]):
        rows = [(record.key, record.value, record.headers, record.timestamp) for record in half]
        stamps = [row[3] for row in rows]
        content = encode_records(enumerate(rows), stamps[0])
        part = closed_batch(batch.queue, content, len(half), (stamps[0], max(stamps)), batch.created_at)
        part.is_transactional, part.attempts, part.last_error = batch.is_transactional, batch.attempts, batch.last_error
        part.callbacks.extend(item for item, index in indices if first <= index < first + len(half))
        parts.append(part)
        first += len(half)
    batch.take_callbacks()  # not before: what is above may raise, and the batch fails then
    return parts
