"""The previous owners of partitions, for the sticky assignors: the members' claims in their user data, and the owners by these.

Owns the two layouts of the user data of ``sticky`` (version 1 adds the generation), the one of ``cooperative-sticky``, and the
resolution of claims that conflict. Must not know the new assignment. Invariants: a partition has at most one owner; unreadable user
data counts as no partitions and raises no error: another program wrote it, and only stickiness is lost.

Source: StickyAssignor and CooperativeStickyAssignor of Apache Kafka's clients (KIP-54, KIP-341, KIP-429).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    """``by_member``: member id -> the partitions that it may keep.

    ``disputed``: the partitions that several members claim in the same generation, so that none owns them. ``earlier``: partition
    -> its owner in the generation before the latest one that any member claims, if a member reports it.
    """

    by_member: Mapping[str, list[TopicPartition]]
    disputed: Set[TopicPartition]
    earlier: Mapping[TopicPartition, str]

    def owners(self) -> dict[TopicPartition, str]:
        """Partition -> the member that may keep it."""
        return {tp: member_id for member_id, owned in self.by_member.items() for tp in owned}


def resolve_claims(claims: Mapping[str, StickyUserData], partitions: Set[TopicPartition]) -> OwnedPartitions:
    """Resolve the claims of members. If two claim a partition, the later generation counts; in the same generation neither does.

    ``partitions`` are the existing ones of subscribed topics.
    """
    latest = max((claim.generation for claim in claims.values()), default=-1)
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    earlier: dict[TopicPartition, tuple[int, str]] = {}
    for member_id in sorted(claims):
        claimed, generation = claims[member_id]
        for tp in dict.fromkeys(claimed):
            if tp not in partitions:
                continue
            rival = best.get(tp)
            if rival is None or generation > rival[0]:
                best[tp] = (generation, member_id)
            elif generation == rival[0]:
                best[tp] = (generation, None)
            if generation < latest and (tp not in earlier or generation > earlier[tp][0]):
                earlier[tp] = (generation, member_id)
    by_member: dict[str, list[TopicPartition]] = {member_id: [] for member_id in claims}
    for tp, (_, owner) in best.items():
        if owner is not None:
            by_member[owner].append(tp)
    disputed = frozenset(tp for tp, (_, owner) in best.items() if owner is None)
    return OwnedPartitions(by_member, disputed, {tp: owner for tp, (_, owner) in earlier.items()})
