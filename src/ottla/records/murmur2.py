"""The hash by which Kafka's producers assign keys to partitions.

Owns the function. Must not know partitions. Invariant: the result is that of Kafka's ``Utils.murmur2``, as an unsigned number.

The source runs uncompiled or compiled by Cython, with the same result; the functions are declared in ``murmur2.pxd``.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from ottla.records import _cython as cython

COMPILED = cython.compiled


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def hash_of_key(data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.ulonglong:
    """Austin Appleby's MurmurHash2, 32 bits, with Kafka's seed."""
    mask: cython.ulonglong = 0xFFFFFFFF
    factor: cython.ulonglong = 0x5BD1E995
    hash_: cython.ulonglong = 0x9747B28C
    word: cython.ulonglong
    high: cython.ulonglong
    at: cython.Py_ssize_t = 0
    hash_ = (hash_ ^ length) & mask
    while at + 4 <= length:
        word = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        high = data[at + 3]  # as a C int, shifted into the sign
        word |= high << 24
        word = word * factor & mask
        word ^= word >> 24
        word = word * factor & mask
        hash_ = (hash_ * factor & mask) ^ word
        at += 4
    if length - at == 3:
        hash_ ^= data[at + 2] << 16
    if length - at >= 2:
        hash_ ^= data[at + 1] << 8
    if length - at >= 1:
        hash_ ^= data[at]
        hash_ = hash_ * factor & mask
    hash_ ^= hash_ >> 13
    hash_ = hash_ * factor & mask
    return hash_ ^ hash_ >> 15


def murmur2(key: bytes) -> int:
    """The hash by which Kafka's producers assign keys to partitions, as an unsigned number of 32 bits."""
    data: cython.p_const_uchar = key
    return hash_of_key(data, len(key))
