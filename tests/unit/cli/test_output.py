"""What a command prints."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from ottla.cli.options import Format
from ottla.cli.output import VisibleFormatter, print_error, print_line, print_rows, visible

ROWS = [
    {"topic": "orders", "partitions": 6, "members": ["a", "b"], "lag": None, "more": 1},
    {"topic": "[red]x[/red]" + "y" * 200, "partitions": 12, "members": [], "lag": 5, "more": 1},
]
COLUMNS = ("topic", "partitions", "members", "lag")


def test_a_table_is_never_cut_and_its_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, Format.TABLE)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["TOPIC", "PARTITIONS", "MEMBERS", "LAG"]
    assert first.split() == ["orders", "6", "a,", "b", "-"]
    assert second.split() == ["[red]x[/red]" + "y" * 200, "12", "-", "5"]


def test_columns_are_aligned_and_lines_end_with_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"new_name": "日本", "count": 5, "end": "x"}, {"new_name": "a", "count": None, "end": "long"}]
    print_rows(rows, ("new_name", "count", "end"), Format.TABLE)
    assert capsys.readouterr().out == "NEW NAME  COUNT  END\n日本          5  x\na             -  long\n"


@pytest.mark.parametrize("text", ["prod:key:orders", "[red]x[/red]", "[/]", "a\\nb", "grüße ✓"])
def test_text_that_can_be_seen_is_shown_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": text}], ("name",), Format.TABLE)
    assert capsys.readouterr().out.splitlines()[1].rstrip() == text
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J\x7f\0", "\\x9b2J\\x7f\\x00"),
        ("\u202eevil\u2028", "\\u202eevil\\u2028"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": text}], ("name",), Format.TABLE)
    assert capsys.readouterr().out.splitlines()[1].rstrip() == shown
    print_line(text)
    assert capsys.readouterr().out == f"{shown}\n"
    record = logging.makeLogRecord({"msg": "group %s", "args": (text,)})
    assert VisibleFormatter().format(record) == f"group {shown}"


def test_a_traceback_in_the_log_has_lines_that_can_be_seen() -> None:
    try:
        raise ValueError("\x1b[31m")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    lines = VisibleFormatter().format(record).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("failed", "Traceback (most recent call last):", "ValueError: \\x1b[31m")


def test_json_has_the_columns_and_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, Format.JSON)
    printed = json.loads(capsys.readouterr().out)
    assert printed == [{column: row[column] for column in COLUMNS} for row in ROWS]
    assert list(printed[0]) == list(COLUMNS)


def test_an_empty_list_is_a_header_and_an_empty_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], COLUMNS, Format.TABLE)
    assert capsys.readouterr().out.split() == ["TOPIC", "PARTITIONS", "MEMBERS", "LAG"]
    print_rows([], COLUMNS, Format.JSON)
    assert json.loads(capsys.readouterr().out) == []


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("first\n  second")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: first\\n  second\n")
    print_error("it ended; its log:", ["  one", "  \x1b[31mtwo"])
    assert capsys.readouterr().err == "error: it ended; its log:\n  one\n  \\x1b[31mtwo\n"
    print_error("the broker says \x1b[31mred\x1b[0m")
    assert capsys.readouterr().err == "error: the broker says \\x1b[31mred\\x1b[0m\n"
