"""What a command prints."""

from __future__ import annotations

import json

import pytest

from ottla.cli.options import Format
from ottla.cli.output import print_error, print_rows

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
    assert (captured.out, captured.err) == ("", "error: first second\n")
