"""The cause of a failed query, out of Spark's error text.

Owns the reading of the text: the traceback of Python in it, and what Spark has put around that. Must not know Spark's classes.
Invariant: the cause is never empty, and it and its details have no frame of the JVM.

Spark's text of a failed task, stream or ``foreachBatch`` contains Python's traceback as it was printed, also over Connect.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEBACK = "Traceback (most recent call last):"
PLAN = "\n=== Streaming Query ==="
"""What follows is the query's offsets and plan."""
_HEAD = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ", re.DOTALL)
_CALL = re.compile(r"An error occurred while calling \S+\.(?: Trace:)?\n(?:: )?")
"""What Py4J has put before an exception of Java that PySpark has no class for."""
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(: |$)")
_JVM_FRAME = re.compile(r"^\s*(at [\w.$<>/]+\(|\.\.\. \d+ more|Driver stacktrace:)")
_OTHERS = re.compile(r"/(pyspark|py4j)/|/pyspark\.zip/|/(site-packages|src)/ottla/(?!demo/)|<frozen |<string>")
"""Frames of libraries between the user's code and Spark."""
PERMANENT = tuple(f"ottla.errors.{module}{name}" for module in ("", "tree.") for name in ("ConfigError", "ReplayMismatchError"))
"""A restart would fail with the same error."""
MOST_LINES = 6


class Cause(NamedTuple):
    """Why a query has failed."""

    message: str
    """One line: for an exception of Python its class and text."""
    details: tuple[str, ...]
    """Where in the user's code, and what had caused the exception."""
    is_permanent: bool


def cause_of(text: str) -> Cause:
    """Return the cause in the text of an error that PySpark has raised."""
    text = _CALL.sub("", _HEAD.sub("", text.partition(PLAN)[0].strip()))
    if TRACEBACK in text:
        return _in_python(text)
    lines = [_stripped(line) for line in text.splitlines() if line.strip() and not _JVM_FRAME.match(line)]
    lines = lines or ["Spark gives no reason"]
    return Cause(lines[0], tuple(lines[1:MOST_LINES]), is_permanent=False)


def _in_python(text: str) -> Cause:
    """Read the tracebacks: the last one is of the exception that ended the query, those before it of its causes."""
    tracebacks = text.split(TRACEBACK)[1:]
    exceptions = [found for found in map(_exception, tracebacks) if found]
    if not exceptions:
        return Cause(_stripped(text.splitlines()[0]), (), is_permanent=False)
    message, *more = exceptions[-1]
    details = [*more[: MOST_LINES - 1], *_place(tracebacks[-1])]
    for before in reversed(exceptions[:-1]):
        if before != exceptions[-1]:
            details.append(f"caused by {before[0]}")
    return Cause(message, tuple(details), message.startswith(PERMANENT))


def _exception(traceback: str) -> list[str]:
    """The lines of the exception at the end of a traceback: those from the first that is not indented on."""
    lines = traceback.splitlines()[1:]
    start = next((at for at, line in enumerate(lines) if line and not line[0].isspace() and _EXCEPTION.match(line)), None)
    if start is None:
        return []
    found: list[str] = []
    for line in lines[start:]:
        if not line.strip() or _JVM_FRAME.match(line) or line.lstrip().startswith("SQLSTATE:"):
            break
        found.append(_stripped(line))
    return found


def _place(traceback: str) -> list[str]:
    """The innermost frame of the user's code."""
    frames = [frame for frame in map(_FRAME.match, traceback.splitlines()) if frame and not _OTHERS.search(frame["file"])]
    return [f"{frames[-1]['file']}:{frames[-1]['line']}, in {frames[-1]['name']}"] if frames else []


def _stripped(line: str) -> str:
    while (shorter := _SQLSTATE.sub("", line)) != line:
        line = shorter
    return line.strip()
