"""The format of ``ottla consume -f``, and the separator of ``ottla produce -K``: kcat's escapes.

Owns the little language. Must not know where records come from. Invariant: a format is checked once, before the first
record; rendering it never fails, whatever bytes a record holds.

=====  ==========================================  =====  ==========================================
%s     value                                       %S     length of the value in bytes, -1 for null
%k     key                                         %K     length of the key in bytes, -1 for null
%t     topic                                       %T     timestamp, milliseconds since 1970
%p     partition                                   %h     headers, ``name=value`` with commas
%o     offset                                      %%     a percent sign
=====  ==========================================  =====  ==========================================

``\\n \\r \\t \\0 \\\\`` and ``\\xHH`` stand for the bytes they stand for in C. Other text stands for its own bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

Piece = Callable[[Any], bytes]
TOKENS = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
ESCAPES = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)|([^\\]+)|(.)", re.DOTALL)
CONTROLS = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
KNOWN = "\\n \\r \\t \\0 \\\\ \\xHH"


class BadFormat(ValueError):
    """The format holds an escape that is not one."""


def _bytes(value: bytes | None) -> bytes:
    return b"" if value is None else bytes(value)


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else str(len(value)).encode()


def _headers(record: Any) -> bytes:
    return b",".join(name.encode(errors="surrogateescape") + b"=" + _bytes(value) for name, value in record.headers)


FIELDS: dict[str, Piece] = {
    "s": lambda record: _bytes(record.value),
    "S": lambda record: _length(record.value),
    "k": lambda record: _bytes(record.key),
    "K": lambda record: _length(record.key),
    "t": lambda record: record.topic.encode(errors="surrogateescape"),
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


def unescaped(text: str) -> bytes:
    """The bytes that a text with escapes, but without fields, stands for. Raises ``BadFormat``."""
    return b"".join(_escaped_piece(match) for match in ESCAPES.finditer(text))


def _piece(match: re.Match[str]) -> Piece:
    field, code, control, literal, _ = match.groups()
    if field is not None and field in FIELDS:
        return FIELDS[field]
    value = _value(code, control, literal)
    if value is None:
        known = " ".join(f"%{name}" for name in FIELDS)
        raise BadFormat(f"{match[0]} is unknown; use {known} or {KNOWN}")
    return lambda record: value


def _escaped_piece(match: re.Match[str]) -> bytes:
    value = _value(*match.groups()[:3])
    if value is None:
        raise BadFormat(f"{match[0]} is unknown; use {KNOWN}")
    return value


def _value(code: str | None, control: str | None, literal: str | None) -> bytes | None:
    """The bytes of ``\\xHH``, of a control character or of text that stands for itself; ``None``: it is none of them."""
    if code is not None:
        return bytes([int(code, 16)])
    if literal is not None:
        return os.fsencode(literal)
    return CONTROLS.get(control) if control is not None else None
