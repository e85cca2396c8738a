"""The handlers of APIs, by subject. Each registers itself in ``registry.HANDLERS``.

Owns the list of the files. Must not know what is in them. Invariant: an API is advertised if and only if it has a handler here
or a coordinator serves it.
"""

from __future__ import annotations

from ottla.broker.api import (
    cluster,
    configs,
    consult,
    fetch,
    find_coordinator,
    metadata,
    offsets,
    produce,
    replicas,
    topics,
    transactions,
)
from ottla.broker.api.registry import HANDLERS

__all__ = [
    "HANDLERS",
    "cluster",
    "configs",
    "consult",
    "fetch",
    "find_coordinator",
    "metadata",
    "offsets",
    "produce",
    "replicas",
    "topics",
    "transactions",
]
