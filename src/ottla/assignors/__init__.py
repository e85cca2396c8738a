"""Who reads which partition: pure functions of members and partitions, used by clients (as the leader) and by the coordinator.

Owns the two tables of assignors by the name they have on the wire: those that a classic group's leader uses, and those of consumer
groups (KIP-848), which the coordinator uses or a member that it asks. Must not know groups, connections or time. Invariant:
an assignor's answer depends on its arguments alone, so whoever is asked comes to the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ottla.assignors import server_range, uniform
from ottla.assignors.interface import Assignor, MemberSubscription
from ottla.assignors.range import RangeAssignor
from ottla.assignors.roundrobin import RoundRobinAssignor
from ottla.assignors.server import Assignment, GroupSpec, MemberSpec, PartitionAssignor, TopicSpec, checked

__all__ = [
    "ASSIGNORS",
    "SERVER_ASSIGNORS",
    "Assignment",
    "Assignor",
    "GroupSpec",
    "MemberSpec",
    "MemberSubscription",
    "PartitionAssignor",
    "RangeAssignor",
    "RoundRobinAssignor",
    "TopicSpec",
    "checked",
]

_ALL: tuple[Assignor, ...] = (RangeAssignor(), RoundRobinAssignor())

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({assignor.name: assignor for assignor in _ALL})
"""Name on the wire -> assignor of a classic group."""

SERVER_ASSIGNORS: Mapping[str, Callable[[GroupSpec], dict[str, Assignment]]] = MappingProxyType(
    {"uniform": uniform.assign, "range": server_range.assign}
)
"""Name on the wire -> assignor of a consumer group, the default first. Their answers need not be ``checked``."""
