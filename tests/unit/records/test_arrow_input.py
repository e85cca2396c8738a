"""Rows of Arrow data become records: all layouts of arrays, the choice of the partition, and data that cannot be rows."""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from ottla import Records
from ottla.errors import MessageTooLargeError, OttlaError
from ottla.records import NewRecord, PartitionReader, encode_batch
from ottla.records.murmur2 import murmur2
from tests.arrow_input import NOW, Row, accumulator, encode, written
from tests.example_counts import examples

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def one_topic(data: Any) -> list[Row]:
    target = accumulator()
    encode(target, data, "t")
    return written(target).get(("t", 0), [])


def values(data: Any) -> list[bytes | None]:
    return [value for _, value, _, _ in one_topic(data)]


def test_what_was_read_is_written() -> None:
    new = [
        NewRecord(
            None if number % 3 == 0 else b"key-%d" % number,
            None if number % 4 == 0 else b"value-%d" % number * (number % 50),
            tuple((f"h\u00e4{i}", None if i == 1 else b"x" * i) for i in range(number % 4)),
            NOW - number,
        )
        for number in range(5000)
    ]
    parts = [
        PartitionReader(encode_batch(new), topic=topic, partition=partition, fetch_offset=0).read(10_000)
        for topic, partition in [("t", 0), ("u", 2)]
    ]
    records = Records([part for part in parts if part is not None])
    for data in (
        records,
        records.to_arrow(),
        pa.table(records).select(["headers", "timestamp", "topic", "value", "key", "partition"]),
    ):
        target = accumulator({"t": 1, "u": 3})
        assert encode(target, data).count == 10_000
        assert written(target) == {("t", 0): new, ("u", 2): new}


BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()]


@pytest.mark.parametrize("kind", BINARY_TYPES, ids=str)
def test_binary_types(kind: pa.DataType) -> None:
    texts = ["", "a", None, "twelve bytes", "thirteen bytes", "x" * 1000] * 3
    expected = [None if text is None else text.encode() for text in texts]
    array = pa.array(texts, pa.string()).cast(kind) if not pa.types.is_binary_view(kind) else pa.array(expected, kind)
    assert values(pa.table({"value": array})) == expected
    assert values(pa.table({"value": array}).slice(3, 9)) == expected[3:12]
    assert [key for key, _, _, _ in one_topic(pa.table({"key": array, "value": array}))] == expected


def test_fixed_size_and_null_columns() -> None:
    table = pa.table({"key": pa.nulls(3), "value": pa.array([b"ab", None, b"cd"], pa.binary(2))})
    assert [row[:2] for row in one_topic(table)] == [(None, b"ab"), (None, None), (None, b"cd")]
    assert values(table.slice(1)) == [None, b"cd"]
    assert values(pa.table({"value": pa.nulls(2), "headers": pa.nulls(2), "timestamp": pa.nulls(2)})) == [None, None]


@pytest.mark.parametrize(
    "index", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()], ids=str
)
def test_dictionaries(index: pa.DataType) -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 2, 1], index), pa.array(["t", "u", None]))
    table = pa.table({"value": array, "topic": pa.array(["u"] * 5).dictionary_encode()})
    target = accumulator({"u": 1})
    encode(target, table.slice(1))
    assert [value for _, value, _, _ in written(target)["u", 0]] == [b"t", None, None, b"u"]


def test_a_dictionary_with_more_than_256_values() -> None:
    texts = [f"value {number}" for number in range(70_000)]
    assert values(pa.table({"value": pa.array(texts).dictionary_encode()})) == [text.encode() for text in texts]


@pytest.mark.parametrize(("unit", "factor"), [("s", 0.001), ("ms", 1), ("us", 1000), ("ns", 1000000)])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Vienna"])
def test_timestamps(unit: str, factor: float, zone: str | None) -> None:
    stamps = [1_000, None, 1_600_000_000_000, 0]
    array = pa.array([None if stamp is None else int(stamp * factor) for stamp in stamps], pa.timestamp(unit, zone))
    table = pa.table({"value": pa.nulls(4), "timestamp": array})
    assert [row[3] for row in one_topic(table)] == [1_000, NOW, 1_600_000_000_000, 0]
    assert [row[3] for row in one_topic(table.slice(1, 2))] == [NOW, 1_600_000_000_000]


def test_milliseconds_as_numbers_and_no_timestamp_at_all() -> None:
    assert [row[3] for row in one_topic(pa.table({"value": ["a"] * 4, "timestamp": [5, None, -1, 2**63 - 1]}))] == [
        5,
        NOW,
        -1,
        2**63 - 1,
    ]
    assert [row[3] for row in one_topic(pa.table({"value": ["a"]}))] == [NOW]


def test_fractions_of_a_millisecond_are_cut_off() -> None:
    array = pa.array([1999, -1, -1000], pa.timestamp("us"))
    assert [row[3] for row in one_topic(pa.table({"value": pa.nulls(3), "timestamp": array}))] == [1, -1, -1]


PAIRS = [[("a", b"1"), ("b", None)], None, [], [("", b"")], [("c", b"x" * 300)]]
LISTS = [None if pairs is None else [{"key": name, "value": value} for name, value in pairs] for pairs in PAIRS]


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS,
        pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=["list", "large list, value first", "map"],
)
def test_headers(kind: pa.DataType) -> None:
    array = pa.array(PAIRS if pa.types.is_map(kind) else LISTS, kind)
    expected = [tuple(pairs or ()) for pairs in PAIRS]
    table = pa.table({"value": pa.nulls(5), "headers": array})
    assert [row[2] for row in one_topic(table)] == expected
    for start in range(5):
        for stop in range(start + 1, 6):
            assert [row[2] for row in one_topic(table.slice(start, stop - start))] == expected[start:stop]


def test_nulls_of_pairs_that_no_list_has_do_not_matter() -> None:
    pairs = pa.array([None, {"key": "a", "value": b"1"}, {"key": None, "value": b"2"}], HEADERS.value_type)
    array = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pairs, mask=pa.array([True, False, True]))
    assert [row[2] for row in one_topic(pa.table({"value": pa.nulls(3), "headers": array}))] == [(), (("a", b"1"),), ()]


def test_headers_below_a_sliced_struct() -> None:
    pairs = pa.array([{"key": str(number), "value": b"%d" % number} for number in range(6)], HEADERS.value_type).slice(2)
    array = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pairs)
    assert [row[2] for row in one_topic(pa.table({"value": pa.nulls(2), "headers": array}))] == [
        (("2", b"2"),),
        (("3", b"3"), ("4", b"4")),
    ]


def test_a_sliced_array_of_structs_is_a_table() -> None:
    array = pa.array([{"key": str(number), "value": f"v{number}"} for number in range(9)]).slice(4, 3)
    assert [row[:2] for row in one_topic(pa.chunked_array([array]))] == [(b"4", b"v4"), (b"5", b"v5"), (b"6", b"v6")]


def test_a_row_that_is_null_as_a_whole() -> None:
    array = pa.array([{"value": "a"}, {"value": "b"}, None])
    assert values(pa.chunked_array([array.slice(0, 2)])) == [b"a", b"b"]
    with pytest.raises(ValueError, match=r"^row 2 is null as a whole$"):
        one_topic(pa.chunked_array([array.slice(0, 1), array.slice(1)]))


def test_no_rows() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.binary_view()), ("headers", HEADERS), ("timestamp", pa.timestamp("s"))])
    assert one_topic(schema.empty_table()) == one_topic(pa.Table.from_batches([], schema)) == one_topic(Records.empty()) == []


def test_columns_of_records_that_mean_nothing_are_ignored() -> None:
    assert values(pa.table({"value": ["a"], "offset": [7], "timestampType": [0], "leader_epoch": ["any"]})) == [b"a"]


# -- topics and partitions ----------------------------------------------------------------------------------------------------


def test_keys_choose_kafkas_partition() -> None:
    keys = [b"key %d" % number for number in range(500)]
    target = accumulator({"t": 7})
    encode(target, pa.table({"key": keys, "value": keys}), "t")
    found = written(target)
    assert {partition: [row[0] for row in rows] for (_, partition), rows in found.items()} == {
        partition: [key for key in keys if (murmur2(key) & 0x7FFFFFFF) % 7 == partition] for partition in range(7)
    }


def test_a_partition_is_for_rows_that_have_one() -> None:
    for kind in (pa.int32(), pa.int64()):
        target = accumulator({"t": 7})
        encode(target, pa.table({"key": [b"k"] * 3, "value": ["a", "b", "c"], "partition": pa.array([6, None, 2], kind)}), "t")
        assert {key: [row[1] for row in rows] for key, rows in written(target).items()} == {
            ("t", 6): [b"a"],
            ("t", (murmur2(b"k") & 0x7FFFFFFF) % 7): [b"b"],
            ("t", 2): [b"c"],
        }


def test_the_partitioner_of_the_user_is_called_for_each_row_without_a_partition() -> None:
    calls = []

    def partitioner(topic: str, key: bytes | None, count: int) -> int:
        calls.append((topic, key, count))
        return 1 if key is None else 2

    table = pa.table({"key": ["a", None, "c"], "value": ["1", "2", "3"], "partition": pa.array([None, None, 0], pa.int32())})
    target = accumulator({"t": 3}, partitioner=partitioner)
    encode(target, table, "t")
    assert calls == [("t", b"a", 3), ("t", None, 3)]
    assert {partition: rows[0][1] for (_, partition), rows in written(target).items()} == {0: b"3", 1: b"2", 2: b"1"}


def test_the_argument_overrides_the_column_of_topics() -> None:
    target = accumulator({"t": 1})
    encode(target, pa.table({"value": ["a", "b"], "topic": ["u", None]}), "t")
    assert [row[1] for row in written(target)["t", 0]] == [b"a", b"b"]


def test_many_topics() -> None:
    names = [f"topic {number * number % 97}" for number in range(10_000)]
    target = accumulator(dict.fromkeys(names, 2))
    encode(target, pa.table({"value": [str(number) for number in range(10_000)], "topic": names, "partition": [1] * 10_000}))
    assert {topic: [row[1] for row in rows] for (topic, _), rows in written(target).items()} == {
        topic: [b"%d" % number for number, name in enumerate(names) if name == topic] for topic in set(names)
    }


# -- data that cannot be rows -------------------------------------------------------------------------------------------------

WRONG_TYPES = {
    "key": [pa.int64(), pa.list_(pa.string()), pa.dictionary(pa.int8(), pa.int64()), pa.bool_()],
    "value": [pa.float64(), pa.struct([("a", pa.string())])],
    "topic": [pa.int32(), pa.date32()],
    "partition": [pa.string(), pa.uint8(), pa.float64(), pa.dictionary(pa.int8(), pa.int32())],
    "headers": [pa.string(), pa.list_(pa.string()), pa.list_(pa.struct([("key", pa.string())])), pa.map_(pa.string(), pa.int32())],
    "timestamp": [pa.int32(), pa.string(), pa.date64(), pa.time64("us"), pa.dictionary(pa.int8(), pa.int64())],
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in WRONG_TYPES.items() for kind in kinds], ids=str)
def test_wrong_types(name: str, kind: pa.DataType) -> None:
    schema = pa.schema([(name, kind), *([("value", pa.binary())] if name != "value" else [])])
    with pytest.raises(TypeError, match=f"^column '{name}' has the Arrow type [^']+; expected: .+"):
        encode(accumulator(), schema.empty_table(), None if name == "topic" else "t")


def test_the_text_about_a_wrong_type() -> None:
    schema = pa.schema([("value", pa.binary()), ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())])))])
    found, expected = "list<struct<key: utf8, value: int32>>", "list<struct<key: utf8, value: binary>>"
    text = f"column 'headers' has the Arrow type {found}; expected: {expected}"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        one_topic(schema.empty_table())


@pytest.mark.parametrize(
    ("table", "topic", "text"),
    [
        (
            {"value": ["a"], "colour": ["red"]},
            "t",
            "unknown column 'colour' of the Arrow type utf8: the columns of a record are key, value, topic,",
        ),
        ({"key": ["a"]}, "t", "there is no column 'value', only ['key']: it may be null, but it must be there"),
        ({"value": ["a"]}, None, "there is no topic: neither a column 'topic', only ['value'], nor an argument"),
        ({"value": ["a", "b"], "topic": ["t", None]}, None, "row 1: the topic is null"),
        ({"value": ["a", "b"], "topic": ["t", ""]}, None, "row 1: the topic is empty"),
        ({"value": ["a"], "topic": [b"\xff"]}, None, "row 0: the topic b'\\xff' is not UTF-8"),
        ({"value": ["a", "b"], "partition": [0, -1]}, "t", "row 1: the partition is -1; it must be 0 or more, or null"),
        ({"value": ["a"], "timestamp": [-2]}, "t", "row 0: the timestamp is before 1970, or beyond 64 bits of milliseconds"),
        ({"value": ["a"], "timestamp": pa.array([2**60], pa.timestamp("s"))}, "t", "row 0: the timestamp is before 1970"),
        ({"value": ["a"], "headers": pa.array([[None]], HEADERS)}, "t", "row 0: a header is null, or its key is"),
        (
            {"value": ["a"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)},
            "t",
            "row 0: a header is null, or its key is",
        ),
    ],
)
def test_rows_that_cannot_be(table: dict[str, Any], topic: str | None, text: str) -> None:
    target = accumulator()
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        encode(target, pa.table(table), topic)
    assert (target.used, target.active()) == (0, [])


def test_the_row_of_an_error_is_counted_over_all_arrays() -> None:
    schema = pa.schema([("value", pa.string()), ("timestamp", pa.int64())])
    batches = [pa.record_batch([["a"] * 5000, [1] * 4999 + [stamp]], schema) for stamp in (1, 1, -5)]
    with pytest.raises(ValueError, match=r"^row 14999: the timestamp"):
        one_topic(pa.Table.from_batches(batches))


def test_two_columns_of_a_name() -> None:
    with pytest.raises(ValueError, match=r"^there are two columns 'value'$"):
        one_topic(pa.Table.from_arrays([pa.array(["a"]), pa.array(["a"])], names=["value", "value"]))


@pytest.mark.parametrize("data", [None, [b"a"], {"value": [b"a"]}, pa.Table, pa.array([1])], ids=str)
def test_data_that_is_no_table(data: object) -> None:
    with pytest.raises(TypeError, match=r"^data must (be Arrow data|have named columns)"):
        one_topic(data)


def test_a_topic_that_is_no_name() -> None:
    wrong: list[Any] = [7, "", b"t"]
    for topic in wrong:
        with pytest.raises(TypeError, match=r"^topic must be a name, not "):
            encode(accumulator(), pa.table({"value": ["a"]}), topic)


def test_a_row_that_is_too_large() -> None:
    table = pa.table({"key": ["k"] * 3, "value": ["a", "b" * 900, "c" * 1000]})
    with pytest.raises(
        MessageTooLargeError, match=r"row 2: a record of 1099 bytes, with the header of its batch: 1024 are allowed"
    ):
        encode(accumulator(max_record=1024), table, "t")
    target = accumulator(max_record=1024)
    assert encode(target, table.slice(0, 2), "t").count == 2


class AStream:
    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._reader = pa.RecordBatchReader.from_batches(schema, batches)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._reader.__arrow_c_stream__(requested_schema)


def test_a_stream_that_fails_midway() -> None:
    first = pa.record_batch({"value": ["a" * 300] * 20})

    def batches() -> Iterator[pa.RecordBatch]:
        yield first
        raise RuntimeError("the source is gone")

    target = accumulator(max_record=1024)
    with pytest.raises(OttlaError, match=r"^the Arrow stream failed to return an array: .*the source is gone"):
        encode(target, AStream(first.schema, batches()), "t")
    accepted = len(written(target)["t", 0])
    assert 0 < accepted < 20
    assert target.used == sum(batch.memory_size for batch in target.incomplete)


# -- at random ----------------------------------------------------------------------------------------------------------------

_texts = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=120, max_size=140))
_pairs = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), _texts), max_size=3))
_stamps = st.one_of(st.none(), st.integers(-1, 2**63 // 1000 - 1))
_rows = st.lists(st.tuples(_texts, _texts, _pairs, _stamps, st.sampled_from(["t", "u"]), st.integers(0, 2)), max_size=40)


@settings(max_examples=examples(200))
@given(_rows, st.data())
def test_any_rows_in_any_pieces(rows: list[Any], data: st.DataObject) -> None:
    keys, its_values, headers, stamps, topics, partitions = ([row[column] for row in rows] for column in range(6))
    wide = data.draw(st.booleans())
    binary = data.draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]))
    lists = [None if pairs is None else [{"key": name, "value": value} for name, value in pairs] for pairs in headers]
    pairs_type = HEADERS.value_type
    table = pa.table(
        {
            "key": pa.array(keys, binary),
            "value": pa.array(its_values, binary),
            "headers": pa.array(lists, pa.large_list(pairs_type) if wide else pa.list_(pairs_type)),
            "timestamp": pa.array(stamps, pa.int64()).cast(pa.timestamp("ms")),
            "topic": pa.array(topics).dictionary_encode() if wide else pa.array(topics),
            "partition": pa.array(partitions, pa.int64() if wide else pa.int32()),
        }
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    pieces = [table.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    first = data.draw(st.integers(0, len(rows)))
    target = accumulator({"t": 3, "u": 3}, max_record=data.draw(st.sampled_from([1 << 10, 1 << 20])))
    delivery = encode(target, pa.concat_tables(pieces).slice(first))
    expected: dict[tuple[str, int], list[Row]] = {}
    for key, value, pairs, stamp, topic, partition in rows[first:]:
        expected.setdefault((topic, partition), []).append((key, value, tuple(pairs or ()), NOW if stamp is None else stamp))
    assert written(target) == expected
    assert delivery.count == len(rows) - first
    assert all(batch.created_at == 5 for batch in delivery.batches)


def test_datetimes_are_utc() -> None:
    moment = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    assert one_topic(pa.table({"value": ["a"], "timestamp": [moment]}))[0][3] == moment.timestamp() * 1000


def test_the_index_of_pandas_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown column '__index_level_0__' .* reset_index\(drop=True\)"):
        one_topic(pa.table({"value": ["a"], "__index_level_0__": ["x"]}))


class Damage:
    """Arrays whose offsets or views are overwritten by ``strike()``, after PyArrow has looked at them."""

    def __init__(self) -> None:
        self._later: list[tuple[bytearray, bytes]] = []

    def strike(self) -> None:
        for memory, content in self._later:
            memory[:] = content

    def offsets(self, kind: pa.DataType, *offsets: int) -> pa.Array:
        numbers = "q" if pa.types.is_large_binary(kind) else "i"
        return self._array(kind, numbers, range(len(offsets)), offsets, b"abcdef")

    def lists(self, *offsets: int) -> pa.Array:
        items = pa.array([{"key": "a", "value": b""}] * 3, HEADERS.value_type)
        return self._array(HEADERS, "i", range(len(offsets)), offsets, children=[items])

    def view(self, *words: int) -> pa.Array:
        return self._array(pa.binary_view(), "i", (20, 0, 0, 0), words, b"a long value, it has many bytes")

    def _array(self, kind: pa.DataType, numbers: str, good: Any, bad: Any, *others: bytes, **children: Any) -> pa.Array:
        memory = bytearray(struct.pack(f"<{len(good)}{numbers}", *good))
        self._later.append((memory, struct.pack(f"<{len(bad)}{numbers}", *bad)))
        length = 1 if pa.types.is_binary_view(kind) else len(good) - 1
        return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(memory), *map(pa.py_buffer, others)], **children)


STRINGS = pa.array(["x", "y"])


def indexed(*indices: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), STRINGS, safe=False)


@pytest.mark.parametrize(
    ("column", "array", "row"),
    [
        ("value", lambda damage: damage.offsets(pa.binary(), 0, 4, 2, 6), 1),
        ("value", lambda damage: damage.offsets(pa.binary(), -1, 2, 3), 0),
        ("value", lambda damage: damage.offsets(pa.large_binary(), 0, 4, 5, 2), 2),
        ("value", lambda damage: damage.offsets(pa.large_binary(), -9, 2), 0),
        ("value", lambda damage: damage.view(-5, 0, 0, 0), 0),
        ("value", lambda damage: damage.view(20, 0, 1, 0), 0),
        ("value", lambda damage: damage.view(20, 0, 0, -1), 0),
        ("value", lambda damage: damage.view(20, 0, 0, 15), 0),
        ("key", lambda damage: damage.offsets(pa.binary(), 3, 2, 2), 0),
        ("key", lambda damage: indexed(0, 99), 1),
        ("key", lambda damage: indexed(-1, 0), 0),
        ("topic", lambda damage: damage.offsets(pa.binary(), 0, 1, 0), 1),
        ("headers", lambda damage: damage.lists(0, 2, 1), 1),
        ("headers", lambda damage: damage.lists(0, 2, 4), 1),
        ("headers", lambda damage: damage.lists(-1, 2, 3), 0),
    ],
)
def test_damaged_arrays(column: str, array: Callable[[Damage], pa.Array], row: int) -> None:
    target, damage = accumulator(), Damage()
    table = pa.table({**({} if column == "value" else {"value": STRINGS}), column: array(damage)})
    damage.strike()
    text = f"row {row}: the Arrow data is damaged: column '{column}' has an offset or an index that cannot be"
    with pytest.raises(ValueError, match=f"^{text}$"):
        encode(target, table, None if column == "topic" else "t")
    assert (target.used, target.active()) == (0, [])


def test_damaged_dictionaries_and_headers() -> None:
    damage = Damage()
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), damage.offsets(pa.binary(), 0, 3, 1))
    keys = damage.offsets(pa.string(), 0, 3, 1)
    pairs = pa.StructArray.from_arrays([keys, pa.array([b"", b""])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pairs)
    tables = pa.table({"value": values}), pa.table({"value": ["a"], "headers": headers})
    damage.strike()
    for table, text in zip(tables, ("a dictionary has offsets that descend", "headers after row 0"), strict=True):
        with pytest.raises(ValueError, match=f"the Arrow data is damaged: {text}"):
            one_topic(table)


def test_a_view_of_a_long_value() -> None:
    damage = Damage()
    table = pa.table({"value": damage.view(20, 0, 0, 7)})
    damage.strike()
    assert [row[1] for row in one_topic(table)] == [b"value, it has many b"]
