"""One file an API. Each registers its handler in ``registry.HANDLERS``; ApiVersions is made from that table, so it cannot lie.

Owns the list of the files. Must not know what is in them. Invariant: an API is advertised if and only if it has a handler here
or the group coordinator serves it.
"""

from __future__ import annotations

from ottla.broker.api import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_config_resources,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_for_leader_epoch,
    produce,
    txn_offset_commit,
    write_txn_markers,
)
from ottla.broker.api.registry import HANDLERS

__all__ = [
    "HANDLERS",
    "alter_configs",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_topic_partitions",
    "elect_leaders",
    "fetch",
    "find_coordinator",
    "incremental_alter_configs",
    "init_producer_id",
    "list_config_resources",
    "list_offsets",
    "list_partition_reassignments",
    "metadata",
    "offset_for_leader_epoch",
    "produce",
    "txn_offset_commit",
    "write_txn_markers",
]
