"""Access to memory by address, for the uncompiled source; ``memory.pxd`` is the counterpart in C.

Owns these views. Must not know their content. Invariant: a view does not keep the memory alive; the owner of the address does.
"""

from __future__ import annotations

import ctypes
from typing import Any


def ints_at(address: int, count: int) -> Any:
    """``count`` integers of 32 bits."""
    return (ctypes.c_int * count).from_address(address)


def longs_at(address: int, count: int) -> Any:
    """``count`` integers of 64 bits."""
    return (ctypes.c_longlong * count).from_address(address)


def bytes_at(address: int, count: int) -> memoryview:
    """``count`` bytes."""
    return memoryview((ctypes.c_ubyte * max(1, count)).from_address(address)).cast("B")


def address_of(buffer: bytearray) -> int:
    """The address of a buffer whose size does not change."""
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def copy(target: memoryview, at: int, source: Any, start: int, size: int) -> None:
    """Copy ``size`` bytes of ``source``, from ``start`` on, to ``at`` in ``target``."""
    target[at : at + size] = source[start : start + size]


def is_exported(buffer: bytearray) -> bool:
    """Whether a view of a buffer exists."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    del buffer[-1]
    return False
