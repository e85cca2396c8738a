"""Printing what a command found.

Owns tables, JSON and the line that an error is. Must not know any command. Invariant: results go to stdout, everything
that is about the run goes to stderr; JSON is one document with the keys in the order of the columns; a name or a message
that others chose cannot control the terminal, nor look like another line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from ottla.cli.options import Format
from ottla.cli.streams import OutputFailed

Row = Mapping[str, Any]


class CommandFailed(Exception):
    """A command cannot do what it was asked; the message is all that the user needs to see. ``details`` are lines below it."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = details


class VisibleFormatter(logging.Formatter):
    """Log lines whose texts cannot control the terminal; only a traceback has several lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, and a traceback if there is one."""
        lines = [visible(record.getMessage())]
        if record.exc_info:
            lines += [visible(line) for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def report_to_stderr() -> None:
    """Write warnings and log lines, from warnings on, to stderr: for a program."""
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter())
    logging.getLogger().addHandler(handler)
    warnings.showwarning = _print_warning


def _print_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
    print(f"warning: {visible(str(message))}", file=sys.stderr)


def visible(text: str) -> str:
    """``text`` with escapes in the place of control characters and of others that cannot be seen."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def say(text: str) -> None:
    """Print one line about what was done, at once: what follows may be interrupted."""
    with contextlib.suppress(OutputFailed):  # the flush at the end fails again, when everything is done
        print(visible(text), flush=True)


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 partition``, ``2 partitions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: Format) -> None:
    """Rows as a table with ``columns``, or as a JSON list of objects with just these keys."""
    if output is Format.JSON:
        print_json([{column: row[column] for column in columns} for row in rows])
    else:
        print_table(rows, columns)
    sys.stdout.flush()  # before what comes on stderr


def print_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2))


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """A table without lines around it, as wide as its content: it can be cut and grepped. Not by ``rich``: 10,000 rows took 2 s."""
    lines = [[column.replace("_", " ").upper() for column in columns]]
    lines += [[visible(_cell(row[column])) for column in columns] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[column], int | None) for row in rows) for column in columns]
    widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = []
        for text, width, right in zip(line, widths, numeric, strict=True):
            space = " " * (width - _width(text))
            cells.append(space + text if right else text + space)
        print("  ".join(cells).rstrip())


def _width(text: str) -> int:
    """In columns of a terminal: some characters take two."""
    return len(text) if text.isascii() else cell_len(text)


def print_error(message: str, details: Sequence[str] = ()) -> None:
    """The one line that an error is, and lines about it."""
    print(f"error: {visible(message)}", file=sys.stderr)
    for line in details:
        print(visible(line), file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value) or "-"
    return str(value)
