"""The error codes in a response."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ottla.protocol import ErrorCode


def codes(message: Any) -> Iterator[ErrorCode]:
    """Yield all error codes of a message, the outer ones first."""
    if isinstance(message, ErrorCode):
        yield message
    elif isinstance(message, tuple):
        for item in message:
            yield from codes(item)
    elif dataclasses.is_dataclass(message):
        for field in dataclasses.fields(message):
            yield from codes(getattr(message, field.name))
