"""Addresses seen as rows of numbers, for the uncompiled source; ``memory.pxd`` says the same in C.

Owns these views. Must not know what is written through them. Invariant: a view keeps nothing alive; whoever gave the address does.
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


def copy(target: memoryview, at: int, source: Any, start: int, size: int) -> None:
    """``size`` bytes of ``source``, from ``start`` on, to ``at`` in ``target``."""
    target[at : at + size] = source[start : start + size]
