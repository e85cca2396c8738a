"""``Prepared``: its text, and what cannot be one."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from ottla import Prepared

FIELDS: dict[str, Any] = {
    "transactional_id": "größe",
    "producer_id": 2**63 - 1,
    "producer_epoch": 2**15 - 1,
    "transaction_version": 2,
    "is_empty": True,
}
WRONG: list[tuple[str, Any]] = [
    *(("transactional_id", value) for value in (None, 5, b"a", "")),
    *(("producer_id", value) for value in (None, "1", True, 1.0, -1, 2**63)),
    *(("producer_epoch", value) for value in (None, "1", False, 1.0, -1, 2**15)),
    *(("transaction_version", value) for value in (None, "2", True, 0, 3)),
    *(("is_empty", value) for value in (None, 0, "false")),
]


def test_the_text_and_the_pickle_make_an_equal_one() -> None:
    one = Prepared(**FIELDS)
    assert Prepared.loads(one.dumps()) == one
    assert Prepared.loads(one.dumps().encode()) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_the_text_is_that_of_earlier_versions() -> None:
    text = '{"transactional_id": "a", "producer_id": 1, "producer_epoch": 2, "transaction_version": 1, "is_empty": false, "new": 5}'
    assert Prepared.loads(text) == Prepared("a", 1, 2, 1)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_no_field_has_a_value_that_a_request_cannot_have(name: str, value: Any) -> None:
    fields = {**FIELDS, name: value}
    with pytest.raises((TypeError, ValueError), match=name):
        Prepared(**fields)
    if not isinstance(value, bytes):
        with pytest.raises(ValueError, match=f"not a prepared transaction.*{name}"):
            Prepared.loads(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", '"a"', "{}", b"\xff\xfe\xff", "\x00"])
def test_other_texts_are_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="not a prepared transaction"):
        Prepared.loads(text)


@pytest.mark.parametrize("value", [None, 5, ["a"]])
def test_what_is_not_text_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not a prepared transaction"):
        Prepared.loads(value)
