"""Assignors: pure functions of members and partitions, used by clients and by the coordinator.

Owns the assignors by their names on the wire: those of classic groups, which the leader runs, and those of consumer groups
(KIP-848), which the coordinator or a member runs; and the interface for a user's own assignors. Must not know groups, connections
or time. Invariant: an assignment depends only on its input, so every caller gets the same result.
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
"""Name on the wire -> assignor of a consumer group, the default first. Their assignments need not be ``checked``."""
