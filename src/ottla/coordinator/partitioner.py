"""The partition of the coordinator's topic for a key.

Invariant: the partition is the one that Kafka computes, so that Ottla and Apache Kafka can read each other's logs.
Source: Java's ``String.hashCode`` over UTF-16 code units, its absolute value modulo the number of partitions.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def partition_for(group_id: str, partitions: int) -> int:
    """Return the partition of a key (a group id, a transactional id) among ``partitions``."""
    units = group_id.encode("utf-16-le", "surrogatepass")
    code = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code == 0x80000000:  # Java's smallest int has no absolute value, and Kafka takes 0
        return 0
    return min(code, 0x100000000 - code) % partitions
