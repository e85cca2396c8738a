"""The fingerprint of rows: the same for the same rows, whatever their order, division and Arrow types."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from ottla.records.row_fingerprint import RowFingerprint
from tests.example_counts import examples

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()), ("headers", HEADERS)]
)
LARGE_HEADERS = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
OTHER_TYPES = pa.schema(
    [
        ("partition", pa.int64()),
        ("headers", LARGE_HEADERS),
        ("value", pa.large_binary()),
        ("key", pa.binary_view()),
        ("topic", pa.dictionary(pa.int8(), pa.string())),
    ]
)

data = st.none() | st.binary(max_size=40)
rows = st.fixed_dictionaries(
    {
        "key": data,
        "value": data,
        "topic": st.sampled_from(["orders", "payments"]),
        "partition": st.none() | st.integers(0, 5),
        "headers": st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": data}), max_size=3),
    }
)


def fingerprint(content: list[dict[str, Any]], schema: pa.Schema = SCHEMA, topic: str | None = None) -> tuple[int, int]:
    made = RowFingerprint(topic)
    made.update(pa.Table.from_pylist(content, schema))
    return made.rows, made.value


@settings(max_examples=examples(60))
@given(st.lists(rows, max_size=12), st.randoms(use_true_random=False))
def test_order_division_and_types_do_not_matter(content: list[dict[str, Any]], chance: random.Random) -> None:
    expected = fingerprint(content)
    shuffled = chance.sample(content, len(content))
    cut = chance.randint(0, len(content))
    divided = RowFingerprint()
    table = pa.Table.from_pylist(shuffled, SCHEMA)
    for part in (table.slice(0, cut), table.slice(cut)):
        divided.update(part)
    assert (divided.rows, divided.value) == expected
    assert fingerprint(shuffled, OTHER_TYPES) == expected


@settings(max_examples=examples(60))
@given(st.lists(rows, min_size=1, max_size=5), rows)
def test_another_row_changes_it(content: list[dict[str, Any]], other: dict[str, Any]) -> None:
    without_empty = [{**row, "headers": row["headers"] or None} for row in (content[0], other)]
    changed = [other, *content[1:]]
    assert (fingerprint(changed) == fingerprint(content)) == (without_empty[0] == without_empty[1])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"key": b"a", "value": b"b"}, {"key": b"b", "value": b"a"}),
        ({"key": b"ab", "value": b"c"}, {"key": b"a", "value": b"bc"}),
        ({"key": None}, {"key": b""}),
        ({"value": b"12345678"}, {"value": b"12345678\x00"}),
        ({"headers": [{"key": "a", "value": b"b"}]}, {"headers": [{"key": "ab", "value": None}]}),
        ({"headers": [{"key": "a", "value": None}, {"key": "b", "value": None}]}, {"headers": [{"key": "a", "value": b"b"}]}),
        ({"partition": None}, {"partition": 0}),
        ({"topic": "a"}, {"topic": "b"}),
    ],
)  # fmt: skip
def test_similar_rows_differ(first: dict[str, Any], second: dict[str, Any]) -> None:
    row = {"key": b"k", "value": b"v", "topic": "t", "partition": 1, "headers": None}
    assert fingerprint([{**row, **first}]) != fingerprint([{**row, **second}])


def test_a_row_counts_as_often_as_it_is_there() -> None:
    row = {"key": b"k", "value": b"v", "topic": "t"}
    one, two = fingerprint([row]), fingerprint([row, row])
    assert two == (2, one[1] * 2 % 2**64)


def test_the_topic_of_all_rows_matters() -> None:
    row = {"key": b"k", "value": b"v", "topic": "ignored"}
    assert fingerprint([row], topic="a") != fingerprint([row], topic="b")
    assert fingerprint([row], topic="a") == fingerprint([{**row, "topic": "other"}], topic="a")


def test_many_windows() -> None:
    table = pa.table({"value": [str(number) for number in range(10_000)]})
    whole, parts = RowFingerprint("t"), RowFingerprint("t")
    whole.update(table)
    for start in range(0, 10_000, 777):
        parts.update(table.slice(start, 777))
    assert (whole.rows, whole.value) == (parts.rows, parts.value) == (10_000, whole.value)


def test_stored_fingerprints_stay_valid() -> None:
    """These numbers are in the markers of users: a change would refuse a replay that is right."""
    headers = [{"key": "h", "value": b"1"}]
    content: list[dict[str, Any]] = [
        {"key": b"key", "value": b"a value of more than eight bytes", "topic": "orders", "partition": 3, "headers": headers},
        {"key": None, "value": None, "topic": "orders", "partition": None, "headers": None},
    ]  # fmt: skip
    assert fingerprint(content) == (2, 12849985062474231828)


def test_damaged_data_is_refused() -> None:
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (0, 5, 2, 6))
    damaged = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"abcdef")])
    with pytest.raises(ValueError, match="column 'value' has an offset"):
        RowFingerprint("t").update(pa.table({"value": damaged}))
