"""Assignors: pure functions of members and partitions, used by clients (as the leader) and by the coordinator.

Owns the assignors by the name they have on the wire: those that a classic group's leader uses, and those of consumer groups
(KIP-848), which the coordinator uses or a member that it asks; and the interface for assignors of the user's own. Must not know
groups, connections or time. Invariant: an assignment depends only on its input, so every caller gets the same
result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ottla.assignors import server_range, uniform
from ottla.assignors.interface import Cluster, ConsumerPartitionAssignor, MemberAssignment, MemberSubscription, RebalanceProtocol
from ottla.assignors.range import RangeAssignor
from ottla.assignors.roundrobin import RoundRobinAssignor
from ottla.assignors.server import Assignment, GroupSpec, MemberSpec, PartitionAssignor, TopicSpec, checked
from ottla.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.assignors.strategy import OWN, OwnAssignor, Strategy, client_strategy, strategy

__all__ = [
    "ASSIGNORS",
    "SERVER_ASSIGNORS",
    "Assignment",
    "Cluster",
    "ConsumerPartitionAssignor",
    "CooperativeStickyAssignor",
    "GroupSpec",
    "MemberAssignment",
    "MemberSpec",
    "MemberSubscription",
    "PartitionAssignor",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Strategy",
    "TopicSpec",
    "checked",
    "client_strategy",
    "strategy",
]

ASSIGNORS: Mapping[str, type[OwnAssignor]] = MappingProxyType(OWN)
"""Name on the wire -> assignor of a classic group."""

SERVER_ASSIGNORS: Mapping[str, Callable[[GroupSpec], dict[str, Assignment]]] = MappingProxyType(
    {"uniform": uniform.assign, "range": server_range.assign}
)
"""Name on the wire -> assignor of a consumer group, the default first. Their answers need not be ``checked``."""
