"""Which partition of ``__consumer_offsets`` a group lives in.

Invariant: the answer is Kafka's, so that a log written by one broker is found by the other.
Source: Java's ``String.hashCode`` over UTF-16 code units, its absolute value modulo the number of partitions.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def partition_for(group_id: str, partitions: int) -> int:
    """The partition of a group among ``partitions``."""
    units = group_id.encode("utf-16-le", "surrogatepass")
    code = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code == 0x80000000:  # Java has no positive twin of its smallest int, and Kafka takes 0
        return 0
    return min(code, 0x100000000 - code) % partitions
