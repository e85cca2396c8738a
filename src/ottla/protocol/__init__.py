"""Kafka's protocol, on kio: framing, messages and their versions, the opening of a connection, and the records of the coordinators.

The only package that knows a version number or imports kio. Invariant: no truncated message is decoded.
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
"""The throttle time of every response of Ottla's broker."""


def milliseconds(duration: timedelta) -> int:
    """The whole milliseconds of a message's duration."""
    return duration // _MILLISECOND


def duration(count: int) -> timedelta:
    """A message's duration of whole milliseconds."""
    return timedelta(milliseconds=count)


def _keep_hypothesis_out() -> None:
    """Load kio without hypothesis, which kio imports where it is installed: 150 ms for code that only tests need."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # the import system reads None as "not installed"
    try:
        with suppress(ImportError):  # a version of kio without this module
            importlib.import_module("kio.static._phantom")
    finally:
        del sys.modules["hypothesis"]


_keep_hypothesis_out()


def __getattr__(name: str) -> Any:
    # Not at import: kio's error codes import all of kio.
    if name == "ErrorCode":
        from kio.schema.errors import ErrorCode

        return ErrorCode
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
