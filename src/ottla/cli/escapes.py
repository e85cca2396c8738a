"""The format of ``ottla consume -f``: kcat's escapes.

Owns the little language. Must not know where records come from. Invariant: a format is checked once, before the first
record; rendering it never fails, whatever bytes a record holds.

=====  ==========================================  =====  ==========================================
%s     value                                       %S     length of the value in bytes, -1 for null
%k     key                                         %K     length of the key in bytes, -1 for null
%t     topic                                       %T     timestamp, milliseconds since 1970
%p     partition                                   %h     headers, ``name=value`` with commas
%o     offset                                      %%     a percent sign
=====  ==========================================  =====  ==========================================

``\\n \\r \\t \\\\`` and ``\\xHH`` stand for the bytes they stand for in C.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Piece = Callable[[Any], bytes]
TOKENS = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
CONTROLS = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}


class BadFormat(ValueError):
    """The format holds an escape that is not one."""


def _bytes(value: bytes | None) -> bytes:
    return b"" if value is None else bytes(value)


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else str(len(value)).encode()


def _headers(record: Any) -> bytes:
    return b",".join(name.encode() + b"=" + _bytes(value) for name, value in record.headers)


FIELDS: dict[str, Piece] = {
    "s": lambda record: _bytes(record.value),
    "S": lambda record: _length(record.value),
    "k": lambda record: _bytes(record.key),
    "K": lambda record: _length(record.key),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: str(record.partition).encode(),
    "o": lambda record: str(record.offset).encode(),
    "T": lambda record: str(record.timestamp).encode(),
    "h": _headers,
    "%": lambda record: b"%",
}


def compiled(text: str) -> Piece:
    """A function that renders a record. Raises ``BadFormat``."""
    pieces = [_piece(match) for match in TOKENS.finditer(text)]
    return lambda record: b"".join(piece(record) for piece in pieces)


def _piece(match: re.Match[str]) -> Piece:
    field, code, control, literal, _ = match.groups()
    if field is not None and field in FIELDS:
        return FIELDS[field]
    if code is not None:
        return _constant(bytes([int(code, 16)]))
    if control is not None and control in CONTROLS:
        return _constant(CONTROLS[control])
    if literal is not None:
        return _constant(literal.encode())
    known = " ".join(f"%{name}" for name in FIELDS)
    raise BadFormat(f"{match[0]} is unknown; use {known} or \\n \\r \\t \\0 \\\\ \\xHH")


def _constant(value: bytes) -> Piece:
    return lambda record: value
