"""Ottla reads the batches of other clients, and they read Ottla's."""

from __future__ import annotations

from typing import Any

import kafka.record.default_records as kafka_python
import pytest
from aiokafka.record import default_records as aiokafka
from aiokafka.record.memory_records import MemoryRecords as AioKafkaRecords
from hypothesis import given, settings, strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from ottla.records import (
    Compression,
    ControlType,
    NewRecord,
    PartitionReader,
    control_marker,
    encode_batch,
    encode_end_transaction,
    read_header,
    verify_batch,
)
from ottla.records.batch import crc_matches
from tests.example_counts import examples

content = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=10), content), max_size=4).map(tuple)
timestamps = st.integers(0, 2**50)
new_records = st.lists(st.builds(NewRecord, content, content, headers, timestamps), min_size=1, max_size=30)

PEERS = {
    "aiokafka compiled": (aiokafka.DefaultRecordBatchBuilder, aiokafka.DefaultRecordBatch),
    "aiokafka in Python": (aiokafka._DefaultRecordBatchBuilderPy, aiokafka._DefaultRecordBatchPy),
    "kafka-python": (kafka_python.DefaultRecordBatchBuilder, kafka_python.DefaultRecordBatch),
}


def codecs_of(peer: str) -> list[Compression]:
    if peer.startswith("aiokafka"):
        return list(Compression)
    checks = [lambda: True, *(getattr(kafka_python.codecs, f"has_{c.name.lower()}") for c in list(Compression)[1:])]
    return [codec for codec, available in zip(Compression, checks, strict=True) if available()]


COMBINATIONS = [(peer, codec) for peer in PEERS for codec in codecs_of(peer)]


def ours(data: bytes | bytearray) -> list[NewRecord]:
    read = PartitionReader(bytes(data), topic="t", partition=0, fetch_offset=0).read(10_000)
    assert read is not None
    assert [record.offset for record in read] == list(range(len(read)))
    return [NewRecord(record.key, record.value, record.headers, record.timestamp) for record in read]


def records_of_peer(batch: Any) -> list[NewRecord]:
    return [
        NewRecord(
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((name, None if value is None else bytes(value)) for name, value in record.headers),
            record.timestamp,
        )
        for record in batch
    ]


@pytest.mark.parametrize(("peer", "codec"), COMBINATIONS)
@settings(max_examples=examples(50))
@given(new=new_records)
def test_batches_of_peers_are_read(peer: str, codec: Compression, new: list[NewRecord]) -> None:
    builder = PEERS[peer][0](
        magic=2, compression_type=codec, is_transactional=True, producer_id=9, producer_epoch=3, base_sequence=4, batch_size=1 << 24
    )
    for offset, record in enumerate(new):
        assert builder.append(offset, record.timestamp, record.key, record.value, list(record.headers)) is not None
    data = bytes(builder.build())
    header = verify_batch(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 4)
    assert header.is_transactional
    assert header.max_timestamp == max(record.timestamp for record in new)
    assert header.compression in (codec, Compression.NONE)
    assert ours(data) == new


@pytest.mark.parametrize(("peer", "codec"), COMBINATIONS)
@settings(max_examples=examples(50))
@given(new=new_records, base_offset=st.integers(0, 2**62))
def test_peers_read_our_batches(peer: str, codec: Compression, new: list[NewRecord], base_offset: int) -> None:
    data = encode_batch(
        new, base_offset=base_offset, compression=codec, producer_id=9, producer_epoch=3, base_sequence=4, transactional=True
    )
    batch = PEERS[peer][1](bytearray(data))
    header = read_header(data)
    assert batch.validate_crc()
    assert (batch.base_offset, batch.next_offset, batch.magic) == (base_offset, header.next_offset, 2)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 3, 4)
    assert (batch.first_timestamp, batch.max_timestamp) == (header.base_timestamp, header.max_timestamp)
    assert (batch.compression_type, batch.crc, batch.attributes) == (codec, header.crc, header.attributes)
    assert batch.is_transactional
    assert not batch.is_control_batch
    assert records_of_peer(batch) == new


@settings(max_examples=examples(50))
@given(runs=st.lists(new_records, min_size=1, max_size=4))
def test_peers_read_several_batches(runs: list[list[NewRecord]]) -> None:
    data = b"".join(encode_batch(new, base_offset=100 * number) for number, new in enumerate(runs))
    for records in (AioKafkaRecords(data), KafkaPythonRecords(data)):
        seen = []
        while records.has_next():
            seen.append(records_of_peer(records.next_batch()))
        assert seen == runs


@pytest.mark.parametrize("marker", ControlType)
def test_other_libraries_read_our_markers(marker: ControlType) -> None:
    data = encode_end_transaction(marker, producer_id=5, producer_epoch=1, base_offset=3)
    batch = kafka_python.DefaultRecordBatch(bytearray(data))
    assert batch.is_control_batch
    assert [(record.commit, record.abort) for record in batch] == [(marker is ControlType.COMMIT, marker is ControlType.ABORT)]
    assert control_marker(data) is marker
    assert crc_matches(data, 0, read_header(data))
