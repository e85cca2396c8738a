"""Zigzag-encoded varints in memory, for the uncompiled source; ``varint.pxd`` is the counterpart in C.

Owns that encoding. Must not know what the numbers mean. Invariant: ``put_varint`` writes ``varint_size`` bytes.
"""

from __future__ import annotations


def varint_size(number: int) -> int:
    """The number of bytes of a varint."""
    left = number * 2 if number >= 0 else -2 * number - 1
    return max(1, (left.bit_length() + 6) // 7)


def put_varint(data: memoryview, at: int, number: int) -> int:
    """Write a varint at ``at``; return the position after it."""
    left = number * 2 if number >= 0 else -2 * number - 1
    while left >= 0x80:
        data[at] = left & 0x7F | 0x80
        at += 1
        left >>= 7
    data[at] = left
    return at + 1
