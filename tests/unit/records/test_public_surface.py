"""The public interface of ``Record`` and ``Records``; ``tests/end_to_end`` also runs this on the uncompiled source."""

from __future__ import annotations

import copy
import inspect
import json
import multiprocessing
import pickle
import pickletools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ottla import Record, Records
from ottla.errors import RecordDeserializationError
from ottla.records import NewRecord, PartitionReader, PartitionRecords, encode_batch
from ottla.types import OffsetAndMetadata, TimestampType, TopicPartition

NEW = [NewRecord(b'"k%d"' % number, b'{"n": %d}' % number, (("h", b"x"), ("null", None))) for number in range(4)]
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def decoded(raw: bytes | None) -> Any:
    return None if raw is None else json.loads(raw)


def part(new: list[NewRecord], at: int = 0, partition: int = 0, **more: Any) -> PartitionRecords:
    data = encode_batch(new, base_offset=at)
    found = PartitionReader(data, topic="t", partition=partition, fetch_offset=at, **more).read(100)
    assert found is not None
    return found


def read(**more: Any) -> Records:
    """Seven records: two batches of one partition, and a batch of another."""
    return Records([part(NEW[:4], 10, **more), part(NEW[:2], 14, **more), part(NEW[:1], 5, partition=1, **more)])


def unpicklable() -> Records:
    """Records whose deserializers cannot be pickled."""
    return read(key_deserializer=lambda raw: decoded(raw), value_deserializer=lambda raw: decoded(raw))


def refusing(raw: bytes | None) -> Any:
    raise ValueError("not mine")


COPIES: list[Any] = [pytest.param(lambda record: copy.deepcopy(record), id="deepcopy")] + [
    pytest.param(lambda record, protocol=protocol: pickle.loads(pickle.dumps(record, protocol)), id=f"pickle-{protocol}")
    for protocol in PROTOCOLS
]


# -- one record -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("touched", [False, True], ids=["untouched", "touched"])
def test_a_copy_has_the_results_of_deserializers(copied: Callable[[Record], Record], touched: bool) -> None:
    record = unpicklable()[1]
    if touched:
        assert record.value == {"n": 1}
    other = copied(record)
    assert (other.key, other.value) == ("k1", {"n": 1})
    assert other.headers == (("h", b"x"), ("null", None))
    assert (other.topic, other.partition, other.offset, other.timestamp) == ("t", 0, 11, record.timestamp)
    assert (other.timestamp_type, other.leader_epoch) == (record.timestamp_type, record.leader_epoch)
    assert other == record
    assert hash(other) == hash(record)
    assert other.value is not record.value
    assert copied(other) == record


@pytest.mark.parametrize("copied", COPIES)
def test_a_record_without_deserializers_is_copied_byte_by_byte(copied: Callable[[Record], Record]) -> None:
    for record in (*read(), Record("t", 1, 2), Record("t", 1, 2, b"", b"", headers=[("", None)], timestamp=-5, leader_epoch=3)):
        assert copied(record) == record
        assert repr(copied(record)) == repr(record)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_names_no_deserializer(protocol: int) -> None:
    record = read(value_deserializer=decoded)[0]
    text = "".join(str(argument) for _, argument, _ in pickletools.genops(pickle.dumps(record, protocol)))
    assert "decoded" not in text


def test_copying_raises_the_error_of_the_deserializer() -> None:
    record = read(value_deserializer=refusing)[0]
    with pytest.raises(RecordDeserializationError, match="value of t-0 at offset 10"):
        pickle.dumps(record)
    with pytest.raises(RecordDeserializationError, match="value of t-0 at offset 10"):
        copy.deepcopy(record)


def test_the_error_of_a_deserializer_travels_with_its_record() -> None:
    with pytest.raises(RecordDeserializationError) as refused:
        _ = read(value_deserializer=refusing)[0].value
    error = pickle.loads(pickle.dumps(refused.value))
    assert (str(error), error.part) == (str(refused.value), "value")
    assert error.record.value == b'{"n": 0}'


def test_a_shallow_copy_is_the_record_itself() -> None:
    for record in (unpicklable()[0], read(value_deserializer=refusing)[0], Record("t", 0, 1)):
        assert copy.copy(record) is record


def number_of(record: Record[Any, Any]) -> int:
    assert not inspect.ismethod(record.value)
    return int(record.value["n"])


def test_records_go_through_a_pool_of_processes_and_come_back() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map_async(number_of, unpicklable()).get(60) == [0, 1, 2, 3, 0, 1, 0]
        assert pool.apply_async(copy.deepcopy, (unpicklable()[2],)).get(60) == unpicklable()[2]


def test_a_deserializer_runs_once_whatever_it_returns() -> None:
    results: tuple[Any, ...] = (None, 0, "", {})
    for result in results:
        calls: list[bytes | None] = []

        def deserialize(raw: bytes | None, result: object = result, calls: list[bytes | None] = calls) -> object:
            calls.append(raw)
            return result

        record = read(key_deserializer=deserialize, value_deserializer=deserialize)[0]
        assert [record.key, record.value, record.key, record.value] == [result] * 4
        assert calls == [b'"k0"', b'{"n": 0}']


def test_a_deserializer_that_raised_is_called_again() -> None:
    calls: list[bytes | None] = []

    def moody(raw: bytes | None) -> str:
        calls.append(raw)
        if len(calls) < 2:
            raise ValueError("not yet")
        return "made"

    record = read(value_deserializer=moody)[0]
    with pytest.raises(RecordDeserializationError):
        _ = record.value
    assert [record.value, record.value] == ["made"] * 2
    assert len(calls) == 2


def test_a_record_is_made_of_any_key_and_value() -> None:
    record = Record("t", 0, 1, "k", {"a": 1})
    assert (record.key, record.value) == ("k", {"a": 1})
    assert (
        repr(record)
        == "Record(topic='t', partition=0, offset=1, timestamp=-1, timestamp_type=CREATE_TIME, key='k', value={'a': 1})"
    )


def test_equality_is_that_of_content() -> None:
    record = unpicklable()[0]
    assert record == read(key_deserializer=decoded, value_deserializer=decoded)[0]
    assert record != read()[0]
    assert record != ("t", 0, 10)
    assert record.__eq__(5) is NotImplemented
    assert hash(record) == hash(read()[0])
    assert {record, unpicklable()[0]} == {record}


@pytest.mark.parametrize("compare", ["__lt__", "__le__", "__gt__", "__ge__"])
def test_records_have_no_order(compare: str) -> None:
    assert getattr(Record("t", 0, 1), compare)(Record("t", 0, 2)) is NotImplemented
    with pytest.raises(TypeError, match="not supported between"):
        sorted([Record("t", 0, 1), Record("t", 0, 2)])  # type: ignore[type-var]


def test_the_repr_never_runs_a_deserializer() -> None:
    record = read(key_deserializer=refusing, value_deserializer=refusing)[0]
    assert """key=b'"k0"', value=b'{"n": 0}',""" in repr(record)
    assert str(record) == repr(record) == f"{record}"


NAMES = ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch"]


def test_the_public_names() -> None:
    assert sorted(name for name in dir(Record) if not name.startswith("_")) == sorted(NAMES)


@pytest.mark.parametrize("name", [*NAMES, "unknown", "__dict__"])
def test_a_record_does_not_change(name: str) -> None:
    record = read()[0]
    with pytest.raises(AttributeError):
        setattr(record, name, 1)
    with pytest.raises(AttributeError):
        delattr(record, name)
    assert record == read()[0]


def test_an_attribute_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="Record' object has no attribute 'unknown'"):
        _ = read()[0].unknown  # type: ignore[attr-defined]
    assert getattr(read()[0], "unknown", 5) == 5


def test_a_record_is_small() -> None:
    record = read()[0]
    with pytest.raises(TypeError, match=r"cannot create weak reference to '.*Record' object"):
        weakref.ref(record)
    assert not hasattr(record, "__dict__")


def test_there_are_no_subclasses() -> None:
    with pytest.raises(TypeError, match=r"type 'ottla\.records\.record\.Record' is not an acceptable base type"):
        type("Mine", (Record,), {})


def test_a_record_that_was_never_made_has_nothing() -> None:
    hollow = Record.__new__(Record)
    for ask in (*(partial(getattr, hollow, name) for name in ("topic", "partition", "key", "value")), partial(repr, hollow)):
        with pytest.raises(AttributeError):
            ask()


@pytest.mark.parametrize(
    ("given", "error", "expected"),
    [
        (("t", 0), TypeError, "argument"),
        (("t", 0, 1, None, None, 5), TypeError, "argument"),
        ((b"t", 0, 1), TypeError, "topic must be a string, not b't'"),
        ((None, 0, 1), TypeError, "topic must be a string, not None"),
        (("t", "0", 1), TypeError, "partition is a whole number, not '0'"),
        (("t", True, 1), TypeError, "partition is a whole number, not True"),
        (("t", 2**31, 1), ValueError, "partition does not fit into 32 bits: 2147483648"),
        (("t", 0, 1.0), TypeError, "offset is a whole number, not 1.0"),
        (("t", 0, None), TypeError, "offset is a whole number, not None"),
        (("t", 0, 2**63), ValueError, "offset does not fit into 64 bits: 9223372036854775808"),
    ],
)
def test_arguments_that_make_no_record(given: tuple[Any, ...], error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=expected):
        Record(*given)


@pytest.mark.parametrize(
    ("given", "error", "expected"),
    [
        ({"unknown": 1}, TypeError, "unknown"),
        ({"timestamp": "now"}, TypeError, "timestamp is a whole number, not 'now'"),
        ({"timestamp": -(2**63) - 1}, ValueError, "timestamp does not fit into 64 bits"),
        ({"timestamp_type": 7}, ValueError, "7 is not a valid TimestampType"),
        ({"leader_epoch": "1"}, TypeError, "leader_epoch is a whole number, not '1'"),
        ({"headers": None}, TypeError, "not iterable"),
        ({"headers": [1]}, TypeError, "a header is a pair of a string and bytes or None, not 1"),
        ({"headers": [("a", "b")]}, TypeError, r"a header is .*, not \('a', 'b'\)"),
        ({"headers": [(b"a", b"b")]}, TypeError, "a header is "),
        ({"headers": [("a", b"b", 1)]}, TypeError, "a header is "),
    ],
)
def test_keywords_that_make_no_record(given: dict[str, Any], error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=expected):
        Record("t", 0, 1, **given)


def test_all_arguments_have_names() -> None:
    stamped = TimestampType.LOG_APPEND_TIME
    fields: dict[str, Any] = {"topic": "t", "partition": 0, "offset": 1, "key": b"k", "value": b"v"}
    fields |= {"headers": (("a", None),), "timestamp": 5, "timestamp_type": stamped, "leader_epoch": 3}
    record = Record(**fields)
    assert {name: getattr(record, name) for name in fields} == fields
    assert Record("t", 0, 1, timestamp_type=1).timestamp_type is stamped  # type: ignore[arg-type]


def test_a_record_matches_patterns_of_its_attributes() -> None:
    match read()[0]:
        case Record(topic="t", offset=offset):
            assert offset == 10
        case _:
            pytest.fail("no match")


# -- many records ---------------------------------------------------------------------------------------------------------

OFFSETS = [10, 11, 12, 13, 14, 15, 5]


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def test_the_public_names_of_many() -> None:
    names = ["by_partition", "empty", "next_offsets", "partitions", "parts", "to_arrow", "to_batches"]
    assert sorted(name for name in dir(Records) if not name.startswith("_")) == names


def test_records_are_counted_and_walked() -> None:
    records = read()
    assert len(records) == 7
    assert bool(records)
    assert offsets(records) == offsets(records) == OFFSETS
    assert offsets(reversed(records)) == OFFSETS[::-1]
    assert records[3] in records
    assert Record("t", 0, 99) not in records
    assert None not in records
    walk = iter(records)
    assert iter(walk) is walk
    assert offsets(walk) == OFFSETS
    assert next(walk, None) is None


@pytest.mark.parametrize("position", range(-7, 7))
def test_one_record(position: int) -> None:
    assert read()[position].offset == OFFSETS[position]


@pytest.mark.parametrize("position", [-8, 7, 2**70])
def test_no_such_record(position: int) -> None:
    with pytest.raises(IndexError, match=f"record {position} of 7"):
        _ = read()[position]


@pytest.mark.parametrize("position", ["0", None, 1.0, (0, 1)])
def test_an_invalid_index_is_an_error(position: Any) -> None:
    with pytest.raises(TypeError, match="the index of a record is a whole number or a slice, not "):
        _ = read()[position]


@pytest.mark.parametrize("start", [None, -9, -3, 0, 2, 9])
@pytest.mark.parametrize("stop", [None, -9, -2, 0, 5, 9])
@pytest.mark.parametrize("step", [None, -3, -1, 1, 2, 9])
def test_a_slice_is_that_of_a_list(start: int | None, stop: int | None, step: int | None) -> None:
    found = read()[start:stop:step]
    assert isinstance(found, list)
    assert offsets(found) == OFFSETS[start:stop:step]


def test_a_slice_without_a_step_is_refused_as_by_a_list() -> None:
    with pytest.raises(ValueError, match="zero"):
        _ = read()[::0]


def test_records_are_split() -> None:
    records = read()
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert records.partitions() == [first, second]
    split = records.by_partition()
    assert {tp: offsets(its) for tp, its in split.items()} == {first: OFFSETS[:6], second: OFFSETS[6:]}
    assert records.next_offsets() == {first: OffsetAndMetadata(16), second: OffsetAndMetadata(6)}
    assert repr(records) == "<Records 7 (t-0: 6, t-1: 1)>"


def test_no_records() -> None:
    for records in (Records(), Records.empty()):
        assert not records
        assert (list(records), records[:], records.partitions(), records.by_partition(), records.next_offsets()) == (
            [],
            [],
            [],
            {},
            {},
        )
        assert repr(records) == "<Records 0>"
        assert records.to_arrow().num_rows == 0
        with pytest.raises(IndexError, match="record 0 of 0"):
            _ = records[0]


def test_records_are_equal_to_themselves_only() -> None:
    records = read()
    assert records == records
    assert records != read()
    assert len({records, records}) == 1


def test_copies_of_records_are_the_records_themselves() -> None:
    records = unpicklable()
    assert copy.copy(records) is records
    assert copy.deepcopy([records])[0] is records


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_records_cannot_be_pickled_and_the_error_names_an_alternative(protocol: int) -> None:
    records = unpicklable()
    with pytest.raises(TypeError, match=r"Records cannot be pickled: pickle list\(records\), or records.to_arrow\(\)"):
        pickle.dumps(records, protocol)
    assert pickle.loads(pickle.dumps(list(records), protocol)) == list(records)
    assert pickle.loads(pickle.dumps(records.to_arrow())).equals(records.to_arrow())


def test_columns_have_raw_bytes_despite_deserializers() -> None:
    import pyarrow

    records = read(key_deserializer=refusing, value_deserializer=refusing)
    table = records.to_arrow()
    assert table.equals(read().to_arrow())
    assert table["value"].to_pylist()[:2] == [b'{"n": 0}', b'{"n": 1}']
    assert table["offset"].to_pylist() == OFFSETS
    assert pyarrow.table(records).equals(table)
    assert [batch.num_rows for batch in records.to_batches(3)] == [3, 3, 1]
    assert records.to_arrow(columns=["offset", "key"]).column_names == ["offset", "key"]
    with pytest.raises(ValueError, match="unknown columns"):
        records.to_arrow(columns=["nope"])
    with pytest.raises(ValueError, match="max_rows must be a whole number of at least 1, not 0"):
        records.to_batches(0)
