"""Decoding of record batches with Ottla, aiokafka (compiled) and kafka-python, alternating in one run.

The time is that from the bytes of a Fetch response for one partition to records for the application, including the checksum:
objects whose key and value are accessed, or Arrow columns. There are two rows for aiokafka: the bare records of its compiled
decoder, without topic and partition, and the ``ConsumerRecord`` objects of its consumer. Each round runs every decoder once; the
figures are medians of the rounds, the ratio is that of the medians. There is no network and no broker.

    python benchmarks/decode.py [--records 1000] [--size 100] [--batches 1] [--codec none] [--rounds 5]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import aiokafka.record.default_records
import kafka.record.memory_records
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_UNCOMMITTED, PartitionRecords as AioKafkaPartition
from aiokafka.record.memory_records import MemoryRecords

from ottla.records import COMPILED, Compression, NewRecord, PartitionReader, Records, encode_batch

SMALL = ["key", "value", "offset", "timestamp"]
SECONDS_A_ROUND = 0.4


def response(records: int, size: int, batches: int, codec: Compression) -> bytes:
    """Return batches as a broker sends them: keys of 8 bytes, values of ``size`` bytes that compress about as well as JSON."""
    text = b'{"carrier":"UA","flight":%d,"origin":"EWR","dest":"IAH","hour":%d,"distance":1400} '
    data = b""
    for batch in range(batches):
        new = [
            NewRecord(
                b"key-%04d" % (number % 10_000),
                ((text % (number, number % 24)) * (size // 60 + 1))[:size],
                (),
                1_600_000_000_000 + number,
            )
            for number in range(records)
        ]
        data += encode_batch(new, base_offset=batch * records, compression=codec)
    return data


def poll(data: bytes) -> Records:
    """Decode one partition's response, as the fetch collector does."""
    reader = PartitionReader(data, topic="flights", partition=0, fetch_offset=0)
    part = reader.read(sys.maxsize)
    return Records([part] if part else [])


def ottla_objects(data: bytes) -> int:
    count = 0
    for record in poll(data):
        _ = record.key, record.value
        count += 1
    return count


def ottla_arrow(data: bytes) -> int:
    return int(poll(data).to_arrow().num_rows)


def ottla_arrow_small(data: bytes) -> int:
    return int(poll(data).to_arrow(columns=SMALL).num_rows)


def _walk(records: object) -> int:
    count = 0
    while records.has_next():  # type: ignore[attr-defined]
        batch = records.next_batch()  # type: ignore[attr-defined]
        if not batch.validate_crc():
            raise ValueError("checksum")
        for record in batch:
            _ = record.key, record.value
            count += 1
    return count


def aiokafka_objects(data: bytes) -> int:
    return _walk(MemoryRecords(data))


def aiokafka_consumer_records(data: bytes) -> int:
    partition = AioKafkaPartition(TopicPartition("flights", 0), MemoryRecords(data), [], 0, None, None, True, READ_UNCOMMITTED)
    count = 0
    for record in partition:
        _ = record.key, record.value
        count += 1
    return count


def kafka_python_objects(data: bytes) -> int:
    return _walk(kafka.record.memory_records.MemoryRecords(data))


CONTENDERS: dict[str, Callable[[bytes], int]] = {
    "aiokafka, objects": aiokafka_objects,
    "aiokafka, its ConsumerRecords": aiokafka_consumer_records,
    "kafka-python, objects": kafka_python_objects,
    "ottla, Record objects": ottla_objects,
    "ottla, Arrow, all 8 columns": ottla_arrow,
    f"ottla, Arrow, {len(SMALL)} columns": ottla_arrow_small,
}


def timed(contender: Callable[[bytes], int], data: bytes, expected: int) -> float:
    """Return the CPU seconds of one decoding, from a round of ``SECONDS_A_ROUND``: CPU time depends little on other processes."""
    rounds = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < SECONDS_A_ROUND or not rounds:
        if contender(data) != expected:
            raise ValueError("records are missing")
        rounds += 1
    return elapsed / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000, help="in a batch")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--batches", type=int, default=1, help="in a response")
    parser.add_argument("--codec", choices=[codec.name.lower() for codec in Compression], default="none")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    data = response(options.records, options.size, options.batches, Compression[options.codec.upper()])
    expected = options.records * options.batches
    print(
        f"{options.batches} batch(es) of {options.records} records: key 8 B, value {options.size} B, codec {options.codec};"
        f" {len(data)} bytes; checksums checked; {options.rounds} rounds, medians"
    )
    print(
        f"Python {platform.python_version()}, {platform.machine()}; ottla {'compiled' if COMPILED else 'UNCOMPILED'};"
        f" aiokafka {version('aiokafka')}"
        f" ({aiokafka.record.default_records.DefaultRecordBatch.__module__.rpartition('.')[0].rpartition('.')[2]}),"
        f" kafka-python {version('kafka-python')}, pyarrow {version('pyarrow')}"
    )
    contenders = dict(CONTENDERS)
    if options.codec not in ("none", "gzip"):
        del contenders["kafka-python, objects"]  # it needs further packages for other codecs
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, contender in contenders.items():
            seconds[name].append(timed(contender, data, expected))
    medians = {name: statistics.median(its) for name, its in seconds.items()}
    baseline = medians["aiokafka, objects"]
    print(f"{'':32}{'M rec/CPU s':>12}{'MB/s':>10}{'x aiokafka':>12}")
    for name, median in medians.items():
        print(f"{name:32}{expected / median / 1e6:12.2f}{len(data) / median / 1e6:10.0f}{baseline / median:12.2f}")


if __name__ == "__main__":
    main()
