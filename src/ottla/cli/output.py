"""The output of commands.

Owns tables, JSON and error lines. Must not know any command. Invariant: results go to stdout; errors, warnings and progress go to
stderr; JSON is one document with keys in the order of the columns; names and messages from a broker cannot control the terminal nor
add lines to the output.
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
from ottla.cli.standard_streams import OutputFailed

Row = Mapping[str, Any]


class CommandFailed(Exception):
    """A command failed. The user sees the message, and ``details`` as lines below it, without a traceback."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = details


class VisibleFormatter(logging.Formatter):
    """Formats log records without control characters, in one line unless there is a traceback; ``has_time``: with their times."""

    def __init__(self, *, has_time: bool = False) -> None:
        super().__init__()
        self._has_time = has_time

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, and the traceback if there is one."""
        time = f"{self.formatTime(record)} " if self._has_time else ""
        lines = [time + visible(record.getMessage())]
        if record.exc_info:
            lines += [visible(line) for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def report_to_stderr() -> None:
    """Write Python warnings, and log lines of level WARNING and above, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter())
    logging.getLogger().addHandler(handler)
    warnings.showwarning = _print_warning


def report_as_server(*, verbose: bool) -> None:
    """Write the time of each log line, since those of a server are read later; if ``verbose``, also Ottla's of level INFO."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, VisibleFormatter):
            handler.setFormatter(VisibleFormatter(has_time=True))
    if verbose:
        logging.getLogger("ottla").setLevel(logging.INFO)


def _print_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
    print_warning(str(message))


def visible(text: str) -> str:
    """Return ``text`` with escapes for all characters that are not printable."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def print_line(text: str) -> None:
    """Print one line about a completed step and flush it, because a signal may end the command in the next step."""
    with contextlib.suppress(OutputFailed):  # finish the command first: the flush at its end raises the error again
        print(visible(text), flush=True)


def pluralize(number: int, noun: str) -> str:
    """Return ``1 partition`` or ``2 partitions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: Format) -> None:
    """Print ``columns`` of the rows as a table, or as a JSON list of objects."""
    if output is Format.JSON:
        print_json([{column: row[column] for column in columns} for row in rows])
    else:
        print_table(rows, columns)
    sys.stdout.flush()  # before later lines on stderr


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2))


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print a table without borders, as wide as its content, for ``grep`` and ``awk``. (``rich`` took 2 s for 10,000 rows.)"""
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
    """Return the width in columns of a terminal; some characters take two."""
    return len(text) if text.isascii() else cell_len(text)


def print_error(message: str, details: Sequence[str] = ()) -> None:
    """Print an error as one line to stderr, followed by ``details``."""
    print(f"error: {visible(message)}", file=sys.stderr)
    for line in details:
        print(visible(line), file=sys.stderr)


def print_progress(text: str) -> None:
    """Print one line about a step that is under way to stderr."""
    print(visible(text), file=sys.stderr)


def print_warning(message: str) -> None:
    """Print a warning as one line to stderr."""
    print(f"warning: {visible(message)}", file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value) or "-"
    return str(value)
