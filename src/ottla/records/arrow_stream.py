"""Reads the arrays of any Arrow library by the C stream, C data and PyCapsule interfaces, without needing an Arrow library.

Owns the calls of a foreign stream, and the release of what it returns. Must not know what the columns mean. Invariant: each array
is released exactly once, when the next one is asked for or the iterator is closed, and the stream itself when it is closed.

The structures are accessed as arrays of 64-bit words, as in ``cdata``. Source: "The Arrow C stream interface".
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ottla.errors import OttlaError
from ottla.records.memory import longs_at
from ottla.types import short_repr

_pointer = ctypes.c_void_p
_pointer_in = ctypes.PYFUNCTYPE(_pointer, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_RELEASE = ctypes.CFUNCTYPE(None, _pointer)
_GET = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer)
_GET_ERROR = ctypes.CFUNCTYPE(ctypes.c_char_p, _pointer)

# ArrowSchema: format*, name*, metadata*, flags, children, children*, dictionary*, release, private.
# ArrowArray: the release is word 8. ArrowArrayStream: get_schema, get_next, get_last_error, release, private.


@dataclass(frozen=True, slots=True)
class ArrowField:
    """A column, or the struct of all. ``format``: the type in the C data interface, of the indices if there is a dictionary."""

    format: str
    name: str
    children: tuple[ArrowField, ...] = ()
    dictionary: ArrowField | None = None


def _field_at(address: int) -> ArrowField:
    words = longs_at(address, 9)
    name = ctypes.string_at(words[1]).decode() if words[1] else ""
    children = tuple(_field_at(child) for child in longs_at(words[5], words[4])) if words[4] else ()
    return ArrowField(ctypes.string_at(words[0]).decode(), name, children, _field_at(words[6]) if words[6] else None)


class ArrowStream:
    """The arrays of an object that has ``__arrow_c_stream__``.

    Raises ``TypeError`` for another object, and ``OttlaError`` with the stream's own text if the stream fails.
    """

    def __init__(self, data: Any) -> None:
        export = getattr(data, "__arrow_c_stream__", None)
        if export is None or isinstance(data, type):
            has = "an object with __arrow_c_stream__, as a table of PyArrow or Polars is"
            raise TypeError(f"data must be Arrow data ({has}), not {short_repr(data)}")
        self._capsule = export()
        self._address = _pointer_in(self._capsule, b"arrow_array_stream")
        self._words = longs_at(self._address, 5)
        if self._words[3] == 0:
            raise ValueError("the Arrow stream was already read")
        try:
            self.field = self._read_field()
        except BaseException:
            self.close()
            raise

    def _read_field(self) -> ArrowField:
        memory = (ctypes.c_longlong * 9)()
        self._call(0, memory, "its types")
        try:
            return _field_at(ctypes.addressof(memory))
        finally:
            _RELEASE(memory[7])(ctypes.addressof(memory))

    def arrays(self) -> Iterator[int]:
        """The addresses of the arrays, each of which is valid until the next one is asked for."""
        while True:
            memory = (ctypes.c_longlong * 10)()
            self._call(1, memory, "an array")
            if memory[8] == 0:
                return
            try:
                yield ctypes.addressof(memory)
            finally:
                _RELEASE(memory[8])(ctypes.addressof(memory))

    def close(self) -> None:
        """Release the stream."""
        if self._words[3] != 0:
            _RELEASE(self._words[3])(self._address)

    def _call(self, number: int, memory: Any, what: str) -> None:
        code = _GET(self._words[number])(self._address, ctypes.addressof(memory))
        if code:
            text = _GET_ERROR(self._words[2])(self._address) if self._words[2] else None
            reason = text.decode(errors="replace") if text else os.strerror(code)
            raise OttlaError(f"the Arrow stream failed to return {what}: {reason}")
