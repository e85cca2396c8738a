"""What a run is about, and what becomes of it.

Must not import the cores: the command line needs these names for its help. Invariant: an outcome can be pickled.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Generation(enum.StrEnum):
    """A group protocol."""

    ZOOKEEPER = "zookeeper"
    CLASSIC = "classic"
    CONSUMER = "consumer"
    CENTRAL = "central"


IN_ZOOKEEPER = frozenset({Generation.ZOOKEEPER, Generation.CENTRAL})
"""Those whose members and offsets are in ZooKeeper."""


class TooLong(BaseException):
    """Raised in a run from outside, since it does not come to an end. No ``except Exception`` of a core may catch it."""


class Outcome(NamedTuple):
    """What became of a run."""

    generation: Generation
    seed: int
    failure: str | None
    """Why it has failed, in one line; ``None``: all invariants have held."""
    details: str = ""
    """Tracebacks, and what else has failed, unless the trace has it."""
    member_time: int = 0
    """The sum of the milliseconds for which each member has run."""
    handled: int = 0
    """Records that were handled at least once."""
    commits: int = 0
    """The number of times that a committed offset of a partition has changed."""
    set_back: int = 0
    """Those of them with which an offset went back, and may: see ``judge``."""
