"""The assignors of one consumer, and the rebalance protocol that follows from them.

Owns the choice among protocols. Must not know who joins when. Invariants: each assignor of a strategy has a name of its own; that
of a classic group has at least one, and a protocol that all of them support.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.assignors.interface import ConsumerPartitionAssignor, RebalanceProtocol
from ottla.assignors.range import RangeAssignor
from ottla.assignors.roundrobin import RoundRobinAssignor
from ottla.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.errors import ConfigError

OWN: Mapping[str, type[ConsumerPartitionAssignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""Name on the wire -> assignor of a classic group that Ottla brings along."""

_HIGHEST_VERSION = 2**15 - 1
"""Versions of metadata are 16-bit numbers on the wire."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """``assignors`` by name, the preferred one first. ``foreign``: the names of those that are the user's.

    ``versions``: what ``version()`` of each one returned, where a group needs to know it.
    """

    assignors: Mapping[str, ConsumerPartitionAssignor]
    protocol: RebalanceProtocol
    foreign: frozenset[str] = frozenset()
    versions: Mapping[str, int] = field(default_factory=dict)

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions through a rebalance."""
        return self.protocol is RebalanceProtocol.COOPERATIVE


def strategy(configured: Iterable[object]) -> Strategy:
    """What ``partition.assignment.strategy`` says: names, and assignors of the user's own.

    The protocol is the highest that all have in common, as in Kafka. Raises ``ConfigError``.
    """
    assignors, foreign = _by_name("partition.assignment.strategy", configured)
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
    return Strategy(assignors, max(common), foreign)


def client_strategy(configured: Iterable[object]) -> Strategy:
    """What ``group.client.assignors`` says: names, and assignors of the user's own; none where it is not set.

    A consumer group takes partitions from one member before it gives them to another, whatever its assignors support. Raises
    ``ConfigError``.
    """
    setting = "group.client.assignors"
    assignors, foreign = _by_name(setting, configured)
    versions = {name: assignor.version() for name, assignor in assignors.items()}
    for name, version in versions.items():
        if not isinstance(version, int) or not 0 <= version <= _HIGHEST_VERSION:
            text = f"{setting}: version() of {name!r} returned {version!r}, not a whole number from 0 to {_HIGHEST_VERSION}"
            raise ConfigError(text)
    return Strategy(assignors, RebalanceProtocol.COOPERATIVE, foreign, versions)


def _by_name(setting: str, configured: Iterable[object]) -> tuple[dict[str, ConsumerPartitionAssignor], frozenset[str]]:
    """The assignors by name, and the names of those that are the user's. Raises ``ConfigError``."""
    assignors: dict[str, ConsumerPartitionAssignor] = {}
    foreign: set[str] = set()
    for item in configured:
        assignor = OWN[item]() if isinstance(item, str) else item
        if not isinstance(assignor, ConsumerPartitionAssignor):
            hint = "subclass ottla.assignors.ConsumerPartitionAssignor"
            raise ConfigError(f"{setting}: {item!r} is no assignor", hint=hint)
        name = getattr(assignor, "name", None)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{setting}: {assignor!r} has no name", hint='give the class name = "..."')
        if name in assignors:
            raise ConfigError(f"{setting}: two assignors are called {name!r}")
        assignors[name] = assignor
        if not isinstance(item, str):
            foreign.add(name)
    return assignors, frozenset(foreign)
