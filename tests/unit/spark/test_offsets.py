"""Offsets as JSON, and the offsets in options."""

import json

import pytest

from ottla.errors import ConfigError
from ottla.spark.offsets import EARLIEST, LATEST, OffsetSpec, StreamOffset, parse_spec, to_json
from ottla.types import TopicPartition

A0, A1, A10, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 10), TopicPartition("b", 0)


def test_json_does_not_depend_on_the_order_in_which_offsets_were_found() -> None:
    text = json.dumps(to_json({B0: 4, A10: 3, A1: 2, A0: 1}))
    assert text == '{"a": {"0": 1, "1": 2, "10": 3}, "b": {"0": 4}}'


def test_a_point_of_sparks_own_connector_is_understood() -> None:
    assert StreamOffset.from_json({"a": {"0": 1, "1": 2}}) == StreamOffset({A0: 1, A1: 2})


def test_the_first_end_carries_the_first_start() -> None:
    point = StreamOffset({A0: 103}, first_start={A0: 100})
    assert point.to_json() == {"a": {"0": 103}, "$from": {"a": {"0": 100}}}
    assert StreamOffset.from_json(point.to_json()) == point


def test_a_damaged_checkpoint_raises() -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        StreamOffset.from_json({"a": 3})


def test_a_spec_resolves_ends_where_it_names_them() -> None:
    spec = parse_spec('{"a": {"0": 7, "1": -2}, "b": {"0": -1}}', "startingOffsets")
    assert spec.unresolved([A0, A1, B0], EARLIEST) == [A1]
    assert spec.unresolved([A0, A1, B0], LATEST) == [B0]
    assert spec.resolve([A0, A1, B0], {A1: 5}, {B0: 9}) == {A0: 7, A1: 5, B0: 9}


def test_one_word_stands_for_every_partition() -> None:
    spec = parse_spec(" Earliest ", "startingOffsets")
    assert spec == OffsetSpec(EARLIEST)
    assert spec.resolve([A0, B0], {A0: 5, B0: 0}, {}) == {A0: 5, B0: 0}
    spec.check_covers("startingOffsets", [A0, B0])


def test_offsets_given_one_by_one_must_be_given_for_all_that_is_read() -> None:
    spec = OffsetSpec(None, {A0: 1, A1: 2})
    spec.check_covers("startingOffsets", [A1, A0])
    with pytest.raises(ConfigError, match="startingOffsets names no offset for a-10, b-0"):
        spec.check_covers("startingOffsets", [A0, A1, A10, B0])
    with pytest.raises(ConfigError, match="startingOffsets names a-1, which is not read"):
        spec.check_covers("startingOffsets", [A0])


def test_a_long_list_is_cut() -> None:
    with pytest.raises(ConfigError, match="a-9 and 90 more"):
        OffsetSpec(None, {}).check_covers("startingOffsets", [TopicPartition("a", number) for number in range(100)])


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"a": {"0": 1}, "a": {"1": 2}}', "has 'a' twice"),
        ('{"a": {"0": 1, "1": 3, "0": 2}}', "has '0' twice"),
        ('{"a": {"0": 1, "00": 2}}', "has a-0 twice"),
    ],
)
def test_a_name_that_is_given_twice_is_refused(text: str, twice: str) -> None:
    with pytest.raises(ConfigError, match=f"startingOffsets {twice}"):
        parse_spec(text, "startingOffsets")


def test_the_advice_names_only_what_an_option_takes() -> None:
    with pytest.raises(ConfigError) as caught:
        OffsetSpec(None, {}).check_covers("endingOffsets", [A0])
    assert "-1 stands for latest" in str(caught.value)
    assert "-2" not in str(caught.value)
