"""Who reads which partition: pure functions of members and partitions, used by clients (as the leader) and by the coordinator.

Owns the one table of assignors by the name they have on the wire. Must not know groups, connections or time. Invariant:
an assignor's answer depends on its two arguments alone, so any member that is asked comes to the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ottla.assignors.interface import Assignor, MemberSubscription
from ottla.assignors.range import RangeAssignor
from ottla.assignors.roundrobin import RoundRobinAssignor

__all__ = ["ASSIGNORS", "Assignor", "MemberSubscription", "RangeAssignor", "RoundRobinAssignor"]

_ALL: tuple[Assignor, ...] = (RangeAssignor(), RoundRobinAssignor())

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({assignor.name: assignor for assignor in _ALL})
"""Name on the wire -> assignor."""
