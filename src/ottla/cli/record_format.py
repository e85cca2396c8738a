"""The format strings of ``ottla consume -f`` and the delimiter of ``ottla produce -K``, with kcat's escapes.

Owns their syntax. Must not know where records come from. Invariant: a format is validated once, before the first record; rendering
never fails, whatever bytes a record contains.

=====  ==========================================  =====  ==========================================
%s     value                                       %S     length of the value in bytes, -1 for null
%k     key                                         %K     length of the key in bytes, -1 for null
%t     topic                                       %T     timestamp, milliseconds since 1970
%p     partition                                   %h     headers, ``name=value`` with commas
%o     offset                                      %%     a percent sign
=====  ==========================================  =====  ==========================================

``\\n \\r \\t \\0 \\\\`` and ``\\xHH`` mean the same as in C. Other text stands for itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

Renderer = Callable[[Any], bytes]
TOKENS = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
ESCAPES = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)|([^\\]+)|(.)", re.DOTALL)
CONTROLS = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
ESCAPE_HELP = "\\n \\r \\t \\0 \\\\ \\xHH"


class BadFormat(ValueError):
    """The format has an unknown escape sequence."""


def _bytes(value: bytes | None) -> bytes:
    return b"" if value is None else bytes(value)


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else str(len(value)).encode()


def _headers(record: Any) -> bytes:
    return b",".join(name.encode(errors="surrogateescape") + b"=" + _bytes(value) for name, value in record.headers)


FIELDS: dict[str, Renderer] = {
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


def compile_format(text: str) -> Renderer:
    """Return a function that renders a record. Raises ``BadFormat``."""
    pieces = [_renderer(match) for match in TOKENS.finditer(text)]
    return lambda record: b"".join(piece(record) for piece in pieces)


def unescape(text: str) -> bytes:
    """Return the bytes of a text with escapes but without fields. Raises ``BadFormat``."""
    return b"".join(_unescaped_token(match) for match in ESCAPES.finditer(text))


def _renderer(match: re.Match[str]) -> Renderer:
    field, code, control, literal, _ = match.groups()
    if field is not None and field in FIELDS:
        return FIELDS[field]
    value = _literal_value(code, control, literal)
    if value is None:
        known = " ".join(f"%{name}" for name in FIELDS)
        raise BadFormat(f"unknown escape {match[0]}; use {known} or {ESCAPE_HELP}")
    return lambda record: value


def _unescaped_token(match: re.Match[str]) -> bytes:
    value = _literal_value(*match.groups()[:3])
    if value is None:
        raise BadFormat(f"unknown escape {match[0]}; use {ESCAPE_HELP}")
    return value


def _literal_value(code: str | None, control: str | None, literal: str | None) -> bytes | None:
    """Return the bytes of ``\\xHH``, of a control character or of literal text; ``None`` for an unknown escape."""
    if code is not None:
        return bytes([int(code, 16)])
    if literal is not None:
        return os.fsencode(literal)
    return CONTROLS.get(control) if control is not None else None
