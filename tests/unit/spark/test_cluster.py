"""The planner's view of a cluster."""

from __future__ import annotations

import gc
import pickle

from ottla import Consumer
from ottla.spark.cluster import Cluster
from ottla.spark.options import parse_options


def clients() -> list[int]:
    return [id(each) for each in gc.get_objects() if isinstance(each, Consumer)]


def test_to_ask_nothing_needs_no_client() -> None:
    """Most batches with ``read_committed`` have no offsets in their options, so they need no second client for the high
    watermarks."""
    gc.collect()
    before = clients()
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t", "kafka.isolation.level": "read_committed"}
    with Cluster(parse_options(options)) as cluster:
        assert (cluster.earliest([]), cluster.latest([]), cluster.log_end_offsets([])) == ({}, {}, {})
        assert clients() == before


def test_a_pickled_cluster_has_no_clients_and_creates_its_own() -> None:
    """Spark pickles a stream's reader, and the cluster with it, for every task."""
    cluster = Cluster(parse_options({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}))
    copy = pickle.loads(pickle.dumps(cluster))
    assert vars(copy) == vars(cluster)
    with copy:
        assert copy.log_end_offsets([]) == {}
