"""Printing what a command found.

Owns tables, JSON and the line that an error is. Must not know any command. Invariant: results go to stdout, everything
that is about the run goes to stderr; JSON is one document with the keys in the order of the columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ottla.cli.options import Format

Row = Mapping[str, Any]
UNCUT = 4096
"""A width that no table reaches: a terminal may wrap a line, rich must not cut it."""


class CommandFailed(Exception):
    """A command cannot do what it was asked; the message is all that the user needs to see."""


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: Format) -> None:
    """Rows as a table with ``columns``, or as a JSON list of objects with just these keys."""
    if output is Format.JSON:
        print_json([{column: row[column] for column in columns} for row in rows])
    else:
        print_table(rows, columns)


def print_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2))


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """A table without lines around it, as wide as its content: it can be cut and grepped."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        numeric = all(isinstance(row[column], int | None) for row in rows)
        table.add_column(column.replace("_", " ").upper(), justify="right" if rows and numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.width = max(console.width, console.measure(table).maximum, UNCUT)
    console.print(table, crop=False)


def print_error(message: str) -> None:
    """The one line that an error is."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value) or "-"
    return str(value)
