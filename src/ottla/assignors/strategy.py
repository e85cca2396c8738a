"""The assignors of one consumer, and the rebalance protocol that follows from them.

Owns the choice of the protocol. Must not know the joins of members. Invariants: each assignor of a strategy has a unique name; the
strategy of a classic group has at least one assignor, and a protocol that all of them support.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ottla.assignors.interface import ConsumerPartitionAssignor, RebalanceProtocol
from ottla.assignors.range import RangeAssignor
from ottla.assignors.roundrobin import RoundRobinAssignor
from ottla.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from ottla.errors import ConfigError
from ottla.types import is_utf8, short_repr

_T = TypeVar("_T")

OwnAssignor = RangeAssignor | RoundRobinAssignor | StickyAssignor | CooperativeStickyAssignor

OWN: Mapping[str, type[OwnAssignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""Name on the wire -> Ottla's assignor of classic groups."""

_MAX_VERSION = 2**15 - 1
"""Versions of user data are 16-bit numbers on the wire."""

_MAX_NAME_LENGTH = 2**15 - 1
"""The length of a name is a 16-bit number on the wire."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """``assignors`` by name, the preferred one first. ``foreign``: the names of the user's assignors.

    ``versions``: name -> ``version()``, for consumer groups.
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
    """The strategy of ``partition.assignment.strategy``: names, and the user's assignors.

    The protocol is the highest that all assignors support, as in Kafka. Raises ``ConfigError``.
    """
    setting = "partition.assignment.strategy"
    assignors, foreign = _by_name(setting, configured)
    common = frozenset(RebalanceProtocol)
    supported = {name: _supported_protocols(setting, assignor) for name, assignor in assignors.items()}
    for protocols in supported.values():
        common &= protocols
    if not common:
        names = {name: ", ".join(protocol.name for protocol in sorted(protocols)) for name, protocols in supported.items()}
        listed = "; ".join(f"{name}: {protocols}" for name, protocols in names.items())
        hint = "remove those that do not share a protocol with the others"
        text = f"{setting}: the assignors have no rebalance protocol in common ({listed})"
        raise ConfigError(text, hint=hint)
    return Strategy(assignors, max(common), foreign)


def client_strategy(configured: Iterable[object]) -> Strategy:
    """The strategy of ``group.client.assignors``: names, and the user's assignors; none if it is not set.

    Its protocol is always cooperative: the coordinator of a consumer group waits until a member has revoked a partition before it
    assigns it to another. Raises ``ConfigError``.
    """
    setting = "group.client.assignors"
    assignors, foreign = _by_name(setting, configured)
    versions = {name: _call(f"{setting}: version() of {name!r}", assignor.version) for name, assignor in assignors.items()}
    for assignor in assignors.values():
        _supported_protocols(setting, assignor)
    for name, version in versions.items():
        if not isinstance(version, int) or not 0 <= version <= _MAX_VERSION:
            text = f"{setting}: version() of {name!r} returned {version!r}, not a whole number from 0 to {_MAX_VERSION}"
            raise ConfigError(text)
    return Strategy(assignors, RebalanceProtocol.COOPERATIVE, foreign, versions)


def _supported_protocols(setting: str, assignor: ConsumerPartitionAssignor) -> frozenset[RebalanceProtocol]:
    returned = _call(f"{setting}: supported_protocols() of {assignor.name!r}", assignor.supported_protocols)
    try:
        return frozenset(map(RebalanceProtocol, returned))
    except (TypeError, ValueError):
        method = f"{setting}: supported_protocols() of {assignor.name!r}"
        raise ConfigError(f"{method} returned {short_repr(returned)}, not a list of RebalanceProtocols") from None


def _call(what: str, method: Callable[[], _T]) -> _T:
    """The result of an assignor's method, whose exceptions become ``ConfigError``."""
    try:
        return method()
    except Exception as error:
        raise ConfigError(f"{what} raises: {error!r}", cause=error) from error


def _by_name(setting: str, configured: Iterable[object]) -> tuple[dict[str, ConsumerPartitionAssignor], frozenset[str]]:
    """The assignors by name, and the names of the user's assignors. Raises ``ConfigError``."""
    assignors: dict[str, ConsumerPartitionAssignor] = {}
    foreign: set[str] = set()
    for item in configured:
        assignor = OWN[item]() if isinstance(item, str) else item
        if not isinstance(assignor, ConsumerPartitionAssignor):
            alike = next((name for name in OWN if getattr(assignor, "name", None) == name), None)
            hint = f"give the name, {alike!r}" if alike else "subclass ottla.assignors.ConsumerPartitionAssignor"
            raise ConfigError(f"{setting}: {item!r} is not an assignor", hint=hint)
        name = getattr(assignor, "name", None)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{setting}: {assignor!r} has no name", hint='give the class name = "..."')
        if not is_utf8(name) or len(name.encode()) > _MAX_NAME_LENGTH:
            raise ConfigError(
                f"{setting}: the name of an assignor is UTF-8 of at most {_MAX_NAME_LENGTH} bytes, not {short_repr(name)}"
            )
        if name in assignors:
            raise ConfigError(f"{setting}: two assignors are called {name!r}")
        assignors[name] = assignor
        if not isinstance(item, str):
            foreign.add(name)
    return assignors, frozenset(foreign)
