"""The format of ``ottla consume -f``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from ottla.cli.record_format import FIELDS, BadFormat, compile_format, unescape

RECORD = SimpleNamespace(
    topic="orders",
    partition=3,
    offset=42,
    timestamp=1_700_000_000_123,
    key=b"k",
    value=b"\xff\x00v",
    headers=(("a", b"1"), ("b", None)),
)
NULL = SimpleNamespace(topic="orders", partition=0, offset=0, timestamp=-1, key=None, value=None, headers=())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p %o %k %s %T %h\\n", b"orders 3 42 k \xff\x00v 1700000000123 a=1,b=\n"),
        ("%s", b"\xff\x00v"),
        ("%K/%S", b"1/3"),
        ("100%%", b"100%"),
        ("\\t\\r\\n\\\\\\0\\x41", b"\t\r\n\\\x00A"),
        ("grüße", "grüße".encode()),
        ("", b""),
    ],
)
def test_a_record_is_rendered(text: str, expected: bytes) -> None:
    assert compile_format(text)(RECORD) == expected


def test_null_is_nothing_and_has_length_minus_one() -> None:
    assert compile_format("[%k|%s|%h] %K %S")(NULL) == b"[||] -1 -1"


@pytest.mark.parametrize("text", ["%q", "50%", "\\q", "x\\", "\\x4"])
def test_an_unknown_field_raises_with_the_known_ones(text: str) -> None:
    with pytest.raises(BadFormat, match="%s %S %k %K"):
        compile_format(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\t", b"\t"),
        (":", b":"),
        ("%s", b"%s"),
        ("\\x00\\0\\n\\r\\\\", b"\0\0\n\r\\"),
        ("a\udcff", b"a\xff"),
        ("ü", "ü".encode()),
        ("", b""),
    ],
)
def test_a_separator_has_the_same_escapes_without_fields(text: str, expected: bytes) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize("text", ["\\", "\\q", "\\x4", "\\xg0"])
def test_a_separator_with_another_escape_is_refused(text: str) -> None:
    with pytest.raises(BadFormat, match=r"unknown escape .*; use"):
        unescape(text)


def test_names_that_are_not_utf8_are_rendered() -> None:
    record = SimpleNamespace(**{**vars(RECORD), "topic": "t\udcff", "headers": (("h\udcff", b"1"),)})
    assert compile_format("%t %h \udcff")(record) == b"t\xff h\xff=1 \xff"


@given(st.text())
def test_any_text_is_either_refused_or_renders_any_record(text: str) -> None:
    try:
        render = compile_format(text)
    except BadFormat:
        return
    assert isinstance(render(RECORD), bytes)
    assert isinstance(render(NULL), bytes)


@given(st.lists(st.sampled_from(sorted(FIELDS))))
def test_fields_are_rendered_in_their_order(fields: list[str]) -> None:
    text = "".join(f"%{field}" for field in fields)
    assert compile_format(text)(RECORD) == b"".join(FIELDS[field](RECORD) for field in fields)
