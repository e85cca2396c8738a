"""The assignors of one consumer, and the rebalance protocol that follows from them.

Owns the choice among protocols. Must not know who joins when. Invariant: a strategy that exists has at least one assignor, each
with a name of its own, and a protocol that all of them support.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.assignors.interface import ConsumerPartitionAssignor, RebalanceProtocol
from ottla.assignors.range import RangeAssignor
from ottla.assignors.roundrobin import RoundRobinAssignor
from ottla.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.errors import ConfigError

OWN: Mapping[str, type[ConsumerPartitionAssignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""Name on the wire -> assignor of a classic group that Ottla brings along."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """``assignors`` by name, the preferred one first. ``foreign``: the names of those that are the user's."""

    assignors: Mapping[str, ConsumerPartitionAssignor]
    protocol: RebalanceProtocol
    foreign: frozenset[str] = frozenset()

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions through a rebalance."""
        return self.protocol is RebalanceProtocol.COOPERATIVE


def strategy(configured: Iterable[object]) -> Strategy:
    """What ``partition.assignment.strategy`` says: names, and assignors of the user's own.

    The protocol is the highest that all have in common, as in Kafka. Raises ``ConfigError``.
    """
    assignors: dict[str, ConsumerPartitionAssignor] = {}
    foreign: set[str] = set()
    for item in configured:
        assignor = OWN[item]() if isinstance(item, str) else item
        if not isinstance(assignor, ConsumerPartitionAssignor):
            hint = "subclass ottla.assignors.ConsumerPartitionAssignor"
            raise ConfigError(f"partition.assignment.strategy: {item!r} is no assignor", hint=hint)
        name = getattr(assignor, "name", None)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"partition.assignment.strategy: {assignor!r} has no name", hint='give the class name = "..."')
        if name in assignors:
            raise ConfigError(f"partition.assignment.strategy: two assignors are called {name!r}")
        assignors[name] = assignor
        if not isinstance(item, str):
            foreign.add(name)
    common = frozenset(RebalanceProtocol)
    for assignor in assignors.values():
        common &= frozenset(assignor.supported_protocols())
    if not common:
        listed = "; ".join(
            f"{name}: {', '.join(one.name for one in assignor.supported_protocols())}" for name, assignor in assignors.items()
        )
        hint = "remove those that are on their own"
        text = f"partition.assignment.strategy: the assignors have no rebalance protocol in common ({listed})"
        raise ConfigError(text, hint=hint)
    return Strategy(assignors, max(common), frozenset(foreign))
