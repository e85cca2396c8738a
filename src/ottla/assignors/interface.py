"""What an assignor is asked and what it answers.

Owns the interface and the order in which Kafka's assignors look at members; must not know any one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ottla.types import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What one member of the group wants and has.

    ``owned``: what it still holds, as of ``generation``; ``user_data``: what its own assignor sent along.
    """

    topics: tuple[str, ...]
    instance_id: str | None = None
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None


class Assignor(Protocol):
    """A way to share partitions among members."""

    @property
    def name(self) -> str:
        """What the group's members call it on the wire: ``range``."""
        ...

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
    ) -> dict[str, tuple[TopicPartition, ...]]:
        """For each member id what it shall read; every member has an entry.

        ``partitions`` gives the number of partitions of each topic that exists; a subscribed topic that is not in there is
        left out.
        """
        ...


def in_order(members: Mapping[str, MemberSubscription], member_ids: Iterable[str]) -> list[str]:
    """Static members first, by instance id (which survives restarts), then the others by member id."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return (True, member_id) if instance_id is None else (False, instance_id)

    return sorted(member_ids, key=rank)
