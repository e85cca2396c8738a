"""Unsigned variable-length integers: seven bits per byte, the lowest first, the top bit set in all bytes but the last.

Owns their encoding. Must not know the meaning of a number. Invariant: ``read_varint`` reads at most five bytes, as Kafka does.
"""

from __future__ import annotations

from ottla.errors import ProtocolError

WIDEST = 5
"""The maximum number of bytes of a number."""


def varint(number: int) -> bytes:
    """The shortest encoding of a number."""
    if number < 0x80:
        return SMALL[number]
    output = bytearray()
    while number >= 0x80:
        output.append(number & 0x7F | 0x80)
        number >>= 7
    output.append(number)
    return bytes(output)


def wide_varint(number: int) -> bytes:
    """The encoding of a number in ``WIDEST`` bytes, for space that is reserved before the number is known. Readers accept it."""
    return bytes((*(number >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)), number >> 28))


def read_varint(frame: memoryview | bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it. Raises ``IndexError`` if the frame ends first."""
    byte = frame[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise ProtocolError(f"a length at byte {position} is longer than five bytes")


SMALL = [bytes((number,)) for number in range(0x80)]
"""The numbers of one byte."""
