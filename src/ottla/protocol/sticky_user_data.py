"""The user data of the ``sticky`` assignors: a member's previous partitions and generation, in its subscription.

Owns the two layouts of ``sticky`` (version 1 adds the generation) and the one of ``cooperative-sticky``. Must not know the
assignors. Invariant: unreadable bytes count as no partitions and raise no error: another program wrote them, and only stickiness is
lost.

Source: StickyAssignor and CooperativeStickyAssignor of Apache Kafka's clients (KIP-54, KIP-341, KIP-429).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ottla.types import TopicPartition

NO_GENERATION = -1

_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")


class StickyUserData(NamedTuple):
    """A member's partitions in a generation; ``-1``: unknown."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


def encode_sticky(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """The user data of ``sticky``, in version 1."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    pieces = [_INT.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        pieces += (_SHORT.pack(len(name)), name, struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers))
    pieces.append(_INT.pack(generation))
    return b"".join(pieces)


def decode_sticky(blob: bytes | None) -> StickyUserData:
    """The content of either version; without partitions if the bytes cannot be read."""
    if not blob:
        return StickyUserData()
    try:
        partitions, rest = _partitions(blob)
    except (struct.error, ValueError):
        return StickyUserData()
    return StickyUserData(partitions, _INT.unpack_from(blob, rest)[0] if len(blob) - rest >= _INT.size else NO_GENERATION)


def encode_generation(generation: int) -> bytes:
    """The user data of ``cooperative-sticky``, for leaders that do not read the generation of the subscription."""
    return _INT.pack(generation)


def decode_generation(blob: bytes | None) -> int:
    """The generation; ``-1`` if there is none."""
    return _INT.unpack_from(blob)[0] if blob is not None and len(blob) >= _INT.size else NO_GENERATION


def _partitions(blob: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """The partitions in the array of topics at the beginning, and the position after it."""
    at = _INT.size
    partitions: list[TopicPartition] = []
    for _ in range(_INT.unpack_from(blob)[0]):
        (length,) = _SHORT.unpack_from(blob, at)
        if not 0 <= length <= len(blob) - at - _SHORT.size:
            raise ValueError("a name longer than the blob")
        at += _SHORT.size
        topic = blob[at : at + length].decode()
        at += length
        (count,) = _INT.unpack_from(blob, at)
        at += _INT.size
        if not 0 <= count <= (len(blob) - at) // _INT.size:
            raise ValueError("an array longer than the blob")
        partitions += (TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", blob, at))
        at += count * _INT.size
    return tuple(partitions), at
