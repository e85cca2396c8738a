"""Checks and converts what an application sends as a record, in other forms than the usual ones.

Owns the accepted forms of keys, values, headers, partitions and timestamps, and the texts of their errors. Must not know topics or
batches. Invariant: an error names the argument, what it was, and what is expected.
"""

from __future__ import annotations

from functools import partial
from inspect import CO_COROUTINE
from typing import Any

from ottla.records.encode import put_sized, put_varint
from ottla.types import as_integer, short_repr

NO_HEADERS = b"\0"
"""The encoded headers of a record without any."""


def encode_headers(headers: Any) -> bytes:
    """The headers of a record, encoded with their count: pairs of a name and bytes, text or ``None``, or a mapping of them.

    Raises ``TypeError`` for anything else.
    """
    output = bytearray()
    try:
        pairs = list(headers.items() if hasattr(headers, "items") else headers)
    except TypeError:
        raise TypeError(f"headers are pairs of a name and a value, or a mapping, not {short_repr(headers)}") from None
    put_varint(output, len(pairs))
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"a header is a pair of a name (str) and a value (bytes, str or None), not {short_repr(pair)}")
        put_sized(output, _as_utf8(pair[0], "the name of a header"))
        put_sized(output, bytes_of(pair[1], "the value of a header"))
    return bytes(output)


def _as_utf8(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} cannot be encoded as UTF-8: {error}") from None


def bytes_of(value: Any, what: str) -> bytes | None:
    """A key, value or header as bytes; ``None`` stays ``None``."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return _as_utf8(value, what)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} must be bytes, str or None, not {short_repr(value)}: a serializer turns other types into bytes")


def checked_partition(partition: Any) -> int:
    """The number of a partition. Raises ``TypeError`` and ``ValueError``."""
    number = as_integer(partition)
    if number is None:
        raise TypeError(f"partition must be a whole number or None, not {short_repr(partition)}")
    if not 0 <= number < 2**31:
        raise ValueError(f"partition must be from 0 to 2147483647, not {number}")
    return number


def checked_timestamp(timestamp: Any) -> int:
    """Milliseconds since 1970. Raises ``TypeError`` and ``ValueError``."""
    number = as_integer(timestamp)
    if number is None:
        raise TypeError(f"timestamp must be whole milliseconds since 1970, not {short_repr(timestamp)}")
    if not 0 <= number < 2**63:
        raise ValueError(f"timestamp must be milliseconds since 1970, from 0 to 2**63 - 1, not {number}")
    return number


def check_callback(callback: Any) -> None:
    """Raise ``TypeError`` for what cannot be called, and for a coroutine function: nothing would await its result.

    The latter as in ``inspect.iscoroutinefunction``, which takes longer than all the rest of ``send``.
    """
    if not callable(callback):
        raise TypeError(f"on_delivery must be callable, not {short_repr(callback)}")
    function = callback
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    if code is not None and code.co_flags & CO_COROUTINE:
        raise TypeError(f"on_delivery must be a function that is not async, since nothing awaits it, not {short_repr(callback)}")
