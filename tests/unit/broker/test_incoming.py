"""What a topic's settings ask of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol import ErrorCode
from ottla.records import Compression, NewRecord, encode_batch, iter_records, read_header, verify_batch
from ottla.simulation.clock import START
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import create, produce


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path)
    yield core
    core.close()


def stored(tmp_path: Path) -> bytes:
    return (tmp_path / "orders-0" / f"{0:020d}.log").read_bytes()


def records(*wanted: tuple[bytes | None, int], **fields: Any) -> bytes:
    """A batch of records with these keys, stamped so far from the broker's clock."""
    return encode_batch([NewRecord(key, b"v", timestamp=START.wall + off) for key, off in wanted], **fields)


@pytest.mark.parametrize("came", list(Compression), ids=lambda codec: codec.name)
@pytest.mark.parametrize("setting", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_a_topic_is_stored_with_its_own_codec(broker: CoreUnderTest, tmp_path: Path, setting: str, came: Compression) -> None:
    create(broker, compression_type=setting)
    data = batch(5, size=200, compression=came, producer_id=7, producer_epoch=1, base_sequence=3)
    assert produce(broker, data).error_code is ErrorCode.none
    kept = stored(tmp_path)
    header = verify_batch(kept)
    expected = {"producer": came, "uncompressed": Compression.NONE}.get(setting) or Compression.__members__.get(setting.upper())
    assert header.compression is (Compression.NONE if expected is None else expected)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.size) == (7, 1, 3, len(kept))
    assert [record[1:] for record in iter_records(kept)] == [record[1:] for record in iter_records(data)]


def test_a_compacted_topic_takes_no_record_without_a_key_and_says_which_it_was(broker: CoreUnderTest) -> None:
    create(broker, cleanup_policy="compact")
    refused = produce(broker, records((b"k", 0), (None, 0), (b"l", 0), (None, 0)))
    assert refused.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in refused.record_errors] == [1, 3]
    assert all("without a key" in error.batch_index_error_message for error in refused.record_errors)
    assert produce(broker, batch()).base_offset == 0


def test_of_records_with_several_faults_the_stamp_gives_the_code(broker: CoreUnderTest) -> None:
    create(broker, cleanup_policy="compact", message_timestamp_after_max_ms="500")
    refused = produce(broker, records((None, 501), (b"k", 0), (b"l", 501), (None, 500), compression=Compression.GZIP))
    assert refused.error_code is ErrorCode.invalid_timestamp
    assert [error.batch_index for error in refused.record_errors] == [0, 2, 3]
    assert "without a key" in refused.record_errors[2].batch_index_error_message


def test_every_record_is_looked_at_for_an_old_stamp_but_not_one_that_has_none(broker: CoreUnderTest) -> None:
    create(broker, message_timestamp_before_max_ms="1000")
    refused = produce(broker, records((b"k", 0), (b"l", -1001), (b"m", -1000)))
    assert [error.batch_index for error in refused.record_errors] == [1]
    assert produce(broker, records((b"k", -1 - START.wall))).error_code is ErrorCode.none


@pytest.mark.parametrize(("stamp", "code"), [(-1001, 32), (-1000, 0), (500, 0), (501, 32)])
def test_stamps_must_be_near_the_brokers_clock(broker: CoreUnderTest, stamp: int, code: int) -> None:
    create(broker, message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="500")
    assert produce(broker, batch(timestamp=START.wall + stamp)).error_code == code


def test_the_brokers_stamp_is_asked_of_no_clock_but_its_own(broker: CoreUnderTest, tmp_path: Path) -> None:
    create(broker, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000", compression_type="lz4")
    assert produce(broker, batch(timestamp=5)).error_code is ErrorCode.none
    header = read_header(stored(tmp_path))
    assert (header.max_timestamp, header.compression) == (START.wall, Compression.LZ4)
    assert [record.timestamp for record in iter_records(stored(tmp_path))] == [START.wall]


@pytest.mark.parametrize(
    ("codec", "fast", "small"), [("gzip", "1", "9"), ("lz4", "1", "12"), ("zstd", "-100", "19")], ids=lambda value: value
)
def test_a_topic_is_compressed_at_its_level(broker: CoreUnderTest, tmp_path: Path, codec: str, fast: str, small: str) -> None:
    words = [b"%x" % (number * 7919 % 997) for number in range(2_000)]
    values = [b" ".join(words[number : number + 300]) for number in range(0, 1_500, 7)]
    data = encode_batch([NewRecord(b"k", value, timestamp=START.wall) for value in values])
    sizes = []
    for level in (fast, small):
        create(broker, f"at-{level}", compression_type=codec, **{f"compression_{codec}_level": level})
        assert produce(broker, data, topic=f"at-{level}").error_code is ErrorCode.none
        kept = (tmp_path / f"at-{level}-0" / f"{0:020d}.log").read_bytes()
        assert [record.value for record in iter_records(kept)] == values
        sizes.append(len(kept))
    assert sizes[1] < sizes[0] < len(data)
