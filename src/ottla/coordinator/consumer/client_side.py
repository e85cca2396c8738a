"""Client-side assignors as values: which assignors members offer, and which member computes the next assignment.

Owns the choice of an assignor that all members can run, and the state of a run. Must not know requests or timers. The offers are
part of the members' metadata, and durable. The rest is volatile: after a restart a member is chosen again, and results that members
have not received yet are lost.

Source: KIP-848, "Client side mode", which Apache Kafka never shipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ottla.assignors import GroupSpec
from ottla.protocol.messages import consumer_group_heartbeat_request

Offers = tuple[consumer_group_heartbeat_request.ClientAssignor, ...]
"""The assignors that one member can run, in order of preference."""


@dataclass(frozen=True, slots=True)
class AssignorMessage:
    """An assignor's result for one member: the assignor's error (0: none) and its text, and metadata for the member's assignor.

    ``assignor`` is the assignor's name; empty if no member computed the assignment.
    """

    error: int = 0
    version: int = 0
    metadata: bytes = b""
    error_message: str | None = None
    assignor: str = ""


NO_MESSAGE = AssignorMessage()


@dataclass(frozen=True, slots=True)
class AssignorRun:
    """A member computes an assignment. There is one run at a time; changes of the group during a run lead to another run.

    ``spec`` is the group as the last PrepareAssignment returned it, in ``group_epoch``; ``None`` before the first.
    """

    member_id: str
    assignor: str
    group_epoch: int = -1
    spec: GroupSpec | None = None


@dataclass(frozen=True, slots=True)
class ClientAssignment:
    """The state of a group's client-side assignors."""

    run: AssignorRun | None = None
    computed_by: str | None = None
    """The member that computed the target assignment."""
    timed_out: frozenset[str] = frozenset()
    """The members that did not deliver the next target assignment in time."""
    messages: Mapping[str, AssignorMessage] = field(default_factory=dict)
    """Member id -> result of the run that computed the target assignment; members that have joined since have none."""

    def is_computing(self, member_id: str) -> bool:
        """Whether this member computes an assignment now."""
        return self.run is not None and self.run.member_id == member_id

    def message_to(self, member_id: str) -> AssignorMessage:
        """Return the assignor's result for a member."""
        return self.messages.get(member_id, NO_MESSAGE)


def common_assignor(offers: Collection[Offers]) -> str | None:
    """Return the assignor that most members prefer among those that all can run, in a version that all can read.

    ``None`` if there is no such assignor. The name breaks a tie. ``offers`` has one element for each member.
    """
    if not offers or not all(offers):
        return None
    first = next(iter(offers))
    common = [name for name in {assignor.name for assignor in first} if _all_can_run(name, offers)]
    votes = Counter(next(assignor.name for assignor in member if assignor.name in common) for member in offers if common)
    return max(sorted(votes), key=votes.__getitem__, default=None)


def _all_can_run(name: str, offers: Collection[Offers]) -> bool:
    named = [assignor for member in offers if (assignor := next((one for one in member if one.name == name), None)) is not None]
    if len(named) < len(offers):
        return False
    return max(assignor.minimum_version for assignor in named) <= min(assignor.maximum_version for assignor in named)
