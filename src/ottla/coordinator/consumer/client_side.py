"""Assignors that members run themselves, as values: the offers, and which member was asked to compute the next assignment.

Owns the choice of an assignor that all members can run, and the state of the run. Must not know requests or timers. The members'
offers are part of their subscription, and durable. The rest is volatile: after a restart a member is asked again, and results of an
assignor that members have not received yet are lost.

Source: KIP-848, "Client side mode", which Apache Kafka never shipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ottla.assignors import GroupSpec
from ottla.protocol.messages import consumer_group_heartbeat_request

Offers = tuple[consumer_group_heartbeat_request.ClientAssignor, ...]
"""The assignors that one member can run, the preferred one first."""


@dataclass(frozen=True, slots=True)
class AssignorMessage:
    """An assignor's result for one member: an error of its own (0: none) and its text, and metadata for the member's side.

    ``assignor`` is its name; empty if no member computed the assignment.
    """

    error: int = 0
    version: int = 0
    metadata: bytes = b""
    error_message: str | None = None
    assignor: str = ""


NO_MESSAGE = AssignorMessage()


@dataclass(frozen=True, slots=True)
class AssignorRun:
    """One member computes an assignment. There is one run at a time; what happens meanwhile makes a further one necessary.

    ``spec`` is the group as the member was shown it last, in ``group_epoch``; ``None`` until it has asked for that.
    """

    member_id: str
    assignor: str
    group_epoch: int = -1
    spec: GroupSpec | None = None


@dataclass(frozen=True, slots=True)
class ClientAssignment:
    """The part of a group that has to do with assignors of its members."""

    run: AssignorRun | None = None
    computed_by: str | None = None
    """The member that computed the target assignment."""
    timed_out: frozenset[str] = frozenset()
    """The member that was asked for the next one and has not answered."""
    messages: Mapping[str, AssignorMessage] = field(default_factory=dict)
    """The results that came with the target assignment, by member: members that have joined since have none."""

    def is_asked(self, member_id: str) -> bool:
        """Whether a member is the one that computes an assignment now."""
        return self.run is not None and self.run.member_id == member_id

    def message_to(self, member_id: str) -> AssignorMessage:
        """What the assignor has to say to a member."""
        return self.messages.get(member_id, NO_MESSAGE)


def common_assignor(everybody: Collection[Offers]) -> str | None:
    """The assignor that all members can run, in versions that they all read: the one that most of them prefer.

    ``None`` if there is no such assignor. The name breaks a tie.
    """
    if not everybody or not all(everybody):
        return None
    first = next(iter(everybody))
    usable = [name for name in {one.name for one in first} if _all_can_run(name, everybody)]
    votes = Counter(next(one.name for one in each if one.name in usable) for each in everybody if usable)
    return max(sorted(votes), key=votes.__getitem__, default=None)


def _all_can_run(name: str, everybody: Collection[Offers]) -> bool:
    found = [next((one for one in each if one.name == name), None) for each in everybody]
    able = [one for one in found if one is not None]
    return len(able) == len(everybody) and max(one.minimum_version for one in able) <= min(one.maximum_version for one in able)
