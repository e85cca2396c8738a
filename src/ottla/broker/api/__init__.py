"""One file an API. Each registers its handler in ``registry.HANDLERS``; ApiVersions is made from that table, so it can not lie.

Owns the list of the files. Must not know what is in them. Invariant: an API is advertised if and only if it has a handler here
or the group coordinator serves it.
"""

from __future__ import annotations

from ottla.broker.api import (
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from ottla.broker.api.registry import HANDLERS

__all__ = [
    "HANDLERS",
    "api_versions",
    "create_topics",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "fetch",
    "find_coordinator",
    "init_producer_id",
    "list_offsets",
    "metadata",
    "produce",
]
