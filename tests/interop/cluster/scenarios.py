"""The failures of a cluster and of its groups, as data, and the scenarios composed of them.

Owns the kinds of failures and the lists of them. Must not know how a failure is caused, nor the checks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

MEMBERS = 3
"""Members of each group at the beginning; there are never fewer than one less."""


@dataclass(frozen=True)
class KillCoordinator:
    """The node that coordinates the group is killed (SIGKILL). It comes back once the group works without it."""


@dataclass(frozen=True)
class KillLeader:
    """The node that leads a partition is killed (SIGKILL). It comes back once the group works without it."""


@dataclass(frozen=True)
class Restart:
    """A node shuts down cleanly and is started again at once."""

    node: int


@dataclass(frozen=True)
class Blackout:
    """All nodes are killed, and started again together."""


@dataclass(frozen=True)
class MoveLeaders:
    """Each partition gets other replicas, and the first of them as its leader."""


@dataclass(frozen=True)
class Recreate:
    """A topic is deleted, and recreated under its old name."""


@dataclass(frozen=True)
class Grow:
    """A topic gets two more partitions."""


@dataclass(frozen=True)
class Join:
    """A new member joins each group."""


@dataclass(frozen=True)
class Leave:
    """The oldest member of each group gets SIGTERM and leaves the group."""


@dataclass(frozen=True)
class KillMember:
    """The oldest member of each group is killed (SIGKILL)."""


@dataclass(frozen=True)
class Freeze:
    """The oldest member of each group is stopped (SIGSTOP), and resumed once the group works without it."""


Fault = KillCoordinator | KillLeader | Restart | Blackout | MoveLeaders | Recreate | Grow | Join | Leave | KillMember | Freeze

SHORT: tuple[tuple[Fault, ...], ...] = (
    (KillCoordinator(),),
    (Recreate(), KillMember()),
    (Join(), Grow()),
    (MoveLeaders(), Leave()),
)
"""What every change has to pass: what is in one row comes at once."""

ROUND: tuple[tuple[Fault, ...], ...] = (
    *((Restart(node),) for node in (1, 2, 3)),
    (MoveLeaders(),),
    (KillCoordinator(),),
    (KillLeader(),),
    (Recreate(),),
    (KillMember(),),
    (Join(),),
    (Grow(),),
    (Leave(),),
    (Freeze(),),
    (Blackout(),),
    (Join(), KillMember(), MoveLeaders()),
    (KillCoordinator(), Freeze()),
    (KillLeader(), Leave(), Join()),
    (Restart(1), Recreate(), Join(), KillMember()),
)


def endless(seed: int) -> Iterator[tuple[Fault, ...]]:
    """Yield each failure and each combination in ``ROUND``, in a random order from a seed, without end."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(ROUND, len(ROUND))
