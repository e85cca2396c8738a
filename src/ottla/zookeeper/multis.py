"""How much fits into one multi.

Owns the limits, the size of a request and the division of many operations. Must not know what the operations are for. Invariant: a
multi within these limits fits into a request of a server with the default ``jute.maxbuffer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from ottla.zookeeper.operations import Create, Multi, SetData

MULTI_OPERATIONS, MULTI_BYTES = 1000, 400_000
"""The limits of a multi if there can be several: the server executes nothing else meanwhile."""
OPERATION_BYTES = 100
"""What an operation with a committed offset takes in a request, at most, apart from its path."""

REQUEST_BYTES = 1_000_000
"""The limit of a multi that cannot be divided. A server closes the connection on which it gets more than ``jute.maxbuffer``, by
default 1,048,575 bytes; followers and logs get a little more than the request."""

_REQUEST_FRAME, _OPERATION_FRAME = 17, 48
"""What a request has around its operations, and a ``Create`` around its path and data; the others have less."""

_ItemT = TypeVar("_ItemT")


def part_of_multi(operations: int, longest: int) -> float:
    """Return which part of a multi these operations need; ``longest``: the length of the longest path, with the data."""
    return operations * max(1 / MULTI_OPERATIONS, (OPERATION_BYTES + longest) / MULTI_BYTES)


def request_bytes(multi: Multi, chroot: str = "") -> int:
    """The size of the request, at most."""
    size = _REQUEST_FRAME + len(multi.operations) * (_OPERATION_FRAME + len(chroot.encode()))
    for operation in multi.operations:
        size += len(operation.path.encode())
        size += len(operation.data) if isinstance(operation, Create | SetData) else 0
    return size


def parts(items: Sequence[tuple[str, _ItemT]]) -> Iterator[list[tuple[str, _ItemT]]]:
    """Divide what concerns these paths, in this order, into parts that each fit into a multi."""
    part: list[tuple[str, _ItemT]] = []
    size = 0
    for path, item in items:
        more = OPERATION_BYTES + len(path.encode())
        if part and (len(part) == MULTI_OPERATIONS or size + more > MULTI_BYTES):
            yield part
            part, size = [], 0
        part.append((path, item))
        size += more
    if part:
        yield part
