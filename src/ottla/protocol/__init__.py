"""Bytes <-> messages, on kio: framing, headers, version negotiation, and the blobs and records that groups exchange.

The only package that knows a version number or imports kio. Invariant: what is decoded here was complete.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode as ErrorCode

_MILLISECOND = timedelta(milliseconds=1)
NO_THROTTLE = timedelta(0)
"""What every answer of ours says of throttling."""


def milliseconds(duration: timedelta) -> int:
    """A duration of a message as whole milliseconds."""
    return duration // _MILLISECOND


def duration(count: int) -> timedelta:
    """Whole milliseconds as a duration of a message."""
    return timedelta(milliseconds=count)


def _keep_hypothesis_out() -> None:
    """kio loads hypothesis where it is installed, 150 ms for what only tests need. Unless it is loaded already, none is found."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # what Python takes for "not installed"
    try:
        with suppress(ImportError):  # a kio that does without this module does without the question
            importlib.import_module("kio.static._phantom")
    finally:
        del sys.modules["hypothesis"]


_keep_hypothesis_out()


def __getattr__(name: str) -> Any:
    # kio's error codes pull in all of kio: not at import.
    if name == "ErrorCode":
        from kio.schema.errors import ErrorCode

        return ErrorCode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
