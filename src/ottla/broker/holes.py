"""The holes in a log that a repair has reported: a start need not report them again.

Owns the file ``known-holes`` in the folder of a partition. Must not know segments. Invariant: a hole counts as known only if both
of its ends are those in the file, so a loss beside it is reported, and a damaged file hides nothing.

Apache Kafka ignores the file.
"""

from __future__ import annotations

from collections.abc import Collection

KNOWN_HOLES = "known-holes"
_VERSION = b"0"

Hole = tuple[int, int]
"""Offsets from the first one on and before the second that no segment has."""


def to_bytes(holes: Collection[Hole]) -> bytes:
    """As the file holds them."""
    return b"".join([_VERSION, b"\n", *(b"%d %d\n" % hole for hole in holes)])


def from_bytes(content: bytes | None) -> frozenset[Hole]:
    """Those in a file; none where it is missing, damaged or of a newer release."""
    version, *lines = (content or b"").splitlines() or [b""]
    rows = [line.split() for line in lines]
    if version != _VERSION or not all(len(row) == 2 and row[0].isdigit() and row[1].isdigit() for row in rows):
        return frozenset()
    return frozenset((int(start), int(end)) for start, end in rows)
